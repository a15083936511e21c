"""Outlives an agent that is killed, only to end what its workers have started and to remove its sockets.

The kernel ends the workers themselves with their agent (PR_SET_PDEATHSIG), but not the processes that they
have started. Run as a script, on its own, with the standard library alone:
`python -I -S guard.py AGENT_PID SOCKET_DIRECTORY`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

_PASSES = 40
_PAUSE_S = 0.05


def marker(agent_pid: int) -> bytes:
    """What the environment of every process of the agent's workers holds: the path of a heartbeat page."""
    return b"FTRUN_PAGE=/proc/%d/fd/" % agent_pid


def carries(pid: int, mark: bytes) -> bool:
    """Whether `pid` was started with an environment that holds `mark`."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


def main(agent_pid: int, directory: str) -> None:
    """Wait for the agent's end, however it comes; then clean up after it."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(agent_pid)
        if os.getppid() == agent_pid:
            select.select([pidfd], [], [])
    _end_marked(marker(agent_pid))
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def _end_marked(mark: bytes) -> None:
    """SIGKILL every process that carries the mark, until none is left: one may start others meanwhile."""
    for _ in range(_PASSES):
        found = [int(name) for name in os.listdir("/proc") if name.isdecimal() and carries(int(name), mark)]
        found = [pid for pid in found if pid != os.getpid() and not _is_zombie(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

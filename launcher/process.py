"""Processes of a node: spawn, watch, signal, reap, and find whatever a round left behind.

The only owner of process creation. Decides nothing: who is stopped, and when, is told by the caller.
Linux only: pidfds, PR_SET_CHILD_SUBREAPER (prctl(2)).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ftrun.launcher import guard
from ftrun.monitor.process_tree import children

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: `code` as `subprocess` has it (-n = died of signal n)."""

    code: int
    max_rss_bytes: int


class Process:
    """One child of the agent, leader of its own session.

    An ended child stays a zombie until `reap`, so that its process group number cannot be given to somebody
    else while the group is still being signalled.
    """

    __slots__ = ("_popen", "pid", "pidfd")

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.pidfd = os.pidfd_open(popen.pid)

    def poll(self) -> int | None:
        """Exit code if the process has ended, without reaping it; None while it runs."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        info = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def reap(self) -> ExitStatus:
        """Wait for the process, which must have ended or be about to, and free its pid and pidfd."""
        _, status, usage = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        os.close(self.pidfd)
        self.pidfd = -1
        return ExitStatus(self._popen.returncode, usage.ru_maxrss * 1024)

    def release(self) -> None:
        """Let go of a killed process without waiting: if it has not ended yet, `reap_orphans` takes it."""
        if self.poll() is not None:
            self.reap()
        else:
            self._popen.returncode = -signal.SIGKILL  # keeps subprocess from warning about a running child
            os.close(self.pidfd)
            self.pidfd = -1

    def end(self) -> None:
        """SIGKILL it and wait for it: for a process that cannot hang."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # somebody else has reaped it
            self.reap()

    def signal_group(self, signum: int) -> None:
        """Send `signum` to every process of this process's group; none left is no error."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def signal(self, signum: int) -> None:
        """Send `signum` to this process alone; one that was reaped or released is no error."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signum)


def spawn(argv: Sequence[str], environment: Mapping[str, str], pass_fds: Collection[int]) -> Process:
    """Start `argv` in a session of its own. Main thread only: PDEATHSIG follows the spawning thread.

    Raises:
        OSError: the system does not allow another process.
    """
    return Process(
        subprocess.Popen(argv, env=dict(environment), pass_fds=tuple(pass_fds), start_new_session=True)
    )


def spawn_guard(agent_pid: int, socket_directory: str) -> Process:
    """Start the process that cleans up after an agent that is killed (`guard`).

    Raises:
        OSError: the system does not allow another process.
    """
    argv = [sys.executable, "-I", "-S", guard.__file__, str(agent_pid), socket_directory]
    null = subprocess.DEVNULL
    return Process(
        subprocess.Popen(argv, env={}, stdin=null, stdout=null, stderr=null, start_new_session=True)
    )


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, so that none can escape the sweep (prctl(2))."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def descendants(root: int, without: Collection[int] = ()) -> list[int]:
    """Pids of all living descendants of `root`; the trees that start at `without` are left out.

    So are those that another thread of `root` than its main one has started: workers are started by that one,
    and the kernel gives it the orphans, while what health checks start on their threads may be so new that
    nobody could name it yet.
    """
    found: list[int] = []
    waiting = [pid for pid in children(root, [root]) if pid not in without]
    while waiting:
        pid = waiting.pop()
        waiting.extend(children(pid))
        if state_of(pid) not in ("Z", "X", ""):
            found.append(pid)
    return found


def state_of(pid: int) -> str:
    """State letter of proc(5) ("R", "S", "D", "T", "Z", ...); "" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def command_of(pid: int) -> str:
    """Executable and first argument of `pid`: enough to recognise it, too little to leak a secret option."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return "?"
    return b" ".join(word for word in words[:2] if word).decode(errors="replace") or "?"


def kill_descendant(pid: int, signum: int, root: int) -> None:
    """Send `signum` to `pid` if it still is a descendant of `root` (its number may have been given away)."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if _is_descendant(pid, root):
                signal.pidfd_send_signal(pidfd, signum)
        finally:
            os.close(pidfd)


def _is_descendant(pid: int, root: int) -> bool:
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            return False
        if pid == root:
            return True
    return False


def reap_orphans(known: Collection[int]) -> None:
    """Reap ended children of this process that it did not spawn itself (adopted as their subreaper).

    With no descriptor left they stay zombies until the next call.
    """
    try:
        adopted = children(os.getpid(), [os.getpid()])
    except OSError:
        return
    for pid in adopted:
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def catches(pid: int, signum: int) -> bool:
    """Whether `pid` has a handler for `signum` or ignores it, so that it would survive the signal."""
    mask = 0
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(("SigCgt:", "SigIgn:")):
                    mask |= int(line.split()[1], 16)
    except OSError:
        return False
    return bool(mask >> (signum - 1) & 1)

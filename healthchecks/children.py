"""Runs a command that may hang, under a deadline that holds even when the command cannot be killed.

Waiting for a killed process that sleeps in the kernel (a dead NFS server) takes as long as it sleeps. Such a
child is left behind and reported; it ends, and whoever is its parent reaps it, when the kernel lets it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

DEATH_S = 0.2
"""How long a killed child may take to vanish; one that takes longer does not go at all."""
_CHUNK_BYTES = 1 << 16
_running: set[int] = set()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended."""

    output: str
    """The last of stdout and stderr together."""
    exit_code: int | None = None
    """As `subprocess` has it; None if it did not end by itself, or if somebody else has reaped it."""
    has_hung: bool = False
    """It was killed at the deadline."""
    survivor: Survivor | None = None
    """The child, if it has outlived SIGKILL and was left behind."""


class Survivor:
    """A killed child that sleeps in the kernel."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def is_alive(self) -> bool:
        """Whether it is still there; frees its pid and descriptor once it is not."""
        if self._pidfd >= 0 and _ready([self._pidfd], 0):
            _reap(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            _running.discard(self.pid)
        return self._pidfd >= 0


def run_child(argv: Sequence[str], timeout_s: float, keep_bytes: int = 1 << 16) -> Ended:
    """Run a command in a session of its own, away from the working directory, and with no input.

    Returns after `timeout_s` + `DEATH_S` seconds at the latest. Of the output the last `keep_bytes` are
    kept. What the command leaves behind in its process group is killed.

    Raises:
        OSError: the command cannot be started.
    """
    deadline = time.monotonic() + timeout_s
    child = subprocess.Popen(
        argv,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdout is not None
    _running.add(child.pid)
    # `subprocess` must not wait for it too: it takes "no such child" for success.
    child.returncode = -signal.SIGKILL
    with child.stdout:
        return _watch(child.pid, child.stdout.fileno(), deadline, keep_bytes)


def _watch(pid: int, pipe: int, deadline: float, keep_bytes: int) -> Ended:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended, and somebody else was faster to reap it
        _running.discard(pid)
        return Ended(_collect(pipe, None, deadline, keep_bytes)[0])
    output, has_ended = _collect(pipe, pidfd, deadline, keep_bytes)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not has_ended and not _ready([pidfd], DEATH_S):
        return Ended(output, has_hung=True, survivor=Survivor(pid, pidfd))
    exit_code = _reap(pidfd)
    os.close(pidfd)
    _running.discard(pid)
    return Ended(output, exit_code if has_ended else None, has_hung=not has_ended)


def note_child(pid: int) -> None:
    """Count a child that somebody else has started among those of `running_pids`.

    It is struck off when a `Survivor` made of it is found to have ended.
    """
    _running.add(pid)


def running_pids() -> frozenset[int]:
    """Children that run now, and those left behind: whoever sweeps or reaps processes leaves them alone.

    May be called from any thread.
    """
    return frozenset(_running)


def _collect(pipe: int, pidfd: int | None, deadline: float, keep_bytes: int) -> tuple[str, bool]:
    """The end of the output, and whether the child has ended before `deadline` (CLOCK_MONOTONIC)."""
    os.set_blocking(pipe, False)
    output, is_open, has_ended = bytearray(), True, pidfd is None
    while not has_ended and (left_s := deadline - time.monotonic()) > 0:
        assert pidfd is not None
        ready = _ready([pidfd, pipe] if is_open else [pidfd], left_s)
        has_ended = pidfd in ready
        if pipe in ready:
            is_open = _drain(pipe, output, keep_bytes) != 0
    while has_ended and is_open and time.monotonic() < deadline:
        is_open = _drain(pipe, output, keep_bytes) > 0
    return output.decode(errors="replace"), has_ended


def _ready(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Those that can be read, or have ended (`select.select` takes none above 1023)."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}


def _drain(pipe: int, output: bytearray, keep_bytes: int) -> int:
    """Move bytes from the pipe to the end of `output`: how many, 0 at its end, -1 if there are none now."""
    try:
        chunk = os.read(pipe, _CHUNK_BYTES)
    except BlockingIOError:
        return -1
    output += chunk
    del output[:-keep_bytes]
    return len(chunk)


def _reap(pidfd: int) -> int | None:
    """Exit code of an ended child; None if its status went to somebody else."""
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

"""Asks workers for the stacks of all their Python threads, and waits until those are written.

The agent's side; the worker's side, which needs neither GIL nor main thread for it, is `stack_signal`.
Nothing is signalled that would die of it: a process is asked only if it catches the signal and still has the
file open.

How it is known that a file is complete, since faulthandler writes no end mark: while a signal handler runs,
the kernel keeps its signal blocked in that thread. Once the file has grown, the handler has begun; once no
thread has the signal blocked (but those that had before, and cannot be the ones), it has returned.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ftrun.monitor.stack_signal import STACKS_SIGNAL

_POLL_S = 0.005
_BIT = 1 << (STACKS_SIGNAL - 1)


class Outcome(Enum):
    """What became of a request for stacks."""

    WRITTEN = "written"
    """The file holds a whole new dump, at its end."""
    PARTIAL = "partial"
    """It has grown, but the process was still at it when time was up, or ended on its way."""
    SILENT = "silent"
    """It was asked and wrote nothing: it is in an uninterruptible system call, or a debugger holds it."""
    NOT_ASKED = "not asked"
    """It does not catch the signal, or has the file not open (any more), or has ended."""


@dataclass(frozen=True, slots=True)
class StackRequest:
    """Whose stacks are wanted, and the file to which its start-up code was told to write them."""

    pid: int
    path: str


class _Pending:
    """One process that was asked."""

    def __init__(self, request: StackRequest) -> None:
        self.request = request
        self._size_before = _size(request.path)
        self._blocking_before = set(_threads_blocking(request.pid))

    def ask(self) -> bool:
        """Sends the signal; false if the process is gone or not ours to signal."""
        pid = self.request.pid
        try:
            os.kill(pid, STACKS_SIGNAL)
            if _status(f"/proc/{pid}").get("State", "").startswith("T"):
                # What waits for a stopped process, it does first when it goes on.
                os.kill(pid, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def outcome(self) -> Outcome:
        """As of now: WRITTEN is final, PARTIAL and SILENT may still change while the process lives."""
        if _size(self.request.path) <= self._size_before:
            return Outcome.SILENT
        is_at_it = bool(set(_threads_blocking(self.request.pid)) - self._blocking_before)
        return Outcome.PARTIAL if is_at_it or not self.is_alive() else Outcome.WRITTEN

    def is_alive(self) -> bool:
        """Whether it still runs, or is stopped."""
        return _status(f"/proc/{self.request.pid}").get("State", "Z")[0] not in "ZX"


def request_stacks(requests: Iterable[StackRequest], timeout_s: float) -> dict[int, Outcome]:
    """Asks all processes at once and waits for them, `timeout_s` seconds at most; by pid.

    Takes some milliseconds per process that runs. A stopped process is continued for it, and stays so.
    """
    deadline = time.monotonic() + timeout_s
    outcomes: dict[int, Outcome] = {}
    waiting: list[_Pending] = []
    for request in requests:
        outcomes[request.pid] = Outcome.NOT_ASKED
        if catches_stacks_signal(request.pid) and has_open(request.pid, request.path):
            pending = _Pending(request)
            if pending.ask():
                waiting.append(pending)
    while waiting:
        for pending in waiting:
            outcomes[pending.request.pid] = pending.outcome()
        waiting = [
            pending
            for pending in waiting
            if outcomes[pending.request.pid] is not Outcome.WRITTEN and pending.is_alive()
        ]
        left_s = deadline - time.monotonic()
        if not waiting or left_s <= 0:
            break
        time.sleep(min(_POLL_S, left_s))
    return outcomes


def catches_stacks_signal(pid: int) -> bool:
    """Whether the process has a handler for the signal, which would otherwise end it."""
    return _has_signal(_status(f"/proc/{pid}"), "SigCgt")


def has_open(pid: int, path: str) -> bool:
    """Whether the process has the file at `path` open under any number."""
    try:
        wanted = os.stat(path)
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):
            if os.path.samestat(wanted, os.stat(f"/proc/{pid}/fd/{name}")):
                return True
    return False


def _threads_blocking(pid: int) -> Iterable[str]:
    """Ids of the threads of a process that have the signal blocked now."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for tid in tids:
        if _has_signal(_status(f"/proc/{pid}/task/{tid}"), "SigBlk"):
            yield tid


def _has_signal(status: dict[str, str], mask: str) -> bool:
    return bool(int(status.get(mask, "0"), 16) & _BIT)


def _status(directory: str) -> dict[str, str]:
    """The fields of a process's or thread's status file; none if it is gone."""
    try:
        with open(f"{directory}/status", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0

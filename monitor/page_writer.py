"""The worker's side of its shared-memory page: beats, optimizer steps, checkpoints.

A beat is one store into mapped memory, no system call, and importing this costs next to nothing, since
training scripts do it. What the page says is read by `ftrun.monitor.page`, for the agent.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from time import monotonic

PAGE_VARIABLE = "FTRUN_PAGE"
"""Environment variable of a worker: the path of its page."""
PAGE_BYTES = 4096
HEADER = struct.pack("=8sQ", b"ftrunpg\0", 1)
"""Magic, then the version of the layout below."""

# Offsets in bytes. Every field is one aligned 8-byte word in native order, written whole; those that are
# written together lie side by side. Step numbers are stored one higher, since 0 stands for "none".
REPORTED_STEP, HEARTBEATS, LAST_PROGRESS_AT, STEPS = 16, 24, 32, 40
FIRST_PROGRESS_AT, MAIN_STARTED_AT = 48, 56
CHECKPOINTS, CHECKPOINT_STEP, PATH_SEQUENCE, PATH_BYTES = 64, 72, 80, 88
PATH = 256
PATH_CAPACITY = PAGE_BYTES - PATH

UNSIGNED = struct.Struct("@Q")
SIGNED = struct.Struct("@q")
SECONDS = struct.Struct("@d")
_pack_reported_beat = struct.Struct("@qQd").pack_into
_pack_beat = struct.Struct("@Qd").pack_into
_pack_step = struct.Struct("@dQ").pack_into


class PageError(Exception):
    """What the path names is not a page of this version."""


class PageWriter:
    """A page as one process writes it. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory: mmap.mmap | bytearray = memory
        self._steps = UNSIGNED.unpack_from(memory, STEPS)[0]
        self._heartbeats = UNSIGNED.unpack_from(memory, HEARTBEATS)[0]
        self._has_progressed = SECONDS.unpack_from(memory, FIRST_PROGRESS_AT)[0] != 0.0
        self.on_first_progress: Callable[[], None] | None = None
        """Called once, after the first progress is on the page."""

    @classmethod
    def open(cls, path: str) -> PageWriter:
        """The page at `path`, shared with its creator.

        Raises:
            PageError: there is something else, or a page of another version.
            OSError: it cannot be opened.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = os.pread(fd, len(HEADER), 0)
            if found != HEADER or os.fstat(fd).st_size != PAGE_BYTES:
                raise PageError(f"{path} is not a page of ftrun: it begins with {found!r}, not {HEADER!r}")
            return cls(mmap.mmap(fd, PAGE_BYTES))
        finally:
            os.close(fd)

    def beat(self, step: int | None = None) -> None:
        """Counts one heartbeat; `step` is the script's own step number, if it gives one."""
        self._heartbeats = count = self._heartbeats + 1
        if step is None:
            _pack_beat(self._memory, HEARTBEATS, count, monotonic())
        else:
            _pack_reported_beat(self._memory, REPORTED_STEP, int(step) + 1, count, monotonic())
        if not self._has_progressed:
            self._mark_first_progress()

    def mark_optimizer_step(self) -> None:
        """Counts one optimizer step."""
        self._steps = count = self._steps + 1
        _pack_step(self._memory, LAST_PROGRESS_AT, monotonic(), count)
        if not self._has_progressed:
            self._mark_first_progress()

    def mark_main_started(self) -> None:
        """Notes that the user's script begins now."""
        SECONDS.pack_into(self._memory, MAIN_STARTED_AT, monotonic())

    def mark_checkpoint(self, path: str, step: int | None = None) -> None:
        """Notes a checkpoint that is wholly saved; a path beyond 3,840 bytes is counted but not kept."""
        encoded = os.fsencode(path)
        if len(encoded) > PATH_CAPACITY:
            encoded = b""
        # An odd sequence number tells readers that the fields below do not belong together yet.
        self._increase(PATH_SEQUENCE)
        self._memory[PATH : PATH + len(encoded)] = encoded
        UNSIGNED.pack_into(self._memory, PATH_BYTES, len(encoded))
        SIGNED.pack_into(self._memory, CHECKPOINT_STEP, 0 if step is None else int(step) + 1)
        self._increase(CHECKPOINTS)
        self._increase(PATH_SEQUENCE)
        SECONDS.pack_into(self._memory, LAST_PROGRESS_AT, monotonic())
        if not self._has_progressed:
            self._mark_first_progress()

    def _increase(self, offset: int) -> None:
        (value,) = UNSIGNED.unpack_from(self._memory, offset)
        UNSIGNED.pack_into(self._memory, offset, value + 1)

    def _mark_first_progress(self) -> None:
        self._has_progressed = True
        SECONDS.pack_into(self._memory, FIRST_PROGRESS_AT, monotonic())
        if self.on_first_progress is not None:
            self.on_first_progress()

    def detach(self) -> None:
        """Goes on with private memory: what is marked from now on, no other process sees."""
        self.on_first_progress = None
        self._memory = bytearray(self._memory)


_attached: PageWriter | None = None
_is_looked_up = False


def attached() -> PageWriter | None:
    """This process's own page, opened on the first call; None outside ftrun or if it cannot be opened.

    A forked child gets memory of its own: a data loader's work is not its parent's progress.
    """
    global _attached, _is_looked_up
    if not _is_looked_up:
        _is_looked_up = True
        _attached = _open_if_possible(os.environ.get(PAGE_VARIABLE, ""))
        if _attached is not None:
            os.register_at_fork(after_in_child=_attached.detach)
    return _attached


def _open_if_possible(path: str) -> PageWriter | None:
    try:
        return PageWriter.open(path) if path else None
    except (OSError, PageError):
        return None

"""The worker's side of its shared-memory page: beats, optimizer steps, checkpoints, samples, open sections.

A beat is one store into mapped memory, no system call, and importing this costs next to nothing, since
training scripts do it. What the page says is read by `ftrun.monitor.page`, for the agent.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from _thread import RLock
from collections.abc import Callable
from time import monotonic

# typing takes longer to import than all of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Beat(Protocol):
        """Counts one heartbeat; `step` is the script's own step number, if it gives one."""

        def __call__(self, step: int | None = None) -> None: ...


PAGE_VARIABLE = "FTRUN_PAGE"
"""Environment variable of a worker: the path of its page."""
PAGE_BYTES = 8192
HEADER = struct.pack("=8sQ", b"ftrunpg\0", 2)
"""Magic, then the version of the layout below."""

# Offsets in bytes. Every field is one aligned 8-byte word in native order, written whole; those that are
# written together lie side by side. Step numbers are stored one higher, since 0 stands for "none".
REPORTED_STEP, HEARTBEATS, LAST_PROGRESS_AT, STEPS = 16, 24, 32, 40
FIRST_PROGRESS_AT, MAIN_STARTED_AT = 48, 56
CHECKPOINTS, CHECKPOINT_STEP, PATH_SEQUENCE, PATH_BYTES = 64, 72, 80, 88
BYTECODE_CHANGES, MAIN_THREAD_CPU_S, SAMPLER_AT, SAMPLER_TID = 96, 104, 112, 120
SECTIONS_SEQUENCE, SECTIONS_OWNER, SECTIONS_OPENED = 128, 136, 144
SECTION_CLOSED_AT, SECTION_COUNT = 152, 160
CHECKPOINT_AT, CHECKPOINT_BLOCKING_S = 168, 176
SECTIONS = 256
_REPORTED_STEP_WORD, _HEARTBEATS_WORD, _LAST_PROGRESS_WORD = (
    offset // 8 for offset in (REPORTED_STEP, HEARTBEATS, LAST_PROGRESS_AT)
)
MAX_SECTIONS = 16
MAX_SECTION_NAME_BYTES = 40
PATH = 2048
PATH_CAPACITY = PAGE_BYTES - PATH

UNSIGNED = struct.Struct("@Q")
SIGNED = struct.Struct("@q")
SECONDS = struct.Struct("@d")
SECTION = struct.Struct(f"@dQ{MAX_SECTION_NAME_BYTES}s")
"""When it was opened, how many bytes its name has, and those."""
_pack_step = struct.Struct("@dQ").pack_into
_pack_sample = struct.Struct("@Qdd").pack_into


class PageError(Exception):
    """What the path names is not a page of this version."""


class PageWriter:
    """A page as one process writes it. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory: mmap.mmap | bytearray = memory
        """Private to this process once it is detached."""
        self._steps = UNSIGNED.unpack_from(memory, STEPS)[0]
        self._has_progressed = SECONDS.unpack_from(memory, FIRST_PROGRESS_AT)[0] != 0.0
        self.sections = SectionTable(memory)
        self.beat: Beat = make_beat(lambda: self)
        self.on_detach: list[Callable[[], None]] = []
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

    def mark_optimizer_step(self) -> None:
        """Counts one optimizer step."""
        self._steps = count = self._steps + 1
        _pack_step(self.memory, LAST_PROGRESS_AT, monotonic(), count)
        if not self._has_progressed:
            self.mark_first_progress()

    def mark_main_started(self) -> None:
        """Notes that the user's script begins now."""
        SECONDS.pack_into(self.memory, MAIN_STARTED_AT, monotonic())

    def mark_sampler(self, tid: int) -> None:
        """Notes which thread samples; 0 when none does any more, and then the last sample's time goes too."""
        UNSIGNED.pack_into(self.memory, SAMPLER_TID, tid)
        if tid == 0:
            SECONDS.pack_into(self.memory, SAMPLER_AT, 0.0)

    def mark_sample(self, bytecode_changes: int, main_thread_cpu_s: float) -> None:
        """Notes what a look at the main thread has shown (`ftrun.monitor.sampler`)."""
        _pack_sample(self.memory, BYTECODE_CHANGES, bytecode_changes, main_thread_cpu_s, monotonic())

    def mark_checkpoint(self, path: str, step: int | None = None, blocking_s: float | None = None) -> None:
        """Notes a checkpoint that is wholly saved; a path beyond 6,144 bytes is counted but not kept.

        How long training stood still for it is `blocking_s`; None if the caller does not know. Then, on the
        main thread, it is the time since the last progress; on another, the save has not stopped training.
        """
        encoded = os.fsencode(path)
        if len(encoded) > PATH_CAPACITY:
            encoded = b""
        now, moved_at = monotonic(), SECONDS.unpack_from(self.memory, LAST_PROGRESS_AT)[0]
        if blocking_s is None:
            blocking_s = now - moved_at if moved_at and _is_main_thread() else 0.0
        _begin(self.memory, PATH_SEQUENCE)
        SECONDS.pack_into(self.memory, CHECKPOINT_AT, now)
        SECONDS.pack_into(self.memory, CHECKPOINT_BLOCKING_S, max(0.0, blocking_s))
        self.memory[PATH : PATH + len(encoded)] = encoded
        UNSIGNED.pack_into(self.memory, PATH_BYTES, len(encoded))
        SIGNED.pack_into(self.memory, CHECKPOINT_STEP, 0 if step is None else int(step) + 1)
        _increase(self.memory, CHECKPOINTS)
        _increase(self.memory, PATH_SEQUENCE)
        SECONDS.pack_into(self.memory, LAST_PROGRESS_AT, now)
        if not self._has_progressed:
            self.mark_first_progress()

    def mark_first_progress(self) -> None:
        """Notes when it was, unless there was some before."""
        if self._has_progressed:
            return
        self._has_progressed = True
        SECONDS.pack_into(self.memory, FIRST_PROGRESS_AT, monotonic())
        if self.on_first_progress is not None:
            self.on_first_progress()

    def detach(self) -> None:
        """Goes on with private memory: what is marked from now on, no other process sees."""
        self.on_first_progress = None
        self.memory = bytearray(self.memory)
        self.sections.detach(self.memory)
        for forget in self.on_detach:
            forget()


class OpenedSection:
    """One entry of a `SectionTable`; each opening has its own, so that equal names can be open at once."""

    __slots__ = ("encoded", "opened_at")

    def __init__(self, name: str) -> None:
        self.encoded = encode_section_name(name)
        self.opened_at = monotonic()


class SectionTable:
    """The sections that a process is in, as its page shows them.

    The table belongs to one process at a time. A child interpreter has the same page (its beats count), but
    its sections are not shown while the parent has some open. Of more than 16, the outermost 16 are shown.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory: mmap.mmap | bytearray = memory
        self._open: list[OpenedSection] = []
        # Reentrant: a signal handler may open a section in the midst of another's opening.
        self._lock = RLock()
        if UNSIGNED.unpack_from(memory, SECTIONS_OWNER)[0] == os.getpid():
            self._write()  # This process ran another program before, which took its sections with it.

    def open(self, name: str) -> OpenedSection | None:
        """Shows a section as open from now on; None if the table is another process's."""
        with self._lock:
            if not self._open and self._is_taken():
                return None
            section = OpenedSection(name)
            self._open.append(section)
            self._write(opened=1)
            return section

    def close(self, section: OpenedSection) -> None:
        """Shows `section` as closed, whatever was opened after it."""
        with self._lock:
            self._open = [other for other in self._open if other is not section]
            self._write(closed_at=monotonic())

    def _is_taken(self) -> bool:
        owner = UNSIGNED.unpack_from(self._memory, SECTIONS_OWNER)[0]
        is_in_use = UNSIGNED.unpack_from(self._memory, SECTION_COUNT)[0] > 0
        return is_in_use and owner != os.getpid() and os.path.exists(f"/proc/{owner}")

    def _write(self, opened: int = 0, closed_at: float | None = None) -> None:
        memory, shown = self._memory, self._open[:MAX_SECTIONS]
        _begin(memory, SECTIONS_SEQUENCE)
        UNSIGNED.pack_into(memory, SECTIONS_OWNER, os.getpid())
        _increase(memory, SECTIONS_OPENED, opened)
        if closed_at is not None:
            SECONDS.pack_into(memory, SECTION_CLOSED_AT, closed_at)
        UNSIGNED.pack_into(memory, SECTION_COUNT, len(shown))
        for index, section in enumerate(shown):
            offset = SECTIONS + index * SECTION.size
            SECTION.pack_into(memory, offset, section.opened_at, len(section.encoded), section.encoded)
        _increase(memory, SECTIONS_SEQUENCE)

    def detach(self, memory: bytearray) -> None:
        """Goes on with private memory, and with a lock that no thread of the parent holds."""
        self._memory = memory
        self._lock = RLock()


def encode_section_name(name: str) -> bytes:
    """A section's name as the page holds it: UTF-8, cut to 40 bytes at a whole character."""
    encoded = name.encode("utf-8", "replace")
    if len(encoded) > MAX_SECTION_NAME_BYTES:
        encoded = encoded[:MAX_SECTION_NAME_BYTES].decode("utf-8", "ignore").encode()
    return encoded


def _is_main_thread() -> bool:
    """Without the import of threading, which costs more than all of this module: then nobody has a second."""
    threading = sys.modules.get("threading")
    return threading is None or threading.get_ident() == threading.main_thread().ident


def _begin(memory: mmap.mmap | bytearray, sequence: int) -> None:
    """Makes a sequence number odd: readers see that what it guards does not belong together yet."""
    (value,) = UNSIGNED.unpack_from(memory, sequence)
    # A writer that died on its way has left it odd.
    UNSIGNED.pack_into(memory, sequence, value | 1)


def _increase(memory: mmap.mmap | bytearray, offset: int, by: int = 1) -> None:
    (value,) = UNSIGNED.unpack_from(memory, offset)
    UNSIGNED.pack_into(memory, offset, value + by)


def make_beat(find: Callable[[], PageWriter | None]) -> Beat:
    """A function that counts one heartbeat on the page that `find` gives when it is first called, if any.

    All that it needs later is in its closure, since looking up attributes would make it slower by a third.
    """
    words = memoryview(b"").cast("q")
    seconds: memoryview[float] | None = None
    count = 0

    def heartbeat(step: int | None = None) -> None:
        """Says that training moves; cheap enough (0.3 us) for each step. `step` is your step number."""
        nonlocal count
        if seconds is None:
            attach(step)
            return
        count += 1
        if step is not None:
            try:
                words[_REPORTED_STEP_WORD] = step + 1
            except TypeError:
                words[_REPORTED_STEP_WORD] = int(step) + 1
        words[_HEARTBEATS_WORD] = count
        seconds[_LAST_PROGRESS_WORD] = monotonic()

    def attach(step: int | None) -> None:
        nonlocal words, seconds, count
        page = find()
        if page is None:
            return
        if forget not in page.on_detach:
            page.on_detach.append(forget)
        words = memoryview(page.memory).cast("B").cast("q")
        seconds = memoryview(page.memory).cast("B").cast("d")
        count = words[_HEARTBEATS_WORD]
        heartbeat(step)
        page.mark_first_progress()

    def forget() -> None:
        nonlocal seconds
        seconds = None

    return heartbeat


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

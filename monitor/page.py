"""The agent's side of a worker's shared-memory page: makes it and reads what the worker has marked.

Others on the node may read it too, without the agent or the worker knowing (`PageView.open`).

The page says what happened; whether that is enough is judged elsewhere. The layout is `page_writer`'s.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from struct import Struct

from ftrun.monitor import page_writer as layout
from ftrun.monitor.heartbeats import OpenSection

_READ_ATTEMPTS = 100
_NO_SECTIONS: tuple[tuple[OpenSection, ...], int, float | None] = ((), 0, None)


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """What a page said at one moment (per rank). Times are CLOCK_MONOTONIC seconds of the node."""

    steps: int = 0
    """Optimizer steps or client heartbeats since the page was made, whichever are more: a script that has
    both in its loop is not counted twice."""
    heartbeats: int = 0
    """Of those, heartbeats of `ftrun.monitor.client`; 0 for a script that does not know ftrun."""
    reported_step: int | None = None
    """The script's own step number, as last given to `client.heartbeat`."""
    main_started_at: float | None = None
    first_progress_at: float | None = None
    last_progress_at: float | None = None
    checkpoints: int = 0
    """How many checkpoints the script has reported as saved."""
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    """The last of them, absolute."""
    checkpoint_at: float | None = None
    """When it was reported."""
    checkpoint_blocking_s: float | None = None
    """How long training stood still for it; None if it did not, or if that is unknown."""
    bytecode_changes: int = 0
    """At how many looks of the worker's sampler the main thread had run bytecode since the look before."""
    main_thread_cpu_s: float = 0.0
    """CPU time of the main thread at the sampler's last look."""
    sampler_at: float | None = None
    """The sampler's last look; None before the first, and again once the interpreter is ending."""
    sampler_tid: int | None = None
    """The thread that samples. If /proc has no such thread, the process has since become another program
    (exec), and its sampler's silence means nothing."""
    sections: tuple[OpenSection, ...] = ()
    """What the script is in now by `client.section`, outermost first; of more than 16, the outermost 16.
    Names are cut to 40 bytes (`page_writer.encode_section_name`)."""
    sections_opened: int = 0
    """How many were opened so far."""
    section_closed_at: float | None = None
    """When one was last closed."""

    @property
    def has_progressed(self) -> bool:
        """An optimizer step, a heartbeat or a checkpoint was seen."""
        return self.first_progress_at is not None


class PageView:
    """One worker's page, to be read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._last_sections = _NO_SECTIONS

    @classmethod
    def open(cls, path: str) -> PageView:
        """A page that another process has made, by its `Page.path`; nothing can be written to it.

        Raises:
            PageError: there is something else, or a page of another version.
            OSError: it cannot be opened: that process is gone, or is another user's.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.pread(fd, len(layout.HEADER), 0)
            if found != layout.HEADER or os.fstat(fd).st_size != layout.PAGE_BYTES:
                raise layout.PageError(f"{path} is not a page of this version: it begins with {found!r}")
            return cls(mmap.mmap(fd, layout.PAGE_BYTES, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Gives the memory back; the page must not be used again."""
        self._memory.close()

    def read(self) -> PageSnapshot:
        """What the page says now."""
        checkpoints, checkpoint_step, path, saved_at, blocking_s = self._read_checkpoint()
        sections, sections_opened, section_closed_at = self._read_sections()
        return PageSnapshot(
            steps=max(self._count(layout.STEPS), self._count(layout.HEARTBEATS)),
            heartbeats=self._count(layout.HEARTBEATS),
            reported_step=self._step(layout.REPORTED_STEP),
            main_started_at=self._time(layout.MAIN_STARTED_AT),
            first_progress_at=self._time(layout.FIRST_PROGRESS_AT),
            last_progress_at=self._time(layout.LAST_PROGRESS_AT),
            checkpoints=checkpoints,
            checkpoint_step=checkpoint_step,
            checkpoint_path=path,
            checkpoint_at=saved_at,
            checkpoint_blocking_s=blocking_s,
            bytecode_changes=self._count(layout.BYTECODE_CHANGES),
            main_thread_cpu_s=self._unpack(layout.SECONDS, layout.MAIN_THREAD_CPU_S),
            sampler_at=self._time(layout.SAMPLER_AT),
            sampler_tid=self._count(layout.SAMPLER_TID) or None,
            sections=sections,
            sections_opened=sections_opened,
            section_closed_at=section_closed_at,
        )

    def _read_checkpoint(self) -> tuple[int, int | None, str | None, float | None, float | None]:
        """Count, step, path, when and for how long; only the count if the writer is busy, or died, at it."""
        for _ in range(_READ_ATTEMPTS):
            before = self._count(layout.PATH_SEQUENCE)
            length = min(self._count(layout.PATH_BYTES), layout.PATH_CAPACITY)
            encoded = self._memory[layout.PATH : layout.PATH + length]
            step = self._step(layout.CHECKPOINT_STEP)
            count = self._count(layout.CHECKPOINTS)
            times = self._time(layout.CHECKPOINT_AT), self._time(layout.CHECKPOINT_BLOCKING_S)
            if before % 2 == 0 and before == self._count(layout.PATH_SEQUENCE):
                return count, step, os.fsdecode(encoded) or None, *times
        return self._count(layout.CHECKPOINTS), None, None, None, None

    def _read_sections(self) -> tuple[tuple[OpenSection, ...], int, float | None]:
        """Open sections, how many were opened, when the last was closed; as before while they are written."""
        for _ in range(_READ_ATTEMPTS):
            before = self._count(layout.SECTIONS_SEQUENCE)
            count = min(self._count(layout.SECTION_COUNT), layout.MAX_SECTIONS)
            sections = tuple(self._section(index) for index in range(count))
            opened, closed_at = self._count(layout.SECTIONS_OPENED), self._time(layout.SECTION_CLOSED_AT)
            if before % 2 == 0 and before == self._count(layout.SECTIONS_SEQUENCE):
                self._last_sections = sections, opened, closed_at
                break
        return self._last_sections

    def _section(self, index: int) -> OpenSection:
        offset = layout.SECTIONS + index * layout.SECTION.size
        opened_at, length, encoded = layout.SECTION.unpack_from(self._memory, offset)
        return OpenSection(encoded[:length].decode("utf-8", "replace"), opened_at)

    def _count(self, offset: int) -> int:
        return int(self._unpack(layout.UNSIGNED, offset))

    def _step(self, offset: int) -> int | None:
        stored = int(self._unpack(layout.SIGNED, offset))
        return stored - 1 if stored else None

    def _time(self, offset: int) -> float | None:
        return self._unpack(layout.SECONDS, offset) or None

    def _unpack(self, field: Struct, offset: int) -> float:
        value: float = field.unpack_from(self._memory, offset)[0]
        return value


class Page(PageView):
    """One worker's page, as its maker has it."""

    def __init__(self, fd: int) -> None:
        super().__init__(mmap.mmap(fd, layout.PAGE_BYTES))
        self.fd = fd
        self.path = f"/proc/{os.getpid()}/fd/{fd}"
        """Value of FTRUN_PAGE for the worker; valid while this process lives and keeps `fd`."""

    @classmethod
    def create(cls) -> Page:
        """A new page without any progress, in memory that no file system names."""
        fd = os.memfd_create("ftrun-page", os.MFD_CLOEXEC)
        os.ftruncate(fd, layout.PAGE_BYTES)
        os.pwrite(fd, layout.HEADER, 0)
        return cls(fd)

    def close(self) -> None:
        """Gives memory and descriptor back; the page must not be used again."""
        super().close()
        os.close(self.fd)

"""The agent's side of a worker's shared-memory page: makes it and reads what the worker has marked.

The page says what happened; whether that is enough is judged elsewhere. The layout is `page_writer`'s.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from struct import Struct

from ftrun.monitor import page_writer as layout

_READ_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """What a page said at one moment (per rank). Times are CLOCK_MONOTONIC seconds of the node."""

    steps: int = 0
    """Optimizer steps or client heartbeats since the page was made, whichever are more: a script that has
    both in its loop is not counted twice."""
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

    @property
    def has_progressed(self) -> bool:
        """An optimizer step, a heartbeat or a checkpoint was seen."""
        return self.first_progress_at is not None


class Page:
    """One worker's page, as its maker sees it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path = f"/proc/{os.getpid()}/fd/{fd}"
        """Value of FTRUN_PAGE for the worker; valid while this process lives and keeps `fd`."""
        self._memory = mmap.mmap(fd, layout.PAGE_BYTES)

    @classmethod
    def create(cls) -> Page:
        """A new page without any progress, in memory that no file system names."""
        fd = os.memfd_create("ftrun-page", os.MFD_CLOEXEC)
        os.ftruncate(fd, layout.PAGE_BYTES)
        os.pwrite(fd, layout.HEADER, 0)
        return cls(fd)

    def read(self) -> PageSnapshot:
        """What the page says now."""
        checkpoints, checkpoint_step, path = self._read_checkpoint()
        return PageSnapshot(
            steps=max(self._count(layout.STEPS), self._count(layout.HEARTBEATS)),
            reported_step=self._step(layout.REPORTED_STEP),
            main_started_at=self._time(layout.MAIN_STARTED_AT),
            first_progress_at=self._time(layout.FIRST_PROGRESS_AT),
            last_progress_at=self._time(layout.LAST_PROGRESS_AT),
            checkpoints=checkpoints,
            checkpoint_step=checkpoint_step,
            checkpoint_path=path,
        )

    def _read_checkpoint(self) -> tuple[int, int | None, str | None]:
        """Count, step and path; neither step nor path if the writer is busy, or died, while it wrote them."""
        for _ in range(_READ_ATTEMPTS):
            before = self._count(layout.PATH_SEQUENCE)
            length = min(self._count(layout.PATH_BYTES), layout.PATH_CAPACITY)
            encoded = self._memory[layout.PATH : layout.PATH + length]
            step = self._step(layout.CHECKPOINT_STEP)
            count = self._count(layout.CHECKPOINTS)
            if before % 2 == 0 and before == self._count(layout.PATH_SEQUENCE):
                return count, step, os.fsdecode(encoded) or None
        return self._count(layout.CHECKPOINTS), None, None

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

    def reset(self) -> None:
        """Forgets all progress; not while a worker has the page open, since it keeps its own counts."""
        self._memory[len(layout.HEADER) :] = bytes(layout.PAGE_BYTES - len(layout.HEADER))

    def close(self) -> None:
        """Gives memory and descriptor back; the page must not be used again."""
        self._memory.close()
        os.close(self.fd)

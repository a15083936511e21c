"""Keeps the run directory within its size: log files of old rounds go first, and nothing goes unsaid.

Looks from a thread of its own, since a file system may take its time. Error files and stacks stay, as they
are small and all that is left of a failure; logs that were sent elsewhere (--log-dir) are not touched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrun.monitor.events import JournalReduced, LogsDropped
from ftrun.monitor.run_directories import size_bytes

Post = Callable[["LogsDropped | JournalReduced"], None]

_FIRST_LOOK_S = 10.0
_LOOK_EVERY_S = 60.0
_LOOKS_COST = 0.01
"""Part of the time that looks may take: a directory of many thousand files is looked at less often."""
_KEPT_ROUNDS = 2
"""The one that runs, and the one before it, whose end people want to understand now."""


@dataclass(frozen=True, slots=True)
class OldLogs:
    """The log files of a round that is over."""

    directory: Path
    files: tuple[Path, ...]
    size_bytes: int


def choose(total_bytes: int, limit_bytes: int, old: Sequence[OldLogs]) -> tuple[OldLogs, ...]:
    """Whose logs must go so that the rest is within the limit: the first of `old`, no more than needed."""
    chosen: list[OldLogs] = []
    for one in old:
        if total_bytes <= limit_bytes:
            break
        chosen.append(one)
        total_bytes -= one.size_bytes
    return tuple(chosen)


class Retention:
    """Looks at a run directory from time to time, from now on until `close`.

    Args:
        directory: the run directory.
        limit_bytes: how large it may be; None for any size, and then nobody looks.
        rounds: directories of the rounds' logs, the oldest first; called in the thread.
        post: takes what is to be journalled, from the thread.
    """

    def __init__(
        self, directory: Path, limit_bytes: int | None, rounds: Callable[[], Sequence[Path]], post: Post
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._rounds = rounds
        self._post = post
        self._emptied: set[Path] = set()
        self._is_reduced = False
        self._ended = threading.Event()
        if limit_bytes is not None:
            threading.Thread(target=self._run, name="ftrun-retention", daemon=True).start()

    def close(self) -> None:
        """End; a look that a file system holds up is not waited for."""
        self._ended.set()

    def look(self) -> None:
        """Look once, and do what is needed."""
        limit, total = self._limit_bytes, size_bytes(self._directory)
        if limit is None or total <= limit:
            return
        dropped = choose(total, limit, self._old_logs())
        freed = sum(map(_remove, dropped))
        if freed:
            paths = tuple(str(one.directory) for one in dropped)
            self._post(LogsDropped(paths, freed, total - freed, limit))
        if total - freed > limit and not self._is_reduced:
            self._is_reduced = True
            self._post(JournalReduced(total - freed, limit))

    def _old_logs(self) -> tuple[OldLogs, ...]:
        over = [one for one in self._rounds()[:-_KEPT_ROUNDS] if one not in self._emptied]
        found = tuple(_logs_in(one) for one in over if self._directory in one.parents)
        self._emptied |= {one.directory for one in found if not one.files}
        return tuple(one for one in found if one.files)

    def _run(self) -> None:
        wait_s = _FIRST_LOOK_S
        while not self._ended.wait(wait_s):
            began = time.monotonic()
            self.look()
            wait_s = max(_LOOK_EVERY_S, (time.monotonic() - began) / _LOOKS_COST)


def _logs_in(directory: Path) -> OldLogs:
    files = tuple(sorted(directory.rglob("*.log")))
    return OldLogs(directory, files, sum(map(_size_of, files)))


def _remove(logs: OldLogs) -> int:
    """Remove the files; returns the bytes that are free now."""
    freed = 0
    for file in logs.files:
        with contextlib.suppress(OSError):
            size = _size_of(file)
            file.unlink()
            freed += size
    return freed


def _size_of(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0

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
_LEFT_ALONE_S = 86400.0
"""Logs of other rounds than this agent's, in a directory that was used before, go once nobody has written to
them for so long: on a shared file system they may be another node's."""
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
        wall_clock: that of the file system's times (UTC epoch, seconds).
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int | None,
        rounds: Callable[[], Sequence[Path]],
        post: Post,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
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
        if self._ended.is_set():  # nobody listens any more
            return
        if freed:
            paths = tuple(str(one.directory) for one in dropped)
            self._post(LogsDropped(paths, freed, total - freed, limit))
        if total - freed > limit and not self._is_reduced:
            self._is_reduced = True
            self._post(JournalReduced(total - freed, limit))

    def _old_logs(self) -> tuple[OldLogs, ...]:
        own = list(self._rounds())
        over = [*self._earlier(own), *own[:-_KEPT_ROUNDS]]
        places = [one for one in over if one not in self._emptied and self._directory in one.parents]
        found = tuple(map(_logs_in, places))
        self._emptied |= {one.directory for one in found if not one.files}
        return tuple(one for one in found if one.files)

    def _earlier(self, own: Sequence[Path]) -> list[Path]:
        """Rounds of earlier runs in the same directory, the oldest first."""
        others = (one for one in self._directory.glob("logs/attempt_*") if one not in own)
        written = [(_written_ts(one), one) for one in others if one not in self._emptied]
        return [one for ts, one in sorted(written) if ts < self._wall_clock() - _LEFT_ALONE_S]

    def _run(self) -> None:
        wait_s = _FIRST_LOOK_S
        while not self._ended.wait(wait_s):
            began = time.monotonic()
            with contextlib.suppress(OSError):  # a directory vanished: it is looked at another time
                self.look()
            wait_s = max(_LOOK_EVERY_S, (time.monotonic() - began) / _LOOKS_COST)


def _logs_in(directory: Path) -> OldLogs:
    files = tuple(sorted(directory.rglob("*.log")))
    return OldLogs(directory, files, sum(map(_size_of, files)))


def _written_ts(directory: Path) -> float:
    """When one of its logs was last written (UTC epoch, seconds); 0 if it has none."""
    times = [0.0]
    for file in directory.rglob("*.log"):
        with contextlib.suppress(OSError):
            times.append(file.lstat().st_mtime)
    return max(times)


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

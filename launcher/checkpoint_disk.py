"""Reads below a checkpoint directory until a deadline, many files at a time, and remembers what it has found.

A parallel or network file system answers in milliseconds or never. Everything here runs in threads that the
interpreter's end does not wait for, and the caller goes on at the deadline. Judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ftrun.monitor.manifest_writer import hash_to_end

_THREADS = 16
"""Requests under way at a time: what hides the latency of a network file system is their number."""
_PATIENCE_S = 0.005
"""A local disk answers a few hundred questions in this time, for which threads would only cost more."""
_LOWEST_NICENESS = 19
_MOST_REMEMBERED = 200_000
"""A finding takes about 300 bytes."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class TooSlowError(Exception):
    """The deadline has passed; the message says during what."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file is written anew."""

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Listing:
    """One directory's names."""

    path: Path
    files: tuple[str, ...]
    directories: tuple[str, ...]
    """Links last, here and in `files`: what "latest" points to is known under its own name."""
    stamp: tuple[int, int]
    """Device and inode of the directory."""


class Memory:
    """Findings about files, each kept while the file's stamp stays as it is. For any thread."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str], tuple[Stamp, object]] = {}

    def known(self, question: str, path: Path, stamp: Stamp) -> object:
        """What was found, or None."""
        known = self._findings.get((question, str(path)))
        return known[1] if known is not None and known[0] == stamp else None

    def remember(self, question: str, path: Path, stamp: Stamp, finding: object) -> None:
        """Keep a finding."""
        if len(self._findings) >= _MOST_REMEMBERED:
            self._findings.clear()
        self._findings[question, str(path)] = (stamp, finding)

    def recall(self, question: str, path: Path, stamp: Stamp, find: Callable[[], _Result]) -> _Result:
        """What `find` says of `question` about a file, asked once for each stamp."""
        key = (question, str(path))
        known = self._findings.get(key)
        if known is not None and known[0] == stamp:
            return known[1]  # type: ignore[return-value]  # a question has one type of answer
        finding = find()
        self.remember(question, path, stamp, finding)
        return finding


class Disk:
    """One look at a file system, with a deadline (by `clock`)."""

    def __init__(
        self, deadline: float, clock: Callable[[], float], memory: Memory, is_background: bool = False
    ) -> None:
        self._deadline = deadline
        self._clock = clock
        self.memory = memory
        self._is_background = is_background

    def begin_thread(self) -> None:
        """To be called first in each thread of the look: one in the background disturbs nobody."""
        if self._is_background:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_NICENESS)

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock() >= self._deadline

    def check(self, doing: str) -> None:
        """Raises TooSlowError once the deadline has passed."""
        if self.is_late:
            raise TooSlowError(doing)

    def read_directory(self, path: Path) -> Listing:
        """The names in a directory.

        Raises:
            OSError: it cannot be listed.
        """
        status = path.stat()
        with os.scandir(path) as listing:
            entries = sorted(listing, key=lambda entry: (entry.is_symlink(), entry.name))
        # os.path.isdir, because DirEntry.is_dir raises for a link that leads to itself.
        directories = tuple(entry.name for entry in entries if os.path.isdir(entry))
        others = frozenset(directories)
        files = tuple(entry.name for entry in entries if entry.name not in others)
        return Listing(path, files, directories, (status.st_dev, status.st_ino))

    def read_directories(self, paths: Sequence[Path]) -> list[Listing | OSError]:
        """What is in many directories, in their order; what cannot be listed with the reason."""
        return self.map(self._try_list, paths, "listing the directories")

    def _try_list(self, path: Path) -> Listing | OSError:
        try:
            return self.read_directory(path)
        except OSError as error:
            return error

    def stamp(self, path: Path) -> Stamp | OSError:
        """The file's stamp, or why there is none."""
        try:
            status = os.stat(path)
        except OSError as error:
            return error
        return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)

    def stamps(self, paths: Sequence[Path]) -> list[Stamp | OSError]:
        """The stamps of many files, in their order."""
        return self.map(self.stamp, paths, "looking at the files")

    def hash(self, path: Path) -> str | OSError | None:
        """SHA-256 of a file in hexadecimal, or why there is none; None if the deadline came first."""
        try:
            with open(path, "rb", buffering=0) as file:
                return hash_to_end(file.readinto, lambda: self.is_late)
        except OSError as error:
            return error

    def map(
        self,
        function: Callable[[_Item], _Result],
        items: Sequence[_Item],
        doing: str,
        patience_s: float = _PATIENCE_S,
    ) -> list[_Result]:
        """`function`, which must not raise, of each item, in their order.

        One after the other at first; what is left after `patience_s` seconds in threads, many at a time.

        Raises:
            TooSlowError: the deadline came first.
        """
        results: list[_Result] = []
        patient_until = self._clock() + patience_s
        for item in items:
            self.check(doing)
            if self._clock() >= patient_until and len(items) - len(results) > 1:
                break
            results.append(function(item))
        return results + self._map_in_threads(function, items[len(results) :], doing)

    def _map_in_threads(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item], doing: str
    ) -> list[_Result]:
        if not items:
            return []
        found: dict[int, _Result] = {}
        places, lock, is_done = iter(range(len(items))), threading.Lock(), threading.Event()

        def work() -> None:
            self.begin_thread()
            while not self.is_late:
                with lock:
                    place = next(places, None)
                if place is None:
                    return
                result = function(items[place])
                with lock:
                    found[place] = result
                    if len(found) == len(items):
                        is_done.set()

        for _ in range(min(_THREADS, len(items))):
            threading.Thread(target=work, name="ftrun-checkpoint", daemon=True).start()
        if not is_done.wait(max(0.0, self._deadline - self._clock())):
            raise TooSlowError(f"{doing}: {len(found)} of {len(items)} were answered")
        return [found[place] for place in range(len(items))]

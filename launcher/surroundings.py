"""Looks around after a failure: room on the file systems that the job needs, dumps of flight recorders.

A file server that is gone may never answer, so every look is made in a thread that nobody has to wait for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ftrun.monitor.flight_recorder import dump_file
from ftrun.monitor.incident import Space

_SHM = "/dev/shm"

_Answer = TypeVar("_Answer")


class Look(Generic[_Answer]):
    """One look after the other, each at several things."""

    def __init__(self) -> None:
        self._answers: list[_Answer] = []
        self._thread: threading.Thread | None = None

    def begin(self, answers: Iterable[_Answer]) -> None:
        """Take the answers one by one; nothing is begun while an older look still waits for one."""
        self._answers = found = []  # also then: what an older look has seen is of another round
        if self._thread is not None and self._thread.is_alive():
            return

        def take() -> None:
            for answer in answers:
                found.append(answer)  # one by one, so that those before a hung one are seen

        thread = threading.Thread(target=take, name="ftrun-surroundings", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the job's threads have used up what there is: it may be why the round ended
            return
        self._thread = thread

    def answers(self, timeout_s: float) -> tuple[_Answer, ...]:
        """Those of the last look that have come, or come within `timeout_s` seconds."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return tuple(self._answers)


class Surroundings:
    """Of one node; for the agent's main thread.

    Args:
        environ: what the workers are started with.
        checkpoint_dir: where the job's checkpoints are; None if that is not known.
    """

    def __init__(self, environ: Mapping[str, str], checkpoint_dir: str | None) -> None:
        self._environ = environ
        self._checkpoint_dir = checkpoint_dir
        self._room = Look[Space]()
        self._dumps = Look[tuple[int, str]]()

    def look_for_room(self, log_dir: str) -> None:
        """Begin to see how full shared memory, logs and checkpoints are."""
        places = {"shared memory": _SHM, "logs": log_dir, "checkpoints": self._checkpoint_dir or ""}
        self._room.begin(_spaces(places))

    def look_for_dumps(self, ranks: Sequence[int], since_ts: float) -> None:
        """Begin to look for what flight recorders have written since then (UTC epoch, seconds)."""
        self._dumps.begin(_dumps(self._environ, ranks, since_ts))

    def room(self, timeout_s: float) -> tuple[Space, ...]:
        """What has been seen of it, waiting at most so long."""
        return self._room.answers(timeout_s)

    def dumps(self, timeout_s: float) -> dict[int, str]:
        """The same of dumps: their files by rank."""
        return dict(self._dumps.answers(timeout_s))


def _spaces(places: Mapping[str, str]) -> Iterator[Space]:
    for what, path in places.items():
        if path and (space := read_space(path, what)) is not None:
            yield space


def _dumps(environ: Mapping[str, str], ranks: Sequence[int], since_ts: float) -> Iterator[tuple[int, str]]:
    for rank in ranks:
        if found := dump_file(environ, rank, since_ts):
            yield rank, found


def read_space(path: str, what: str) -> Space | None:
    """Room on the file system of `path`, or of the nearest directory above it; None if it cannot be told."""
    for place in (Path(path), *Path(path).parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        # Some file systems make inodes as they need them, and count none.
        return Space(path, what, free, total, found.f_favail if found.f_files else None)
    return None

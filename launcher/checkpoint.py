"""Finds the newest whole checkpoints below a directory, within a deadline.

Torch is not imported and tensors are not read: this runs before the workers start and in every restart. What
may be a checkpoint is found by `checkpoint_search`, judged by `checkpoint_formats`, compared with checksums
by `checkpoint_evidence`; which of several is the newest is decided in `checkpoint_choice`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.launcher.checkpoint_choice import (
    Candidate,
    CheckpointChoice,
    SkippedCheckpoint,
    WholeCheckpoints,
    order_newest_first,
    trusted,
)
from ftrun.launcher.checkpoint_disk import Disk, Memory, TooSlowError
from ftrun.launcher.checkpoint_evidence import WHOLE, Share, compare
from ftrun.launcher.checkpoint_formats import judge, saved_ns
from ftrun.launcher.checkpoint_search import search
from ftrun.launcher.messages import SeenCheckpoint

DEFAULT_TIMEOUT_S = 30.0
_MAX_DEPTH = 2
_RETURN_S = 0.2
"""How much later than its deadline a look may come back that is not stuck."""
_MOST_LOOKS = 2
"""At a time: one for the next round and one in the background; others that have not come back are stuck."""

_MEMORY = Memory()
"""Of all looks of this process."""


@dataclass(slots=True)
class _Progress:
    """What a look has found so far; read by who waits for it when the deadline comes."""

    seen: list[SeenCheckpoint] = field(default_factory=list)
    skipped: list[SkippedCheckpoint] = field(default_factory=list)
    unverified: list[SkippedCheckpoint] = field(default_factory=list)
    is_empty: bool = False
    is_late: bool = False
    is_done: bool = False


class Checkpoints:
    """The checkpoints below one directory. For any thread."""

    def __init__(
        self,
        directory: Path,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_depth: int = _MAX_DEPTH,
        memory: Memory = _MEMORY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory.absolute()
        self.timeout_s = timeout_s
        self._max_depth = max_depth
        self._memory = memory
        self._clock = clock
        self._looks: list[threading.Thread] = []
        self._last: tuple[SeenCheckpoint, ...] = ()
        """What the last look that came to its end has seen."""

    def look(
        self,
        limit: int = 3,
        avoided: Collection[str] = (),
        share: Share = WHOLE,
        timeout_s: float | None = None,
        is_background: bool = False,
    ) -> WholeCheckpoints:
        """The newest `limit` whole ones that are not `avoided` (`SeenCheckpoint.identity`).

        Comes back within `timeout_s` seconds whatever the file system does, with what was found until then;
        never raises for what is on disk. Whatever cannot be used is in `skipped`, with a reason that names
        the file, what was found and what was expected. A directory that does not exist has none.

        A look that sees none before its deadline answers with what the one before it has seen.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        self._looks = [thread for thread in self._looks if thread.is_alive()]
        if len(self._looks) >= _MOST_LOOKS:
            stuck = self._slow("an earlier look has not come back", timeout_s)
            return WholeCheckpoints(trusted(self._last, avoided)[:limit], (stuck,))
        disk = Disk(self._clock() + timeout_s, self._clock, self._memory, is_background)
        progress = _Progress()

        def run() -> None:
            disk.begin_thread()
            try:
                self._look(disk, limit, frozenset(avoided), share, progress)
            except TooSlowError as error:
                progress.skipped.append(self._slow(str(error), timeout_s))
                progress.is_late = True
            progress.is_done = True

        # The interpreter's end does not wait for it: a read from a dead file server never returns.
        thread = threading.Thread(target=run, name="ftrun-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            slow = self._slow(str(error), timeout_s)
            return WholeCheckpoints(trusted(self._last, avoided)[:limit], (slow,))
        self._looks.append(thread)
        thread.join(timeout_s + _RETURN_S)
        return self._answer(progress, limit, avoided, timeout_s)

    def _answer(
        self, progress: _Progress, limit: int, avoided: Collection[str], timeout_s: float
    ) -> WholeCheckpoints:
        """What there is of it when the time is over."""
        skipped = tuple(progress.skipped)
        if not progress.is_done:
            skipped += (self._slow("the file system does not answer", timeout_s),)
        elif not progress.is_late:
            self._last = tuple(progress.seen)
        seen = tuple(progress.seen)
        if not seen and (progress.is_late or not progress.is_done):
            seen = trusted(self._last, avoided)[:limit]
        return WholeCheckpoints(seen, skipped, tuple(progress.unverified), progress.is_empty)

    def _slow(self, why: str, timeout_s: float) -> SkippedCheckpoint:
        what = f"was not looked through within {timeout_s:g} s (checkpoint.look_timeout)"
        return SkippedCheckpoint(self.directory, f"{what}: {why}")

    def _look(
        self, disk: Disk, limit: int, avoided: frozenset[str], share: Share, progress: _Progress
    ) -> None:
        progress.is_empty = _is_empty(self.directory, disk)
        candidates, unreadable = search(self.directory, self._max_depth, disk)
        progress.skipped += unreadable
        for candidate in order_newest_first(candidates):
            if len(progress.seen) == limit:
                break
            judged = judge(candidate, disk)
            seen = SeenCheckpoint(str(candidate.path), candidate.step, saved_ns(candidate, judged.files))
            if judged.defect is not None:
                progress.skipped.append(
                    SkippedCheckpoint(candidate.path, judged.defect.reason, judged.defect.is_unfinished)
                )
            elif seen.identity not in avoided:
                self._compare(candidate, seen, disk, share, progress)

    def _compare(
        self, candidate: Candidate, seen: SeenCheckpoint, disk: Disk, share: Share, progress: _Progress
    ) -> None:
        comparison = compare(candidate, disk, share)
        if comparison.defect is not None:
            progress.skipped.append(SkippedCheckpoint(candidate.path, comparison.defect.reason))
            return
        if comparison.left:
            total = comparison.compared + comparison.left
            what = f"{comparison.left} of {total} files were not compared with their checksums in time"
            progress.unverified.append(SkippedCheckpoint(candidate.path, what))
        progress.seen.append(seen)


def _is_empty(directory: Path, disk: Disk) -> bool:
    """Whether nothing is in it, or it is not there: then no script can have found anything there."""
    try:
        listing = disk.read_directory(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return not listing.files and not listing.directories


def find_newest_whole(directory: Path, max_depth: int = _MAX_DEPTH) -> CheckpointChoice:
    """The newest whole checkpoint among `directory` itself and the directories up to `max_depth` below it.

    As `find_whole` finds it.
    """
    found = find_whole(directory, 1, max_depth)
    newest = next(iter(found.seen), None)
    if newest is None:
        return CheckpointChoice(None, None, found.skipped)
    return CheckpointChoice(Path(newest.path), newest.step, found.skipped)


def find_whole(directory: Path, limit: int = 3, max_depth: int = _MAX_DEPTH) -> WholeCheckpoints:
    """The newest `limit` whole checkpoints among `directory` itself and those up to `max_depth` below it.

    As `Checkpoints.look` finds them.
    """
    return Checkpoints(directory, max_depth=max_depth).look(limit)

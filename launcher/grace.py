"""Which workers, asked to end, cannot act on it: the rest of their grace is of no use. Pure.

A Python signal handler runs between two bytecodes of the main thread. One that has sat in a collective since
before it was asked, and whose other ranks are gone, never comes to that. Any other may be inside its handler,
waiting for a save or for the collectives of one: it keeps its grace.

How it is known that the handler has not run: no look of the worker's sampler, up to one after the stack was
written, has found any bytecode. The first look after the asking also covers time before it, so a rank that
has run just before it was asked is taken for one that has run since: that costs time, and never a save.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ftrun.monitor.culprits import Stack
from ftrun.monitor.rank_signs import Signs, may_end_grace

_LOOK_EVERY_S = 0.1
"""Between looks while a round is being stopped: the answer is wanted in a fraction of a second."""
_WINDOW_S = 1.0
"""How long CPU time is added up; a rank that is not found to stand still in it is looked at anew."""


@dataclass(slots=True)
class _Survivor:
    """A rank that may yet turn out to be hopeless."""

    asked: Signs
    """What it was first seen with, in the turn in which it was asked to end."""
    is_in_collective: bool = False
    """A stack that was written since then says so."""
    before: Signs | None = None
    """What it was seen with when it last moved; None until its first stack has been written."""


class GraceWatch:
    """Compares each worker's signs with those it had when it was asked to end."""

    def __init__(self) -> None:
        self._survivors: dict[int, _Survivor] = {}
        self._spared: set[int] = set()
        """They keep their whole grace."""
        self.next_look_at: float | None = None
        """When `look` is wanted (CLOCK_MONOTONIC, seconds); None while nothing is being stopped."""

    def rest(self) -> None:
        """No round is being stopped."""
        self._survivors = {}
        self._spared = set()
        self.next_look_at = None

    def is_due(self, now: float) -> bool:
        """Whether it is time to look; the first time always."""
        return self.next_look_at is None or now >= self.next_look_at

    def look(self, signs: Mapping[int, Signs], now: float) -> tuple[int, ...]:
        """Ranks whose stacks are wanted, of those in `signs` (by rank): pass them to `hopeless`.

        The first look has to come in the turn in which the ranks were asked to end, with that turn's `now`.
        """
        self.next_look_at = now + _LOOK_EVERY_S
        wanted = []
        for rank, after in signs.items():
            survivor = self._survivors.setdefault(rank, _Survivor(after))
            if _may_have_run(survivor.asked, after):
                self._spared.add(rank)
            if rank not in self._spared and after.is_alive and _is_stack_wanted(survivor, after):
                wanted.append(rank)
        return tuple(wanted)

    def hopeless(self, asked: Collection[int], stacks: Mapping[int, Stack | None]) -> tuple[int, ...]:
        """Those of the ranks that `look` gave that never can act; `stacks` were written since then.

        One that is not in a collective keeps its grace: before it could get into one, it would run.
        """
        found = []
        for rank in asked:
            survivor, stack = self._survivors[rank], stacks.get(rank)
            if stack is None or not stack.is_in_collective:
                self._spared.add(rank)
            elif survivor.is_in_collective:
                found.append(rank)
            else:
                survivor.is_in_collective = True
        return tuple(found)


def _may_have_run(asked: Signs, after: Signs) -> bool:
    """Whether the main thread may have run bytecode since it was asked to end."""
    if asked.sampler_at is not None and asked.sampler_at > asked.at:
        return True  # that look came after the asking, and what it found is in `asked` already
    return (after.progress_count, after.bytecode_changes) != (asked.progress_count, asked.bytecode_changes)


def _is_stack_wanted(survivor: _Survivor, after: Signs) -> bool:
    """Early on, to know where the rank is; then once more when it has stood still for long enough."""
    if not survivor.is_in_collective:
        return after.at > survivor.asked.at
    before = survivor.before
    if before is None or after.io_bytes != before.io_bytes:
        survivor.before = after
        return False
    interval_s = after.at - before.at
    if may_end_grace(before, after, interval_s):
        # A look of the sampler after the first stack: where the rank is now, it was when it was asked.
        return after.sampler_at is not None and after.sampler_at > before.at
    if interval_s >= _WINDOW_S:
        survivor.before = after
    return False

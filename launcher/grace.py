"""Which workers, asked to end, cannot act on it: the rest of their grace is of no use. Pure.

A Python signal handler runs between two bytecodes of the main thread. One that sits in a collective whose
other ranks are gone never comes to that. A thread that stands still elsewhere may be inside the handler
itself, waiting for a save: it keeps its grace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftrun.monitor.culprits import Stack
from ftrun.monitor.rank_signs import Signs, may_end_grace

_LOOK_EVERY_S = 0.1
"""Between looks while a round is being stopped: the answer is wanted in a fraction of a second."""


class GraceWatch:
    """Compares each worker's signs with those it had when it last moved."""

    def __init__(self) -> None:
        self._before: dict[int, Signs] = {}
        self._spared: set[int] = set()
        self.next_look_at: float | None = None
        """When `look` is wanted (CLOCK_MONOTONIC, seconds); None while nothing is being stopped."""

    def rest(self) -> None:
        """No round is being stopped."""
        self._before = {}
        self._spared = set()
        self.next_look_at = None

    def is_due(self, now: float) -> bool:
        """Whether it is time to look; the first time always."""
        return self.next_look_at is None or now >= self.next_look_at

    def look(self, signs: Mapping[int, Signs], now: float) -> tuple[int, ...]:
        """Ranks that stand still, of those in `signs` (by rank): ask for their stacks, then `hopeless`."""
        self.next_look_at = now + _LOOK_EVERY_S
        still = []
        for rank, after in signs.items():
            before = self._before.setdefault(rank, after)
            if has_moved(before, after):
                self._before[rank] = after
                self._spared.discard(rank)
            elif rank not in self._spared and may_end_grace(before, after, after.at - before.at):
                still.append(rank)
        return tuple(still)

    def hopeless(self, still: Collection[int], stacks: Mapping[int, Stack | None]) -> tuple[int, ...]:
        """Those that stand still in a collective; the others are not asked again until they move."""
        found = tuple(r for r in still if (stack := stacks.get(r)) is not None and stack.is_in_collective)
        self._spared |= set(still) - set(found)
        return found


def has_moved(before: Signs, after: Signs) -> bool:
    """Whether the rank has shown a sign between the two looks."""
    return (
        after.progress_count != before.progress_count
        or after.bytecode_changes != before.bytecode_changes
        or after.io_bytes != before.io_bytes
        or after.background_cpu_s != before.background_cpu_s
    )

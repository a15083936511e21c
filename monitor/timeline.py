"""Which lives in a run directory belong to one run, and how their clocks lie to each other. Pure.

A directory may hold the journals of several nodes, and several runs of one id one after the other. Clocks of
nodes are not compared: a round is closed on all its nodes within milliseconds, so the rounds that two
journals have in common tell how their clocks differ. Only for a life that shares no round with any other does
its own wall clock have to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ftrun.monitor.lives import Life, RoundKey

_LEFT_BY_ITSELF = 94
"""Exit code of a node that left the job as unhealthy; from 128 on, one that was told to leave by a signal."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A life on the run's common time, which is about UTC epoch: that of the node seen in most rounds."""

    life: Life
    offset: float
    """To be added to the journal's monotonic times."""

    def time(self, at: float) -> float:
        """The common time of a moment in this life."""
        return at + self.offset

    @property
    def began(self) -> float:
        """When the life began."""
        return self.life.began_at + self.offset

    @property
    def last(self) -> float:
        """The last that is known of it."""
        return max(self.life.last_at, self.life.began_at) + self.offset


def group(lives_of_nodes: Sequence[Sequence[Life]]) -> list[list[Life]]:
    """The lives of each run, in the order in which the runs began; one sequence of lives per journal.

    Lives belong to one run if they were in one round, or if the later of two on a node goes on with the
    numbers of the rounds. One that saw no round belongs to what other nodes did at the time.
    """
    lives = [life for of_node in lives_of_nodes for life in of_node]
    groups = _Groups(len(lives))
    by_key: dict[RoundKey, int] = {}
    for place, life in enumerate(lives):
        for shift in life.shifts:
            # One node alone may use the same port again in another run.
            if len(shift.nodes) > 1:
                groups.join(place, by_key.setdefault(shift.key, place))
    for place in range(1, len(lives)):
        before, life = lives[place - 1], lives[place]
        if before.node == life.node and _goes_on(before, life):
            groups.join(place, place - 1)
    _join_by_time(lives, groups)
    found = [[lives[place] for place in places] for places in groups.members()]
    return sorted(found, key=lambda members: min(life.began_ts for life in members))


def _goes_on(before: Life, life: Life) -> bool:
    is_over = before.exit_code is not None and 0 <= before.exit_code < 128
    if before.last_round is None or life.first_round is None:
        return False
    return life.first_round > before.last_round and (not is_over or before.exit_code == _LEFT_BY_ITSELF)


def _join_by_time(lives: Sequence[Life], groups: _Groups) -> None:
    seated = [place for place, life in enumerate(lives) if any(len(one.nodes) > 1 for one in life.shifts)]
    roundless = [place for place, life in enumerate(lives) if not life.shifts]
    for place in roundless:
        candidates = seated or [other for other in roundless if other != place]
        overlaps = [
            (_overlap_s(lives[place], lives[other]), other)
            for other in candidates
            if lives[other].node != lives[place].node
        ]
        longest_s, other = max(overlaps, default=(-1.0, place))
        if longest_s >= 0:
            groups.join(place, other)


def _overlap_s(one: Life, other: Life) -> float:
    """Seconds that both were there by their own wall clocks; negative if they were not."""
    return min(one.last_ts, other.last_ts) - max(one.began_ts, other.began_ts)


class _Groups:
    """Disjoint sets of numbers from 0."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def join(self, one: int, other: int) -> None:
        self._parents[self._root(one)] = self._root(other)

    def _root(self, place: int) -> int:
        while self._parents[place] != place:
            self._parents[place] = self._parents[self._parents[place]]
            place = self._parents[place]
        return place

    def members(self) -> Iterable[list[int]]:
        found: dict[int, list[int]] = {}
        for place in range(len(self._parents)):
            found.setdefault(self._root(place), []).append(place)
        return found.values()


def place(lives: Sequence[Life]) -> tuple[Placed, ...]:
    """The lives of one run on one time, by node and then in their order."""
    waiting = sorted(enumerate(lives), key=lambda item: (-len(item[1].shifts), item[1].began_ts))
    closed: dict[RoundKey, float] = {}
    offsets: dict[int, float] = {}
    while waiting:
        known = [(number, life) for number, life in waiting if _shared(life, closed)]
        if not known:  # the first, or one that shares nothing with any other
            known = waiting[:1]
        for number, life in known:
            offsets[number] = _offset(life, closed, lives, offsets)
            for shift in life.shifts:
                closed.setdefault(shift.key, shift.closed_at + offsets[number])
        done = {number for number, _ in known}
        waiting = [item for item in waiting if item[0] not in done]
    placed = [Placed(life, offsets[number]) for number, life in enumerate(lives)]
    return tuple(sorted(placed, key=lambda one: (one.life.node, one.began)))


def _shared(life: Life, closed: Mapping[RoundKey, float]) -> list[float]:
    """For each round that others have seen too, what would put this life's clock on theirs."""
    keys = ((shift.key, shift.closed_at) for shift in life.shifts)
    return [closed[key] - at for key, at in keys if key.master_port and key in closed]


def _offset(
    life: Life, closed: Mapping[RoundKey, float], lives: Sequence[Life], offsets: Mapping[int, float]
) -> float:
    if differences := _shared(life, closed):
        return median(differences)
    own = life.began_ts - life.began_at
    # Another life of the same node tells how its wall clock differs from the common time.
    others = (
        (lives[number], offset) for number, offset in offsets.items() if lives[number].node == life.node
    )
    skews = [offset - (other.began_ts - other.began_at) for other, offset in others]
    return own + (skews[-1] if skews else 0.0)

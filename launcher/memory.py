"""What a job remembers, how much of it, and what holds when those meet who were cut off. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ftrun.launcher.messages import ExcludedGpu, Memory
from ftrun.launcher.model import PastIncident, Tally, count_counted
from ftrun.launcher.restart_config import LONGEST_WINDOW

_T = TypeVar("_T")


def combine(base: Memory, other: Memory) -> Memory:
    """`base`, in which nothing that only grows is less than in `other`.

    That is counters, history, what is excluded and quarantined checkpoints; who knows of more failures also
    knows how far the job had come.
    """
    is_longer = count_incidents(base) >= count_incidents(other)
    if (
        base.round_number >= other.round_number
        and base.restart_count >= other.restart_count
        and is_longer
        and set(base.excluded) >= set(other.excluded)
        and set(base.excluded_gpus) >= set(other.excluded_gpus)
        and set(base.quarantined) >= set(other.quarantined)
    ):
        return base
    longer = base if is_longer else other
    return replace(
        base,
        round_number=max(base.round_number, other.round_number),
        restart_count=max(base.restart_count, other.restart_count),
        history=longer.history,
        forgotten=longer.forgotten,
        best_step=longer.best_step,
        best_saved=longer.best_saved,
        excluded=_union(other.excluded, base.excluded),
        excluded_gpus=_union(other.excluded_gpus, base.excluded_gpus),
        quarantined=_union(other.quarantined, base.quarantined),
    )


def remember(memory: Memory, past: PastIncident) -> Memory:
    """With one more failure; of those before the last `LONGEST_WINDOW`, only the number is kept."""
    history = (*memory.history, past)
    too_old, history = history[:-LONGEST_WINDOW], history[-LONGEST_WINDOW:]
    return replace(memory, history=history, forgotten=_add(memory.forgotten, too_old))


def _add(tallies: Sequence[Tally], more: Iterable[PastIncident]) -> tuple[Tally, ...]:
    by_kind = {tally.kind: tally for tally in tallies}
    for past in more:
        old = by_kind.get(past.kind, Tally(past.kind, 0, 0))
        by_kind[past.kind] = Tally(past.kind, old.count + 1, old.counted + past.is_counted)
    return tuple(by_kind.values())


def count_incidents(memory: Memory) -> int:
    """All failures so far that led to another round."""
    return len(memory.history) + sum(tally.count for tally in memory.forgotten)


def count_restarts(memory: Memory) -> int:
    """Of those, the ones that use up `max_restarts`."""
    return count_counted(memory.history, memory.forgotten)


def find_incident_at(kept: Memory, ours: Memory, ours_at: float, theirs: Memory, now: float) -> float:
    """When the last failure was by the own clock, once another's memory has come, and what both became.

    Of two that know of the same one, the longer time ago is right: messages take time, and a plan that was
    published hours ago says how long it was then. Of two that know of different ones, it is the one that the
    kept history ends with.
    """
    told_at = now - theirs.since_incident_s
    if not _has_history_of(kept, theirs):
        return ours_at
    return min(ours_at, told_at) if _has_history_of(kept, ours) else told_at


def _has_history_of(one: Memory, other: Memory) -> bool:
    return (one.history, one.forgotten) == (other.history, other.forgotten)


def exclude(memory: Memory, node: str) -> Memory:
    """The node may not take part any more."""
    return replace(memory, excluded=_union(memory.excluded, (node,)))


def exclude_gpus(memory: Memory, gpus: tuple[ExcludedGpu, ...]) -> Memory:
    """Their nodes go on without these."""
    return replace(memory, excluded_gpus=_union(memory.excluded_gpus, gpus))


def _union(first: tuple[_T, ...], more: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys((*first, *more)))


def brief(memory: Memory) -> Memory:
    """For a host agent that has published this memory itself: which round it is of, without what grows."""
    return Memory(round_number=memory.round_number, restart_count=memory.restart_count)

"""What a job remembers when those meet who were cut off from each other. Pure."""

from __future__ import annotations

from dataclasses import replace

from ftrun.launcher.messages import Memory


def combine(base: Memory, other: Memory) -> Memory:
    """`base`, in which nothing that only grows is less than in `other`.

    That is counters, history, excluded nodes and quarantined checkpoints; the longer history counts.
    """
    if (
        base.round_number >= other.round_number
        and base.restart_count >= other.restart_count
        and len(base.history) >= len(other.history)
        and set(base.excluded) >= set(other.excluded)
        and set(base.quarantined) >= set(other.quarantined)
    ):
        return base
    return replace(
        base,
        round_number=max(base.round_number, other.round_number),
        restart_count=max(base.restart_count, other.restart_count),
        history=max(base.history, other.history, key=len),
        excluded=_union(other.excluded, base.excluded),
        quarantined=_union(other.quarantined, base.quarantined),
    )


def exclude(memory: Memory, node: str) -> Memory:
    """The node may not take part any more."""
    return replace(memory, excluded=_union(memory.excluded, (node,)))


def _union(first: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *more)))


def brief(memory: Memory) -> Memory:
    """For a host agent that has published this memory itself: which round it is of, without what grows."""
    return Memory(round_number=memory.round_number, restart_count=memory.restart_count)

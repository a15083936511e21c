"""Who has which ranks: node sizes to rank numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """The ranks of one node in a round (per node)."""

    group_rank: int
    group_world_size: int
    local_world_size: int
    first_rank: int
    world_size: int

    def rank_of(self, local_rank: int) -> int:
        """Global rank of `local_rank` on this node."""
        return self.first_rank + local_rank


def first_ranks(local_world_sizes: Sequence[int]) -> tuple[int, ...]:
    """Global rank of each node's first worker, for nodes in group-rank order."""
    return tuple(accumulate(local_world_sizes, initial=0))[:-1]


def assign(local_world_sizes: Sequence[int]) -> tuple[NodeRanks, ...]:
    """Ranks for nodes in group-rank order; nodes may offer different numbers of slots."""
    count, world_size = len(local_world_sizes), sum(local_world_sizes)
    places = zip(local_world_sizes, first_ranks(local_world_sizes), strict=True)
    return tuple(
        NodeRanks(group_rank, count, size, first, world_size)
        for group_rank, (size, first) in enumerate(places)
    )

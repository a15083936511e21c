"""Who has which ranks: node sizes to rank numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


def assign(local_world_sizes: Sequence[int]) -> tuple[NodeRanks, ...]:
    """Ranks for nodes in group-rank order; nodes may offer different numbers of slots."""
    world_size = sum(local_world_sizes)
    nodes = []
    first = 0
    for group_rank, size in enumerate(local_world_sizes):
        nodes.append(NodeRanks(group_rank, len(local_world_sizes), size, first, world_size))
        first += size
    return tuple(nodes)

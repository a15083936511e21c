"""Node sizes to rank numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.ranks import assign


@given(st.lists(st.integers(1, 16), min_size=1, max_size=64))
def test_ranks_are_dense_and_in_node_order(sizes: list[int]):
    """Every global rank from 0 is given exactly once, also with different numbers of slots."""
    nodes = assign(sizes)
    ranks = [node.rank_of(local) for node in nodes for local in range(node.local_world_size)]
    assert ranks == list(range(sum(sizes)))
    assert {node.world_size for node in nodes} == {sum(sizes)}
    assert [node.group_rank for node in nodes] == list(range(len(sizes)))

"""Lists of ranks are short and lose none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.rank_lists import list_ranks, name_ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([2, 0], "ranks 0, 2"),
        ([4, 5], "ranks 4, 5"),
        ([0, 1, 2], "ranks 0-2"),
        ([9, 7, 6, 5, 0, 1, 2, 3, 9], "ranks 0-3, 5-7, 9"),
        (range(8192), "ranks 0-8191"),
    ],
)
def test_ranks_are_named_in_order_and_as_ranges(ranks: list[int], text: str) -> None:
    """Three neighbours or more are a range."""
    assert name_ranks(ranks) == text


@given(st.sets(st.integers(0, 40)))
def test_no_rank_is_lost(ranks: set[int]) -> None:
    """The list read back is the same set."""
    read: set[int] = set()
    for part in filter(None, list_ranks(ranks).split(", ")):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == ranks

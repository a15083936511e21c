"""Maps of streams per local rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.streams import Std, StdMap


def test_one_value_holds_for_all_local_ranks() -> None:
    """A single digit names the streams of every local rank."""
    assert [StdMap.parse("2").of(rank) for rank in (0, 7, 70)] == [Std.ERR] * 3


def test_mapping_takes_local_ranks_of_any_length_and_leaves_others_alone() -> None:
    """Local rank 10 can be named, and a rank that is not named gets no redirection."""
    streams = StdMap.parse("0:3,10:1")
    assert (streams.of(0), streams.of(10), streams.of(1)) == (Std.ALL, Std.OUT, Std.NONE)


@pytest.mark.parametrize(
    "text", ["", "4", "x", "0:4", "0:", ":1", "0:1,", "-1:1", "0:1;1:2", "0 :1", "٣", "3\n"]
)
def test_error_says_what_was_expected(text: str) -> None:
    """Anything else is refused with the notation that is understood."""
    with pytest.raises(ValueError, match=r"expected 0 \(none\)"):
        StdMap.parse(text)


def test_local_rank_named_twice_is_refused() -> None:
    """Two values for one local rank contradict each other."""
    with pytest.raises(ValueError, match="local rank 1 twice"):
        StdMap.parse("1:1,1:2")


@given(st.dictionaries(st.integers(0, 999), st.sampled_from(list(Std)), min_size=1))
def test_text_form_reads_back(by_rank: dict[int, Std]) -> None:
    """What is shown to a person is what the parser reads."""
    streams = StdMap(by_rank=tuple(sorted(by_rank.items())))
    assert StdMap.parse(str(streams)) == streams

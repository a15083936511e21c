"""Which silences count when the observer itself was not looking all the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.attention import Attention


@given(st.lists(st.floats(-5.0, 200.0), max_size=60))
def test_attention_never_adds_silence(steps: list[float]) -> None:
    """However the clock jumps, a silence is never longer than the plain difference, and never negative."""
    attention, now = Attention(), 100.0
    for step in steps:
        now += step
        attention = attention.look(now, 1.0)
        assert 0.0 <= attention.silent_s(100.0, now) <= max(0.0, now - 100.0)
        assert len(attention.gaps) <= 16


def test_steady_looks_leave_no_gap() -> None:
    """An observer that is a little late, as busy machines are, has missed nothing."""
    attention = Attention()
    for at in (0.0, 1.0, 2.5, 5.4, 6.0):
        attention = attention.look(at, 1.0)
    assert attention.silent_s(0.0, 6.0) == 6.0


def test_gap_counts_for_one_interval() -> None:
    """Of a time without looks only the interval that was meant to pass counts."""
    attention = Attention().look(0.0, 1.0).look(100.0, 1.0)
    assert attention.silent_s(0.0, 100.0) == 1.0
    assert attention.silent_s(50.0, 102.0) == 2.0


def test_clock_that_goes_back_keeps_gaps() -> None:
    """After a jump back, what was missed before it stays missed."""
    attention = Attention().look(0.0, 1.0).look(100.0, 1.0).look(60.0, 1.0)
    assert attention.silent_s(0.0, 60.0) == 1.0

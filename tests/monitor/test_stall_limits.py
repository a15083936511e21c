"""How long the whole job may be quiet, and where that number comes from."""

from __future__ import annotations

import pytest

from ftrun.monitor.stall_limits import Learned, StallLimits, limit_now

NOTHING, ENOUGH = Learned(), Learned(longest_quiet_s=20.0, gap_count=3)
AUTO, WITH_INITIAL = StallLimits(), StallLimits(initial_s=600.0)
FIXED = StallLimits(fixed_s=30.0, initial_s=600.0)
OFF = StallLimits(is_learning=False, initial_s=600.0)

CASES: dict[str, tuple[StallLimits, Learned, float, bool, float | None]] = {
    "off": (OFF, ENOUGH, 50.0, True, None),
    "off before progress": (OFF, NOTHING, 0.0, False, None),
    "learning, before progress": (AUTO, ENOUGH, 0.0, False, None),
    "learning, before progress, with initial": (WITH_INITIAL, ENOUGH, 0.0, False, 600.0),
    "little learned": (AUTO, NOTHING, 0.0, True, None),
    "little learned, with initial": (WITH_INITIAL, NOTHING, 0.0, True, 600.0),
    "learned": (AUTO, ENOUGH, 0.0, True, 100.0),
    "a longer quiet time since the last progress": (AUTO, ENOUGH, 30.0, True, 150.0),
    "learned, at least the floor": (AUTO, Learned(1.0, gap_count=3), 0.0, True, 60.0),
    "learned, never quiet": (AUTO, Learned(0.0, gap_count=3), 0.0, True, 60.0),
    "another floor": (StallLimits(floor_s=5.0), Learned(0.5, gap_count=3), 0.0, True, 5.0),
    "another factor": (StallLimits(safety_factor=10.0), ENOUGH, 0.0, True, 200.0),
    "fixed": (FIXED, NOTHING, 0.0, True, 30.0),
    "fixed, whatever was learned": (FIXED, ENOUGH, 90.0, True, 30.0),
    "fixed, before progress": (FIXED, ENOUGH, 0.0, False, 600.0),
    "fixed, before progress, without initial": (StallLimits(fixed_s=30.0), ENOUGH, 0.0, False, None),
}


@pytest.mark.parametrize(
    ("limits", "learned", "open_s", "has_progressed", "expected"), CASES.values(), ids=CASES.keys()
)
def test_limit(
    limits: StallLimits, learned: Learned, open_s: float, has_progressed: bool, expected: float | None
) -> None:
    """A number wins over learning, learning needs enough to learn from, and until then initial holds."""
    limit = limit_now(limits, learned, open_s, has_progressed)
    assert (limit.seconds if limit else None) == expected


def test_origin_is_told() -> None:
    """A person can see from the origin how the limit came about, and which key to change."""
    origins = [
        limit.origin if (limit := limit_now(limits, learned, 0.0, has_progressed)) else None
        for limits, learned, has_progressed in [
            (FIXED, ENOUGH, True),
            (WITH_INITIAL, ENOUGH, False),
            (WITH_INITIAL, NOTHING, True),
            (AUTO, ENOUGH, True),
            (AUTO, Learned(1.0, gap_count=3), True),
        ]
    ]
    assert origins == [
        "ftrun.timeouts.stall",
        "fault_tolerance.initial_rank_heartbeat_timeout: no rank has made progress yet",
        "fault_tolerance.initial_rank_heartbeat_timeout: too little progress to learn from yet",
        "learned: safety factor 5 x longest quiet time so far 20.0 s",
        "the least that is learned; longest quiet time so far 1.0 s",
    ]


def test_enough_is_three_intervals_or_one_and_minutes() -> None:
    """How much has to be seen before a limit is learned from it."""
    assert not Learned(gap_count=2, active_s=179.0).is_enough
    assert not Learned(gap_count=0, active_s=1e6).is_enough
    assert Learned(gap_count=1, active_s=180.0).is_enough
    assert Learned(gap_count=3).is_enough

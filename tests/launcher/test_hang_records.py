"""Verdicts and limits in the journal's words."""

from __future__ import annotations

from dataclasses import replace

from ftrun.launcher.hang_records import calculated_event, hang_event
from ftrun.monitor.events import HangDetected, TimeoutsCalculated
from ftrun.monitor.heartbeats import Timeouts
from ftrun.monitor.liveness import Rule, Verdict

VERDICT = Verdict(
    Rule.SECTION, 3, (1, 2), 31.5, 30.0, "fault_tolerance.rank_section_timeouts[eval]", "rank 3 is stuck"
)
TIMEOUTS = Timeouts.from_config(60.0, 20.0, {"eval": 30.0, "save": None}, None)


def test_verdict_is_journalled_whole() -> None:
    """Rule, ranks, times, where the limit came from, and the sentence."""
    assert hang_event(VERDICT, 2) == HangDetected(
        2, "section", 3, (1, 2), 31.5, 30.0, "fault_tolerance.rank_section_timeouts[eval]", "rank 3 is stuck"
    )
    assert hang_event(replace(VERDICT, rule=Rule.STALL, rank=None), 0).rank is None


def test_calculated_limits_are_journalled() -> None:
    """Sections without a limit are left out; a client that has not said its rank is -1."""
    assert calculated_event(TIMEOUTS, 1, 5) == TimeoutsCalculated(1, 5, 60.0, 20.0, None, ("eval",), (30.0,))
    assert calculated_event(TIMEOUTS, 1, None).rank == -1

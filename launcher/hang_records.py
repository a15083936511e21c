"""What the journal says of hangs and timeouts, from the monitor's own types. Pure."""

from __future__ import annotations

from ftrun.monitor.events import HangDetected, TimeoutsCalculated
from ftrun.monitor.heartbeats import Timeouts
from ftrun.monitor.liveness import Verdict


def hang_event(verdict: Verdict, round_number: int) -> HangDetected:
    """The verdict, for the journal."""
    return HangDetected(
        round_number,
        verdict.rule.value,
        verdict.rank,
        verdict.culprits,
        verdict.silent_s,
        verdict.limit_s,
        verdict.limit_origin,
        verdict.sentence,
    )


def calculated_event(timeouts: Timeouts, round_number: int, rank: int | None) -> TimeoutsCalculated:
    """Limits that a client has set, for the journal."""
    limits = [(name, limit) for name, limit in timeouts.sections.items() if limit is not None]
    return TimeoutsCalculated(
        round_number,
        rank if rank is not None else -1,
        timeouts.initial,
        timeouts.steady,
        timeouts.out_of_section,
        tuple(name for name, _ in limits),
        tuple(limit for _, limit in limits),
    )

"""A node's part in the job when its health checks find something while the workers run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.launcher.messages import StopKind
from ftrun.launcher.node_state import (
    Ask,
    Cause,
    Connected,
    Graces,
    Phase,
    Planned,
    RankExited,
    State,
    TellStop,
    Unhealthy,
)
from ftrun.launcher.rendezvous import IllegalEvent, advance, begin

GRACES = Graces(after_failure_s=5.0, after_signal_s=30.0, after_success_s=30.0, kill_timeout_s=10.0)
SICK = Unhealthy("the GPU of local rank 1 failed")


def running() -> State:
    """Two ranks in round 3."""
    state, _ = advance(begin(2, 0.0, 600.0), Connected(0), 0.0, GRACES)
    return advance(state, Planned(0, 3, has_seat=True), 0.0, GRACES)[0]


def test_sick_node_stops_the_round_everywhere() -> None:
    """As after a failure; the next round knows what was found."""
    state, actions = advance(running(), SICK, 10.0, GRACES)
    assert (state.phase, state.cause, state.unhealthy) == (Phase.STOPPING, Cause.FAILURE, SICK.reason)
    assert state.deadline == 15.0
    assert actions == (TellStop(StopKind.FAILURE, SICK.reason), Ask(15))


def test_round_in_which_a_rank_is_done_ends_by_itself() -> None:
    """The others are about to be done as well: nothing is gained by ending them."""
    state, _ = advance(running(), RankExited(0, 0, 0), 9.0, GRACES)
    assert advance(state, SICK, 10.0, GRACES) == (state, ())


def test_next_round_begins_without_it() -> None:
    """What was found in one round is not said of the next."""
    state, _ = advance(running(), SICK, 10.0, GRACES)
    state = replace(state, phase=Phase.JOINING)
    assert advance(state, Planned(1, 4, has_seat=True), 20.0, GRACES)[0].unhealthy == ""


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.STOPPING, Phase.ENDED])
def test_finding_is_of_a_round_that_runs(phase: Phase) -> None:
    """At any other time it is told with the join."""
    with pytest.raises(IllegalEvent):
        advance(replace(running(), phase=phase), SICK, 10.0, GRACES)

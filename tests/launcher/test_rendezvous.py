"""The life of a job as a state machine: every phase, every event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.model import Action, Decision
from ftrun.launcher.rendezvous import (
    AllGone,
    Ask,
    Cause,
    Discard,
    EndHung,
    Event,
    GiveUp,
    Graces,
    Hung,
    IllegalEvent,
    Judge,
    Judged,
    Kill,
    Phase,
    RankExited,
    Signalled,
    StartFailed,
    StartRound,
    State,
    StopRequested,
    Woke,
    advance,
)

GRACES = Graces(after_failure_s=5.0, after_signal_s=30.0, after_success_s=20.0, kill_timeout_s=10.0)
SIGTERM, SIGINT = 15, 2


def run_through(*steps: tuple[float, Event], graces: Graces = GRACES, ranks: int = 2):
    """Play (time, event) steps from the beginning; returns the last state and the actions of each step."""
    state, log = State(ranks), []
    for now, event in steps:
        state, actions = advance(state, event, now, graces)
        log.append(actions)
    return state, log


def test_first_turn_starts_the_first_round():
    """A new job starts its workers at once."""
    state, log = run_through((0.0, Woke()))
    assert state.phase is Phase.RUNNING
    assert log == [(StartRound(),)]


def test_job_ends_with_zero_when_all_ranks_exit_zero():
    """Success needs every rank; with no process left there is nobody to be asked to end."""
    state, log = run_through(
        (0.0, Woke()), (9.0, RankExited(0, 0)), (9.5, RankExited(1, 0)), (9.6, AllGone())
    )
    assert (state.phase, state.exit_code) == (Phase.ENDED, 0)
    assert log == [(StartRound(),), (), (), ()]


def test_processes_that_outlive_a_successful_job_have_time_then_are_asked_then_killed():
    """An upload that goes on after the last rank is neither cut off at once nor waited for without end."""
    steps = ((0.0, Woke()), (1.0, RankExited(0, 0)), (1.0, RankExited(1, 0)), (20.9, Woke()), (21.0, Woke()))
    state, log = run_through(*steps, (25.9, Woke()), (26.0, Woke()), (26.1, AllGone()))
    assert log[2:] == [(), (), (Ask(SIGTERM),), (), (Kill(),), ()]
    assert (state.phase, state.exit_code) == (Phase.ENDED, 0)


def test_round_that_cannot_be_started_is_tried_again_with_pauses_and_then_given_up():
    """A shortage of processes or descriptors often passes; one that stays is the node's illness."""
    state, now, pauses = State(2), 0.0, []
    while state.phase is not Phase.ENDED:
        state, actions = advance(state, Woke(), now, GRACES)
        assert actions == (StartRound(),)
        state, actions = advance(state, StartFailed("no more processes"), now, GRACES)
        assert actions == (Kill(),)
        state, actions = advance(state, AllGone(), now, GRACES)
        if state.deadline is not None:
            assert actions == (Discard(),)
            pauses.append(state.deadline - now)
            now = state.deadline
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert state.exit_code == 94
    assert "no more processes" in state.end_reason


def test_one_failed_rank_stops_the_others_then_asks_for_judgement():
    """The rest of the group gets SIGTERM at once; the decision waits until all are gone."""
    state, log = run_through(
        (0.0, Woke()), (3.0, RankExited(1, -9)), (3.1, RankExited(0, -15)), (3.2, AllGone())
    )
    assert state.phase is Phase.JUDGING
    assert log[1:] == [(Ask(SIGTERM),), (), (Judge(),)]


def test_restart_opens_the_next_round_after_the_pause():
    """A restart with a delay starts nothing before its time."""
    failed = ((0.0, Woke()), (3.0, RankExited(1, 1)), (3.1, RankExited(0, -15)), (3.2, AllGone()))
    decision = Judged(Decision(Action.RESTART, "again", delay_s=2.0))
    state, log = run_through(*failed, (3.3, decision), (5.2, Woke()))
    assert (state.phase, state.round_number, log[-1]) == (Phase.JOINING, 1, ())
    state, actions = advance(state, Woke(), 5.3, GRACES)
    assert (state.phase, actions) == (Phase.RUNNING, (StartRound(),))


def test_stop_decision_ends_with_its_exit_code():
    """The policy's code is the job's."""
    failed = ((0.0, Woke()), (3.0, RankExited(1, 1)), (3.1, RankExited(0, -15)), (3.2, AllGone()))
    state, _ = run_through(*failed, (3.3, Judged(Decision(Action.STOP, "no use", exit_code=93))))
    assert (state.phase, state.exit_code, state.end_reason) == (Phase.ENDED, 93, "no use")


def test_workers_that_outlast_the_grace_are_killed_once():
    """SIGKILL comes when the grace is over, not before, and only once."""
    state, log = run_through(
        (0.0, Woke()), (3.0, RankExited(1, 1)), (7.9, Woke()), (8.0, Woke()), (8.1, Woke())
    )
    assert log[2:] == [(), (Kill(),), ()]
    assert state.phase is Phase.STOPPING


def test_processes_that_survive_sigkill_end_the_job_as_unhealthy_node():
    """The wait after SIGKILL is bounded: the agent names what is stuck and ends with 94."""
    state, log = run_through(
        (0.0, Woke()), (3.0, RankExited(1, 1)), (8.0, Woke()), (17.9, Woke()), (18.0, Woke())
    )
    assert log[3:] == [(), (GiveUp(),)]
    assert (state.phase, state.exit_code) == (Phase.ENDED, 94)


def test_signal_is_passed_on_once_and_gives_128_plus_n():
    """The workers get the same signal that the agent got, once, also when they then exit 0."""
    steps = ((0.0, Woke()), (1.0, Signalled(SIGINT)), (2.0, Signalled(SIGINT)))
    state, log = run_through(*steps, (3.0, RankExited(0, 0)), (3.0, RankExited(1, 0)), (3.1, AllGone()))
    assert log[1:3] == [(Ask(SIGINT),), ()]
    assert (state.phase, state.exit_code) == (Phase.ENDED, 130)


def test_graceful_exit_code_applies_only_when_every_rank_exited_zero():
    """Who asked for 0 gets it for a clean save, and 128+n when a rank did not end cleanly."""
    graces = Graces(5.0, 30.0, 20.0, 10.0, graceful_exit_code=0)
    stopped = ((0.0, Woke()), (1.0, Signalled(SIGTERM)), (2.0, RankExited(0, 0)))
    clean, _ = run_through(*stopped, (2.0, RankExited(1, 0)), (2.1, AllGone()), graces=graces)
    dirty, _ = run_through(*stopped, (2.0, RankExited(1, -15)), (2.1, AllGone()), graces=graces)
    assert (clean.exit_code, dirty.exit_code) == (0, 143)


def test_later_signals_only_shorten_the_grace():
    """Each repeated signal halves what is left; none makes it longer."""
    state, _ = run_through((0.0, Woke()), (0.0, Signalled(SIGTERM)))
    assert state.deadline == 30.0
    state, actions = advance(state, Signalled(SIGTERM), 10.0, GRACES)
    assert (state.deadline, actions) == (20.0, ())


def test_signal_while_a_failed_round_stops_ends_the_job_without_asking_twice():
    """A stop that is under way is not restarted; what failed is judged all the same, and told."""
    steps = ((0.0, Woke()), (3.0, RankExited(1, 1)), (3.5, Signalled(SIGTERM)))
    state, log = run_through(*steps, (4.0, RankExited(0, -15)), (4.1, AllGone()))
    assert (log[2], log[-1]) == ((), (Judge(),))
    state, _ = advance(state, Judged(Decision(Action.RESTART, "again")), 4.2, GRACES)
    assert (state.phase, state.exit_code) == (Phase.ENDED, 143)


def test_signal_in_the_pause_before_a_restart_ends_the_job():
    """Nothing runs, so there is nothing to wait for."""
    failed = ((0.0, Woke()), (3.0, RankExited(1, 1)), (3.1, RankExited(0, -15)), (3.2, AllGone()))
    decision = Judged(Decision(Action.RESTART, "again", delay_s=60.0))
    state, _ = run_through(*failed, (3.3, decision), (4.0, Signalled(SIGTERM)))
    assert (state.phase, state.exit_code) == (Phase.ENDED, 143)


def test_signal_after_all_ranks_finished_leaves_the_success():
    """A job whose ranks have all exited 0 has succeeded, whoever signals while left-overs are swept."""
    steps = ((0.0, Woke()), (1.0, RankExited(0, 0)), (1.0, RankExited(1, 0)), (1.1, Signalled(SIGTERM)))
    state, _ = run_through(*steps, (1.2, AllGone()))
    assert state.exit_code == 0


def test_hang_ends_the_culprits_at_once_and_asks_the_others():
    """A hung rank cannot act on SIGTERM; the others may want to save. Then it is judged like a crash."""
    steps = ((0.0, Woke()), (9.0, Hung((1,))), (9.1, RankExited(1, -9)), (9.1, RankExited(0, -15)))
    state, log = run_through(*steps, (9.2, AllGone()))
    assert log[1] == (EndHung((1,)), Ask(SIGTERM))
    assert (state.phase, log[-1]) == (Phase.JUDGING, (Judge(),))


def test_requested_stop_ends_the_job_with_its_code_and_reason():
    """The workers are asked as after a signal; how they then end does not change the code."""
    steps = ((0.0, Woke()), (5.0, StopRequested(93, "loss is NaN")), (6.0, RankExited(0, 0)))
    state, log = run_through(*steps, (6.0, RankExited(1, -15)), (6.1, AllGone()))
    assert log[1] == (Ask(SIGTERM),)
    assert (state.phase, state.exit_code, state.end_reason) == (Phase.ENDED, 93, "loss is NaN")


def test_requested_stop_wins_over_a_restart_that_is_under_way():
    """A failed round that is being stopped is not followed by another; the first wish counts."""
    steps = (
        (0.0, Woke()),
        (3.0, RankExited(1, 1)),
        (3.5, StopRequested(93, "a")),
        (3.6, StopRequested(94, "b")),
    )
    state, log = run_through(*steps, (4.0, RankExited(0, -15)), (4.1, AllGone()))
    assert log[2:4] == [(), ()]
    state, _ = advance(state, Judged(Decision(Action.RESTART, "again")), 4.2, GRACES)
    assert (state.phase, state.exit_code) == (Phase.ENDED, 93)


def test_requested_stop_in_the_pause_before_a_restart_ends_the_job():
    """A request that was sent just before a rank failed still counts."""
    failed = ((0.0, Woke()), (3.0, RankExited(1, 1)), (3.1, RankExited(0, -15)), (3.2, AllGone()))
    decision = Judged(Decision(Action.RESTART, "again", delay_s=60.0))
    state, _ = run_through(*failed, (3.3, decision), (4.0, StopRequested(94, "bad GPU")))
    assert (state.phase, state.exit_code) == (Phase.ENDED, 94)


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (Phase.JOINING, RankExited(0, 0)),
        (Phase.JOINING, AllGone()),
        (Phase.RUNNING, AllGone()),
        (Phase.RUNNING, Judged(Decision(Action.STOP, ""))),
        (Phase.JUDGING, RankExited(0, 0)),
        (Phase.JOINING, Hung((0,))),
        (Phase.STOPPING, Hung((0,))),
        (Phase.ENDED, Woke()),
        (Phase.ENDED, Signalled(SIGTERM)),
    ],
)
def test_event_that_does_not_fit_raises_and_changes_nothing(phase: Phase, event: Event):
    """An illegal event is a bug of the shell, not a transition."""
    state = State(2, phase=phase)
    before = State(2, phase=phase)
    with pytest.raises(IllegalEvent):
        advance(state, event, 1.0, GRACES)
    assert state == before


EVENTS = st.one_of(
    st.builds(RankExited, st.integers(0, 1), st.sampled_from([0, 1, -9, -15])),
    st.builds(Signalled, st.sampled_from([SIGTERM, SIGINT])),
    st.builds(Hung, st.sampled_from([(), (0,), (1,)])),
    st.builds(StopRequested, st.sampled_from([93, 94]), st.just("asked")),
    st.just(StartFailed("no memory")),
    st.just(AllGone()),
    st.just(Woke()),
    st.builds(
        Judged, st.sampled_from([Decision(Action.RESTART, "r"), Decision(Action.STOP, "s", exit_code=1)])
    ),
)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), EVENTS), max_size=40))
def test_no_history_breaks_the_invariants(history):
    """Kills follow asks, a deadline exists while stopping, rounds only grow, ENDED is final."""
    state, now, asked = State(2), 0.0, False
    for gap, event in history:
        now += gap
        before = state
        try:
            state, actions = advance(state, event, now, GRACES)
        except IllegalEvent:
            assert state == before
            continue
        asked = (asked or any(isinstance(action, Ask) for action in actions)) and StartRound() not in actions
        if Kill() in actions:
            assert asked or isinstance(event, StartFailed)
        if state.phase is Phase.STOPPING:
            assert state.deadline is not None
            assert state.cause in Cause
        assert state.round_number >= before.round_number
        assert before.phase is not Phase.ENDED

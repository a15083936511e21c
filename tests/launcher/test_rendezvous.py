"""The life of a job on a node as a state machine: every phase, every event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.messages import Outcome, StopKind, StopOrder
from ftrun.launcher.node_state import (
    AllGone,
    Ask,
    Cause,
    Connected,
    Depart,
    Disconnected,
    Do,
    EndHung,
    Event,
    GiveUp,
    Graces,
    Hung,
    JoinNext,
    Kill,
    Looking,
    Ordered,
    Phase,
    Planned,
    RankExited,
    Reconnect,
    Reported,
    Sentenced,
    Signalled,
    StartFailed,
    StartRound,
    State,
    StopRequested,
    TellStop,
    Unreached,
    Woke,
)
from ftrun.launcher.rendezvous import IllegalEvent, advance, begin
from ftrun.monitor.incident import FaultReport, IncidentKind

GRACES = Graces(
    after_failure_s=5.0, after_signal_s=30.0, after_success_s=20.0, kill_timeout_s=10.0, reconnect_s=300.0
)
SIGTERM, SIGINT = 15, 2
JOINED = (0.0, Connected(0))
STARTED = (0.0, Planned(0, 0, has_seat=True))
BEGUN = (JOINED, STARTED)
FAILED = (*BEGUN, (3.0, RankExited(1, 1, 1)), (3.1, RankExited(0, 0, -15)), (3.2, AllGone()))
FINISHED = (*BEGUN, (9.0, RankExited(0, 0, 0)), (9.5, RankExited(1, 1, 0)), (9.6, AllGone()))


def run_through(*steps: tuple[float, Event], graces: Graces = GRACES, ranks: int = 2):
    """Play (time, event) steps from the beginning; returns the last state and the actions of each step."""
    state, log = begin(ranks, 0.0, 60.0), []
    for now, event in steps:
        state, actions = advance(state, event, now, graces)
        log.append(actions)
    return state, log


def order(kind: StopKind, node: str = "other", reason: str = "why") -> StopOrder:
    """A stop order that another node gave."""
    return StopOrder(kind, node, reason)


def tells(actions: tuple[Do, ...]) -> list[StopKind]:
    """Stops that all nodes are told of."""
    return [action.kind for action in actions if isinstance(action, TellStop)]


def test_node_joins_as_soon_as_the_store_is_there_and_starts_when_it_has_a_seat():
    """Connected, joined, planned, started: nothing in it waits."""
    state, log = run_through(*BEGUN)
    assert log == [(JoinNext(),), (StartRound(),)]
    assert (state.phase, state.sequence, state.deadline) == (Phase.RUNNING, 1, None)


def test_search_for_the_store_is_given_up_after_its_timeout():
    """A host agent that never comes ends the node with 95, and not a moment before."""
    state, _ = run_through((0.0, Looking()), (59.9, Woke()))
    assert state.phase is Phase.JOINING
    state, actions = advance(state, Woke(), 60.0, GRACES)
    assert (state.phase, state.exit_code, actions) == (Phase.ENDED, 95, ())
    assert state.end_reason == "gave up looking for a host agent: none was found within 60 s (join_timeout)"


def test_time_for_the_search_counts_from_when_the_imports_are_done():
    """Slow imports on a busy file system are not held against the other nodes."""
    state, _ = run_through((80.0, Woke()), (100.0, Looking()), (159.9, Woke()))
    assert (state.phase, state.deadline, state.connect_by) == (Phase.JOINING, 160.0, 160.0)
    state, _ = advance(state, Woke(), 160.0, GRACES)
    assert (state.phase, state.exit_code) == (Phase.ENDED, 95)


def test_imports_that_never_end_are_named():
    """A file system that has died holds up the search for ever; that is not a host agent's fault."""
    state, _ = run_through((400.0, Woke()))
    assert (state.phase, state.exit_code) == (Phase.ENDED, 95)
    assert "was not imported within 300 s" in state.end_reason


def test_search_after_a_loss_keeps_its_own_time():
    """What begins the first search does not cut a later one short."""
    state, _ = run_through((0.0, Looking()), JOINED, (10.0, Disconnected("reset")), (10.1, Looking()))
    assert state.deadline == state.connect_by == 310.0


def test_node_without_a_seat_joins_the_next_round_at_once():
    """A spare is always ready for the round that follows."""
    state, log = run_through(JOINED, (1.0, Planned(0, 0, has_seat=False)))
    assert (state.phase, state.sequence, log[-1]) == (Phase.JOINING, 1, (JoinNext(),))
    state, actions = advance(state, Planned(1, 1, has_seat=True), 50.0, GRACES)
    assert (state.phase, state.round_number, actions) == (Phase.RUNNING, 1, (StartRound(),))


def test_spare_ends_with_the_job():
    """It learns of the verdict like everyone else, and exits with the same code."""
    state, _ = run_through(
        JOINED, (1.0, Planned(0, 0, has_seat=False)), (90.0, Sentenced(0, "all ranks finished"))
    )
    assert (state.phase, state.exit_code) == (Phase.ENDED, 0)


def test_node_says_that_it_has_succeeded_when_all_its_ranks_exit_zero_and_ends_with_the_verdict():
    """Success of the job needs every rank of every node; with no process left nobody is asked to end."""
    state, log = run_through(*FINISHED)
    assert (state.phase, state.outcome) == (Phase.JOINING, Outcome.SUCCEEDED)
    assert log[2:] == [(), (), (JoinNext(),)]
    state, _ = advance(state, Sentenced(0, "all ranks finished"), 9.7, GRACES)
    assert (state.phase, state.exit_code) == (Phase.ENDED, 0)


def test_processes_that_outlive_a_successful_job_have_time_then_are_asked_then_killed():
    """An upload that goes on after the last rank is neither cut off at once nor waited for without end."""
    steps = (*BEGUN, (1.0, RankExited(0, 0, 0)), (1.0, RankExited(1, 1, 0)), (20.9, Woke()), (21.0, Woke()))
    state, log = run_through(*steps, (25.9, Woke()), (26.0, Woke()), (26.1, AllGone()))
    assert log[3:] == [(), (), (Ask(SIGTERM),), (), (Kill(),), (JoinNext(),)]
    assert state.outcome is Outcome.SUCCEEDED


def test_workers_that_cannot_be_started_stop_the_round_everywhere():
    """What is there is killed, all nodes are told, and the join that follows says why."""
    state, log = run_through(*BEGUN, (0.1, StartFailed("no more processes")), (0.2, AllGone()))
    assert log[2:] == [(TellStop(StopKind.FAILURE, "no more processes"), Kill()), (JoinNext(),)]
    assert (state.start_failure, state.outcome) == ("no more processes", Outcome.STOPPED)


def test_workers_that_cannot_find_each_other_are_asked_to_end_everywhere():
    """They wait for one another and could do so for half an hour; the join that follows says why."""
    state, log = run_through(*BEGUN, (5.0, Unreached("no way to node a")), (5.1, AllGone()))
    assert log[2:] == [(TellStop(StopKind.FAILURE, "no way to node a"), Ask(SIGTERM)), (JoinNext(),)]
    assert (state.unreachable, state.outcome) == ("no way to node a", Outcome.STOPPED)
    state, _ = advance(state, Planned(1, 1, has_seat=True), 6.0, GRACES)
    assert state.unreachable == ""


def test_failed_start_is_forgotten_when_the_next_round_starts():
    """The next failure is not blamed on it."""
    steps = (*BEGUN, (0.1, StartFailed("no more processes")), (0.2, AllGone()))
    state, _ = run_through(*steps, (1.2, Planned(1, 1, has_seat=True)))
    assert (state.phase, state.start_failure) == (Phase.RUNNING, "")


def test_one_failed_rank_stops_its_node_and_all_others_at_once_and_the_node_joins_when_all_are_gone():
    """SIGTERM for the rest of the group and the stop order go out in the same turn; then the next round."""
    state, log = run_through(
        *BEGUN, (3.0, RankExited(1, 1, -9)), (3.1, RankExited(0, 0, -15)), (3.2, AllGone())
    )
    assert log[2:] == [
        (TellStop(StopKind.FAILURE, "rank 1 ended by SIGKILL"), Ask(SIGTERM)),
        (),
        (JoinNext(),),
    ]
    assert (state.phase, state.outcome, state.deadline) == (Phase.JOINING, Outcome.STOPPED, None)


def test_restart_begins_when_the_next_round_is_planned():
    """Pauses are the host agent's: a node waits for the plan and for nothing else."""
    state, log = run_through(*FAILED, (60.0, Woke()), (90.0, Planned(1, 1, has_seat=True)))
    assert log[-2:] == [(), (StartRound(),)]
    assert (state.phase, state.round_number, state.sequence) == (Phase.RUNNING, 1, 2)


def test_verdict_ends_the_node_with_its_exit_code():
    """The job's code is every node's."""
    state, _ = run_through(*FAILED, (3.3, Sentenced(93, "no use")))
    assert (state.phase, state.exit_code, state.end_reason) == (Phase.ENDED, 93, "no use")


def test_workers_that_outlast_the_grace_are_killed_once():
    """SIGKILL comes when the grace is over, not before, and only once."""
    state, log = run_through(*BEGUN, (3.0, RankExited(1, 1, 1)), (7.9, Woke()), (8.0, Woke()), (8.1, Woke()))
    assert log[3:] == [(), (Kill(),), ()]
    assert state.phase is Phase.STOPPING


def test_processes_that_survive_sigkill_end_the_node_as_unhealthy():
    """The wait after SIGKILL is bounded: the agent names what is stuck, takes its node out, ends with 94."""
    state, log = run_through(
        *BEGUN, (3.0, RankExited(1, 1, 1)), (8.0, Woke()), (17.9, Woke()), (18.0, Woke())
    )
    assert log[4:] == [(), (GiveUp(), Depart())]
    assert (state.phase, state.exit_code) == (Phase.ENDED, 94)
    assert state.ending is not None
    assert state.ending.is_excluded


def test_signal_is_passed_on_once_told_to_all_and_gives_128_plus_n():
    """The workers get the same signal that the agent got, once, also when they then exit 0."""
    steps = (*BEGUN, (1.0, Signalled(SIGINT)), (2.0, Signalled(SIGINT)))
    state, log = run_through(*steps, (3.0, RankExited(0, 0, 0)), (3.0, RankExited(1, 1, 0)), (3.1, AllGone()))
    assert log[2:4] == [(TellStop(StopKind.LEAVE, "told to stop by SIGINT"), Ask(SIGINT)), ()]
    assert (state.phase, state.exit_code, log[-1]) == (Phase.ENDED, 130, (Depart(),))


def test_graceful_exit_code_applies_only_when_every_rank_exited_zero():
    """Who asked for 0 gets it for a clean save, and 128+n when a rank did not end cleanly."""
    graces = Graces(5.0, 30.0, 20.0, 10.0, graceful_exit_code=0)
    stopped = (*BEGUN, (1.0, Signalled(SIGTERM)), (2.0, RankExited(0, 0, 0)))
    clean, _ = run_through(*stopped, (2.0, RankExited(1, 1, 0)), (2.1, AllGone()), graces=graces)
    dirty, _ = run_through(*stopped, (2.0, RankExited(1, 1, -15)), (2.1, AllGone()), graces=graces)
    assert (clean.exit_code, dirty.exit_code) == (0, 143)


def test_later_signals_only_shorten_the_grace():
    """Each repeated signal halves what is left; none makes it longer."""
    state, _ = run_through(*BEGUN, (0.0, Signalled(SIGTERM)))
    assert state.deadline == 30.0
    state, actions = advance(state, Signalled(SIGTERM), 10.0, GRACES)
    assert (state.deadline, actions) == (20.0, ())


def test_signal_while_a_failed_round_stops_ends_the_node_without_asking_twice():
    """A stop that is under way is not restarted; the agent says what failed when it departs."""
    steps = (*BEGUN, (3.0, RankExited(1, 1, 1)), (3.5, Signalled(SIGTERM)))
    state, log = run_through(*steps, (4.0, RankExited(0, 0, -15)), (4.1, AllGone()))
    assert (log[3], log[-1]) == ((), (Depart(),))
    assert (state.phase, state.exit_code, state.cause) == (Phase.ENDED, 143, Cause.FAILURE)


def test_signal_in_the_pause_before_a_restart_ends_the_node():
    """Nothing runs, so there is nothing to wait for; the others are told."""
    state, log = run_through(*FAILED, (4.0, Signalled(SIGTERM)))
    assert (state.phase, state.exit_code, log[-1]) == (Phase.ENDED, 143, (Depart(),))


@pytest.mark.parametrize(
    "before",
    [(), (JOINED,), (JOINED, (0.1, Disconnected("reset")))],
    ids=["no store", "joined", "store lost"],
)
def test_signal_while_a_node_waits_to_take_part_ends_it_at_once(before: tuple[tuple[float, Event], ...]):
    """SIGTERM is heard in every wait of a rendezvous."""
    state, log = run_through(*before, (1.0, Signalled(SIGTERM)))
    assert (state.phase, state.exit_code, log[-1]) == (Phase.ENDED, 143, (Depart(),))


def test_signal_after_all_ranks_finished_leaves_the_success():
    """A job whose ranks have all exited 0 has succeeded, whoever signals while left-overs are swept."""
    steps = (*BEGUN, (1.0, RankExited(0, 0, 0)), (1.0, RankExited(1, 1, 0)), (1.1, Signalled(SIGTERM)))
    state, log = run_through(*steps, (1.2, AllGone()), (1.3, Sentenced(0, "all ranks finished")))
    assert log[-2] == (JoinNext(),)
    assert state.exit_code == 0


@pytest.mark.parametrize(
    "meanwhile",
    [(), ((1.5, Disconnected("reset")),), ((1.5, Disconnected("reset")), (1.6, Connected(0)))],
    ids=["others go on", "store lost", "store lost and back"],
)
def test_node_that_has_succeeded_and_is_told_to_stop_waits_for_the_last_word_only_a_second(
    meanwhile: tuple[tuple[float, Event], ...],
):
    """Other nodes may run for days; a lost or a new store does not make the wait longer."""
    steps = (*BEGUN, (1.0, RankExited(0, 0, 0)), (1.0, RankExited(1, 1, 0)), (1.1, Signalled(SIGTERM)))
    state, _ = run_through(*steps, (1.2, AllGone()), *meanwhile, (2.1, Woke()))
    assert state.phase is Phase.JOINING
    state, actions = advance(state, Woke(), 2.2, GRACES)
    assert (state.phase, state.exit_code, actions) == (Phase.ENDED, 143, (Depart(),))


def test_hang_ends_the_culprits_at_once_and_asks_the_others():
    """A hung rank cannot act on SIGTERM; the others may want to save. Then it is a failure like a crash."""
    steps = (*BEGUN, (9.0, Hung((1,), "rank 1 hangs")), (9.1, RankExited(1, 1, -9)))
    state, log = run_through(*steps, (9.1, RankExited(0, 0, -15)), (9.2, AllGone()))
    assert log[2] == (TellStop(StopKind.FAILURE, "rank 1 hangs"), EndHung((1,)), Ask(SIGTERM))
    assert (state.phase, log[-1]) == (Phase.JOINING, (JoinNext(),))


def test_requested_end_of_the_job_stops_all_nodes_and_is_carried_by_the_join():
    """The workers are asked as after a signal; how they then end does not change what was asked for."""
    steps = (*BEGUN, (5.0, StopRequested(93, "loss is NaN")), (6.0, RankExited(0, 0, 0)))
    state, log = run_through(*steps, (6.0, RankExited(1, 1, -15)), (6.1, AllGone()))
    assert log[2] == (TellStop(StopKind.REQUEST, "loss is NaN", 93), Ask(SIGTERM))
    assert (state.phase, log[-1]) == (Phase.JOINING, (JoinNext(),))
    assert state.request == StopOrder(StopKind.REQUEST, "", "loss is NaN", 93)
    state, _ = advance(state, Sentenced(93, "loss is NaN"), 6.2, GRACES)
    assert (state.phase, state.exit_code, state.end_reason) == (Phase.ENDED, 93, "loss is NaN")


def test_requested_end_counts_while_a_failed_round_is_being_stopped_and_the_first_wish_wins():
    """The join after the stop carries it, so that no restart follows."""
    steps = (*BEGUN, (3.0, RankExited(1, 1, 1)), (3.5, StopRequested(93, "a")), (3.6, StopRequested(1, "b")))
    state, log = run_through(*steps, (4.0, RankExited(0, 0, -15)), (4.1, AllGone()))
    assert log[3:5] == [(), ()]
    assert state.request is not None
    assert (state.request.exit_code, state.request.reason) == (93, "a")


def test_requested_end_in_the_pause_before_a_restart_is_said_with_another_join():
    """A request that was sent just before a rank failed still counts; without a store it waits for one."""
    state, log = run_through(*FAILED, (4.0, StopRequested(93, "bad data")))
    assert (state.phase, log[-1]) == (Phase.JOINING, (JoinNext(),))
    steps = (*FAILED, (4.0, Disconnected("reset")), (4.1, StopRequested(93, "bad data")))
    state, log = run_through(*steps, (5.0, Connected(0)))
    assert log[-2:] == [(), (JoinNext(),)]
    assert state.request is not None


def test_request_to_leave_out_this_node_ends_it_and_excludes_it():
    """The others stop with it and may go on without it."""
    steps = (*BEGUN, (5.0, StopRequested(94, "bad GPU", is_for_node=True)), (6.0, RankExited(0, 0, 0)))
    state, log = run_through(*steps, (6.0, RankExited(1, 1, -15)), (6.1, AllGone()))
    assert log[2] == (TellStop(StopKind.LEAVE, "bad GPU", 94), Ask(SIGTERM))
    assert (state.phase, state.exit_code, log[-1]) == (Phase.ENDED, 94, (Depart(),))
    assert state.ending is not None
    assert state.ending.is_excluded


def test_request_to_leave_out_this_node_in_the_pause_before_a_restart_ends_it_at_once():
    """Nothing runs here any more."""
    state, log = run_through(*FAILED, (4.0, StopRequested(94, "bad GPU", is_for_node=True)))
    assert (state.phase, state.exit_code, log[-1]) == (Phase.ENDED, 94, (Depart(),))


@pytest.mark.parametrize(
    ("kind", "cause", "grace_s"),
    [
        (StopKind.FAILURE, Cause.ORDER, 5.0),
        (StopKind.NODE_LOST, Cause.ORDER, 5.0),
        (StopKind.GROW, Cause.ORDER, 5.0),
        (StopKind.OVER, Cause.ORDER, 5.0),
        (StopKind.LEAVE, Cause.REQUEST, 30.0),
        (StopKind.REQUEST, Cause.REQUEST, 30.0),
    ],
)
def test_stop_order_of_another_node_stops_this_one_and_is_not_repeated(
    kind: StopKind, cause: Cause, grace_s: float
):
    """Where somebody is told to leave or to end, all nodes' workers have the long grace to save together."""
    state, log = run_through(*BEGUN, (7.0, Ordered(0, order(kind))))
    assert (state.phase, state.cause, state.deadline) == (Phase.STOPPING, cause, 7.0 + grace_s)
    assert log[-1] == (Ask(SIGTERM),)


@pytest.mark.parametrize("sequence", [1, 5])
def test_stop_order_of_another_round_changes_nothing(sequence: int):
    """An order that comes late, or for a round without this node, does not hit the one that runs."""
    state, log = run_through(*BEGUN, (7.0, Ordered(sequence, order(StopKind.FAILURE))))
    assert (state.phase, log[-1]) == (Phase.RUNNING, ())


def test_stop_order_that_comes_when_the_round_is_being_stopped_changes_nothing():
    """The own order comes back too."""
    state, _ = run_through(*BEGUN, (3.0, RankExited(1, 1, 1)))
    after, actions = advance(state, Ordered(0, order(StopKind.LEAVE)), 3.1, GRACES)
    assert (after, actions) == (state, ())


def test_lost_store_stops_the_workers_and_another_host_agent_is_looked_for():
    """Without the host agent nobody knows whether the world still stands; no order can be given either."""
    state, log = run_through(*BEGUN, (7.0, Disconnected("reset")))
    assert (state.phase, state.cause) == (Phase.STOPPING, Cause.STORE)
    assert log[-1] == (Reconnect(), Ask(SIGTERM))
    assert tells(log[-1]) == []


def test_node_joins_the_new_host_agent_with_the_sequence_that_is_open_there():
    """Each host agent counts its rounds from 0."""
    steps = (*BEGUN, (7.0, Disconnected("reset")), (7.1, RankExited(0, 0, -15)), (7.1, RankExited(1, 1, -15)))
    state, log = run_through(*steps, (7.2, AllGone()), (20.0, Connected(0)))
    assert log[-2:] == [(), (JoinNext(),)]
    assert (state.sequence, state.outcome, state.deadline) == (0, Outcome.STOPPED, None)


def test_new_host_agent_found_while_workers_end_is_joined_when_they_are_gone():
    """A node never joins a round while workers of another one run."""
    steps = (*BEGUN, (7.0, Disconnected("reset")), (7.05, Connected(0)), (7.1, RankExited(0, 0, -15)))
    state, log = run_through(*steps, (7.1, RankExited(1, 1, -15)), (7.2, AllGone()))
    assert log[3:5] == [(), ()]
    assert (state.phase, log[-1]) == (Phase.JOINING, (JoinNext(),))


def test_search_for_another_host_agent_is_bounded_from_the_loss_on():
    """The time in which workers end counts; then the node ends with 95 and says what it had lost."""
    steps = (*BEGUN, (7.0, Disconnected("reset by peer")), (7.1, RankExited(0, 0, -15)))
    state, _ = run_through(*steps, (7.1, RankExited(1, 1, -15)), (7.2, AllGone()))
    assert state.deadline == 307.0
    state, _ = advance(state, Woke(), 307.0, GRACES)
    assert (state.phase, state.exit_code) == (Phase.ENDED, 95)
    assert "reset by peer" in state.end_reason


def test_node_that_has_succeeded_keeps_that_when_it_loses_the_store():
    """What it tells the next host agent is how its round ended."""
    state, log = run_through(*FINISHED, (9.7, Disconnected("reset")), (20.0, Connected(0)))
    assert (state.outcome, log[-1]) == (Outcome.SUCCEEDED, (JoinNext(),))


def test_verdict_while_workers_run_ends_them_first():
    """A node that was thought lost and hears that the job is over leaves nothing behind."""
    steps = (*BEGUN, (7.0, Sentenced(1, "failed")), (7.5, RankExited(0, 0, -15)))
    state, log = run_through(*steps, (7.5, RankExited(1, 1, -15)), (7.6, AllGone()))
    assert log[2] == (Ask(SIGTERM),)
    assert (state.phase, state.exit_code, log[-1]) == (Phase.ENDED, 1, ())


def test_round_without_this_node_that_is_planned_while_its_workers_end_is_joined_later():
    """It was thought lost; its next join is for the round that is then open."""
    steps = (*BEGUN, (3.0, Ordered(0, order(StopKind.NODE_LOST))), (3.1, Planned(1, 1, has_seat=False)))
    state, log = run_through(
        *steps, (4.0, RankExited(0, 0, -15)), (4.0, RankExited(1, 1, -15)), (4.1, AllGone())
    )
    assert log[3] == ()
    assert (state.sequence, log[-1]) == (2, (JoinNext(),))


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (Phase.JOINING, RankExited(0, 0, 0)),
        (Phase.JOINING, AllGone()),
        (Phase.JOINING, StartFailed("no memory")),
        (Phase.RUNNING, AllGone()),
        (Phase.RUNNING, Planned(0, 0, has_seat=True)),
        (Phase.STOPPING, Planned(0, 0, has_seat=True)),
        (Phase.STOPPING, StartFailed("no memory")),
        (Phase.JOINING, Unreached("no way")),
        (Phase.STOPPING, Unreached("no way")),
        (Phase.JOINING, Hung((0,), "")),
        (Phase.STOPPING, Hung((0,), "")),
        (Phase.ENDED, Woke()),
        (Phase.ENDED, Signalled(SIGTERM)),
        (Phase.ENDED, Sentenced(0, "")),
        (Phase.ENDED, Connected(0)),
    ],
)
def test_event_that_does_not_fit_raises_and_changes_nothing(phase: Phase, event: Event):
    """An illegal event is a bug of the shell, not a transition."""
    state = State(2, phase=phase)
    before = State(2, phase=phase)
    with pytest.raises(IllegalEvent):
        advance(state, event, 1.0, GRACES)
    assert state == before


SEQUENCES = st.integers(0, 3)
EVENTS = st.one_of(
    st.builds(RankExited, st.integers(0, 1), st.integers(0, 1), st.sampled_from([0, 1, -9, -15])),
    st.builds(Signalled, st.sampled_from([SIGTERM, SIGINT])),
    st.builds(Hung, st.sampled_from([(), (0,), (1,)]), st.just("still")),
    st.builds(StopRequested, st.sampled_from([93, 94]), st.just("asked"), st.booleans()),
    st.just(StartFailed("no memory")),
    st.just(Unreached("no way")),
    st.just(AllGone()),
    st.just(Woke()),
    st.builds(Connected, SEQUENCES),
    st.just(Disconnected("reset")),
    st.builds(Planned, SEQUENCES, st.integers(0, 9), st.booleans()),
    st.builds(Ordered, SEQUENCES, st.builds(order, st.sampled_from(StopKind))),
    st.builds(Sentenced, st.sampled_from([0, 1, 93, 95]), st.just("over")),
)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), EVENTS), max_size=40))
def test_no_history_breaks_the_invariants(history: list[tuple[float, Event]]):
    """Kills follow asks, a deadline exists while stopping and while searching, ENDED is final."""
    state, now, asked = begin(2, 0.0, 60.0), 0.0, False
    for gap, event in history:
        now += gap
        if isinstance(event, (Planned, Ordered, Sentenced)) and not state.is_connected:
            continue  # nothing is heard without a store
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
        if state.phase is Phase.JOINING and not state.is_connected:
            assert state.deadline is not None
        if JoinNext() in actions:
            assert state.phase is Phase.JOINING
            assert state.is_connected
        assert before.phase is not Phase.ENDED


REPORT = FaultReport(1, IncidentKind.NAN_LOSS, "the loss is not a number")


def test_reported_fault_stops_the_round_and_is_remembered_until_the_next() -> None:
    """All nodes are told why; the next round begins without it."""
    state, log = run_through(*BEGUN, (5.0, Reported(REPORT)))
    assert (state.phase, state.cause, state.report) == (Phase.STOPPING, Cause.FAILURE, REPORT)
    assert log[-1] == (
        TellStop(StopKind.FAILURE, "nan_loss: the loss is not a number"),
        Ask(SIGTERM),
    )
    ends = ((5.1, RankExited(0, 0, -15)), (5.2, RankExited(1, 1, -15)), (5.3, AllGone()))
    state, _ = run_through(*BEGUN, (5.0, Reported(REPORT)), *ends)
    assert (state.outcome, state.report) == (Outcome.STOPPED, REPORT)
    again = (6.0, Planned(1, 1, has_seat=True))
    assert run_through(*BEGUN, (5.0, Reported(REPORT)), *ends, again)[0].report is None


def test_report_that_comes_with_the_failure_it_is_about_still_counts() -> None:
    """A rank that reports and then raises may be seen to exit first; of two reports the first counts."""
    later = FaultReport(0, IncidentKind.DATA_LOADER, "so it is")
    state, log = run_through(
        *BEGUN, (5.0, RankExited(1, 1, 1)), (5.1, Reported(REPORT)), (5.2, Reported(later))
    )
    assert (state.phase, state.report) == (Phase.STOPPING, REPORT)
    assert log[-2:] == [(), ()]


@pytest.mark.parametrize("before", [(JOINED,), (*BEGUN, (4.0, Signalled(SIGTERM)))])
def test_report_changes_nothing_where_no_failure_is_looked_for(
    before: tuple[tuple[float, Event], ...],
) -> None:
    """Between rounds, and when the job is told to end."""
    state, log = run_through(*before, (5.0, Reported(REPORT)))
    assert (state.report, log[-1]) == (None, ())

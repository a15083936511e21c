"""The life of a job on a node as a state machine: rounds, how they end, and what follows. Pure.

    JOINING -> RUNNING -> STOPPING -> JOINING ...        any -> ENDED

The node's own part: which nodes a round has and what is done about a failure is decided by the host agent
(`ftrun.launcher.host`), which may be this same process. Events in, actions out; `advance` never acts, reads
no clock, and an event that does not fit the phase raises and changes nothing. All waiting is
`State.deadline`: the caller wakes it with `Woke` when that time has come.
"""

from __future__ import annotations

from dataclasses import replace

from ftrun.launcher import exit_codes
from ftrun.launcher.messages import Outcome, StopKind, StopOrder
from ftrun.launcher.node_state import (
    AllGone,
    Ask,
    Cause,
    Connected,
    Depart,
    Disconnected,
    EndHung,
    Ending,
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
    Step,
    StopRequested,
    TellStop,
    Unhealthy,
    Unreached,
    Woke,
)
from ftrun.monitor.incident import FaultReport
from ftrun.monitor.signal_names import signal_name

_SIGTERM = 15
_IMPORTS_S = 300.0
"""Longest wait for the imports before the search: on a shared file system, under a whole cluster's load, they
have been seen to take minutes."""
_LAST_WORD_S = 1.0
"""How long a node that has succeeded and is told to stop waits for the job's verdict."""


class IllegalEvent(Exception):
    """An event that cannot happen in this phase; the state is unchanged."""


def advance(state: State, event: Event, now: float, graces: Graces) -> Step:
    """Next state and what to do.

    Raises:
        IllegalEvent: the event does not fit the phase.
    """
    match state.phase, event:
        case Phase.ENDED, _:
            raise IllegalEvent(f"{event} after the end")
        case _, Signalled(signum):
            return _signalled(state, signum, now, graces)
        case _, StopRequested():
            return _stop_requested(state, event, now, graces)
        case _, Looking():
            return _looking(state, now), ()
        case _, Connected(sequence):
            return _connected(state, sequence)
        case _, Disconnected(reason):
            return _disconnected(state, reason, now, graces)
        case _, Planned():
            return _planned(state, event)
        case _, Sentenced(exit_code, reason):
            return _sentenced(state, Ending(exit_code, reason), now, graces)
        case _, Ordered(sequence, order):
            return _ordered(state, sequence, order, now, graces)
        case Phase.RUNNING, StartFailed(reason):
            failed = replace(state, start_failure=reason)
            stopping = _stopping(failed, Cause.START, now, graces.kill_timeout_s, has_killed=True)
            return stopping, (TellStop(StopKind.FAILURE, reason), Kill())
        case Phase.RUNNING, Unreached(reason):
            apart = replace(state, unreachable=reason)
            stopping = _stopping(apart, Cause.START, now, graces.after_failure_s)
            return stopping, (TellStop(StopKind.FAILURE, reason), Ask(_SIGTERM))
        case Phase.RUNNING, Unhealthy(reason):
            return _found_unhealthy(state, reason, now, graces)
        case _, Reported(report):
            return _reported(state, report, now, graces)
        case Phase.RUNNING, Hung(local_ranks, reason):
            stopping = _stopping(state, Cause.FAILURE, now, graces.after_failure_s)
            return stopping, (TellStop(StopKind.FAILURE, reason), EndHung(local_ranks), Ask(_SIGTERM))
        case Phase.RUNNING, RankExited():
            return _rank_exited(state, event, now, graces)
        case Phase.STOPPING, RankExited(local_rank, _, exit_code):
            return replace(state, exits={**state.exits, local_rank: exit_code}), ()
        case Phase.STOPPING, AllGone():
            return _all_gone(state, now, graces)
        case _, Woke():
            is_due = state.deadline is not None and now >= state.deadline
            return _woken(state, now, graces) if is_due else (state, ())
    raise IllegalEvent(f"{event} while {state.phase.value}")


def begin(local_world_size: int, now: float, connect_timeout_s: float) -> State:
    """The state before anything has happened; the caller looks for the host agent's store.

    The time for that counts from when the search itself begins (`Looking`).
    """
    by = now + _IMPORTS_S
    return State(local_world_size, search_s=connect_timeout_s, connect_by=by, deadline=by)


def _looking(state: State, now: float) -> State:
    is_first = state.phase is Phase.JOINING and not state.is_looking and not state.is_connected
    state = replace(state, is_looking=True)
    if not is_first or state.ending is not None:
        return state
    by = now + state.search_s
    return replace(state, connect_by=by, deadline=by)


def _connected(state: State, sequence: int) -> Step:
    state = replace(state, is_connected=True, sequence=sequence, connect_by=None, lost_store="")
    if state.phase is Phase.JOINING:
        # Who is told to stop waits only so long for the last word, whatever becomes of the store.
        return replace(state, deadline=state.deadline if state.ending else None), (JoinNext(),)
    return state, ()


def _disconnected(state: State, reason: str, now: float, graces: Graces) -> Step:
    """The workers are stopped: without the host agent nobody knows whether the world still stands."""
    by = now + graces.reconnect_s
    state = replace(state, is_connected=False, connect_by=by, lost_store=reason)
    if state.phase is Phase.RUNNING:
        stopping = _stopping(state, Cause.STORE, now, graces.after_failure_s)
        return stopping, (Reconnect(), Ask(_SIGTERM))
    if state.phase is Phase.JOINING:
        return replace(state, deadline=state.deadline if state.ending else by), (Reconnect(),)
    return state, (Reconnect(),)


def _planned(state: State, plan: Planned) -> Step:
    if plan.has_seat:
        if state.phase is not Phase.JOINING:
            raise IllegalEvent(f"{plan} while {state.phase.value}")
        running = replace(
            state,
            local_world_size=state.local_world_size if plan.slots is None else plan.slots,
            phase=Phase.RUNNING,
            round_number=plan.round_number,
            sequence=plan.sequence + 1,
            deadline=None,
            exits={},
            cause=None,
            start_failure="",
            unreachable="",
            unhealthy="",
            report=None,
        )
        return running, (StartRound(),)
    state = replace(state, sequence=plan.sequence + 1)
    return state, (JoinNext(),) if state.phase is Phase.JOINING else ()


def _sentenced(state: State, sentence: Ending, now: float, graces: Graces) -> Step:
    if state.phase is Phase.JOINING:
        return _ended(state, sentence), ()
    state = replace(state, sentence=state.sentence or sentence)
    if state.phase is Phase.RUNNING:
        return _stopping(state, Cause.ORDER, now, graces.after_failure_s), (Ask(_SIGTERM),)
    return state, ()


def _ordered(state: State, sequence: int, order: StopOrder, now: float, graces: Graces) -> Step:
    if not state.is_running(sequence):
        return state, ()
    # Where somebody is told to leave or to end, every node's workers may have something to save together.
    is_gentle = order.kind in (StopKind.LEAVE, StopKind.REQUEST)
    if is_gentle:
        return _stopping(state, Cause.REQUEST, now, graces.after_signal_s), (Ask(_SIGTERM),)
    return _stopping(state, Cause.ORDER, now, graces.after_failure_s), (Ask(_SIGTERM),)


def _found_unhealthy(state: State, reason: str, now: float, graces: Graces) -> Step:
    if state.exits:  # some ranks are done: the round is about to end by itself
        return state, ()
    sick = replace(state, unhealthy=reason)
    stopping = _stopping(sick, Cause.FAILURE, now, graces.after_failure_s)
    return stopping, (TellStop(StopKind.FAILURE, reason), Ask(_SIGTERM))


def _reported(state: State, report: FaultReport, now: float, graces: Graces) -> Step:
    """The first report counts, also one that comes as its round is stopped because of what it is about."""
    if state.phase is Phase.RUNNING:
        stopping = _stopping(replace(state, report=report), Cause.FAILURE, now, graces.after_failure_s)
        return stopping, (TellStop(StopKind.FAILURE, f"{report.kind.value}: {report.reason}"), Ask(_SIGTERM))
    if state.phase is Phase.STOPPING and state.cause in (Cause.FAILURE, Cause.ORDER):
        return replace(state, report=state.report or report), ()
    return state, ()


def _rank_exited(state: State, end: RankExited, now: float, graces: Graces) -> Step:
    state = replace(state, exits={**state.exits, end.local_rank: end.exit_code})
    if end.exit_code != 0:
        how = signal_name(end.exit_code) or f"exit code {end.exit_code}"
        told = TellStop(StopKind.FAILURE, f"rank {end.rank} ended by {how}")
        return _stopping(state, Cause.FAILURE, now, graces.after_failure_s), (told, Ask(_SIGTERM))
    if len(state.exits) == state.local_world_size:
        # Only processes that outlived their rank are left, such as one that uploads what was trained.
        return _stopping(state, Cause.SUCCESS, now, graces.after_success_s, has_asked=False), ()
    return state, ()


def _stopping(
    state: State,
    cause: Cause,
    now: float,
    grace_s: float,
    has_asked: bool = True,
    has_killed: bool = False,
) -> State:
    return replace(
        state,
        phase=Phase.STOPPING,
        cause=cause,
        deadline=now + grace_s,
        stop_began_at=now,
        has_asked=has_asked,
        has_killed=has_killed,
    )


def _signalled(state: State, signum: int, now: float, graces: Graces) -> Step:
    """The first signal is passed to the workers, once; each later one halves what is left of the grace."""
    is_first = state.signal_count == 0
    ending = state.ending or Ending(exit_codes.of_signal(signum), "stopped by a signal", signum)
    state = replace(state, ending=ending, signal_count=state.signal_count + 1)
    if state.phase is Phase.JOINING:
        return _ended(state, ending), (Depart(),)
    if state.phase is Phase.RUNNING:
        told = TellStop(StopKind.LEAVE, f"told to stop by {signal_name(-signum)}")
        return _stopping(state, Cause.SIGNAL, now, graces.after_signal_s), (told, Ask(signum))
    if state.has_killed or state.deadline is None:
        return state, ()
    if is_first:
        # The job now ends instead of restarting, and may wait no longer; who was asked is not asked again.
        asks = () if state.has_asked else (Ask(signum),)
        deadline = min(state.deadline, now + graces.after_signal_s)
        return replace(state, has_asked=True, deadline=deadline), asks
    return replace(state, deadline=now + max(0.0, state.deadline - now) / 2), ()


def _stop_requested(state: State, wish: StopRequested, now: float, graces: Graces) -> Step:
    """The first wish counts; workers that run are asked to end as after a signal."""
    kind = StopKind.LEAVE if wish.is_for_node else StopKind.REQUEST
    if wish.is_for_node:
        ending = Ending(wish.exit_code, wish.reason, is_excluded=True)
        state = replace(state, ending=state.ending or ending)
    else:
        order = StopOrder(kind, "", wish.reason, wish.exit_code)
        state = replace(state, request=state.request or order)
    if state.phase is Phase.RUNNING:
        told = TellStop(kind, wish.reason, wish.exit_code)
        return _stopping(state, Cause.REQUEST, now, graces.after_signal_s), (told, Ask(_SIGTERM))
    if state.phase is Phase.JOINING and state.ending is not None:
        return _ended(state, state.ending), (Depart(),)
    if state.phase is Phase.JOINING and state.is_connected:
        return state, (JoinNext(),)
    return state, ()


def _woken(state: State, now: float, graces: Graces) -> Step:
    if state.phase is Phase.STOPPING:
        return _grace_over(state, now, graces)
    if state.phase is Phase.JOINING and state.ending is not None:
        return _ended(state, state.ending), (Depart(),)
    if state.phase is Phase.JOINING and not state.is_connected:
        return _ended(state, Ending(exit_codes.NO_RENDEZVOUS, _vain(state))), ()
    return state, ()


def _vain(state: State) -> str:
    if not state.is_looking and not state.lost_store:
        return f"what the search for a host agent needs was not imported within {_IMPORTS_S:g} s"
    why = state.lost_store or f"none was found within {state.search_s:g} s (join_timeout)"
    return f"gave up looking for a host agent: {why}"


def _grace_over(state: State, now: float, graces: Graces) -> Step:
    if not state.has_asked:
        return replace(state, has_asked=True, deadline=now + graces.after_failure_s), (Ask(_SIGTERM),)
    if not state.has_killed:
        return replace(state, has_killed=True, deadline=now + graces.kill_timeout_s), (Kill(),)
    stuck = Ending(exit_codes.NODE_UNHEALTHY, "processes of the round survived SIGKILL", is_excluded=True)
    return _ended(replace(state, ending=stuck), stuck), (GiveUp(), Depart())


def _all_gone(state: State, now: float, graces: Graces) -> Step:
    has_succeeded = state.cause is Cause.SUCCESS
    outcome = Outcome.SUCCEEDED if has_succeeded else Outcome.STOPPED
    if state.ending is not None and not has_succeeded:
        return _ended(state, _own_ending(state, graces)), (Depart(),)
    if state.sentence is not None:
        return _ended(state, state.sentence), ()
    deadline = state.connect_by if state.ending is None else now + _LAST_WORD_S
    joining = replace(state, phase=Phase.JOINING, deadline=deadline, outcome=outcome)
    return joining, (JoinNext(),) if state.is_connected else ()


def _own_ending(state: State, graces: Graces) -> Ending:
    assert state.ending is not None
    is_clean = len(state.exits) == state.local_world_size and not any(state.exits.values())
    if state.ending.signum and is_clean and graces.graceful_exit_code is not None:
        return replace(state.ending, exit_code=graces.graceful_exit_code)
    return state.ending


def _ended(state: State, ending: Ending) -> State:
    return replace(
        state, phase=Phase.ENDED, deadline=None, exit_code=ending.exit_code, end_reason=ending.reason
    )

"""The life of a job on a node as a state machine: rounds, how they end, and what follows. Pure.

    JOINING -> RUNNING -> STOPPING -> JUDGING -> JOINING ...        any -> ENDED

Events in, actions out; `advance` never acts, reads no clock, and an event that does not fit the phase raises
and changes nothing. All waiting is `State.deadline`: the caller wakes it with `Woke` when that time has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from ftrun.launcher import exit_codes
from ftrun.launcher.model import Action, Decision

_SIGTERM = 15
_MAX_STARTS = 5
"""With pauses of 1, 2, 4 and 8 s between them."""


class Phase(Enum):
    """Where the job is; words of the design."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    JUDGING = "judging"
    ENDED = "ended"


class Cause(Enum):
    """Why a round is being stopped."""

    SUCCESS = "success"
    START = "start"
    FAILURE = "failure"
    SIGNAL = "signal"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Graces:
    """Seconds from asking processes to end to killing them, by cause, and from killing to giving up."""

    after_failure_s: float
    after_signal_s: float
    after_success_s: float
    """Before processes that outlived their rank, in a job that has succeeded, are asked to end."""
    kill_timeout_s: float
    graceful_exit_code: int | None = None
    """Exit code when a signal ended the job and every rank exited 0; None = 128 + signal."""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A worker ended."""

    local_rank: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """The agent was told to stop by a signal."""

    signum: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The system would not let the workers of the round be started: no descriptors, processes or memory."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hung:
    """Workers that run and do not move; the rest of the group waits for them."""

    local_ranks: tuple[int, ...]
    """Those to blame; none if nothing tells them apart."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The script asked for the end of the job, or of this node's part in it."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class AllGone:
    """No process of the round is left."""


@dataclass(frozen=True, slots=True)
class Woke:
    """Time has passed; level-driven, harmless when early."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The policy has decided about the failure of the round."""

    decision: Decision


Event = StartFailed | RankExited | Hung | Signalled | StopRequested | AllGone | Woke | Judged


@dataclass(frozen=True, slots=True)
class StartRound:
    """Start the workers of the round."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask every process of the round to end: send it `signum`."""

    signum: int


@dataclass(frozen=True, slots=True)
class EndHung:
    """End these workers at once: they cannot act on being asked."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL every process of the round that is left."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Take down what is left of a round that did not start."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Gather the evidence, diagnose, decide; answer with `Judged`."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Name the processes that survived SIGKILL."""


Do = StartRound | Ask | EndHung | Kill | Discard | Judge | GiveUp


@dataclass(frozen=True, slots=True)
class Ending:
    """The job is to end, whatever else its workers do."""

    exit_code: int
    reason: str
    signum: int = 0
    """Signal that told the agent so; 0 if it was the script."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole state of a job on a node."""

    local_world_size: int
    phase: Phase = Phase.JOINING
    round_number: int = 0
    deadline: float | None = 0.0
    """Monotonic time at which `Woke` does something; None = nothing to wait for."""
    exits: dict[int, int] = field(default_factory=dict)
    """Exit codes of this round's workers so far, by local rank. Replaced, never changed in place."""
    cause: Cause | None = None
    stop_began_at: float = 0.0
    has_asked: bool = False
    has_killed: bool = False
    start_failures: tuple[str, ...] = ()
    """Why the round could not be started, so far; empty again once it runs to an end."""
    ending: Ending | None = None
    signal_count: int = 0
    exit_code: int = 0
    end_reason: str = ""


class IllegalEvent(Exception):
    """An event that cannot happen in this phase; the state is unchanged."""


def advance(state: State, event: Event, now: float, graces: Graces) -> tuple[State, tuple[Do, ...]]:
    """Next state and what to do.

    Raises:
        IllegalEvent: the event does not fit the phase.
    """
    match state.phase, event:
        case Phase.ENDED, _:
            raise IllegalEvent(f"{event} after the end")
        case _, Signalled(signum):
            return _signalled(state, signum, now, graces)
        case Phase.JOINING, Woke() if state.deadline is not None and now >= state.deadline:
            return replace(state, phase=Phase.RUNNING, deadline=None, exits={}, cause=None), (StartRound(),)
        case _, StopRequested(exit_code, reason):
            return _stop_requested(state, Ending(exit_code, reason), now, graces)
        case Phase.RUNNING, StartFailed(reason):
            failed = replace(state, start_failures=(*state.start_failures, reason))
            return _stopping(failed, Cause.START, now, graces.kill_timeout_s, has_killed=True), (Kill(),)
        case Phase.RUNNING, Hung(local_ranks):
            stopping = _stopping(state, Cause.FAILURE, now, graces.after_failure_s)
            return stopping, (EndHung(local_ranks), Ask(_SIGTERM))
        case Phase.RUNNING, RankExited(local_rank, exit_code):
            return _rank_exited(state, local_rank, exit_code, now, graces)
        case Phase.STOPPING, RankExited(local_rank, exit_code):
            return replace(state, exits={**state.exits, local_rank: exit_code}), ()
        case Phase.STOPPING, Woke() if state.deadline is not None and now >= state.deadline:
            return _grace_over(state, now, graces)
        case Phase.STOPPING, AllGone():
            return _all_gone(state, now, graces)
        case Phase.JUDGING, Judged(decision):
            return _judged(state, decision, now)
        case _, Woke():
            return state, ()
    raise IllegalEvent(f"{event} while {state.phase.value}")


def _rank_exited(
    state: State, local_rank: int, exit_code: int, now: float, graces: Graces
) -> tuple[State, tuple[Do, ...]]:
    state = replace(state, exits={**state.exits, local_rank: exit_code}, start_failures=())
    if exit_code != 0:
        return _stopping(state, Cause.FAILURE, now, graces.after_failure_s), (Ask(_SIGTERM),)
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


def _signalled(state: State, signum: int, now: float, graces: Graces) -> tuple[State, tuple[Do, ...]]:
    """The first signal is passed to the workers, once; each later one halves what is left of the grace."""
    is_first = state.signal_count == 0
    ending = state.ending or Ending(exit_codes.of_signal(signum), "stopped by a signal", signum)
    state = replace(state, ending=ending, signal_count=state.signal_count + 1)
    if state.phase is Phase.JOINING:
        return _ended(state, ending), ()
    if state.phase is Phase.RUNNING:
        return _stopping(state, Cause.SIGNAL, now, graces.after_signal_s), (Ask(signum),)
    if state.phase is not Phase.STOPPING or state.has_killed or state.deadline is None:
        return state, ()
    if is_first:
        # The job now ends instead of restarting, and may wait no longer; who was asked is not asked again.
        asks = () if state.has_asked else (Ask(signum),)
        deadline = min(state.deadline, now + graces.after_signal_s)
        return replace(state, has_asked=True, deadline=deadline), asks
    return replace(state, deadline=now + max(0.0, state.deadline - now) / 2), ()


def _stop_requested(state: State, ending: Ending, now: float, graces: Graces) -> tuple[State, tuple[Do, ...]]:
    """The first wish counts; workers that run are asked to end as after a signal."""
    state = replace(state, ending=state.ending or ending)
    if state.phase is Phase.JOINING:
        return _ended(state, ending), ()
    if state.phase is Phase.RUNNING:
        return _stopping(state, Cause.REQUEST, now, graces.after_signal_s), (Ask(_SIGTERM),)
    return state, ()


def _grace_over(state: State, now: float, graces: Graces) -> tuple[State, tuple[Do, ...]]:
    if not state.has_asked:
        return replace(state, has_asked=True, deadline=now + graces.after_failure_s), (Ask(_SIGTERM),)
    if not state.has_killed:
        return replace(state, has_killed=True, deadline=now + graces.kill_timeout_s), (Kill(),)
    stuck = Ending(exit_codes.NODE_UNHEALTHY, "processes of the round survived SIGKILL")
    return _ended(state, stuck), (GiveUp(),)


def _all_gone(state: State, now: float, graces: Graces) -> tuple[State, tuple[Do, ...]]:
    if state.cause is Cause.SUCCESS:
        return _ended(state, Ending(exit_codes.OK, "all ranks finished")), ()
    if state.cause is Cause.FAILURE:
        # Also when the job is to end: what failed is said all the same.
        return replace(state, phase=Phase.JUDGING, deadline=None), (Judge(),)
    if state.cause is Cause.START and state.ending is None:
        return _after_failed_start(state, now), (Discard(),)
    assert state.ending is not None
    is_clean = len(state.exits) == state.local_world_size and not any(state.exits.values())
    if state.ending.signum and is_clean and graces.graceful_exit_code is not None:
        return _ended(state, replace(state.ending, exit_code=graces.graceful_exit_code)), ()
    return _ended(state, state.ending), ()


def _after_failed_start(state: State, now: float) -> State:
    """Try again after a pause that doubles, a few times: such shortages often pass."""
    tries = len(state.start_failures)
    if tries >= _MAX_STARTS:
        reason = f"the workers could not be started {tries} times in a row: {state.start_failures[-1]}"
        return _ended(state, Ending(exit_codes.NODE_UNHEALTHY, reason))
    return replace(state, phase=Phase.JOINING, deadline=now + 2.0 ** (tries - 1), exits={}, cause=None)


def _judged(state: State, decision: Decision, now: float) -> tuple[State, tuple[Do, ...]]:
    if decision.action is Action.STOP:
        return _ended(state, Ending(decision.exit_code, decision.reason)), ()
    if state.ending is not None:
        return _ended(state, state.ending), ()
    nxt = replace(
        state,
        phase=Phase.JOINING,
        round_number=state.round_number + 1,
        deadline=now + decision.delay_s,
        exits={},
        cause=None,
    )
    return nxt, ()


def _ended(state: State, ending: Ending) -> State:
    return replace(
        state, phase=Phase.ENDED, deadline=None, exit_code=ending.exit_code, end_reason=ending.reason
    )

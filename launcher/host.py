"""The host agent's part in a rendezvous as a state machine: who is there, and what they say. Pure.

    FORMING -> RUNNING -> FORMING ...        any -> CLOSING -> DONE

Events in, actions out; what follows from them for the rounds is `ftrun.launcher.host_rounds`'. All waiting is
`deadline(state)`: the caller sends `Woke` when that time has come. One node alone is the same machine with
one member. Times are this host's CLOCK_MONOTONIC, in seconds; what other agents' clocks say is never asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ftrun.launcher.host_rounds import can_grow, follow
from ftrun.launcher.host_state import (
    Beats,
    Decide,
    Do,
    Event,
    HostState,
    Presence,
    Received,
    Stage,
    Step,
    Stopped,
    Tell,
    Watch,
    Woke,
)
from ftrun.launcher.host_waits import describe_namesakes, next_telling
from ftrun.launcher.memory import combine, exclude, find_incident_at
from ftrun.launcher.messages import Agent, Bye, Join, Leave, Memory, Message, Moving, Quiet, Refused, Saved
from ftrun.launcher.quorum import find_first_ranks, keep_size
from ftrun.monitor import events
from ftrun.monitor.diagnosis import LostNode

_T = TypeVar("_T")


def deadline(state: HostState) -> float | None:
    """When `Woke` does something; None while only messages can."""
    if state.stage is Stage.CLOSING:
        return state.closes_at
    if state.stage is not Stage.FORMING:
        return None
    rules = state.rules
    if state.last_call_at is None:  # not enough nodes yet
        return min(next_telling(state), state.opened_at + rules.join_timeout_s)
    if state.not_before > state.opened_at:
        return min(next_telling(state), state.not_before)
    return min(next_telling(state), state.last_call_at + rules.last_call_s)


def advance(state: HostState, happened: Sequence[Event], now: float, decide: Decide) -> Step:
    """Next state and what to do; events that no longer matter change nothing.

    Several at once, because a thousand joins may come together.
    """
    if state.stage is Stage.DONE:
        return state, ()
    before = state.incarnations
    actions: list[Do] = []
    for event in happened:
        state, taken = _take(state, event, now)
        actions += taken
    state, followed = follow(state, now, decide)
    actions += followed
    if state.incarnations != before:
        watched = (*state.present.values(), *state.replaced.values())
        actions.insert(0, Watch(tuple(one.agent for one in watched)))
    return state, tuple(actions)


def _take(state: HostState, event: Event, now: float) -> Step:
    match event:
        case Received(message):
            return _receive(state, message, now)
        case Beats(seen):
            return _judge_beats(state, seen, now)
        case Stopped(sequence, order):
            if state.stage is Stage.RUNNING and sequence == state.sequence - 1:
                # Also if this one has just given another: all nodes have the order that came first.
                return replace(state, order=order), ()
            return state, ()
        case Woke():
            return state, ()


def _receive(state: HostState, message: Message, now: float) -> Step:
    if message.agent.incarnation in state.fenced:
        return state, ()
    match message:
        case Join():
            return _join(state, message, now)
        case Leave(agent, reason, is_excluded):
            if is_excluded:
                state = replace(state, memory=exclude(state.memory, agent.node))
            state, told = _lose(state, agent.incarnation, reason, now, is_left=True)
            return replace(state, lost=_less(state.lost, agent.node)), told
        case Quiet(agent, round_number) if _is_running(state, agent, round_number):
            return replace(state, quiet={**state.quiet, agent.incarnation: message}), ()
        case Moving(agent, round_number) if _is_running(state, agent, round_number):
            return replace(state, quiet=_less(state.quiet, agent.incarnation)), ()
        case Saved(agent, round_number) if _is_running(state, agent, round_number):
            return replace(state, has_saved=state.has_saved or can_grow(state)), ()
        case Bye(agent) if state.stage is Stage.CLOSING:
            return _without(state, agent.incarnation), ()
        case Refused(agent, reason):
            return state, (Tell(events.NodeRefused(agent.node, reason)),)
    return state, ()


def _is_running(state: HostState, agent: Agent, round_number: int) -> bool:
    """Whether the message is about the round that runs, and from one of its agents."""
    plan = state.plan
    if state.stage is not Stage.RUNNING or plan is None or plan.memory.round_number != round_number:
        return False
    return any(seat.agent == agent for seat in plan.seats)


def _join(state: HostState, join: Join, now: float) -> Step:
    agent = join.agent
    told: tuple[Do, ...] = ()
    other = state.incarnations.get(agent.node)
    if other is not None and other != agent.incarnation:
        # A node runs one agent of a name at a time: the other one has died.
        replaced = {**state.replaced, other: replace(state.present[other], beat=-1, beat_at=now)}
        state, told = _lose(state, other, "its agent was started again", now)
        state = replace(state, fenced=state.fenced | {other}, replaced=replaced)
    known = state.present.get(agent.incarnation)
    if known is None:
        known = Presence(agent, beat_at=now)
        if not state.rules.is_alone:
            told += (Tell(events.NodeJoined(agent.node, join.slots, join.address)),)
    if join.sequence == state.sequence and state.stage is not Stage.CLOSING:
        known = replace(known, join=join)
        state = _note_return(_remember(state, join.memory, now), join)
    state = replace(
        state,
        present={**state.present, agent.incarnation: known},
        incarnations={**state.incarnations, agent.node: agent.incarnation},
        lost=_less(state.lost, agent.node),
    )
    return state, told


def _remember(state: HostState, theirs: Memory, now: float) -> HostState:
    """What the agent knows of the job, which another host agent may have led until now.

    Once this one has closed a round, the last nodes are those of that round.
    """
    ours = state.memory
    is_theirs = state.plan is None and theirs.round_number > ours.round_number
    memory = combine(theirs, ours) if is_theirs else combine(ours, theirs)
    return replace(
        state,
        rules=keep_size(state.rules, memory.slots),
        memory=memory,
        incident_at=find_incident_at(memory, ours, state.incident_at, theirs, now),
    )


def _note_return(state: HostState, join: Join) -> HostState:
    """Whether the agent comes from the last round, and how that ended for it."""
    incarnation = join.agent.incarnation
    if incarnation in state.back:
        return replace(state, back={**state.back, incarnation: join})
    if incarnation not in state.away or state.plan is None:
        return state
    if join.evidence is None or join.evidence.round_number != state.plan.memory.round_number:
        # Its connection broke just then: what it says of a round is of an earlier one.
        return _without_seat(state, incarnation, "it has not heard of the round", False)
    return replace(state, back={**state.back, incarnation: join}, away=state.away - {incarnation})


def _judge_beats(state: HostState, seen: Mapping[str, int], now: float) -> Step:
    """Who has been silent for too long while this agent was looking.

    Time in which keep-alives were not read, because this process or its machine stood still, is no silence.
    """
    interval_s = state.rules.keep_alive_interval_s
    missed_s = max(0.0, now - (state.beats_at or now) - 2 * interval_s)
    present = {}
    silent = []
    for incarnation, one in state.present.items():
        beat = seen.get(incarnation, one.beat)
        beat_at = now if beat != one.beat else min(now, one.beat_at + missed_s)
        present[incarnation] = replace(one, beat=beat, beat_at=beat_at)
        if now - beat_at > state.rules.lost_after_s:
            silent.append((incarnation, f"no keep-alive for {now - beat_at:.1f} s"))
    state, told = _judge_replaced(replace(state, present=present, beats_at=now), seen, now)
    for incarnation, reason in silent:
        state, lost = _lose(state, incarnation, reason, now)
        told += lost
    return state, told


def _judge_replaced(state: HostState, seen: Mapping[str, int], now: float) -> Step:
    """Name a node whose last agent lives on although another has come: two machines have one name.

    What was under way when an agent died has come by the first look; until the second, only a living one
    counts on.
    """
    lost_after_s = state.rules.lost_after_s
    due = {key: one for key, one in state.replaced.items() if now - one.beat_at >= lost_after_s}
    looked = {
        key: replace(one, beat=seen.get(key, 0), beat_at=now) for key, one in due.items() if one.beat < 0
    }
    nodes = {one.agent.node for key, one in due.items() if 0 <= one.beat < seen.get(key, 0)}
    told = (
        Tell(events.NodeRefused(node, f"its agent still runs, and {describe_namesakes([node])}"))
        for node in sorted(nodes - state.namesakes)
    )
    others = {key: one for key, one in state.replaced.items() if key not in due}
    state = replace(state, replaced={**others, **looked}, namesakes=state.namesakes | nodes)
    return state, tuple(told)


def _lose(state: HostState, incarnation: str, reason: str, now: float, is_left: bool = False) -> Step:
    """The agent will not come back as it was."""
    known = state.present.get(incarnation)
    if known is None:
        return state, ()
    state = _without(state, incarnation)
    node = known.agent.node
    state = replace(state, lost={**state.lost, node: now})
    kind = events.NodeLeft if is_left else events.NodeLost
    told = (Tell(kind(node, reason)),)
    if incarnation in state.away:  # else it is not in the round, or how it ended there is known
        state = _without_seat(state, incarnation, reason, is_left)
    return state, told


def _without_seat(state: HostState, incarnation: str, reason: str, is_left: bool) -> HostState:
    """The agent will not come back from the last round."""
    assert state.plan is not None
    seats = state.plan.seats
    place = next(place for place, seat in enumerate(seats) if seat.agent.incarnation == incarnation)
    seat, first_rank = seats[place], find_first_ranks(seats)[place]
    lost = LostNode(seat.agent.node, first_rank, seat.slots, reason, is_left)
    return replace(state, gone=(*state.gone, lost), away=state.away - {incarnation})


def _without(state: HostState, incarnation: str) -> HostState:
    incarnations = {node: key for node, key in state.incarnations.items() if key != incarnation}
    present, quiet = _less(state.present, incarnation), _less(state.quiet, incarnation)
    return replace(state, present=present, incarnations=incarnations, quiet=quiet)


def _less(mapping: Mapping[str, _T], key: str) -> Mapping[str, _T]:
    return {other: value for other, value in mapping.items() if other != key} if key in mapping else mapping

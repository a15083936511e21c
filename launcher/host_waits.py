"""What a round that forms waits for, in words, and when that is said. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ftrun.launcher.host_state import HostState, Step, Tell
from ftrun.launcher.messages import Join
from ftrun.launcher.quorum import world_nodes
from ftrun.monitor import events

_TELL_EVERY_S = 5.0
"""Least time between two accounts of what is waited for: a person reads them."""
_TELL_FIRST_S = 1.0
"""Agents that are started together need no word about the first second."""


def next_telling(state: HostState) -> float:
    """When it may next be said what is waited for."""
    if state.told_at is None:
        return max(state.opened_at, state.not_before) + _TELL_FIRST_S
    return state.told_at + _TELL_EVERY_S


def tell(state: HostState, candidates: Sequence[Join], now: float) -> Step:
    """Say what is waited for, when that is news and was not said just now."""
    if now < next_telling(state):
        return state, ()
    sentence = _waited_for(state, candidates)
    # What a node alone waits for is its own health.
    is_news = sentence != state.told and not state.rules.is_alone
    state = replace(state, told_at=now, told=sentence)
    until_s = state.opened_at + state.rules.join_timeout_s - now
    return state, (Tell(events.RendezvousAwaited(sentence, max(0.0, until_s))),) if is_news else ()


def _waited_for(state: HostState, candidates: Sequence[Join]) -> str:
    rules = state.rules
    names = ", ".join(sorted(join.agent.node for join in candidates)) or "none"
    if state.namesakes:
        names = f"{names}; {describe_namesakes(state.namesakes)}"
    have = len(candidates)
    wanted = rules.min_nodes if have < rules.min_nodes else world_nodes(rules, rules.max_nodes + rules.spares)
    what = f"{max(0, wanted - have)} of {wanted} nodes; have {names}"
    ranks = sum(join.slots for join in candidates)
    if have >= rules.min_nodes and ranks < rules.min_ranks:
        missing = rules.min_ranks - ranks
        why = f"world.min_size is {rules.min_ranks}" if rules.may_shrink else "world.shrink is never"
        return f"nodes with {missing} more ranks ({why}); have {names}"
    return what


def describe_namesakes(nodes: Collection[str]) -> str:
    """What is wrong with these names, and what to do about it."""
    listed = ", ".join(sorted(nodes))
    return f"two machines have the host name {listed}: of those one takes part; give each a name of its own"


def too_few(state: HostState, candidates: Sequence[Join]) -> str:
    """Why the job is given up."""
    return (
        f"the rendezvous did not form within {state.rules.join_timeout_s:g} s (join_timeout): "
        f"it still waited for {_waited_for(state, candidates)}"
    )

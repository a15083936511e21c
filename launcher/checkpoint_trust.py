"""The host agent's part in checkpoints: which one a round begins from, and which lose its trust. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftrun.launcher.checkpoint_choice import choose_common, find_blind, trusted
from ftrun.launcher.checkpoint_quarantine import SetAside, examine, explain_none_left, find_cleared, mark
from ftrun.launcher.host_state import Do, HostState, Tell
from ftrun.launcher.messages import Join, SeenCheckpoint
from ftrun.monitor import events
from ftrun.monitor.incident import Incident


def doubt(state: HostState, incident: Incident) -> tuple[HostState, Incident, tuple[Do, ...]]:
    """After a failed round: what is remembered of its checkpoint, the incident as the policy is to see it,
    and what is to be done about a checkpoint that has lost its trust.
    """
    joins = [one.join for one in state.present.values() if one.join is not None]
    rules = state.rules.trust
    memory, lost = examine(state.memory, incident, joins, rules)
    state = replace(state, memory=memory)
    if lost is None:
        return state, *_clear(state, incident)
    checkpoint = lost.checkpoint
    acts: tuple[Do, ...] = (
        Tell(events.CheckpointQuarantined(checkpoint.path, checkpoint.step, lost.reason)),
    )
    if rules.renames:
        seen = [trusted(join.checkpoints, memory.quarantined) for join in joins if join.has_checkpoint_dir]
        fallback = choose_common(seen)
        acts += (SetAside(checkpoint.path, None if fallback is None else fallback.path),)
    return state, mark(incident, lost), acts


def _clear(state: HostState, incident: Incident) -> tuple[Incident, tuple[Do, ...]]:
    """A checkpoint that was quarantined for what the next one has brought too is called good again.

    The policy then sees the same exception twice in a row, and the job ends; the next one begins from it.
    """
    cleared, began = find_cleared(state.memory, incident), state.memory.resume
    if cleared is None or began is None:
        return incident, ()
    reason = (
        "the one before it has brought the same exception, so that it is probably good: a new job may use it"
    )
    acts: tuple[Do, ...] = (Tell(events.CheckpointSkipped(cleared.path, reason)),)
    if state.rules.trust.renames:
        acts += (SetAside(cleared.path, began.path, is_taken_back=True),)
    return replace(incident, fingerprint=cleared.fingerprint), acts


def lookers(state: HostState, chosen: Sequence[Join]) -> list[Join]:
    """Those whose word on checkpoints is of now: a spare has looked when it came, maybe hours ago."""
    all_ = [join for join in chosen if join.has_checkpoint_dir]
    back = [join for join in all_ if join.agent.incarnation in state.back]
    return back or all_


def choose_resume(
    state: HostState, chosen: Sequence[Join]
) -> tuple[SeenCheckpoint | None, str, tuple[Do, ...]]:
    """What a round of these nodes begins from; why it must not begin from nothing, if so; what is told."""
    quarantined = state.memory.quarantined
    seen = {join.agent.node: trusted(join.checkpoints, quarantined) for join in lookers(state, chosen)}
    resume = choose_common(list(seen.values()))
    newest, blind = find_blind(seen)
    told: tuple[Do, ...] = ()
    if newest is not None and (resume is None or newest.path != resume.path):
        reason = f"it is not seen by {', '.join(blind)}; all nodes of a round begin from the same one"
        told = (Tell(events.CheckpointSkipped(newest.path, reason)),)
    obstacle = explain_none_left(state.memory, chosen, state.rules.trust) if resume is None else ""
    return resume, obstacle, told

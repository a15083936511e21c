"""The host agent begins a round from a checkpoint that all nodes have and that is trusted, or ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.launcher.checkpoint_quarantine import SetAside, TrustRules, begin_from
from ftrun.launcher.checkpoint_trust import choose_resume, doubt
from ftrun.launcher.host_state import Do, HostState, Presence, Tell
from ftrun.launcher.messages import Agent, Join, Memory, SeenCheckpoint
from ftrun.launcher.model import PastIncident
from ftrun.launcher.quorum import Rules
from ftrun.monitor import events
from ftrun.monitor.incident import Incident, IncidentKind, RankExit

OLD, NEW = SeenCheckpoint("/c/step-20", 20, 1), SeenCheckpoint("/c/step-40", 40, 2)


def join(node: str, *seen: SeenCheckpoint) -> Join:
    """A node with a checkpoint directory, and what it sees there."""
    return Join(Agent(node, f"{node}.1"), 1, node, 1, has_checkpoint_dir=True, checkpoints=seen)


def state_of(*joins: Join, **memory: object) -> HostState:
    """Nodes that are back from a round, and what the job remembers."""
    present = {one.agent.incarnation: Presence(one.agent, 0.0, join=one) for one in joins}
    remembered = replace(Memory(3, 2, resume=NEW), **memory)  # type: ignore[arg-type]
    return HostState(Rules(1, 2), 0.0, present=present, memory=remembered)


def ended(kind: IncidentKind) -> Incident:
    """A round that ended before any progress."""
    culprit = RankExit(0, 0, 42, 1, 10.0, is_stopped_by_agent=False)
    return Incident(kind, 3, "a", culprit, ("rank 0 failed",), "f", has_progressed=False)


def told(actions: tuple[Do, ...]) -> list[events.Event]:
    """What is journalled."""
    return [one.event for one in actions if isinstance(one, Tell)]


def test_checkpoint_loses_trust_and_the_next_round_begins_from_the_one_before() -> None:
    """It is journalled, and the policy sees an end that is no repetition."""
    joins = (join("a", NEW, OLD), join("b", NEW, OLD))
    state, seen_as, actions = doubt(state_of(*joins, resume_failures=1), ended(IncidentKind.SEGFAULT))
    [event] = told(actions)
    assert isinstance(event, events.CheckpointQuarantined)
    assert (event.path, event.step) == ("/c/step-40", 40)
    assert seen_as.fingerprint != "f"
    assert choose_resume(state, joins) == (OLD, "", ())


@pytest.mark.parametrize("renames", [True, False])
def test_checkpoint_is_called_good_again_when_the_one_before_brings_the_same(renames: bool) -> None:
    """The policy sees a repetition, so that no more rounds are spent on it, and a person is told."""
    joins = (join("a", NEW, OLD), join("b", NEW, OLD))
    state = state_of(*joins, resume_failures=1)
    state = replace(state, rules=replace(state.rules, trust=TrustRules(renames=renames)))
    state, seen_as, _ = doubt(state, ended(IncidentKind.EXCEPTION))
    past = PastIncident(IncidentKind.EXCEPTION, seen_as.fingerprint, False)
    state = replace(state, memory=replace(begin_from(state.memory, OLD), history=(past,)))
    state, again, actions = doubt(state, ended(IncidentKind.EXCEPTION))
    assert again.fingerprint == past.fingerprint
    [event] = told(actions)
    assert isinstance(event, events.CheckpointSkipped)
    assert event.path == NEW.path
    assert "probably good" in event.reason
    taken_back = [SetAside(NEW.path, OLD.path, is_taken_back=True)] if renames else []
    assert [one for one in actions if not isinstance(one, Tell)] == taken_back


def test_other_ends_change_nothing() -> None:
    """The incident goes to the policy as it is."""
    state = state_of(join("a", NEW), resume_failures=1)
    assert doubt(state, ended(IncidentKind.KILLED)) == (state, ended(IncidentKind.KILLED), ())


def test_node_that_does_not_see_the_newest_is_named() -> None:
    """All begin from the older one that it sees; a node without a directory has no say."""
    joins = (join("a", NEW, OLD), join("b", OLD), Join(Agent("c", "c.1"), 1, "c", 1))
    resume, obstacle, actions = choose_resume(state_of(*joins), joins)
    assert (resume, obstacle) == (OLD, "")
    [event] = told(actions)
    assert isinstance(event, events.CheckpointSkipped)
    assert event.path == "/c/step-40"
    assert "it is not seen by b" in event.reason


def test_quarantined_one_is_not_news() -> None:
    """Nobody is told again that it is not used."""
    joins = (join("a", NEW, OLD),)
    state = state_of(*joins, quarantined=(NEW.identity,))
    assert choose_resume(state, joins) == (OLD, "", ())


def test_nothing_left_is_an_obstacle() -> None:
    """The reason says what is left of it; a job that never had one begins."""
    joins = (join("a", NEW),)
    resume, obstacle, _ = choose_resume(state_of(*joins, quarantined=(NEW.identity,)), joins)
    assert resume is None
    assert "no checkpoint is left: /c/step-40 cannot be used" in obstacle
    fresh = state_of(join("a"), resume=None)
    assert choose_resume(fresh, (join("a"),)) == (None, "", ())


def test_spare_that_looked_before_the_first_checkpoint_has_no_say() -> None:
    """Those that come from the round have looked just now; the spare takes its place in what they saw."""
    survivor, spare = join("a", NEW, OLD), join("b")
    state = replace(state_of(survivor, spare), back={survivor.agent.incarnation: survivor})
    assert choose_resume(state, (survivor, spare)) == (NEW, "", ())

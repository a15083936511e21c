"""A failure as the policy is to see it: how far the job had come, whose doing it is, what may go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ftrun.launcher.blame import gpu_of, is_blamed
from ftrun.launcher.checkpoint_choice import choose_common, trusted
from ftrun.launcher.checkpoint_trust import lookers
from ftrun.launcher.exclusion import find_leeway
from ftrun.launcher.host_state import HostState
from ftrun.launcher.messages import Join, Memory, SeenCheckpoint
from ftrun.launcher.model import Case, PastIncident
from ftrun.monitor.incident import Incident, RankExit


@dataclass(frozen=True, slots=True)
class Gain:
    """What a failed round has brought."""

    memory: Memory
    """With how far the job has come now."""
    has_moved_on: bool


def assess(state: HostState, incident: Incident, seen_as: Incident, now: float) -> tuple[HostState, Case]:
    """The case to be decided on, and what the host agent remembers from now on of how far the job has come.

    `seen_as` is the incident after a look at the checkpoint that the round began from
    (`ftrun.launcher.checkpoint_trust.doubt`): another fingerprint says that it has lost its trust.
    """
    is_begun_elsewhere = seen_as.fingerprint != incident.fingerprint
    base = _base_step(state)
    joins = [one.join for one in state.present.values() if one.join is not None]
    gain = measure(state.memory, incident, base, lookers(state, joins), state.rules.min_progress)
    memory = replace(gain.memory, best_step=None, best_saved=None) if is_begun_elsewhere else gain.memory
    past = PastIncident(
        incident.kind,
        seen_as.fingerprint,
        incident.has_progressed,
        incident.node,
        gpu_of(incident),
        is_blamed(incident),
        step_of(incident.culprit, base),
        gain.has_moved_on or is_begun_elsewhere,
        after_s=max(0.0, now - state.incident_at),
    )
    state = replace(state, memory=memory, incident_at=now)
    gpus = frozenset(one.gpu for one in memory.excluded_gpus)
    leeway = find_leeway(state, incident)
    return state, Case(seen_as, past, memory.history, memory.forgotten, leeway, gpus)


def _base_step(state: HostState) -> int | None:
    """Steps that were done before the last round; None if the launcher does not know where it began.

    A script may find what it begins from by itself, in a form that is not known here: where anything was in
    the directory, a round without a checkpoint of the launcher's choice did not begin from nothing for sure.
    """
    resume = state.memory.resume
    if resume is not None:
        return resume.step
    return 0 if state.has_begun_from_nothing else None


def step_of(exit: RankExit, base: int | None) -> int | None:
    """Steps of the whole job that a rank had done; None if unknown, as of one that stands for its node.

    What the script reported, else those before the round and its own in the round.
    """
    if exit.last_step is not None:
        return exit.last_step
    return None if base is None or not exit.pid else base + exit.steps


def measure(memory: Memory, incident: Incident, base: int | None, joins: Sequence[Join], least: int) -> Gain:
    """Whether the round has brought the job further than any before it.

    That is `least` steps more than there ever were, or a newer checkpoint. Where steps are not known, as with
    a script that finds its checkpoints itself and reports no step, any progress is taken for new: nothing
    tells that it was not.

    Args:
        memory: as of the round, with the checkpoint that it began from.
        base: steps done before it.
        joins: of nodes that have looked at the checkpoints since it ended.
        least: see `ftrun.launcher.quorum.Rules.min_progress`.
    """
    steps = [step_of(exit, base) for exit in (incident.culprit, *incident.collateral)]
    step = max((one for one in steps if one is not None), default=None)
    best = memory.best_step
    has_stepped = incident.has_progressed and (step is None or best is None or step >= best + least)
    newest = choose_common([trusted(join.checkpoints, memory.quarantined) for join in joins])
    older = (memory.resume, memory.best_saved)
    has_saved = newest is not None and all(_is_newer(newest, old) for old in older)
    memory = replace(
        memory,
        best_step=step if best is None or (step is not None and step > best) else best,
        best_saved=newest if has_saved else memory.best_saved,
    )
    return Gain(memory, has_stepped or has_saved)


def _is_newer(one: SeenCheckpoint, other: SeenCheckpoint | None) -> bool:
    if other is None:
        return True
    if one.step is not None and other.step is not None:
        return one.step > other.step
    return one.identity != other.identity and one.saved_ns >= other.saved_ns

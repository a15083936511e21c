"""The nouns of the launcher: plan, past incident, decision. Pure data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ftrun.launcher.ranks import NodeRanks
from ftrun.monitor.incident import Incident, IncidentKind


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round is to be on this node: published once, before the workers start."""

    round_number: int
    restart_count: int
    """Restarts of the job so far; what the workers see as TORCHELASTIC_RESTART_COUNT."""
    ranks: NodeRanks
    master_addr: str
    master_port: int
    resume_from: str | None = None
    """Path of the checkpoint that every rank is to load; None = start at the beginning."""
    resume_step: int | None = None
    is_resume_known: bool = False
    """A checkpoint directory is configured, so that `resume_from` None means a start from nothing."""
    nodes: tuple[str, ...] = ()
    """In group-rank order."""
    spares: tuple[str, ...] = ()
    """Nodes that have joined and have no part in the round."""


@dataclass(frozen=True, slots=True)
class PastIncident:
    """What the policy remembers of a failure of this job."""

    kind: IncidentKind
    fingerprint: str
    has_progressed: bool
    node: str = ""
    """Where it was."""
    gpu: str = ""
    """UUID of the culprit's GPU, if it may be its doing; else ""."""
    is_blamed: bool = False
    """It is that node's or GPU's doing, as far as can be told, and was named with confidence."""
    step: int | None = None
    """Steps of the whole job that the culprit had done; None if the launcher cannot know."""
    has_moved_on: bool = True
    """The round came to a step or a checkpoint that the job had not had before, or the next one begins from
    another checkpoint than it would have."""
    is_counted: bool = True
    """The restart after it is one of those that the limits count."""
    after_s: float = 0.0
    """Seconds from the failure before it, or else from the job's begin."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Failures of a kind of which no more is remembered than their number."""

    kind: IncidentKind
    count: int
    counted: int
    """Of those, the ones with `PastIncident.is_counted`."""


def count_counted(history: Iterable[PastIncident], forgotten: Iterable[Tally]) -> int:
    """How many of a job's failures the limits of restarts count."""
    return sum(past.is_counted for past in history) + sum(tally.counted for tally in forgotten)


@dataclass(frozen=True, slots=True)
class Leeway:
    """Why the culprit's node, or its GPU alone, cannot be taken out of the job; "" if it can."""

    node: str = "the job has no other"
    gpu: str = "it is not known which one it is"
    is_alone: bool = True
    """The job never has more than one node."""


@dataclass(frozen=True, slots=True)
class Case:
    """A failure that is to be decided on, with what the job remembers."""

    incident: Incident
    now: PastIncident
    """The same as it will be remembered; of `is_counted`, the policy is still to judge."""
    history: Sequence[PastIncident] = ()
    """Earlier ones that led to another round, oldest first."""
    forgotten: Sequence[Tally] = ()
    """Those before the first in `history`."""
    leeway: Leeway = field(default_factory=Leeway)
    excluded_gpus: frozenset[str] = frozenset()
    """UUIDs of those that have been left out; what they did is not held against their nodes any more."""


class Action(Enum):
    """What the policy may decide."""

    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about an incident, with its reason."""

    action: Action
    reason: str
    delay_s: float = 0.0
    """Pause before the next round."""
    exit_code: int = 0
    """Exit code of the job when the action is STOP."""
    is_counted: bool = True
    """This restart is one of `max_restarts`."""
    excluded_node: str = ""
    """The next round is without this node."""
    excluded_gpu: str = ""
    """The next round is without this GPU (UUID), and with the rest of its node."""

"""The nouns of the launcher: plan, past incident, decision. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ftrun.launcher.ranks import NodeRanks
from ftrun.monitor.incident import IncidentKind


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
    """What the policy remembers of an earlier failure of this job."""

    kind: IncidentKind
    fingerprint: str
    has_progressed: bool


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

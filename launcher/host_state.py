"""What the host agent knows of a job, what it hears and what it does. Pure data.

`ftrun.launcher.host` and `host_rounds` say what follows from what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ftrun.launcher.checkpoint_quarantine import SetAside
from ftrun.launcher.exchange import Beats as Beats
from ftrun.launcher.exchange import Received as Received
from ftrun.launcher.exchange import Stopped as Stopped
from ftrun.launcher.messages import (
    Agent,
    JobPlan,
    Join,
    Judgement,
    Memory,
    Publication,
    Quiet,
    StopOrder,
)
from ftrun.launcher.model import Case, Decision
from ftrun.launcher.quorum import Rules
from ftrun.monitor import events
from ftrun.monitor.diagnosis import LostNode

Decide = Callable[[Case], Decision]
"""What to do about a failure, given those before it (`ftrun.launcher.policy`)."""


class Stage(Enum):
    """Where the job is, as the host agent sees it."""

    FORMING = "forming"
    """Nodes join the open round."""
    RUNNING = "running"
    """A round is closed: its nodes run, or end, or are back for the next."""
    CLOSING = "closing"
    """The verdict is published; agents take note of it."""
    DONE = "done"
    """Everyone knows: the store may go."""


@dataclass(frozen=True, slots=True)
class Presence:
    """An agent that the host agent knows."""

    agent: Agent
    beat_at: float
    """When its keep-alive was last seen to have changed."""
    beat: int = -1
    join: Join | None = None
    """For the open round; None while it takes part in the last one, or has not answered to it."""


@dataclass(frozen=True, slots=True)
class HostState:
    """The whole state of a job as its host agent knows it."""

    rules: Rules
    opened_at: float
    """When the open round began to form."""
    stage: Stage = Stage.FORMING
    sequence: int = 0
    """Of the open round; the running one, if any, has the number before it."""
    present: Mapping[str, Presence] = field(default_factory=dict)
    """By incarnation. Replaced, never changed in place."""
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """The same agents by node."""
    lost: Mapping[str, float] = field(default_factory=dict)
    """Nodes that may yet come back, and since when each is lost."""
    plan: JobPlan | None = None
    """Of the last round that this host agent has closed."""
    has_begun_from_nothing: bool = False
    """Before that round the checkpoint directory was empty on every node that has one."""
    fenced: frozenset[str] = frozenset()
    """Incarnations that others have replaced on their nodes, or that were let go: their messages are late."""
    replaced: Mapping[str, Presence] = field(default_factory=dict)
    """Of these, those whose keep-alives are still read, to see whether they have really ended."""
    namesakes: frozenset[str] = frozenset()
    """Names that two machines have."""
    away: frozenset[str] = frozenset()
    """Incarnations of the agents of the last round that are neither back from it nor gone."""
    back: Mapping[str, Join] = field(default_factory=dict)
    """How the last round ended for each of its agents that is back from it, or was; by incarnation."""
    gone: tuple[LostNode, ...] = ()
    """Nodes of the last round that will not come back as they were."""
    order: StopOrder | None = None
    """Why the last round is being stopped, or was."""
    quiet: Mapping[str, Quiet] = field(default_factory=dict)
    """By incarnation."""
    has_saved: bool = False
    """A checkpoint was completed while nodes waited for a place."""
    memory: Memory = field(default_factory=Memory)
    incident_at: float = 0.0
    """When the last failure was judged, or else when the job began, as far as is known here."""
    judgement: Judgement | None = None
    """Of the failure that the open round follows."""
    awaited: frozenset[str] = frozenset()
    """Incarnations that were asked to join again, because others were left out."""
    withheld: frozenset[str] = frozenset()
    """Health checks that so many nodes fail that it was told, rather than acted on."""
    last_call_at: float | None = None
    """Since when there have been enough nodes."""
    not_before: float = 0.0
    beats_at: float | None = None
    """When keep-alives were last read."""
    told_at: float | None = None
    told: str = ""
    closes_at: float = 0.0
    """When the host agent ends although not everyone has taken note."""


@dataclass(frozen=True, slots=True)
class Woke:
    """Time has passed; level-driven, harmless when early."""


Event = Received | Beats | Stopped | Woke


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell all agents what becomes of the open round."""

    sequence: int
    publication: Publication


@dataclass(frozen=True, slots=True)
class Order:
    """Stop a round on all nodes."""

    sequence: int
    order: StopOrder


@dataclass(frozen=True, slots=True)
class Watch:
    """Read the keep-alives of these agents from now on."""

    agents: tuple[Agent, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Journal this."""

    event: events.Event


Do = Publish | Order | Watch | Tell | SetAside
Step = tuple[HostState, tuple[Do, ...]]

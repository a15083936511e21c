"""What agents tell each other: joins and other messages to the host agent, plans, stops and verdicts from it.

Pure data; `ftrun.launcher.message_codec` gives it its JSON form. A *sequence number* counts the rounds that
one host agent has opened, from 0; a *round number* counts those of the whole job, over all its host agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ftrun.launcher.model import Decision, PastIncident, Tally
from ftrun.monitor.incident import Ailment, Evidence, Incident


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent process; a restarted one is another agent on the same node."""

    node: str
    """Name of the node: the host's name, with "#1" and so on for further agents on one host."""
    incarnation: str
    """Different for each agent process."""


@dataclass(frozen=True, slots=True)
class SeenCheckpoint:
    """A whole checkpoint that a node can see."""

    path: str
    step: int | None
    saved_ns: int = 0
    """When it became whole, by the clock of its file system: UTC epoch, nanoseconds; 0 = unknown."""

    @property
    def identity(self) -> str:
        """Equal for the same checkpoint; one that is saved anew in the same place is another."""
        return f"{self.path}@{self.saved_ns}"


@dataclass(frozen=True, slots=True)
class ExcludedGpu:
    """A GPU without which its node goes on."""

    node: str
    gpu: str
    """UUID."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What every agent remembers of the job, so that it outlives the host agent."""

    round_number: int = -1
    """Of the last round that was closed; -1 before the first."""
    restart_count: int = 0
    history: tuple[PastIncident, ...] = ()
    """Incidents that led to a restart, oldest first; only so many as `ftrun.launcher.memory` keeps."""
    excluded: tuple[str, ...] = ()
    """Nodes that may not take part any more."""
    nodes: tuple[str, ...] = ()
    """Nodes of the last round, in group-rank order."""
    slots: tuple[int, ...] = ()
    """Workers of each of them."""
    resume: SeenCheckpoint | None = None
    """Checkpoint that the last round began from."""
    resume_failures: int = 0
    """Rounds that began from it and ended, by what may be its doing, before the next one was complete."""
    quarantined: tuple[str, ...] = ()
    """Checkpoints that are not to be used any more, by `SeenCheckpoint.identity`."""
    forgotten: tuple[Tally, ...] = ()
    """Incidents before those in `history`."""
    since_incident_s: float = 0.0
    """Seconds from the last of them, or else from the job's begin, to when this was said: each host has its
    own clock, and none of them is told another's times."""
    best_step: int | None = None
    """Most steps of the whole job that were done when a round failed; None if that is not known."""
    best_saved: SeenCheckpoint | None = None
    """Newest checkpoint that was there when a round failed."""
    excluded_gpus: tuple[ExcludedGpu, ...] = ()


class StopKind(Enum):
    """Why a round is stopped on all nodes."""

    FAILURE = "failure"
    """A rank failed or hangs."""
    STALL = "stall"
    """No rank of any node moves."""
    LEAVE = "leave"
    """A node was told to stop and leaves."""
    NODE_LOST = "node_lost"
    """The host agent has not heard of a node for too long."""
    GROW = "grow"
    """More nodes are there than take part."""
    REQUEST = "request"
    """The script asked for the end of the job."""
    OVER = "over"
    """It has ended everywhere by itself."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """A round ends now, everywhere."""

    kind: StopKind
    node: str
    """Who gave the order."""
    reason: str
    exit_code: int = 0
    """Of the job, for REQUEST; of the node that leaves, for LEAVE."""


class Outcome(Enum):
    """How the last round ended for a node that joins."""

    NEW = "new"
    """It had no part in one: a new agent, or a spare."""
    SUCCEEDED = "succeeded"
    """All its ranks ended with exit code 0 by themselves."""
    STOPPED = "stopped"
    """Its ranks failed or were stopped; its evidence says how."""


@dataclass(frozen=True, slots=True)
class Join:
    """An agent takes part in the next round."""

    agent: Agent
    slots: int
    """Workers that it can run."""
    address: str
    """Where other nodes can reach this one."""
    port: int
    """Port on which it would serve the workers' store."""
    rank_hint: int | None = None
    """Place of the node in the order of nodes, from --node-rank or the scheduler."""
    outcome: Outcome = Outcome.NEW
    evidence: Evidence | None = None
    memory: Memory = Memory()
    has_checkpoint_dir: bool = False
    checkpoints: tuple[SeenCheckpoint, ...] = ()
    """Newest first; a few only."""
    sequence: int = 0
    """Of the round that it wants to join."""
    request: StopOrder | None = None
    """Its script has asked for the end of the job."""
    order: StopOrder | None = None
    """Why the last round was stopped, as far as this node has heard; a new host agent knows it from here."""
    lost_host: str = ""
    """Node of the host agent that this one has lost since the last round began."""
    unhealthy: tuple[Ailment, ...] = ()
    """Why the node should not take part; its fatal ailments."""
    is_resume_expected: bool = False
    """There is or was a checkpoint below its directory: a start from nothing would throw training away."""
    is_checkpoint_dir_empty: bool = False
    """Nothing at all is in its checkpoint directory: a script cannot have begun from what is there."""
    gpus: tuple[str, ...] = ()
    """UUID of each slot's GPU, if the node can go on without a single one of them; else none."""


@dataclass(frozen=True, slots=True)
class Leave:
    """An agent ends and takes its node out of the job; its workers are gone."""

    agent: Agent
    reason: str
    is_excluded: bool = False
    """The node may not come back."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """No rank of a node has shown progress for longer than its limit."""

    agent: Agent
    round_number: int
    quiet_s: float
    limit_s: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Moving:
    """A node that was quiet shows progress again."""

    agent: Agent
    round_number: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of the running round is whole."""

    agent: Agent
    round_number: int


@dataclass(frozen=True, slots=True)
class Awaited:
    """What the open round waits for, as the host agent has told it last; for those who wait with it."""

    sentence: str
    remaining_s: float
    """Seconds until the job is given up, when that was said."""


@dataclass(frozen=True, slots=True)
class Bye:
    """An agent knows the verdict and ends."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class Refused:
    """An agent that will not take part, because it belongs to another job or another version."""

    agent: Agent
    reason: str


Message = Join | Leave | Quiet | Moving | Saved | Bye | Refused
"""From any agent to the host agent."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A node's part in a round."""

    agent: Agent
    slots: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """A failure of the last round: what it was and what was decided."""

    incident: Incident
    decision: Decision


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A round, for all nodes: published once, before its workers start."""

    seats: tuple[Seat, ...]
    """In group-rank order."""
    spares: tuple[str, ...]
    """Nodes that have joined and have no part."""
    master_addr: str
    master_port: int
    memory: Memory
    """With this round in it."""
    is_resume_known: bool = False
    judgement: Judgement | None = None
    """Why there is a new round; None for the first, and after growth."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job is over, everywhere."""

    exit_code: int
    reason: str
    judgement: Judgement | None = None
    restart_count: int = 0


@dataclass(frozen=True, slots=True)
class Unfit:
    """An agent whose node is not healthy."""

    agent: Agent
    reason: str
    is_excluded: bool = False
    """It may not come back, even if it is healthy again."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """No round yet: some agents end, since their nodes are not healthy, and the others join again."""

    unfit: tuple[Unfit, ...]
    judgement: Judgement | None = None
    """Of the failure that the next round follows."""
    gpus: tuple[ExcludedGpu, ...] = ()
    """Those without which their nodes are to join again."""


Publication = JobPlan | Verdict | Exclusion
"""From the host agent to all."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What the host agent says to whoever connects."""

    run_id: str
    epoch: str
    """Different for each host agent."""
    ftrun_version: str
    fingerprint: str
    """Equal for agents of one job: its script, arguments and number of nodes."""
    job: str
    """The same for people: script and number of nodes."""
    node: str
    """Where the host agent runs."""

"""What a node knows of its part in the job, what it hears and what it does. Pure data.

`ftrun.launcher.rendezvous` says what follows from what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ftrun.launcher.messages import Outcome, StopKind, StopOrder
from ftrun.monitor.incident import FaultReport
from ftrun.monitor.signal_names import signal_name


class Phase(Enum):
    """Where the job is; words of the design."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Cause(Enum):
    """Why a round is being stopped."""

    SUCCESS = "success"
    START = "start"
    FAILURE = "failure"
    SIGNAL = "signal"
    REQUEST = "request"
    """The script asked for the end of the job or of a node's part in it, or another node is told to leave."""
    ORDER = "order"
    """Another node's failure, or the host agent's decision."""
    STORE = "store"
    """The host agent's store is lost."""


@dataclass(frozen=True, slots=True)
class Graces:
    """Seconds from asking processes to end to killing them, by cause, and other waits of a node."""

    after_failure_s: float
    after_signal_s: float
    after_success_s: float
    """Before processes that outlived their rank, in a job that has succeeded, are asked to end."""
    kill_timeout_s: float
    graceful_exit_code: int | None = None
    """Exit code when a signal ended the job and every rank exited 0; None = 128 + signal."""
    reconnect_s: float = 300.0
    """How long a node that has lost the host agent's store looks for another one."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The host agent's store is there."""

    sequence: int
    """Of the round that is open for joining."""


@dataclass(frozen=True, slots=True)
class Looking:
    """The search for the host agent's store begins."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The host agent's store is lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A round was closed."""

    sequence: int
    round_number: int
    has_seat: bool
    """This node takes part in it."""
    slots: int | None = None
    """Its workers; None for as many as before."""


@dataclass(frozen=True, slots=True)
class Sentenced:
    """The job is over, or this node's part in it."""

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ordered:
    """A round is to be stopped, here too."""

    sequence: int
    order: StopOrder


@dataclass(frozen=True, slots=True)
class RankExited:
    """A worker ended."""

    local_rank: int
    rank: int
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
class Unreached:
    """The store by which the workers of the round find each other cannot be reached from this node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """A health check has found that the workers cannot go on, though none has failed yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reported:
    """The script says that training cannot go on from here."""

    report: FaultReport


@dataclass(frozen=True, slots=True)
class Hung:
    """Workers that run and do not move; the rest of the group waits for them."""

    local_ranks: tuple[int, ...]
    """Those to blame; none if nothing tells them apart."""
    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The script asked for the end of the job, or of this node's part in it."""

    exit_code: int
    reason: str
    is_for_node: bool = False


@dataclass(frozen=True, slots=True)
class AllGone:
    """No process of the round is left."""


@dataclass(frozen=True, slots=True)
class Woke:
    """Time has passed; level-driven, harmless when early."""


Event = (
    Connected
    | Looking
    | Disconnected
    | Planned
    | Sentenced
    | Ordered
    | StartFailed
    | Unreached
    | Unhealthy
    | Reported
    | RankExited
    | Hung
    | Signalled
    | StopRequested
    | AllGone
    | Woke
)


@dataclass(frozen=True, slots=True)
class StartRound:
    """Start the workers of the round."""


@dataclass(frozen=True, slots=True)
class TellStop:
    """Let all nodes stop the round."""

    kind: StopKind
    reason: str
    exit_code: int = 0


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
class JoinNext:
    """Offer this node for the open round, with the evidence of how the last one ended here."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Look for the host agent's store."""


@dataclass(frozen=True, slots=True)
class Depart:
    """Say what failed here, if anything did, and that this node leaves the job."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Name the processes that survived SIGKILL."""


Do = StartRound | TellStop | Ask | EndHung | Kill | JoinNext | Reconnect | Depart | GiveUp


@dataclass(frozen=True, slots=True)
class Ending:
    """This node's part in the job is to end, whatever else its workers do."""

    exit_code: int
    reason: str
    signum: int = 0
    """Signal that told the agent so; 0 if it was something else."""
    is_excluded: bool = False
    """The node may not come back."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole state of a job on a node."""

    local_world_size: int
    phase: Phase = Phase.JOINING
    round_number: int = 0
    sequence: int = 0
    """Of the open round."""
    is_connected: bool = False
    search_s: float = 0.0
    """How long the first host agent's store is looked for, from when the search begins."""
    is_looking: bool = False
    """It has begun: what it needs is imported."""
    connect_by: float | None = None
    """When the search for the host agent's store is given up."""
    lost_store: str = ""
    """Why there is no connection."""
    deadline: float | None = None
    """Monotonic time at which `Woke` does something; None = nothing to wait for."""
    exits: dict[int, int] = field(default_factory=dict)
    """Exit codes of this round's workers so far, by local rank. Replaced, never changed in place."""
    cause: Cause | None = None
    stop_began_at: float = 0.0
    has_asked: bool = False
    has_killed: bool = False
    start_failure: str = ""
    """Why the workers of the round could not be started."""
    unreachable: str = ""
    """Why they could not find each other."""
    unhealthy: str = ""
    """What a health check found that ended the round."""
    report: FaultReport | None = None
    """What the script reported that ended the round."""
    outcome: Outcome = Outcome.NEW
    """How the last round ended here; for joining the next."""
    request: StopOrder | None = None
    """The script has asked for the end of the job."""
    sentence: Ending | None = None
    """The job is over; what runs here is only being stopped."""
    ending: Ending | None = None
    signal_count: int = 0
    exit_code: int = 0
    end_reason: str = ""

    def is_running(self, sequence: int) -> bool:
        """The round with this sequence number runs here."""
        return self.phase is Phase.RUNNING and sequence == self.sequence - 1

    @property
    def stopped_by(self) -> str:
        """The cause of the stop in a word; a signal by its name."""
        if self.cause is Cause.SIGNAL and self.ending is not None:
            return signal_name(-self.ending.signum) or ""
        return self.cause.value if self.cause is not None else ""


Step = tuple[State, tuple[Do, ...]]
"""The next state, and what to do."""

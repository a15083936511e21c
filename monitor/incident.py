"""What is known of a failure: evidence per node, and the incident that diagnosis makes of it.

Pure data; gathered by `ftrun.launcher.evidence`, judged by `ftrun.monitor.diagnosis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ftrun.monitor.liveness import Verdict


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An uncaught exception as the worker recorded it in its error file.

    The file format is torch elastic's (`TORCHELASTIC_ERROR_FILE`, written by `@record`); the worker start-up
    code adds `frame`, `bases` and `recorded_at`, which files written by torch's own handler lack.
    """

    type_name: str
    """Class name of the exception, e.g. "ValueError"; "" when the file holds only a text."""
    message: str
    traceback: str
    frame: str = ""
    """Innermost frame in the user's own code: "train.py:31 in step"; "" if unknown."""
    bases: tuple[str, ...] = ()
    """Class names of the exception's method resolution order, without the class itself."""
    recorded_at: float | None = None
    """CLOCK_MONOTONIC of this node, seconds."""


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one worker of a round ended (per rank)."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """As `subprocess` has it: 0 to 255, or -n for death by signal n."""
    exited_at: float
    """CLOCK_MONOTONIC of this node when the agent saw the exit, seconds."""
    is_stopped_by_agent: bool
    """The agent had already begun to stop the group when this worker ended."""
    error: ErrorRecord | None = None
    error_file: str = ""
    stderr_tail: tuple[str, ...] = ()
    """Last lines that the worker wrote to stderr, oldest first."""
    max_rss_bytes: int = 0
    steps: int = 0
    """Optimizer steps (or client heartbeats) in this round."""

    @property
    def has_failed(self) -> bool:
        """It ended by itself, and not well."""
        return self.exit_code != 0 and not self.is_stopped_by_agent

    @property
    def failed_at(self) -> float:
        """Best known time of the failure itself: the exception's, else the exit's (CLOCK_MONOTONIC, s)."""
        if self.error is not None and self.error.recorded_at is not None:
            return self.error.recorded_at
        return self.exited_at


@dataclass(frozen=True, slots=True)
class Ailment:
    """A health check that failed on a node (per check and subject)."""

    check: str
    """Its name: "gpu.lost"."""
    subject: str
    """Whom it concerns: "gpu 1 (GPU-..)"."""
    observed: str
    """What was found, with its numbers."""
    remedy: str = ""
    """What a person should do; "" if there is nothing."""
    local_ranks: tuple[int, ...] = ()
    """Workers whose GPU it concerns; none if it is the whole node, or what no worker uses."""
    is_fatal: bool = False
    """No round should begin with it."""
    age_s: float = 0.0
    """Seconds from when it was first found to when the round began to end; negative: only after that."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one node's agent saw of the end of a round (per node)."""

    node: str
    round_number: int
    exits: tuple[RankExit, ...]
    has_progressed: bool
    """Some rank of this node made progress in the round: an optimizer step, a heartbeat or a checkpoint."""
    oom_kills: int = 0
    """Growth of the cgroup's oom_kill counter over the round."""
    memory_limit_bytes: int | None = None
    """Memory limit of that cgroup; None if there is none or it cannot be read."""
    hang: Verdict | None = None
    """Why the agent stopped a round in which nothing had failed by itself."""
    start_failure: str = ""
    """Why the system would not start the workers; "" if it did."""
    unreachable: str = ""
    """Why the workers could not find each other: no way from this node to their store; "" if there is one."""
    unhealthy: str = ""
    """What its health checks found, if the agent stopped for that a round in which nothing had failed."""
    health: tuple[Ailment, ...] = ()
    """Checks that failed about when the round ended; the gravest first."""
    wall_offset_s: float = 0.0
    """What turns this node's CLOCK_MONOTONIC into UTC epoch, so that others can show a time; 0 = unknown."""
    left_out: int = 0
    """Exits that were left out to keep the account of a large node small."""


class IncidentKind(Enum):
    """What happened, in the words that the restart log uses."""

    EXCEPTION = "exception"
    IMPORT_OR_SYNTAX_ERROR = "import_or_syntax_error"
    COMMUNICATION_ERROR = "communication_error"
    HOST_OOM = "host_oom"
    SEGFAULT = "segfault"
    ABORT = "abort"
    BUS_ERROR = "bus_error"
    KILLED = "killed"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    HANG_INITIAL = "hang_initial"
    HANG_STEADY = "hang_steady"
    HANG_SECTION = "hang_section"
    STALL = "stall"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    START_FAILED = "start_failed"
    UNREACHABLE = "unreachable"
    GPU_LOST = "gpu_lost"
    ECC_ERROR = "ecc_error"
    XID = "xid"
    NODE_UNHEALTHY = "node_unhealthy"
    UNKNOWN = "unknown"

    @property
    def is_of_node(self) -> bool:
        """Whether no rank failed by itself: the culprit of the incident only stands for its node."""
        return self in _KINDS_OF_NODES

    @property
    def is_of_hardware(self) -> bool:
        """Whether the culprit's node, or its GPU, is to blame."""
        return self in _KINDS_OF_HARDWARE


_KINDS_OF_HARDWARE = frozenset(
    {IncidentKind.GPU_LOST, IncidentKind.ECC_ERROR, IncidentKind.XID, IncidentKind.NODE_UNHEALTHY}
)
_KINDS_OF_NODES = frozenset(
    {
        IncidentKind.NODE_LOST,
        IncidentKind.PREEMPTED,
        IncidentKind.START_FAILED,
        IncidentKind.UNREACHABLE,
        IncidentKind.NODE_UNHEALTHY,
        IncidentKind.UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True)
class Host:
    """Where ranks of an incident ran."""

    node: str
    ranks: tuple[int, ...]
    wall_offset_s: float
    """As in the node's `Evidence`."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause of failure, with the ranks that only fell with it."""

    kind: IncidentKind
    round_number: int
    node: str
    """The culprit's."""
    culprit: RankExit
    """The rank that failed first. Where no rank did, one that stands for its node: the node's first rank (-1
    if that is not known), pid 0, exit code 1."""
    reasons: tuple[str, ...]
    """Sentences a person can read, the most important first."""
    fingerprint: str
    """Equal for two failures that are the same: kind, type, message without numbers, innermost user frame."""
    has_progressed: bool
    collateral: tuple[RankExit, ...] = ()
    wall_offset_s: float = 0.0
    """Of the culprit's node, as in its `Evidence`; 0 = unknown."""
    hosts: tuple[Host, ...] = ()
    """Where the ranks of `collateral` that failed by themselves ran; none if all of them are on `node`."""
    confidence: float = 1.0
    """How sure the cause is, from 0 to 1; see `ftrun.monitor.diagnosis.CONFIDENCE`."""
    left_out: int = 0
    """Exits of `collateral` that were left out to keep a message small."""

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
    since_start_s: float | None = None
    """Seconds from the start of the node's workers in this round to `failed_at`; None if unknown."""
    last_step: int | None = None
    """The script's own step number, as it last reported it."""
    beat_age_s: float | None = None
    """Seconds from its last step or heartbeat to `failed_at`; None if there was none in this round."""
    sections: tuple[str, ...] = ()
    """What the script was in by `client.section`, outermost first."""
    stacks_file: str = ""
    """Stacks of all its threads, if they were saved."""
    recorder_file: str = ""
    """The dump of its flight recorder, if there is one of this round."""
    gpu: str = ""
    """UUID of the GPU that it had for itself or shared; "" if unknown."""

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
class Space:
    """Room on a file system that a job needs, when its round ended."""

    path: str
    what: str
    """What the job has there: "logs", "checkpoints" or "shared memory"."""
    free_bytes: int
    """For a user without privileges (statvfs: f_bavail)."""
    total_bytes: int
    free_inodes: int | None = None
    """None if the file system does not count them."""

    @property
    def is_full(self) -> bool:
        """Whether no file can be written there: less than `FULL_BYTES` is free, or no inode."""
        return self.free_bytes < FULL_BYTES or self.free_inodes == 0


FULL_BYTES = 1 << 20
"""A file system counts as full with less than 1 MiB free: a write that failed has left what was too small for
it, and a tensor or a page of a shared segment is seldom smaller."""


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """How much of the time tasks waited for memory when the round ended (the kernel's PSI, memory)."""

    some_percent: float
    """Of the last 10 s in which at least one task waited."""
    full_percent: float
    """Of the last 10 s in which all tasks waited."""
    is_of_cgroup: bool = False
    """Of the job's own cgroup; else of the whole machine."""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """A fault that only the script could know of, and has reported."""

    rank: int | None
    kind: IncidentKind
    reason: str

    @classmethod
    def parse(cls, rank: int | None, text: str) -> FaultReport | None:
        """Of "nan_loss: its reason"; None if it does not begin with a kind that a script may report."""
        name, _, reason = text.partition(": ")
        kind = next((kind for kind in REPORTABLE if kind.value == name), None)
        return None if kind is None else cls(rank, kind, reason)


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
    resume_from: str = ""
    """Checkpoint that the round began from; "" if it began from none that ftrun knows."""
    spaces: tuple[Space, ...] = ()
    """Room where the job keeps things; what did not answer in time is missing."""
    pressure: MemoryPressure | None = None
    """None if the kernel does not measure it."""
    report: FaultReport | None = None
    """What the script reported, if the agent stopped for that a round in which nothing had failed."""
    file: str = ""
    """All of this on the node itself, in full length; "" if it could not be written."""

    def space_of(self, what: str) -> Space | None:
        """Room where the job keeps `what`; None if unknown."""
        return next((space for space in self.spaces if space.what == what), None)


class IncidentKind(Enum):
    """What happened, in the words that the restart log uses."""

    EXCEPTION = "exception"
    IMPORT_OR_SYNTAX_ERROR = "import_or_syntax_error"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    CUDA_ERROR = "cuda_error"
    GPU_LOST = "gpu_lost"
    ECC_ERROR = "ecc_error"
    XID = "xid"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    GLOO_PEER_LOST = "gloo_peer_lost"
    COMMUNICATION_ERROR = "communication_error"
    """Of sockets, and of the store by which ranks find each other: neither gloo's nor NCCL's."""
    HANG_INITIAL = "hang_initial"
    HANG_STEADY = "hang_steady"
    HANG_SECTION = "hang_section"
    STALL = "stall"
    SEGFAULT = "segfault"
    ABORT = "abort"
    BUS_ERROR = "bus_error"
    KILLED = "killed"
    SIGNAL = "signal"
    EXIT_CODE = "exit_code"
    DISK_FULL = "disk_full"
    CHECKPOINT_LOAD = "checkpoint_load"
    CHECKPOINT_SAVE = "checkpoint_save"
    DATA_LOADER = "data_loader"
    PORT_IN_USE = "port_in_use"
    NAN_LOSS = "nan_loss"
    """Only what the script reports."""
    START_FAILED = "start_failed"
    UNREACHABLE = "unreachable"
    NODE_LOST = "node_lost"
    NODE_UNHEALTHY = "node_unhealthy"
    PREEMPTED = "preempted"
    USER_STOP = "user_stop"
    """The script, or a person, asked for the end of the job."""
    UNKNOWN = "unknown"

    @property
    def is_of_node(self) -> bool:
        """Whether no rank failed by itself: the culprit of the incident only stands for its node."""
        return self in _KINDS_OF_NODES

    @property
    def is_of_exception(self) -> bool:
        """Whether it is an exception of the script's own work, which mostly comes again in the same place."""
        return self in _KINDS_OF_EXCEPTIONS

    @property
    def is_of_hardware(self) -> bool:
        """Whether the culprit's node, or its GPU, is to blame."""
        return self in _KINDS_OF_HARDWARE


REPORTABLE = (
    IncidentKind.NAN_LOSS,
    IncidentKind.CHECKPOINT_LOAD,
    IncidentKind.CHECKPOINT_SAVE,
    IncidentKind.DATA_LOADER,
)
"""What a script may report (`ftrun.monitor.client.report_fault`)."""

_KINDS_OF_EXCEPTIONS = frozenset(
    {
        IncidentKind.EXCEPTION,
        IncidentKind.CUDA_OOM,
        IncidentKind.DATA_LOADER,
        IncidentKind.CHECKPOINT_LOAD,
        IncidentKind.CHECKPOINT_SAVE,
    }
)
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
        IncidentKind.USER_STOP,
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

"""The closed vocabulary of the journal: one frozen dataclass per kind of event.

Only the words: `ftrun.monitor.records` gives them their JSON form, `ftrun.monitor.journal` writes and reads
them, `ftrun.monitor.log` shows them, and docs/events.md is generated from here (`python -m
ftrun.monitor.events_doc`).

Units are in the names: `_s` seconds. Ranks are global, local ranks and pids are of the record's node. Values
of environment variables never appear in an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.account_events import CheckpointSaved as CheckpointSaved
from ftrun.monitor.account_events import JournalReduced as JournalReduced
from ftrun.monitor.account_events import LogsDropped as LogsDropped
from ftrun.monitor.account_events import MetricsDegraded as MetricsDegraded
from ftrun.monitor.account_events import MetricsServed as MetricsServed
from ftrun.monitor.account_events import ProgressObserved as ProgressObserved
from ftrun.monitor.account_events import RunConfigured as RunConfigured
from ftrun.monitor.checkpoint_events import CheckpointQuarantined as CheckpointQuarantined
from ftrun.monitor.checkpoint_events import CheckpointRenamed as CheckpointRenamed
from ftrun.monitor.checkpoint_events import CheckpointSkipped as CheckpointSkipped
from ftrun.monitor.checkpoint_events import CheckpointUnverified as CheckpointUnverified
from ftrun.monitor.event import Event as Event
from ftrun.monitor.event import JsonValue as JsonValue
from ftrun.monitor.event import LocalRank, Pid, Rank, Reason, RestartCount, Round
from ftrun.monitor.evidence_events import EvidenceGathered as EvidenceGathered
from ftrun.monitor.hang_events import GraceEnded as GraceEnded
from ftrun.monitor.hang_events import HangDetected as HangDetected
from ftrun.monitor.hang_events import HeartbeatsDegraded as HeartbeatsDegraded
from ftrun.monitor.hang_events import RequestReceived as RequestReceived
from ftrun.monitor.hang_events import StacksSaved as StacksSaved
from ftrun.monitor.hang_events import TimeoutsCalculated as TimeoutsCalculated
from ftrun.monitor.hang_events import TimeoutsObserved as TimeoutsObserved
from ftrun.monitor.health_events import ExclusionSuspended as ExclusionSuspended
from ftrun.monitor.health_events import GpuMemoryAwaited as GpuMemoryAwaited
from ftrun.monitor.health_events import HealthChanged as HealthChanged
from ftrun.monitor.health_events import HealthCheckDelayed as HealthCheckDelayed
from ftrun.monitor.health_events import NodeExcluded as NodeExcluded
from ftrun.monitor.health_events import SlotsReduced as SlotsReduced
from ftrun.monitor.rendezvous_events import NodeJoined as NodeJoined
from ftrun.monitor.rendezvous_events import NodeLeft as NodeLeft
from ftrun.monitor.rendezvous_events import NodeLost as NodeLost
from ftrun.monitor.rendezvous_events import NodeParked as NodeParked
from ftrun.monitor.rendezvous_events import NodeRefused as NodeRefused
from ftrun.monitor.rendezvous_events import RendezvousAwaited as RendezvousAwaited
from ftrun.monitor.rendezvous_events import RoundStopOrdered as RoundStopOrdered
from ftrun.monitor.rendezvous_events import StoreAwaited as StoreAwaited
from ftrun.monitor.rendezvous_events import StoreConnected as StoreConnected
from ftrun.monitor.rendezvous_events import StoreDegraded as StoreDegraded
from ftrun.monitor.rendezvous_events import StoreLost as StoreLost


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The agent has read its configuration and begins."""

    kind: ClassVar[str] = "run.started"
    run_id: Annotated[str, "Name of the run (--rdzv-id, or a random one)."]
    script: Annotated[str, "Training script, module or program."]
    argv_count: Annotated[int, "Number of the script's arguments; the arguments themselves are not recorded."]
    nproc_per_node: Annotated[int, "Workers on this node."]
    nproc_reason: Annotated[str, "How that number came about."]
    agent_pid: Annotated[int, "Process id of the agent."]
    ftrun_version: Annotated[str, "Version of ftrun."]
    python_version: Annotated[str, "Version of the agent's Python."]
    max_restarts: Annotated[int | None, "Restarts of the job that are allowed (--max-restarts)."] = None


@dataclass(frozen=True, slots=True)
class OptionIgnored(Event):
    """An option was accepted and has no effect."""

    kind: ClassVar[str] = "option.ignored"
    name: Annotated[str, "The option as it was typed."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class EnvironmentDefaulted(Event):
    """A variable that the user had not set was set for the workers, as torchrun does."""

    kind: ClassVar[str] = "environment.defaulted"
    name: Annotated[str, "Name of the variable."]
    value: Annotated[str, "Its value, which is ftrun's own and never the user's."]


@dataclass(frozen=True, slots=True)
class StandbyStarted(Event):
    """A worker process was spawned and waits for its rank."""

    kind: ClassVar[str] = "standby.started"
    pid: Pid
    is_cold: Annotated[bool, "It preloads nothing."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class StandbyReadied(Event):
    """A standby has finished its imports."""

    kind: ClassVar[str] = "standby.readied"
    pid: Pid
    preload_s: Annotated[float, "Seconds that the imports took."]
    module_count: Annotated[int, "Modules it was asked to import."]


@dataclass(frozen=True, slots=True)
class StandbyDiscarded(Event):
    """A standby was thrown away unused."""

    kind: ClassVar[str] = "standby.discarded"
    pid: Pid
    reason: Reason


@dataclass(frozen=True, slots=True)
class StandbySuspended(Event):
    """The pool of standbys is not refilled for now."""

    kind: ClassVar[str] = "standby.suspended"
    reason: Reason


@dataclass(frozen=True, slots=True)
class PreloadLearned(Event):
    """A worker told which modules this script really imports; later standbys preload them."""

    kind: ClassVar[str] = "preload.learned"
    module_count: Annotated[int, "Modules in the new list."]


@dataclass(frozen=True, slots=True)
class PreloadReduced(Event):
    """A module was taken off the preload list."""

    kind: ClassVar[str] = "preload.reduced"
    module: Annotated[str, "Name of the module."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class RoundClosed(Event):
    """Everyone who takes part in the round is known; its workers are about to start."""

    kind: ClassVar[str] = "round.closed"
    round: Round
    world_size: Annotated[int, "Ranks of the round."]
    restart_count: RestartCount
    master_addr: Annotated[str, "Address of the workers' store (MASTER_ADDR)."]
    master_port: Annotated[int, "Port of the workers' store (MASTER_PORT)."]
    resume_from: Annotated[str | None, "Checkpoint handed to all ranks; null if there is none."]
    resume_step: Annotated[int | None, "Step of that checkpoint; null if its name tells none."]
    nodes: Annotated[tuple[str, ...], "Nodes of the round, in group-rank order."]
    spares: Annotated[tuple[str, ...], "Nodes that have joined and have no part in it."]
    is_resume_known: Annotated[
        bool, "The launcher knows where checkpoints are, so that none means a start from nothing."
    ] = False


@dataclass(frozen=True, slots=True)
class RoundFailed(Event):
    """The workers of a round could not be started on this node."""

    kind: ClassVar[str] = "round.failed"
    round: Round
    reason: Reason


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker was told its rank and runs the script."""

    kind: ClassVar[str] = "worker.started"
    round: Round
    rank: Rank
    local_rank: LocalRank
    pid: Pid
    is_warm: Annotated[bool, "It had done its imports as a standby."]
    reason: Annotated[str, "Why it was warm or cold."]
    page: Annotated[str, "Where its page can be read on this node while the agent lives."] = ""


@dataclass(frozen=True, slots=True)
class WorkerProgressed(Event):
    """A worker made its first progress of the round: an optimizer step, a heartbeat or a checkpoint."""

    kind: ClassVar[str] = "worker.progressed"
    round: Round
    rank: Rank
    step: Annotated[int | None, "Training step as the script reported it; null if it reports none."]
    since_start_s: Annotated[float, "Seconds since the worker was told its rank."]


@dataclass(frozen=True, slots=True)
class WorkerExited(Event):
    """A worker's process has ended."""

    kind: ClassVar[str] = "worker.exited"
    round: Round
    rank: Rank
    local_rank: LocalRank
    pid: Pid
    exit_code: Annotated[int, "0 to 255, or -n for death by signal n."]
    signal_name: Annotated[str | None, "Name of that signal; null for an ordinary exit."]
    is_stopped_by_agent: Annotated[bool, "The agent had already begun to stop the group."]
    steps: Annotated[int, "Optimizer steps (or heartbeats) in this round."]
    since_start_s: Annotated[float | None, "Seconds since it began to run the script; null if not."] = None
    last_step: Annotated[int | None, "The script's own step number; null if it reports none."] = None
    beat_age_s: Annotated[float | None, "Seconds since its last step or heartbeat; null if none."] = None
    sections: Annotated[tuple[str, ...], "What the script was in, by its sections, outermost first."] = ()


@dataclass(frozen=True, slots=True)
class WorkerUnkillable(Event):
    """A worker is still there after SIGKILL and the time allowed for it."""

    kind: ClassVar[str] = "worker.unkillable"
    round: Round
    rank: Rank
    pid: Pid
    state: Annotated[str, "State letter from /proc, D for uninterruptible sleep."]


@dataclass(frozen=True, slots=True)
class RoundStopped(Event):
    """All workers of the round are gone."""

    kind: ClassVar[str] = "round.stopped"
    round: Round
    cause: Annotated[str, "What ended the round: a kind of incident, a signal or success."]
    stop_s: Annotated[float, "Seconds from the decision to stop to the end of the last worker."]


@dataclass(frozen=True, slots=True)
class ProcessSwept(Event):
    """A process that a worker left behind was ended."""

    kind: ClassVar[str] = "process.swept"
    round: Round
    pid: Pid
    command: Annotated[str, "Executable and first argument."]
    how: Annotated[str, "How it was found and ended."]


@dataclass(frozen=True, slots=True)
class IncidentDiagnosed(Event):
    """The cause of a failed round."""

    kind: ClassVar[str] = "incident.diagnosed"
    round: Round
    incident_kind: Annotated[str, "What happened: a value of ftrun.monitor.incident.IncidentKind."]
    culprit_rank: Annotated[int, "Rank that failed first."]
    culprit_local_rank: Annotated[int, "Its rank on its node."]
    culprit_pid: Annotated[int, "Its process id."]
    exit_code: Annotated[int, "Its exit code; -n for death by signal n."]
    reasons: Annotated[tuple[str, ...], "Sentences a person can read, the most important first."]
    fingerprint: Annotated[str, "Equal for two failures that are the same."]
    has_progressed: Annotated[bool, "Some rank made progress in the round."]
    collateral_ranks: Annotated[tuple[int, ...], "Ranks that only fell with it."]
    confidence: Annotated[float, "How sure the cause is, from 0 to 1."] = 1.0


@dataclass(frozen=True, slots=True)
class RestartDecided(Event):
    """What is done about an incident; written before it is done."""

    kind: ClassVar[str] = "restart.decided"
    round: Annotated[int, "Round that failed."]
    action: Annotated[str, "What is done, e.g. restart or stop."]
    reason: Reason
    delay_s: Annotated[float, "Pause before the restart, seconds."]
    restart_count: Annotated[int, "Restarts of the job, this one included."]
    max_restarts: Annotated[int, "Restarts allowed."]


@dataclass(frozen=True, slots=True)
class RecoveryCompleted(Event):
    """Training moves again after a failure: the first step of the new round is done on every rank."""

    kind: ClassVar[str] = "recovery.completed"
    round: Annotated[int, "The new round."]
    cause: Annotated[str, "Kind of the incident recovered from."]
    culprit_rank: Annotated[int | None, "Rank that had failed; null if no single rank had."]
    detect_s: Annotated[
        float | None, "Seconds from the failure until the agent saw it; null when its own time is unknown."
    ]
    stop_s: Annotated[float, "Seconds until the last worker of the failed round was gone."]
    start_s: Annotated[float, "Seconds from then until the new workers ran the script."]
    first_step_s: Annotated[float, "Seconds from then until the first step was done."]
    total_s: Annotated[float, "Seconds from when the failure was seen to the first step."]
    steps_redone: Annotated[int | None, "Steps trained a second time; null if unknown."]
    checkpoint_age_s: Annotated[
        float | None, "Seconds from the checkpoint's save until the failure was seen; null if unknown."
    ] = None
    rendezvous_s: Annotated[
        float | None, "Of `start_s`, seconds until the new round was closed, a pause included; null: unknown."
    ] = None


@dataclass(frozen=True, slots=True)
class SignalReceived(Event):
    """The agent was told to end the job."""

    kind: ClassVar[str] = "signal.received"
    signal_name: Annotated[str, "Name of the signal."]
    grace_s: Annotated[float, "Seconds that the workers have before SIGKILL."]
    count: Annotated[int, "How many such signals have come, this one included."]


@dataclass(frozen=True, slots=True)
class SignalForwarded(Event):
    """A signal was passed on to the workers; the job goes on."""

    kind: ClassVar[str] = "signal.forwarded"
    signal_name: Annotated[str, "Name of the signal."]
    ranks: Annotated[tuple[int, ...], "Ranks that got it."]
    skipped_ranks: Annotated[tuple[int, ...], "Ranks that did not, because they have no handler for it yet."]


@dataclass(frozen=True, slots=True)
class OutputDegraded(Event):
    """Some output of the workers is not kept or not shown; the job goes on."""

    kind: ClassVar[str] = "output.degraded"
    reason: Reason


@dataclass(frozen=True, slots=True)
class StoreFailed(Event):
    """The workers' store cannot be served; init_process_group will fail in every rank."""

    kind: ClassVar[str] = "store.failed"
    reason: Reason


@dataclass(frozen=True, slots=True)
class GuardDegraded(Event):
    """There is no process to clean up after the agent if it is killed."""

    kind: ClassVar[str] = "guard.degraded"
    reason: Reason


@dataclass(frozen=True, slots=True)
class NumaDegraded(Event):
    """NUMA binding was asked for and is not done; the job goes on."""

    kind: ClassVar[str] = "numa.degraded"
    reason: Reason


@dataclass(frozen=True, slots=True)
class LogLocated(Event):
    """Where this run keeps what it writes."""

    kind: ClassVar[str] = "log.located"
    path: Annotated[str, "Directory below which the workers' log files are."]
    run_dir: Annotated[str, "The run directory: journals, and the logs unless --log-dir says otherwise."] = ""


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """The job is over on this node."""

    kind: ClassVar[str] = "run.ended"
    exit_code: Annotated[int, "Exit code of the agent."]
    reason: Reason
    restart_count: RestartCount
    duration_s: Annotated[float, "Seconds since the run started."]


@dataclass(frozen=True, slots=True)
class UnknownEvent(Event):
    """An event of another version of ftrun, as it was read; never written anew."""

    name: str
    fields: Mapping[str, JsonValue]


VOCABULARY: tuple[type[Event], ...] = (
    RunStarted, OptionIgnored, EnvironmentDefaulted, StandbyStarted, StandbyReadied, StandbyDiscarded,
    StandbySuspended, PreloadLearned, PreloadReduced, RoundClosed, RoundFailed, CheckpointSkipped,
    CheckpointUnverified, CheckpointQuarantined, CheckpointRenamed,
    WorkerStarted,
    WorkerProgressed, WorkerExited, WorkerUnkillable, RoundStopped, ProcessSwept, IncidentDiagnosed,
    RestartDecided, RecoveryCompleted, SignalReceived, SignalForwarded, OutputDegraded, StoreFailed,
    GuardDegraded, NumaDegraded, LogLocated, RunEnded,
    HangDetected, StacksSaved, GraceEnded, RequestReceived, TimeoutsCalculated, TimeoutsObserved,
    HeartbeatsDegraded, EvidenceGathered,
    StoreConnected, StoreAwaited, StoreLost, StoreDegraded, NodeJoined, NodeLost, NodeLeft, NodeRefused,
    NodeParked, RendezvousAwaited, RoundStopOrdered,
    HealthChanged, HealthCheckDelayed, GpuMemoryAwaited, NodeExcluded, ExclusionSuspended, SlotsReduced,
    RunConfigured, ProgressObserved, CheckpointSaved, MetricsServed, MetricsDegraded,
    LogsDropped, JournalReduced,
)  # fmt: skip

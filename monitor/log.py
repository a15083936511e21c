"""What the agent says on the terminal: the journal's events, rendered by structlog.

The one place that sets structlog up. It is imported when the first line is written, not before: that costs
tens of milliseconds, which the start of the workers must not wait for.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast

from ftrun.monitor import events as ev
from ftrun.monitor.account_sentences import account_sentence
from ftrun.monitor.records import Record, to_json

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict

LogFormat = Literal["human", "json"]

# The numbers of Python's logging, which is not imported for them.
DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50
_LEVELS = {"DEBUG": DEBUG, "INFO": INFO, "WARNING": WARNING, "ERROR": ERROR, "CRITICAL": CRITICAL}

# An incident is not among them: the decision about it begins with its first sentence.
_ALWAYS = (
    ev.RunStarted, ev.OptionIgnored, ev.EnvironmentDefaulted, ev.CheckpointSkipped, ev.WorkerUnkillable,
    ev.CheckpointUnverified, ev.CheckpointQuarantined, ev.CheckpointRenamed,
    ev.ProcessSwept, ev.RestartDecided, ev.RecoveryCompleted, ev.SignalReceived, ev.OutputDegraded,
    ev.StoreFailed, ev.GuardDegraded, ev.NumaDegraded, ev.StandbySuspended, ev.HangDetected,
    ev.GraceEnded, ev.RoundFailed, ev.StacksSaved, ev.RequestReceived, ev.HeartbeatsDegraded,
    ev.StoreAwaited, ev.StoreLost, ev.StoreDegraded, ev.NodeLost, ev.NodeLeft, ev.NodeRefused, ev.NodeParked,
    ev.RendezvousAwaited, ev.HealthCheckDelayed, ev.GpuMemoryAwaited, ev.NodeExcluded, ev.ExclusionSuspended,
    ev.SlotsReduced, ev.MetricsServed, ev.MetricsDegraded, ev.LogsDropped, ev.JournalReduced,
)  # fmt: skip
DETAIL = (
    ev.StandbyStarted, ev.StandbyReadied, ev.StandbyDiscarded, ev.PreloadLearned, ev.UnknownEvent,
)  # fmt: skip


class LineStream(Protocol):
    """Where lines go: a text stream, or something that queues them without ever waiting."""

    def write(self, text: str, /) -> int:
        """Take whole lines."""

    def flush(self) -> None:
        """Pass on what was taken."""


class Terminal:
    """Shows records, one line each, on a text stream; a closed or full stream loses lines, never the job."""

    def __init__(self, log_format: LogFormat, stream: LineStream, level: int) -> None:
        self._is_json = log_format == "json"
        self._stream = stream
        self._level = level
        self._emit: Callable[..., None] | None = None

    def show(self, record: Record) -> None:
        """Write the record if it matters here: JSON takes all, a person what the level lets through."""
        if not self._is_json and level_of(record.event) < self._level:
            return
        if self._emit is None:
            self._emit = _make_emitter(self._stream, render_json if self._is_json else render_human)
        try:
            self._emit(record)
        except (OSError, ValueError):
            # The terminal is gone (EPIPE, closed file) or cannot encode; the journal has the record.
            return


def configure(log_format: LogFormat, stream: LineStream, level: int = WARNING) -> Terminal:
    """The agent's terminal; `level` as from `level_from`."""
    return Terminal(log_format, stream, level)


def level_from(environ: Mapping[str, str]) -> int:
    """The level that LOGLEVEL asks for, a name or a number, WARNING without it (torchrun's variable)."""
    text = environ.get("LOGLEVEL", "").strip().upper()
    if text.isdecimal():
        return int(text)
    return _LEVELS.get(text, WARNING)


def level_of(event: ev.Event) -> int:
    """How much the event matters to a person at the terminal, on the scale of Python's logging."""
    if isinstance(event, DETAIL):
        return DEBUG
    if isinstance(event, ev.RunEnded):
        has_news = event.exit_code != 0 or event.restart_count > 0
        return WARNING if has_news else INFO
    if isinstance(event, ev.ProgressObserved):
        return WARNING if event.is_told else DEBUG
    if isinstance(event, ev.HealthChanged):
        return _level_of_health(event)
    if isinstance(event, ev.RoundClosed):
        return INFO if event.resume_from is None else WARNING
    return WARNING if isinstance(event, _ALWAYS) else INFO


def _level_of_health(event: ev.HealthChanged) -> int:
    """What is broken is for a person, that it is no more, and what hangs; the rest is in the journal."""
    is_hanging = event.status == "unknown" and event.check in ("gpu.driver", "storage.probe")
    is_broken = "unhealthy" in (event.status, event.before)
    return WARNING if is_broken or is_hanging else INFO


def render_human(record: Record) -> str:
    """`[ftrun 12:01:03] sentence`, in local time."""
    clock = time.strftime("%H:%M:%S", time.localtime(record.ts))
    return f"[ftrun {clock}] {sentence(record.event)}"


def render_json(record: Record) -> str:
    """The record as it stands in the journal."""
    return to_json(record)


def sentence(event: ev.Event) -> str:
    """The event in words, one line, without the time."""
    text = _job_sentence(event) or _worker_sentence(event) or _hang_sentence(event)
    text = text or _node_sentence(event) or _health_sentence(event) or _trouble_sentence(event)
    text = text or account_sentence(event)
    # A line break in a path or an exception's text must not make a second, unmarked line.
    return " ".join(text.split("\n")) if text else f"{event.kind}: {event}"


def _job_sentence(event: ev.Event) -> str:
    match event:
        case ev.RunStarted():
            return (
                f"run {event.run_id}: {event.script} with {event.nproc_per_node} "
                f"{_plural('worker', event.nproc_per_node)} on this node ({event.nproc_reason})"
            )
        case ev.RoundClosed():
            resume = f", resuming from {event.resume_from}" if event.resume_from else ""
            ranks = f"{event.world_size} {_plural('rank', event.world_size)}"
            nodes = f" on {len(event.nodes)} nodes ({', '.join(event.nodes)})" if len(event.nodes) > 1 else ""
            store = f"store at {event.master_addr}:{event.master_port}"
            return f"round {event.round}: {ranks}{nodes}, {store}{resume}"
        case ev.RoundFailed():
            return f"round {event.round} could not be started: {event.reason}"
        case ev.RoundStopped():
            return f"round {event.round} is over ({event.cause}): workers gone in {event.stop_s:.2f} s"
        case ev.IncidentDiagnosed():
            return "; ".join(event.reasons) or f"rank {event.culprit_rank} failed ({event.incident_kind})"
        case ev.RestartDecided():
            return _decision_sentence(event)
        case ev.RecoveryCompleted():
            return _recovery_sentence(event)
        case ev.SignalReceived():
            # torchrun's words, which tools look for.
            words = f"Received {getattr(signal, event.signal_name, 0):d} death signal, shutting down workers"
            again = f", {event.count} signals now" if event.count > 1 else ""
            return f"{words} ({event.signal_name}{again}; grace {event.grace_s:.3g} s)"
        case ev.SignalForwarded():
            skipped = f"; not to {_ranks(event.skipped_ranks)}" if event.skipped_ranks else ""
            return f"passed {event.signal_name} on to {_ranks(event.ranks)}{skipped}"
        case ev.LogLocated():
            return f"logs of the workers: {event.path}"
        case ev.RunEnded():
            restarts = f"{event.restart_count} {_plural('restart', event.restart_count)}"
            after = f"after {event.duration_s:.1f} s, {restarts}"
            return f"ended with exit code {event.exit_code} {after}: {event.reason}"
    return ""


def _worker_sentence(event: ev.Event) -> str:
    match event:
        case ev.StandbyStarted():
            return f"standby {event.pid} started {'cold' if event.is_cold else 'warm'}: {event.reason}"
        case ev.StandbyReadied():
            return f"standby {event.pid} is ready: {event.module_count} modules in {event.preload_s:.2f} s"
        case ev.StandbyDiscarded():
            return f"standby {event.pid} was thrown away: {event.reason}"
        case ev.StandbySuspended():
            return f"no standbys, so a restart starts cold: {event.reason}"
        case ev.PreloadLearned():
            return f"standbys will preload {event.module_count} modules that this script has imported"
        case ev.PreloadReduced():
            return f"standbys will not preload {event.module}: {event.reason}"
        case ev.WorkerStarted():
            how = "warm" if event.is_warm else "cold"
            return f"rank {event.rank} started {how} as pid {event.pid}: {event.reason}"
        case ev.WorkerProgressed():
            step = "" if event.step is None else f" (step {event.step})"
            first = f"made its first progress of round {event.round}{step}"
            return f"rank {event.rank} {first} after {event.since_start_s:.2f} s"
        case ev.WorkerExited():
            how = f"by {event.signal_name}" if event.signal_name else f"with exit code {event.exit_code}"
            stopped = ", stopped by the agent" if event.is_stopped_by_agent else ""
            return f"rank {event.rank} (pid {event.pid}) ended {how}{stopped}, {event.steps} steps"
        case ev.WorkerUnkillable():
            return f"rank {event.rank} (pid {event.pid}) does not die of SIGKILL (state {event.state})"
    return ""


def _hang_sentence(event: ev.Event) -> str:
    match event:
        case ev.HangDetected():
            return f"hang: {event.reason}"
        case ev.StacksSaved():
            where = f" in {event.files[0].rpartition('/')[0]}" if event.files else ""
            missing = f"; {_ranks(event.missing_ranks)} did not answer" if event.missing_ranks else ""
            return f"stacks of {_ranks(event.ranks)} saved{where}{missing}"
        case ev.EvidenceGathered():
            full = [one for one in event.spaces if " is full" in one]
            told = f": {event.oom_kills} OOM kills" if event.oom_kills else ""
            return f"evidence of round {event.round} is in {event.file or 'no file'}{told}{_listed(full)}"
        case ev.GraceEnded():
            return f"rank {event.rank} cannot act on SIGTERM; ended {event.after_s:.2f} s after it was asked"
        case ev.RequestReceived():
            who = "a worker" if event.rank is None else f"rank {event.rank}"
            return f"{who} asks for {event.action}: {event.description}"
        case ev.TimeoutsCalculated():
            return (
                f"rank {event.rank} has set heartbeat timeouts: first {_limit(event.initial_s)}, "
                f"then {_limit(event.steady_s)}"
            )
        case ev.TimeoutsObserved():
            return (
                f"longest so far: initialisation {_limit(event.initialisation_s)}, "
                f"step gap {_limit(event.step_gap_s)}, quiet {_limit(event.quiet_s)}"
            )
        case ev.HeartbeatsDegraded():
            return f"heartbeats of nvidia-resiliency-ext's clients are not served: {event.reason}"
    return ""


def _listed(sentences: Sequence[str]) -> str:
    return "".join(f"; {sentence}" for sentence in sentences)


def _node_sentence(event: ev.Event) -> str:
    match event:
        case ev.StoreConnected():
            return f"{'serves' if event.is_host else 'found'} the rendezvous at {event.endpoint}"
        case ev.StoreAwaited():
            return f"waiting for the rendezvous, {_left(event.remaining_s)}: {event.reason}"
        case ev.StoreLost():
            return f"lost the rendezvous ({event.reason}); looking for it again, {_left(event.remaining_s)}"
        case ev.StoreDegraded():
            return f"rendezvous: {event.reason}"
        case ev.NodeJoined():
            slots = f"{event.slots} {_plural('slot', event.slots)}"
            return f"node {event.name} has joined with {slots} ({event.address})"
        case ev.NodeLost():
            return f"lost node {event.name}: {event.reason}"
        case ev.NodeLeft():
            return f"node {event.name} leaves: {event.reason}"
        case ev.NodeRefused():
            return f"node {event.name} was refused: {event.reason}"
        case ev.NodeParked():
            return f"this node is a spare in round {event.round}, which runs on {', '.join(event.nodes)}"
        case ev.RendezvousAwaited():
            return f"waiting for {event.awaited}, {_left(event.remaining_s)}"
        case ev.RoundStopOrdered():
            return f"all nodes stop round {event.round}, says {event.by} ({event.cause}): {event.reason}"
    return ""


def _health_sentence(event: ev.Event) -> str:
    match event:
        case ev.HealthChanged():
            was = f" (was {event.before})" if event.before else ""
            ever = ", as when the job began" if event.is_persistent else ""
            remedy = f"; {event.remedy}" if event.remedy else ""
            return f"{event.subject} is {event.status}{was}: {event.observed} [{event.check}]{ever}{remedy}"
        case ev.HealthCheckDelayed():
            return f"health is not known in time: {event.reason}"
        case ev.GpuMemoryAwaited():
            held = f"{event.held_bytes >> 20} MiB of {event.subject}"
            by = f" by {', '.join(event.holders)}" if event.holders else " by no process that is known"
            if event.is_freed:
                return f"{held} were held{by}, and given back after {event.waited_s:.1f} s"
            return f"{held} are still held{by} after {event.waited_s:.1f} s; starting workers all the same"
        case ev.NodeExcluded():
            return f"left out: {event.reason}"
        case ev.ExclusionSuspended():
            nodes = ", ".join(event.nodes)
            return f"too many nodes fail {event.check} at once to leave them out for it: {nodes}"
        case ev.SlotsReduced():
            workers = f"{event.slots} {_plural('worker', event.slots)}"
            return f"going on with {workers} on this node: {event.reason}"
    return ""


def _left(seconds: float) -> str:
    return f"{seconds:.0f} s left"


def _limit(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:g} s"


def _trouble_sentence(event: ev.Event) -> str:
    match event:
        case ev.OptionIgnored():
            return f"{event.name} has no effect: {event.reason}"
        case ev.EnvironmentDefaulted():
            # torchrun's words, which tools look for.
            words = f"Setting {event.name} environment variable for each process"
            return f"{words} to {event.value}, since it is not set"
        case ev.StoreFailed():
            return f"the workers' store cannot be served: {event.reason}"
        case ev.CheckpointSkipped():
            return f"checkpoint {event.path} is not used: {event.reason}"
        case ev.CheckpointUnverified():
            return f"checkpoint {event.path} is used by its lengths alone: {event.reason}"
        case ev.CheckpointQuarantined():
            return f"checkpoint {event.path} is not used any more: {event.reason}"
        case ev.CheckpointRenamed(path, None):
            return f"checkpoint {path} was not renamed: {event.reason}"
        case ev.CheckpointRenamed():
            return f"checkpoint {event.path} is now {event.new_path} ({event.reason})"
        case ev.ProcessSwept():
            process = f"{event.command} (pid {event.pid})"
            return f"ended a process left behind in round {event.round}: {process}, {event.how}"
        case ev.OutputDegraded():
            return f"output: {event.reason}"
        case ev.GuardDegraded():
            return f"if this agent is killed, what its workers have started is not cleaned up: {event.reason}"
        case ev.NumaDegraded():
            return f"NUMA binding is off: {event.reason}"
        case ev.UnknownEvent():
            return f"{event.name}: {json.dumps(dict(event.fields))}"
    return ""


def _decision_sentence(event: ev.RestartDecided) -> str:
    if event.action != "restart":
        return f"{event.action}: {event.reason}"
    count = f"restart {event.restart_count} of {event.max_restarts}"
    # A start after a round that never began is none of the restarts, nor is one that was said not to count.
    has_count = event.reason.startswith((count, "start ", "restart that does not count"))
    return event.reason if has_count else f"{count}: {event.reason}"


_LONG_RENDEZVOUS_S = 0.05
"""From here on it is worth a word: of one node alone it takes a millisecond."""


def _recovery_sentence(event: ev.RecoveryCompleted) -> str:
    parts = f"stop {event.stop_s:.2f}, start {event.start_s:.2f}, first step {event.first_step_s:.2f}"
    if event.rendezvous_s is not None and event.rendezvous_s >= _LONG_RENDEZVOUS_S:
        parts = parts.replace(", first", f" of which {event.rendezvous_s:.2f} rendezvous, first")
    if event.detect_s is not None:
        parts = f"detect {event.detect_s:.2f}, {parts}"
    steps = event.steps_redone
    redone = "" if steps is None else f"; {steps} {_plural('step', steps)} redone"
    after = f"{event.total_s:.2f} s after the failure was seen ({parts})"
    return f"back in training: round {event.round}, {after}{redone}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "no rank"
    return f"{_plural('rank', len(ranks))} {', '.join(map(str, ranks))}"


def _make_emitter(stream: LineStream, render: Callable[[Record], str]) -> Callable[[Record], None]:
    import structlog

    def to_line(logger: object, method: str, entry: EventDict) -> str:
        record = entry["record"]
        assert isinstance(record, Record)
        return render(record)

    logger = structlog.wrap_logger(structlog.WriteLogger(cast("TextIO", stream)), processors=[to_line])

    def emit(record: Record) -> None:
        logger.msg(record.event.kind, record=record)

    return emit

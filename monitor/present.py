"""What holds on a node now, and how often what has happened: a fold over its journal's events. Pure.

For what looks at a run while it goes on: metrics and the live view. An account of the past is made from
`ftrun.monitor.life_fold`, which keeps more and knows many nodes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from ftrun.monitor import events as ev
from ftrun.monitor.levels import RankLevel
from ftrun.monitor.log import WARNING, level_of, sentence
from ftrun.monitor.records import Record

PHASES = ("joining", "spare", "running", "stopping", "ended")
RECOVERY_PHASES = ("detect", "stop", "start", "first_step")
ENDINGS = ("ok", "error", "signal", "stopped")
_KEPT_NEWS = 12


@dataclass(frozen=True, slots=True)
class WorkerNow:
    """A worker of the node's last round."""

    rank: int
    local_rank: int
    pid: int
    page: str
    """Where its page can be read while the agent lives; "" if the journal does not say."""
    has_progressed: bool = False
    exit_code: int | None = None
    """None while it runs."""
    signal_name: str = ""


@dataclass(frozen=True, slots=True)
class SavedNow:
    """The newest checkpoint of the run, as this node knows it."""

    step: int | None
    path: str
    at: float | None
    """CLOCK_MONOTONIC; None for the one that a run began from."""
    ts: float | None
    """UTC epoch."""


@dataclass(frozen=True, slots=True)
class News:
    """Something that a person at the terminal was told."""

    ts: float
    node: str
    text: str


@dataclass(slots=True)
class Counts:
    """How often what has happened in the life of this agent."""

    events: Counter[str] = field(default_factory=Counter)
    """By kind of event."""
    incidents: Counter[str] = field(default_factory=Counter)
    """By kind of incident."""
    restarts: Counter[str] = field(default_factory=Counter)
    """By kind of the incident that each followed."""
    failed_restarts: int = 0
    """Rounds after a restart that failed before their first progress."""
    exits: Counter[str] = field(default_factory=Counter)
    """Workers' ends, by `ENDINGS`."""
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each recovery, by kind: at most as many as there are restarts."""
    recovery_phase_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RECOVERY_PHASES, 0.0))
    """Seconds of all of them, by part."""
    steps_redone: int = 0
    saves: int = 0
    blocking_s: float = 0.0


@dataclass(slots=True)
class Present:
    """What holds on one node, by the last of its journal."""

    node: str = ""
    run_id: str = ""
    script: str = ""
    version: str = ""
    agent_pid: int = 0
    slots: int = 0
    run_dir: str = ""
    began_at: float = 0.0
    """CLOCK_MONOTONIC of the node, seconds."""
    last_at: float = 0.0
    last_ts: float = 0.0
    phase: str = "joining"
    """One of `PHASES`."""
    round: int | None = None
    world_size: int = 0
    nodes: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    resume_step: int | None = None
    is_resume_known: bool = False
    restart_count: int = 0
    max_restarts: int | None = None
    workers: dict[int, WorkerNow] = field(default_factory=dict)
    """Of the round that runs or ran last, by rank."""
    standbys: dict[int, bool] = field(default_factory=dict)
    """By pid: whether it is ready."""
    ailments: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Status and finding, by check and subject, of what is not healthy."""
    saved: SavedNow | None = None
    progress: ev.ProgressObserved | None = None
    """Of the round that runs."""
    exit_code: int | None = None
    end_reason: str = ""
    news: deque[News] = field(default_factory=lambda: deque(maxlen=_KEPT_NEWS))
    counts: Counts = field(default_factory=Counts)

    @property
    def base_step(self) -> int | None:
        """Steps of the job that were done before the round; None if that is not known."""
        return self.resume_step if self.resume_step is not None else 0 if self.is_resume_known else None

    def step_of(self, level: RankLevel) -> int | None:
        """Steps of the job that a rank has come to; None if that is not known."""
        if level.step is not None:
            return level.step
        return None if self.base_step is None else self.base_step + level.steps


class PresentFold:
    """Give it records in order; `now` is what holds after the last."""

    def __init__(self) -> None:
        self._cause = ""
        self.now = Present()

    def take(self, record: Record) -> None:
        """The next record; with that of an agent's start, another life begins."""
        if isinstance(record.event, ev.RunStarted) and self.now.agent_pid:
            self.now = Present()
        now, event = self.now, record.event
        now.node, now.last_at, now.last_ts = record.node, record.at, record.ts
        now.counts.events[event.kind] += 1
        if level_of(event) >= WARNING and not isinstance(event, ev.ProgressObserved):
            now.news.append(News(record.ts, record.node, sentence(event)))
        _take_run(now, record)
        _take_round(now, event)
        _take_worker(now, event)
        _take_standby(now, event)
        _take_account(now, record)
        self._take_incident(event)

    def _take_incident(self, event: ev.Event) -> None:
        now = self.now
        match event:
            case ev.IncidentDiagnosed():
                self._cause = event.incident_kind
                now.counts.incidents[event.incident_kind] += 1
                if now.restart_count and not event.has_progressed:
                    now.counts.failed_restarts += 1
            case ev.RestartDecided():
                now.max_restarts, now.restart_count = event.max_restarts, event.restart_count
                if event.action == "restart":
                    now.counts.restarts[self._cause or "unknown"] += 1
            case ev.RecoveryCompleted():
                now.counts.recovery_s.setdefault(event.cause, []).append(event.total_s)
                now.counts.steps_redone += event.steps_redone or 0
                _add_parts(now.counts.recovery_phase_s, event)


def _add_parts(spent_s: dict[str, float], event: ev.RecoveryCompleted) -> None:
    parts = (event.detect_s or 0.0, event.stop_s, event.start_s, event.first_step_s)
    for name, seconds in zip(RECOVERY_PHASES, parts, strict=True):
        spent_s[name] += seconds


def _take_run(now: Present, record: Record) -> None:
    match record.event:
        case ev.RunStarted() as event:
            now.run_id, now.script, now.version = event.run_id, event.script, event.ftrun_version
            now.agent_pid, now.slots, now.began_at = event.agent_pid, event.nproc_per_node, record.at
            now.max_restarts = event.max_restarts
        case ev.LogLocated() as event:
            now.run_dir = event.run_dir
        case ev.RunEnded() as event:
            now.phase, now.exit_code, now.end_reason = "ended", event.exit_code, event.reason
            now.restart_count, now.standbys = event.restart_count, {}


def _take_round(now: Present, event: ev.Event) -> None:
    match event:
        case ev.RoundClosed():
            now.phase, now.round, now.world_size = "running", event.round, event.world_size
            now.nodes, now.spares, now.restart_count = event.nodes, event.spares, event.restart_count
            now.resume_step, now.is_resume_known = event.resume_step, event.is_resume_known
            now.workers, now.progress = {}, None
            if event.resume_from is not None and now.saved is None:
                now.saved = SavedNow(event.resume_step, event.resume_from, None, None)
        case ev.NodeParked():
            now.phase, now.round, now.nodes, now.workers = "spare", event.round, event.nodes, {}
        case ev.RoundStopOrdered() | ev.HangDetected() | ev.SignalReceived() if now.phase == "running":
            now.phase = "stopping"
        case ev.RoundStopped() | ev.RoundFailed():
            now.phase = "joining"


def _take_worker(now: Present, event: ev.Event) -> None:
    match event:
        case ev.WorkerStarted():
            now.workers[event.rank] = WorkerNow(event.rank, event.local_rank, event.pid, event.page)
            now.standbys.pop(event.pid, None)
        case ev.WorkerProgressed() if event.rank in now.workers:
            now.workers[event.rank] = replace(now.workers[event.rank], has_progressed=True)
        case ev.WorkerExited():
            how = "signal" if event.exit_code < 0 else "error" if event.exit_code else "ok"
            now.counts.exits["stopped" if event.is_stopped_by_agent else how] += 1
            if how != "ok" and now.phase == "running":
                now.phase = "stopping"
            if event.rank in now.workers:
                now.workers[event.rank] = replace(
                    now.workers[event.rank], exit_code=event.exit_code, signal_name=event.signal_name or ""
                )


def _take_standby(now: Present, event: ev.Event) -> None:
    match event:
        case ev.StandbyStarted():
            now.standbys[event.pid] = False
        case ev.StandbyReadied():
            now.standbys[event.pid] = True
        case ev.StandbyDiscarded():
            now.standbys.pop(event.pid, None)


def _take_account(now: Present, record: Record) -> None:
    match record.event:
        case ev.ProgressObserved() as event:
            now.progress = event
        case ev.CheckpointSaved() as event:
            age_s = event.age_s
            now.saved = SavedNow(event.step, event.path, record.at - age_s, record.ts - age_s)
            now.counts.saves += event.count
            now.counts.blocking_s += (event.blocking_s or 0.0) * event.count
        case ev.HealthChanged() as event:
            if event.status in ("healthy", "skipped"):
                now.ailments.pop((event.check, event.subject), None)
            else:
                now.ailments[event.check, event.subject] = event.status, event.observed

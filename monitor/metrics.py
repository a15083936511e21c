"""The metrics of a node: what is exported, and its values from what holds now. Pure.

How they get to Prometheus is `ftrun.monitor.exporter`'s; docs/metrics.md is generated from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from ftrun.monitor.incident import IncidentKind
from ftrun.monitor.levels import Levels, RankLevel
from ftrun.monitor.present import ENDINGS, PHASES, Present

RECOVERY_BOUNDS_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""From what a restart from a standby takes to a node that has to be replaced."""
_NONE_OF_ANY_KIND = {kind.value: 0 for kind in IncidentKind}
"""A counter that begins with 1 has, to Prometheus, never increased: each kind is there from the start."""
COMMON_LABELS = ("run", "node")
"""Of every metric: the run's id and the node's name."""


class Kind(Enum):
    """What Prometheus may do with a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name, as it is queried."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    """Besides `COMMON_LABELS`."""
    meaning: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names that a query may use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


INFO = Metric(
    "ftrun_run_info",
    Kind.GAUGE,
    ("script", "version"),
    "Always 1; the labels say which script and ftrun it is.",
)
OBSERVED = Metric(
    "ftrun_observed_timestamp_seconds",
    Kind.GAUGE,
    (),
    "When these values were taken: UTC epoch. It stands still in the file of an agent that was killed.",
)
PHASE = Metric(
    "ftrun_phase",
    Kind.GAUGE,
    ("phase",),
    f"1 for the phase in which the agent is, 0 for the others: {', '.join(PHASES)}.",
)
EXIT_CODE = Metric("ftrun_exit_code", Kind.GAUGE, (), "Exit code of the agent; only once it has ended.")
ROUND = Metric("ftrun_round", Kind.GAUGE, (), "Number of the round that runs, or ran last, from 0.")
WORLD_SIZE = Metric("ftrun_world_size", Kind.GAUGE, (), "Ranks of that round, on all nodes.")
NODES = Metric("ftrun_nodes", Kind.GAUGE, (), "Nodes of that round.")
SPARES = Metric("ftrun_spare_nodes", Kind.GAUGE, (), "Nodes that have joined and have no part in it.")
LOOP_AGE = Metric(
    "ftrun_loop_age_seconds",
    Kind.GAUGE,
    (),
    "Seconds since the agent's loop turned; it does so every 5 seconds at least.",
)
RANK_UP = Metric("ftrun_rank_up", Kind.GAUGE, ("rank",), "1 while the process of the rank is there.")
RANK_STEPS = Metric(
    "ftrun_rank_steps_total",
    Kind.COUNTER,
    ("rank",),
    "Optimizer steps or heartbeats of the rank; begins at 0 in each round.",
)
RANK_STEP = Metric(
    "ftrun_rank_step",
    Kind.GAUGE,
    ("rank",),
    "Steps of the job that the rank has come to: the script's own number, else counted from the checkpoint.",
)
RANK_AGE = Metric(
    "ftrun_rank_progress_age_seconds",
    Kind.GAUGE,
    ("rank",),
    "Seconds since the rank last made progress; before its first, since it ran the script.",
)
STANDBYS = Metric(
    "ftrun_standbys",
    Kind.GAUGE,
    ("state",),
    "Worker processes that wait for a rank: ready, or still loading.",
)
AILMENT = Metric(
    "ftrun_ailment",
    Kind.GAUGE,
    ("check", "subject", "status"),
    "1 for each health check whose finding is not healthy: degraded, unhealthy or unknown.",
)
INCIDENTS = Metric(
    "ftrun_incidents_total", Kind.COUNTER, ("kind",), "Failures of the job; the same on each of its nodes."
)
RESTARTS = Metric("ftrun_restarts_total", Kind.COUNTER, (), "Restarts that were decided after a failure.")
FAILED_RESTARTS = Metric(
    "ftrun_failed_restarts_total",
    Kind.COUNTER,
    (),
    "Restarts whose round failed again before its first step: the fault is still there.",
)
RESTARTS_USED = Metric("ftrun_restarts_used", Kind.GAUGE, (), "Restarts of the job that count so far.")
RESTARTS_LIMIT = Metric("ftrun_restarts_limit", Kind.GAUGE, (), "Restarts that are allowed (--max-restarts).")
RECOVERIES = Metric(
    "ftrun_recoveries_total",
    Kind.COUNTER,
    ("kind",),
    "Failures after which all ranks of the node train again.",
)
RECOVERY = Metric(
    "ftrun_recovery_seconds",
    Kind.HISTOGRAM,
    (),
    "From when a failure was seen to the first step of all ranks of the node after it.",
)
RECOVERY_PHASE = Metric(
    "ftrun_recovery_phase_seconds_total",
    Kind.COUNTER,
    ("phase",),
    "The same by its parts: detect (before it was seen), stop, start and first_step.",
)
STEPS_REDONE = Metric("ftrun_steps_redone_total", Kind.COUNTER, (), "Steps that were trained a second time.")
SAVES = Metric("ftrun_checkpoints_saved_total", Kind.COUNTER, (), "Checkpoints that became whole.")
BLOCKING = Metric(
    "ftrun_checkpoint_blocking_seconds_total",
    Kind.COUNTER,
    (),
    "Seconds in which training stood still for them.",
)
SAVED_AT = Metric(
    "ftrun_checkpoint_saved_timestamp_seconds",
    Kind.GAUGE,
    (),
    "When the newest was saved in this run: UTC epoch.",
)
SAVED_STEP = Metric(
    "ftrun_checkpoint_step",
    Kind.GAUGE,
    (),
    "Step of the newest checkpoint, also of one that the run began from.",
)
EXITS = Metric(
    "ftrun_worker_exits_total",
    Kind.COUNTER,
    ("how",),
    "Ends of workers: ok, error (an exit code), signal, or stopped by the agent.",
)
EVENTS = Metric(
    "ftrun_events_total", Kind.COUNTER, ("event",), "Events of the journal by kind (docs/events.md)."
)

METRICS: tuple[Metric, ...] = (
    INFO, OBSERVED, PHASE, EXIT_CODE, ROUND, WORLD_SIZE, NODES, SPARES, LOOP_AGE, RANK_UP, RANK_STEPS,
    RANK_STEP, RANK_AGE, STANDBYS, AILMENT, INCIDENTS, RESTARTS, FAILED_RESTARTS, RESTARTS_USED,
    RESTARTS_LIMIT, RECOVERIES, RECOVERY, RECOVERY_PHASE, STEPS_REDONE, SAVES, BLOCKING, SAVED_AT,
    SAVED_STEP, EXITS, EVENTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, or of a histogram all its values."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of the metric's own labels."""
    value: float
    """Of a histogram, the sum."""
    buckets: tuple[tuple[float, int], ...] = ()
    """Of a histogram: upper bound and how many were not above it, with infinity last."""


def samples(
    present: Present, levels: Levels, turned_at: float, now: float, now_ts: float
) -> tuple[Sample, ...]:
    """All values; `turned_at` is when the agent's loop last turned, both times CLOCK_MONOTONIC seconds.

    `now_ts` is now as UTC epoch.
    """
    return (
        Sample(OBSERVED, (), now_ts),
        *_of_run(present, turned_at, now),
        *(sample for rank in levels.ranks for sample in _of_rank(present, rank, now)),
        *_of_faults(present),
        *_of_saves(present),
        *_each(EVENTS, present.counts.events),
    )


def _of_run(present: Present, turned_at: float, now: float) -> Iterator[Sample]:
    yield Sample(INFO, (present.script, present.version), 1)
    for phase in PHASES:
        yield Sample(PHASE, (phase,), phase == present.phase)
    if present.exit_code is not None:
        yield Sample(EXIT_CODE, (), present.exit_code)
    if present.round is not None:
        yield Sample(ROUND, (), present.round)
        yield Sample(WORLD_SIZE, (), present.world_size)
        yield Sample(NODES, (), len(present.nodes))
        yield Sample(SPARES, (), len(present.spares))
    yield Sample(LOOP_AGE, (), max(0.0, now - turned_at))
    ready = sum(present.standbys.values())
    yield Sample(STANDBYS, ("ready",), ready)
    yield Sample(STANDBYS, ("loading",), len(present.standbys) - ready)
    for (check, subject), (status, _) in sorted(present.ailments.items()):
        yield Sample(AILMENT, (check, subject, status), 1)


def _of_rank(present: Present, level: RankLevel, now: float) -> Iterator[Sample]:
    labels = (str(level.rank),)
    yield Sample(RANK_UP, labels, level.is_running)
    yield Sample(RANK_STEPS, labels, level.steps)
    step = present.step_of(level)
    if step is not None:
        yield Sample(RANK_STEP, labels, step)
    moved_at = level.started_at if level.last_progress_at is None else level.last_progress_at
    if moved_at is not None:
        yield Sample(RANK_AGE, labels, max(0.0, now - moved_at))


def _of_faults(present: Present) -> Iterator[Sample]:
    counts = present.counts
    recoveries = {kind: len(seconds) for kind, seconds in counts.recovery_s.items()}
    yield from _each(INCIDENTS, {**_NONE_OF_ANY_KIND, **counts.incidents})
    yield Sample(RESTARTS, (), sum(counts.restarts.values()))
    yield Sample(FAILED_RESTARTS, (), counts.failed_restarts)
    yield Sample(RESTARTS_USED, (), present.restart_count)
    if present.max_restarts is not None:
        yield Sample(RESTARTS_LIMIT, (), present.max_restarts)
    yield from _each(RECOVERIES, {**_NONE_OF_ANY_KIND, **recoveries})
    seconds = [one for of_kind in counts.recovery_s.values() for one in of_kind]
    yield Sample(RECOVERY, (), sum(seconds), _buckets(seconds))
    yield from _each(RECOVERY_PHASE, counts.recovery_phase_s)
    yield Sample(STEPS_REDONE, (), counts.steps_redone)
    yield from _each(EXITS, {**dict.fromkeys(ENDINGS, 0), **counts.exits})


def _of_saves(present: Present) -> Iterator[Sample]:
    yield Sample(SAVES, (), present.counts.saves)
    yield Sample(BLOCKING, (), present.counts.blocking_s)
    if present.saved is not None and present.saved.ts is not None:
        yield Sample(SAVED_AT, (), present.saved.ts)
    if present.saved is not None and present.saved.step is not None:
        yield Sample(SAVED_STEP, (), present.saved.step)


def _each(metric: Metric, counts: Mapping[str, float]) -> Iterator[Sample]:
    return (Sample(metric, (name,), count) for name, count in sorted(counts.items()))


def _buckets(seconds: Sequence[float]) -> tuple[tuple[float, int], ...]:
    bounds = (*RECOVERY_BOUNDS_S, float("inf"))
    counts = [0] * len(bounds)
    for one in seconds:
        counts[bisect_left(bounds, one)] += 1
    return tuple(zip(bounds, accumulate(counts), strict=True))


def names(metrics: Iterable[Metric] = METRICS) -> frozenset[str]:
    """Every name that a query may use."""
    return frozenset(name for metric in metrics for name in metric.series)

"""Events from which the account of a run is made: what was configured, how far training has come, and saves.

Part of the vocabulary in `ftrun.monitor.events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.event import Event, Reason, Round


@dataclass(frozen=True, slots=True)
class RunConfigured(Event):
    """The settings that are not the defaults, so that two runs can be compared; never the script's own."""

    kind: ClassVar[str] = "run.configured"
    names: Annotated[tuple[str, ...], "Dotted keys of the configuration, as `--ft-show-config` has them."]
    values: Annotated[tuple[str, ...], "Their values as text, in the order of `names`; secrets are masked."]
    origins: Annotated[tuple[str, ...], "Where each was set, in the order of `names`."] = ()


@dataclass(frozen=True, slots=True)
class LogsDropped(Event):
    """Log files of old rounds were removed, since the run directory was larger than it may be."""

    kind: ClassVar[str] = "logs.dropped"
    paths: Annotated[tuple[str, ...], "Directories of those rounds; error files and stacks are still there."]
    freed_bytes: Annotated[int, "Size of the files that were removed."]
    size_bytes: Annotated[int, "Size of the run directory after that."]
    limit_bytes: Annotated[int, "What it may be (ftrun.journal.max_size)."]


@dataclass(frozen=True, slots=True)
class JournalReduced(Event):
    """From here on the journal has no details (standbys, preloading): nothing else could be removed."""

    kind: ClassVar[str] = "journal.reduced"
    size_bytes: Annotated[int, "Size of the run directory."]
    limit_bytes: Annotated[int, "What it may be (ftrun.journal.max_size)."]


@dataclass(frozen=True, slots=True)
class MetricsServed(Event):
    """Metrics can be had from this agent."""

    kind: ClassVar[str] = "metrics.served"
    host: Annotated[str, "Address on which it listens."]
    port: Annotated[int, "Port; /metrics and /status are there."]


@dataclass(frozen=True, slots=True)
class MetricsDegraded(Event):
    """Metrics were asked for and cannot be had; the job goes on."""

    kind: ClassVar[str] = "metrics.degraded"
    reason: Reason


@dataclass(frozen=True, slots=True)
class ProgressObserved(Event):
    """How far training has come on this node: once a minute while it moves, and when a round stops."""

    kind: ClassVar[str] = "progress.observed"
    round: Round
    steps: Annotated[int, "Steps done in this round, of the worker that did most."]
    step: Annotated[
        int | None,
        "Steps of the whole job: the script's own number, else counted from the checkpoint; null if unknown.",
    ]
    since_progress_s: Annotated[float, "Seconds since a worker of this node last made progress."]
    steps_per_s: Annotated[
        float | None, "Mean rate since the last such event of the round; null when the round stops."
    ] = None
    checkpoint_step: Annotated[int | None, "Step of the newest checkpoint; null if unknown."] = None
    checkpoint_age_s: Annotated[
        float | None, "Seconds since it was saved; null if none was in this round."
    ] = None
    is_told: Annotated[
        bool, "The terminal shows it: once a minute, on the node that has rank 0, and not when a round stops."
    ] = False


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """A checkpoint is wholly on disk, as the script has said or the launcher has seen."""

    kind: ClassVar[str] = "checkpoint.saved"
    round: Round
    rank: Annotated[int | None, "Global rank that told of it first; null if the launcher has seen it itself."]
    path: Annotated[str, "Where it is."]
    step: Annotated[int | None, "Step that it holds; null if neither script nor name tells."]
    blocking_s: Annotated[
        float | None,
        "Seconds in which training stood still for it, on the rank that was longest; null if unknown.",
    ]
    age_s: Annotated[float, "Seconds from the save until this was written."] = 0.0
    count: Annotated[int, "Saves since the last such event of this node, this one included."] = 1

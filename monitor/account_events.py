"""Events from which the account of a run is made: what was configured, how far training has come, and saves.

Part of the vocabulary in `ftrun.monitor.events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.event import Event, Rank, Round


@dataclass(frozen=True, slots=True)
class RunConfigured(Event):
    """The settings that are not the defaults, so that two runs can be compared; never the environment's."""

    kind: ClassVar[str] = "run.configured"
    names: Annotated[tuple[str, ...], "Keys of the configuration or options of the command line."]
    values: Annotated[tuple[str, ...], "Their values as text, in the order of `names`."]


@dataclass(frozen=True, slots=True)
class ProgressObserved(Event):
    """How far training has come on this node; every few minutes while it moves, and when a round stops."""

    kind: ClassVar[str] = "progress.observed"
    round: Round
    steps: Annotated[int, "Steps done in this round, of the worker that did most."]
    step: Annotated[int | None, "Training step as the script reports it; null if it reports none."]
    since_progress_s: Annotated[float, "Seconds since a worker of this node last made progress."]


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """A checkpoint is wholly on disk, as the script has said or the launcher has seen."""

    kind: ClassVar[str] = "checkpoint.saved"
    round: Round
    rank: Rank
    path: Annotated[str, "Where it is."]
    step: Annotated[int | None, "Step that it holds; null if neither script nor name tells."]
    blocking_s: Annotated[float | None, "Seconds in which training stood still for it; null if unknown."]

"""Events about checkpoints: which are not used, which are not trusted any more. Part of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.event import Event, Reason


@dataclass(frozen=True, slots=True)
class CheckpointSkipped(Event):
    """A checkpoint was not considered: it is not whole, could not be looked at in time, or was
    quarantined for what an older one has brought too.
    """

    kind: ClassVar[str] = "checkpoint.skipped"
    path: Annotated[str, "The checkpoint, or the directory that was looked through."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class CheckpointUnverified(Event):
    """A checkpoint is used by the lengths of its files alone: its checksums were not all compared in time."""

    kind: ClassVar[str] = "checkpoint.unverified"
    path: Annotated[str, "The checkpoint."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined(Event):
    """A checkpoint is not used any more in this job, because of how rounds that began from it have ended."""

    kind: ClassVar[str] = "checkpoint.quarantined"
    path: Annotated[str, "The checkpoint."]
    step: Annotated[int | None, "Step that it holds; null if its name tells none."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class CheckpointRenamed(Event):
    """A quarantined checkpoint was renamed, so that scripts that look for the newest do not find it, or has
    its name again.
    """

    kind: ClassVar[str] = "checkpoint.renamed"
    path: Annotated[str, "Where it was."]
    new_path: Annotated[str | None, "Where it is now; null if it could not be renamed."]
    reason: Annotated[str, "Why not, or what else was changed, in words."]

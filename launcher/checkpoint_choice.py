"""Which of several checkpoints is the newest, on one node and of those that all nodes of a job have. Pure.

What is on disk is read by `ftrun.launcher.checkpoint`; whether one may be trusted after it was loaded is
decided by `ftrun.launcher.checkpoint_quarantine`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ftrun.launcher.messages import SeenCheckpoint

# Not the last digits of "val_loss=0.25".
_TRAILING_NUMBER = re.compile(r"(?<![0-9])(?<![0-9]\.)([0-9]+)\Z")
# Lightning's ModelCheckpoint: "epoch=3-step=1000-val_loss=0.25.ckpt", with "-v1" for one of the same name.
_NAMED_STEP = re.compile(r"(?:\A|[^a-z])(?:step|iter|iteration)[=_-]?([0-9]+)(?![0-9])", re.IGNORECASE)
_FILE_SUFFIX = re.compile(r"\.(?:ckpt|pt|pth)\Z", re.IGNORECASE)
# Where Hugging Face and others write before they rename, and what `checkpoint.quarantine: rename` leaves.
_SET_ASIDE = re.compile(r"\Atmp|[.-](?:tmp|partial|incomplete|unfinished|ftrun-quarantined(?:-[0-9]+)?)\Z")


class Form(Enum):
    """How a checkpoint lies on disk."""

    DCP = "torch DCP directory"
    RANK_DCP = "torch DCP directory with metadata per rank"
    HUGGING_FACE = "Hugging Face directory"
    MARKED = "directory with a commit marker"
    TRACKED = "directory that a file beside it says is whole"
    RANK_FILES = "directory with a file per rank"
    UNMARKED = "directory without a commit marker"
    FILE = "single file"
    LOCAL = "nvidia-resiliency-ext's local files, one per rank"


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """What looks like a checkpoint and was not chosen, or was not compared to the end, with the reason."""

    path: Path
    reason: str
    """A sentence without its beginning, the checkpoint."""
    is_unfinished: bool = False
    """Its save has not ended: nothing that ever was whole is lost with it."""


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The newest whole checkpoint below a directory, and what was passed over on the way to it."""

    path: Path | None
    step: int | None
    """As its name tells it; None if it has none or nothing was found."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Newest first; checkpoints older than the chosen one are not looked at."""


@dataclass(frozen=True, slots=True)
class WholeCheckpoints:
    """The newest whole checkpoints below a directory, and what was passed over on the way (per node)."""

    seen: tuple[SeenCheckpoint, ...] = ()
    """Newest first; with absolute paths."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Newest first; what is older than the last one in `seen` is not looked at if there are enough."""
    unverified: tuple[SkippedCheckpoint, ...] = ()
    """Of `seen`, those whose checksums were not all compared in time: whole as far as lengths tell."""
    is_empty: bool = False
    """Nothing at all is there."""

    @property
    def has_lost_any(self) -> bool:
        """Whether something that was a checkpoint, or may be one, cannot be used."""
        return any(not one.is_unfinished for one in self.skipped)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may be a checkpoint (per directory, or file)."""

    path: Path
    step: int | None
    is_finished: bool
    """It has what is written last, if its form has such a thing."""
    saved_ns: int
    """Modification time of what is written last, else of the directory; the file system's clock, UTC epoch in
    nanoseconds."""
    form: Form = Form.DCP
    parts: tuple[Path, ...] = ()
    """Files that it consists of, as far as they were noted when it was found."""


def read_step(name: str) -> int | None:
    """The step in the name of a directory or file.

    40 for step-40, global_step40, iter_0000040, checkpoint-40, 40, model_40.pt and epoch=2-step=40-v1.ckpt.
    """
    if is_set_aside(name):
        return None
    stem = _FILE_SUFFIX.sub("", name)
    match = _NAMED_STEP.search(stem) or _TRAILING_NUMBER.search(stem)
    return int(match.group(1)) if match else None


def is_set_aside(name: str) -> bool:
    """Whether a name says that it is not to be used: not finished, or quarantined."""
    return _SET_ASIDE.search(name) is not None


def order_newest_first(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """By step number if every finished candidate has one, else by time of modification.

    A number cannot be compared with a name such as "latest", and an unfinished directory with an odd name (a
    temporary one) must not decide how the finished ones are compared; it comes first, so that it is reported.
    """
    found = tuple(candidates)
    if any(c.step is None for c in found if c.is_finished):
        return tuple(sorted(found, key=lambda c: c.saved_ns, reverse=True))
    return tuple(sorted(found, key=lambda c: (c.step is None, c.step or 0, c.saved_ns), reverse=True))


def trusted(seen: Iterable[SeenCheckpoint], quarantined: Iterable[str]) -> tuple[SeenCheckpoint, ...]:
    """Those that are not quarantined (`SeenCheckpoint.identity`), in their order."""
    avoided = frozenset(quarantined)
    return tuple(one for one in seen if one.identity not in avoided)


def choose_common(offers: Sequence[Sequence[SeenCheckpoint]]) -> SeenCheckpoint | None:
    """The newest checkpoint that every node sees; None if there is none.

    `offers` holds, for each node that has a checkpoint directory, what it sees, newest first. The order is
    that of `order_newest_first`: by step if all have one, else as the nodes have it, who know the times.
    Paths are compared as they are: a directory that has another name on another node is another one.
    """
    if not offers:
        return None
    common = set.intersection(*({one.path for one in seen} for seen in offers))
    return _newest([[one for one in seen if one.path in common] for seen in offers])


def find_blind(
    offers: Mapping[str, Sequence[SeenCheckpoint]],
) -> tuple[SeenCheckpoint | None, tuple[str, ...]]:
    """The newest checkpoint that any node sees, and the nodes that do not see it; `offers` is by node."""
    newest = _newest(list(offers.values()))
    if newest is None:
        return None, ()
    blind = [node for node, seen in offers.items() if all(one.path != newest.path for one in seen)]
    return newest, tuple(blind)


def _newest(offers: Sequence[Sequence[SeenCheckpoint]]) -> SeenCheckpoint | None:
    """The newest of all; where times decide, one that no node has seen a newer one than."""
    every = [one for seen in offers for one in seen]
    if all(one.step is not None for one in every):
        return max(every, key=lambda one: one.step or 0, default=None)
    heads = [seen[0] for seen in offers if seen]
    older = {one.path for seen in offers for one in seen[1:]}
    return next((head for head in heads if head.path not in older), heads[0])

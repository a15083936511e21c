"""What a torch DCP checkpoint must contain to be whole, and which of several is the newest.

Pure: works on names, times and the bytes of a `.metadata` file. `ftrun.launcher.checkpoint` reads the disk.
What the nodes of a job have in common is chosen here too.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ftrun.launcher.messages import SeenCheckpoint

_TRAILING_NUMBER = re.compile(r"([0-9]+)\Z")

_DCP = "torch.distributed.checkpoint"

# What `.metadata` names in torch 2.6 to 2.13: torch/distributed/checkpoint/metadata.py and filesystem.py, and
# what these classes hold. Python 3.11 pickles enum members as getattr(class, name), other versions as
# class(value); Python 3.13 has paths in pathlib._local.
_ADMITTED = frozenset(
    {
        (f"{_DCP}.metadata", "Metadata"),
        (f"{_DCP}.metadata", "MetadataIndex"),
        (f"{_DCP}.metadata", "StorageMeta"),
        (f"{_DCP}.metadata", "TensorStorageMetadata"),
        (f"{_DCP}.metadata", "BytesStorageMetadata"),
        (f"{_DCP}.metadata", "ChunkStorageMetadata"),
        (f"{_DCP}.metadata", "TensorProperties"),
        (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
        (f"{_DCP}.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("builtins", "getattr"),
        ("collections", "OrderedDict"),
        ("pathlib", "Path"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "PurePosixPath"),
    }
)
_DTYPE = re.compile(r"(bool|q?u?int|b?float|complex|bits)[0-9a-z_]*")

# Everything that the C unpickler is known to raise on bytes that are not a pickle.
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)


class MetadataError(ValueError):
    """The bytes of a `.metadata` file do not describe a torch DCP checkpoint; the message says why."""


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A directory that looks like a checkpoint and was not chosen, with the reason as a sentence."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The newest whole checkpoint below a directory, and what was passed over on the way to it."""

    path: Path | None
    step: int | None
    """The number at the end of the directory's name; None if it has none or nothing was found."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Newest first; checkpoints older than the chosen one are not looked at."""


@dataclass(frozen=True, slots=True)
class WholeCheckpoints:
    """The newest whole checkpoints below a directory, and what was passed over on the way (per node)."""

    seen: tuple[SeenCheckpoint, ...] = ()
    """Newest first; with absolute paths."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Newest first; what is older than the last one in `seen` is not looked at if there are enough."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A directory that may hold a checkpoint (per directory)."""

    path: Path
    step: int | None
    has_metadata: bool
    modified_ns: int
    """Modification time of `.metadata`, or of the directory where there is none; wall clock, nanoseconds."""


def read_step(name: str) -> int | None:
    """The number at the end of a directory's name: 40 for step-40, global_step40, iter_0000040 and 40."""
    match = _TRAILING_NUMBER.search(name)
    return int(match.group(1)) if match else None


def order_newest_first(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """By step number if every finished candidate has one, else by time of modification.

    A number cannot be compared with a name such as "latest", and an unfinished directory with an odd name (a
    temporary one) must not decide how the finished ones are compared; it comes first, so that it is reported.
    """
    found = tuple(candidates)
    if any(c.step is None for c in found if c.has_metadata):
        return tuple(sorted(found, key=lambda c: c.modified_ns, reverse=True))
    return tuple(sorted(found, key=lambda c: (c.step is None, c.step or 0, c.modified_ns), reverse=True))


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


def read_required_lengths(metadata: bytes) -> dict[str, int]:
    """File name, relative to the checkpoint, to the length in bytes that it must have at least.

    Nothing that the pickle names is imported or called: its classes are replaced by inert stand-ins.

    Raises:
        MetadataError: not a pickle, names something that no DCP metadata needs, or lists no usable shard.
    """
    try:
        root = _MetadataUnpickler(io.BytesIO(metadata)).load()
    except MetadataError:
        raise
    except _UNPICKLING_ERRORS as error:
        raise MetadataError(f"is not a readable pickle ({type(error).__name__}: {error})") from error
    entries = root.fields.get("storage_data") if isinstance(root, _MetadataStandIn) else None
    if not isinstance(entries, dict) or not entries:
        raise MetadataError("does not list any shard")
    required: dict[str, int] = {}
    for entry in entries.values():
        name, end = _read_entry(entry)
        required[name] = max(end, required.get(name, 0))
    return required


class _StandIn:
    """Takes the place of a class or function that the pickle names; keeps only the state it is given."""

    __slots__ = ("fields",)

    def __new__(cls, *_args: object, **_kwargs: object) -> _StandIn:
        instance = super().__new__(cls)
        instance.fields = {}
        return instance

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.fields: dict[object, object] = state


class _MetadataStandIn(_StandIn):
    __slots__ = ()


class _StorageInfoStandIn(_StandIn):
    __slots__ = ()


class _MetadataUnpickler(pickle.Unpickler):
    """Reads DCP metadata without torch and without running anything that the file asks for."""

    def find_class(self, module_name: str, global_name: str, /) -> type[_StandIn]:
        if (module_name, global_name) == (f"{_DCP}.metadata", "Metadata"):
            return _MetadataStandIn
        if (module_name, global_name) == (f"{_DCP}.filesystem", "_StorageInfo"):
            return _StorageInfoStandIn
        is_dtype = module_name == "torch" and _DTYPE.fullmatch(global_name)
        if is_dtype or (module_name, global_name) in _ADMITTED:
            return _StandIn
        raise MetadataError(f"names {module_name}.{global_name}, which no checkpoint metadata needs")


def _read_entry(entry: object) -> tuple[str, int]:
    """File name and end of one stored item, in bytes."""
    if not isinstance(entry, _StorageInfoStandIn):
        raise MetadataError("lists a shard in an unknown format")
    name, offset, length = (entry.fields.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(name, str) or not isinstance(offset, int) or not isinstance(length, int):
        raise MetadataError("lists a shard without name, offset or length")
    if offset < 0 or length < 0:
        raise MetadataError(f"lists a negative offset or length for shard {name}")
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise MetadataError(f"names a shard outside of the checkpoint: {name!r}")
    return name, offset + length

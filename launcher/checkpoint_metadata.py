"""What a torch DCP checkpoint's `.metadata` asks for, read without torch. Pure: works on its bytes."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import PurePosixPath

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

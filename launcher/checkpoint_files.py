"""Whether single files of a checkpoint are whole as far as their own format tells: zip and safetensors.

What torch.save writes is a zip file, whose directory stands at its end: a file that was cut off has none, one
that lost or gained bytes in between has one that does not fit. Contents are not read, tensors least of all.
"""

from __future__ import annotations

import json
import pickletools
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ftrun.launcher.checkpoint_disk import Disk, Stamp

_ZIP_START = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
"""Of a zip member, before its name and its data (APPNOTE.TXT, 4.3.7)."""
_LONGEST_SAFETENSORS_HEADER = 100_000_000
"""The limit of the safetensors library itself (safetensors/src/tensor.rs, MAX_HEADER_SIZE)."""
_PICKLE_BYTES = 4096
"""Enough for Lightning's first keys: epoch, global_step, version, state_dict."""
_ZIP_ERRORS = (zipfile.BadZipFile, ValueError, struct.error, OverflowError, NotImplementedError, EOFError)
ZIP_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


@dataclass(frozen=True, slots=True)
class Defect:
    """Why a checkpoint cannot be used."""

    reason: str
    is_unfinished: bool = False
    """Its save has not ended, as far as can be told: it never was whole."""
    is_foreign: bool = False
    """It is in a format that is not known here, and may be whole."""


def find_file_defect(
    path: Path, name: str, disk: Disk, stamp: Stamp, is_alone: bool = False
) -> Defect | None:
    """What is wrong with one file, called `name` in the answer; found once for each `stamp`.

    `is_alone` for a checkpoint that is this one file, whose end is the only sign that its save has ended.
    """
    find = _FINDERS.get(path.suffix.lower())
    if find is None:
        return None
    defect = disk.memory.recall("format", path, stamp, lambda: find(path, stamp.size_bytes))
    if defect is None or (defect.is_foreign and not is_alone):
        return None
    return Defect(f"{name} {defect.reason}", is_alone and defect.is_unfinished)


def _find_zip_defect(path: Path, size_bytes: int) -> Defect | None:
    try:
        with open(path, "rb") as file:
            start = file.read(len(_ZIP_START))
            if not start:
                return Defect("is empty", is_unfinished=True)
            if start != _ZIP_START:
                if not any(start):
                    return Defect("begins with zeros")
                return Defect("is not a zip file, as torch.save writes it", is_foreign=True)
            with zipfile.ZipFile(file) as archive:
                return _find_gap(archive)
    except OSError as error:
        return Defect(f"cannot be read: {error.strerror}")
    except _ZIP_ERRORS:
        what = "no zip directory at their end: it was cut off, or is being written"
        return Defect(f"has {size_bytes} bytes and {what}", is_unfinished=True)


def _find_gap(archive: zipfile.ZipFile) -> Defect | None:
    """Whether the directory fits to where it stands: zipfile counts offsets from there."""
    members = sorted(archive.infolist(), key=lambda member: member.header_offset)
    ends = [*(member.header_offset for member in members[1:]), archive.start_dir]
    begin = members[0].header_offset if members else archive.start_dir
    if begin != 0:
        surplus = "too many" if begin > 0 else "too few"
        return Defect(f"has {abs(begin)} bytes {surplus} for its zip directory")
    for member, end in zip(members, ends, strict=True):
        least = (
            member.header_offset + _LOCAL_HEADER_BYTES + len(member.filename.encode()) + member.compress_size
        )
        if least > end:
            return Defect(f"has a zip directory that needs {least - end} bytes more for {member.filename}")
    return None


def _find_safetensors_defect(path: Path, size_bytes: int) -> Defect | None:
    """The header says where the last tensor ends (safetensors, README "Format")."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_LONGEST_SAFETENSORS_HEADER, size_bytes - 8):
                return Defect(f"has {size_bytes} bytes, which its safetensors header does not fit in", True)
            header = json.loads(file.read(length))
        ends = [int(one["data_offsets"][1]) for name, one in header.items() if name != "__metadata__"]
    except OSError as error:
        return Defect(f"cannot be read: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Defect("has a safetensors header that cannot be read")
    needed = 8 + length + max(ends, default=0)
    if size_bytes != needed:
        return Defect(f"has {size_bytes} bytes, {needed} are needed", size_bytes < needed)
    return None


_FINDERS = dict.fromkeys(ZIP_SUFFIXES, _find_zip_defect) | {".safetensors": _find_safetensors_defect}


def read_step_inside(path: Path) -> int | None:
    """The `global_step` that torch.save's file begins with, as Lightning writes it; None if it has none.

    The pickle is not run: its opcodes are looked through.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
            if name is None:
                return None
            with archive.open(name) as member:
                return _find_step(member.read(_PICKLE_BYTES))
    except (OSError, *_ZIP_ERRORS):
        return None


def _find_step(pickled: bytes) -> int | None:
    is_next = False
    try:
        for operation, argument, _ in pickletools.genops(pickled):
            if operation.name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                continue
            if is_next:
                return argument if isinstance(argument, int) and not isinstance(argument, bool) else None
            is_next = argument == "global_step"
    except ValueError:  # where it was cut off
        pass
    return None

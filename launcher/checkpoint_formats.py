"""Whether a checkpoint is whole, by the rules of its form: the commit marker is there, and so is every part.

One function for each form of `checkpoint_choice.Form`. Checksums are `ftrun.launcher.checkpoint_evidence`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.launcher.checkpoint_choice import Candidate, Form
from ftrun.launcher.checkpoint_disk import Disk, Stamp
from ftrun.launcher.checkpoint_files import Defect, find_file_defect
from ftrun.launcher.checkpoint_metadata import MetadataError, read_required_lengths
from ftrun.launcher.checkpoint_search import DCP_METADATA, TRAINER_STATE
from ftrun.monitor.manifest import COMMIT_FILES, PARTIAL, rank_of, read_name

_RANK_METADATA = re.compile(r"__([0-9]+)\.metadata")
_INDEX_SUFFIX = ".index.json"
"""`model.safetensors.index.json`, `pytorch_model.bin.index.json`: transformers.utils.hub."""
_MAX_DEPTH = 3
"""Deeper than any of these formats lies: Megatron's mp_rank_00/, Hugging Face's pytorch_model_fsdp_0/."""
_NO_MARKER = (
    f"has no {DCP_METADATA} and no other sign that its save has ended: it did not, or its format is not "
    "known here; ftrun.monitor.client.checkpoint_saved gives it one"
)


@dataclass(slots=True)
class Judged:
    """What a look at one checkpoint has shown."""

    defect: Defect | None
    files: dict[Path, Stamp] = field(default_factory=dict)
    """Those that were looked at, as they are."""


@dataclass(slots=True)
class _Look:
    """One checkpoint, while it is looked at."""

    candidate: Candidate
    disk: Disk
    files: dict[Path, Stamp] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.candidate.path

    def name(self, path: Path) -> str:
        """What to call one of its files."""
        base = self.path.parent if self.candidate.form in (Form.FILE, Form.LOCAL) else self.path
        return path.relative_to(base).as_posix()


def judge(candidate: Candidate, disk: Disk) -> Judged:
    """Whether the checkpoint is whole, without its checksums.

    Raises:
        TooSlowError: the deadline came first.
    """
    look = _Look(candidate, disk)
    defect = next(_JUDGES[candidate.form](look), None)
    return Judged(defect, look.files)


def saved_ns(candidate: Candidate, files: dict[Path, Stamp]) -> int:
    """When the checkpoint became whole: the time of its commit file, else of its newest file; UTC epoch."""
    commits = [stamp.mtime_ns for path, stamp in files.items() if path.name in COMMIT_FILES]
    if candidate.form is Form.FILE or not (commits or files):
        return candidate.saved_ns
    return max(commits or [stamp.mtime_ns for stamp in files.values()])


def _find_dcp_defects(look: _Look) -> Iterator[Defect]:
    metadata = look.path / DCP_METADATA
    if isinstance(look.disk.stamp(metadata), FileNotFoundError):
        what = f"has no {DCP_METADATA}: the save did not finish, or this is not a torch DCP checkpoint"
        yield Defect(what, is_unfinished=True)
        return
    yield from _find_shard_defects(look, metadata)
    files = _list_files(look, look.path)  # of shards there may be many, and they have been looked at
    yield from _find_format_defects(look, [path for path in files if path not in look.files])


def _find_rank_dcp_defects(look: _Look) -> Iterator[Defect]:
    files = _list_files(look, look.path)
    metadata = [path for path in files if _RANK_METADATA.fullmatch(path.name)]
    yield from _find_rank_gaps(look, metadata)
    for path in metadata:
        yield from _find_shard_defects(look, path)


def _find_shard_defects(look: _Look, metadata: Path) -> Iterator[Defect]:
    """What is missing of that which one file of DCP metadata names."""
    name, stamp = look.name(metadata), look.disk.stamp(metadata)
    if isinstance(stamp, OSError):
        yield Defect(f"{name} cannot be read: {stamp.strerror}")
        return
    look.files[metadata] = stamp
    required = look.disk.memory.recall("lengths", metadata, stamp, lambda: _read_lengths(metadata))
    if isinstance(required, str):
        yield Defect(f"{name} {required}")
        return
    paths = [metadata.parent / shard for shard in sorted(required)]
    for path, found in zip(paths, look.disk.stamps(paths), strict=True):
        if isinstance(found, OSError):
            yield Defect(f"shard {look.name(path)} cannot be read: {found.strerror}")
            return
        needed_bytes = required[path.relative_to(metadata.parent).as_posix()]
        if found.size_bytes < needed_bytes:
            what = f"has {found.size_bytes} bytes, {needed_bytes} are needed"
            yield Defect(f"shard {look.name(path)} {what}")
            return
        look.files[path] = found


def _read_lengths(metadata: Path) -> dict[str, int] | str:
    """What a metadata file asks for, or what is wrong with it; it may have a million entries."""
    try:
        return read_required_lengths(metadata.read_bytes())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except MetadataError as error:
        return str(error)


def _find_hugging_face_defects(look: _Look) -> Iterator[Defect]:
    state = look.path / TRAINER_STATE
    data = _read_json(state)
    if isinstance(data, FileNotFoundError):
        yield Defect(f"has no {TRAINER_STATE}: the save did not finish", is_unfinished=True)
        return
    if isinstance(data, Exception) or not isinstance(data, dict):
        yield Defect(f"{TRAINER_STATE} cannot be read: {_describe(data)}")
        return
    files = _walk(look)
    present = {look.name(path) for path in files}
    for path in files:
        if path.name.endswith(_INDEX_SUFFIX):
            yield from _find_index_defects(look, path, present)
        if path.name == DCP_METADATA:
            yield from _find_shard_defects(look, path)
    yield from _find_rank_gaps(look, files)
    yield from _find_format_defects(look, files)


def _find_index_defects(look: _Look, index: Path, present: set[str]) -> Iterator[Defect]:
    """Files that an index of weights names must be there."""
    data = _read_json(index)
    weights = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weights, dict):
        yield Defect(f"{look.name(index)} cannot be read: {_describe(data)}")
        return
    for name in sorted({str(name) for name in weights.values()}):
        if look.name(index.parent / name) not in present:
            yield Defect(f"{name}, which {look.name(index)} names, is missing")


def _find_content_defects(look: _Look) -> Iterator[Defect]:
    """Of a directory of which something says that it is whole, or that it is not."""
    if not look.candidate.is_finished:
        what = "is newer than the one that the file beside it names: the save did not finish"
        yield Defect(what, is_unfinished=True)
        return
    files = _walk(look)
    if not any(path.name not in COMMIT_FILES for path in files):
        yield Defect("is marked as whole and has no files")
        return
    yield from _find_rank_gaps(look, files)
    yield from _find_format_defects(look, files)


def _find_rank_file_defects(look: _Look) -> Iterator[Defect]:
    if not look.candidate.is_finished:
        yield Defect("has files of fewer ranks than another beside it: the save did not finish", True)
        return
    yield from _find_format_defects(look, _walk(look), is_alone=True)
    yield from _find_rank_gaps(look, look.candidate.parts)


def _find_nothing_known(look: _Look) -> Iterator[Defect]:
    yield Defect(_NO_MARKER, is_unfinished=True)


def _find_own_defects(look: _Look) -> Iterator[Defect]:
    yield from _find_format_defects(look, [look.path], is_alone=True)


def _find_local_defects(look: _Look) -> Iterator[Defect]:
    if not look.candidate.is_finished:
        yield Defect("is not there for every rank that has saved here: the save did not finish", True)
        return
    yield from _find_format_defects(look, look.candidate.parts, is_alone=True)


def _find_format_defects(look: _Look, paths: Sequence[Path], is_alone: bool = False) -> Iterator[Defect]:
    """What the files' own formats tell; all of them are looked at, at once if they are many."""
    stamps = look.disk.stamps(paths)
    for path, stamp in zip(paths, stamps, strict=True):
        if isinstance(stamp, OSError):
            yield Defect(f"{look.name(path)} cannot be read: {stamp.strerror}")
        else:
            look.files[path] = stamp
    present = [path for path in paths if path in look.files]

    def find(path: Path) -> Defect | None:
        return find_file_defect(path, look.name(path), look.disk, look.files[path], is_alone)

    for defect in look.disk.map(find, present, "looking into the files"):
        if defect is not None:
            yield defect


def _find_rank_gaps(look: _Look, paths: Sequence[Path]) -> Iterator[Defect]:
    """Of files that differ only by their rank, those of a rank in between are missing."""
    ranks: dict[str, set[int]] = {}
    for path in paths:
        if (rank := rank_of(path.name)) is not None:
            ranks.setdefault(re.sub(r"[0-9]+", "*", look.name(path)), set()).add(rank)
    for pattern, found in sorted(ranks.items()):
        missing = sorted(set(range(min(found), max(found))) - found)
        if missing:
            yield Defect(f"{pattern} is there for ranks up to {max(found)}, but not for rank {missing[0]}")


def _list_files(look: _Look, directory: Path) -> list[Path]:
    """Files in one directory of the checkpoint, without manifests; none if it cannot be listed."""
    listing = look.disk.read_directories([directory])[0]
    names = () if isinstance(listing, OSError) else listing.files
    return [directory / name for name in names if not _is_ours(name)]


def _walk(look: _Look) -> list[Path]:
    """All files of the checkpoint, without manifests."""
    found: list[Path] = []
    level = [look.path]
    for _ in range(_MAX_DEPTH):
        listings = look.disk.read_directories(level)
        level = []
        for listing in listings:
            if not isinstance(listing, OSError):
                found += [listing.path / name for name in listing.files if not _is_ours(name)]
                level += [listing.path / name for name in listing.directories]
    return found


def _is_ours(name: str) -> bool:
    return read_name(name.removesuffix(PARTIAL)) is not None


def _read_json(path: Path) -> object:
    """What a file of JSON holds, or the error."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return error


def _describe(data: object) -> str:
    if isinstance(data, OSError):
        return str(data.strerror)
    return f"{type(data).__name__}: {data}" if isinstance(data, Exception) else "it is not what it should be"


_JUDGES: dict[Form, Callable[[_Look], Iterator[Defect]]] = {
    Form.DCP: _find_dcp_defects,
    Form.RANK_DCP: _find_rank_dcp_defects,
    Form.HUGGING_FACE: _find_hugging_face_defects,
    Form.MARKED: _find_content_defects,
    Form.TRACKED: _find_content_defects,
    Form.RANK_FILES: _find_rank_file_defects,
    Form.UNMARKED: _find_nothing_known,
    Form.FILE: _find_own_defects,
    Form.LOCAL: _find_local_defects,
}

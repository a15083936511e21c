"""Looks for what may be a checkpoint below a directory, and in which form; judges none of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ftrun.launcher.checkpoint_choice import Candidate, Form, SkippedCheckpoint, is_set_aside, read_step
from ftrun.launcher.checkpoint_disk import Disk, Listing, Stamp
from ftrun.launcher.checkpoint_files import ZIP_SUFFIXES, read_step_inside
from ftrun.monitor.manifest import COMMIT_FILES, rank_of, read_name

DCP_METADATA = ".metadata"
TRAINER_STATE = "trainer_state.json"
TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
"""Files beside checkpoints that name the last one that is whole: Megatron's (megatron/training/
checkpointing.py, get_checkpoint_tracker_filename) and DeepSpeed's (runtime/engine.py, save_checkpoint)."""

_SHARD_SUFFIX = ".distcp"
_RANK_METADATA = re.compile(r"__[0-9]+\.metadata")
"""DCP's without coordination between ranks (torch/distributed/checkpoint/filesystem.py)."""
_HUGGING_FACE = re.compile(r"checkpoint-[0-9]+")
"""transformers.trainer_utils.PREFIX_CHECKPOINT_DIR."""
_LOCAL_FILE = re.compile(r"iter_([0-9]{7,})_([0-9]+)_local\.pt")
"""nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager; ".dirty" comes before the suffix of
one that is being written."""
_FILE_SUFFIXES = (".ckpt", ".pt", ".pth")
_STEPLESS_FILE = re.compile(r"last|latest|checkpoint|ckpt|snapshot", re.IGNORECASE)
"""Names that a file without a number must have part of to be taken for a checkpoint."""
_TRACKER_BYTES = 4096
_OWN_MARKERS = frozenset(COMMIT_FILES) - {DCP_METADATA, TRAINER_STATE, "latest"}


@dataclass(frozen=True, slots=True)
class Tracker:
    """What a file beside checkpoints names as the last whole one."""

    file: str
    target: str
    """The file's text."""

    def covers(self, name: str, step: int | None) -> bool:
        """Whether the checkpoint of that name was whole when the file was written."""
        last = read_step(self.target)
        return name == self.target or (last is not None and step is not None and step <= last)


@dataclass(slots=True)
class _Found:
    """What a search has come upon so far."""

    directories: list[Candidate] = field(default_factory=list)
    skipped: list[SkippedCheckpoint] = field(default_factory=list)
    places: set[tuple[int, int]] = field(default_factory=set)
    """Device and inode of each candidate: there may be many links to one."""
    last_written: list[Path] = field(default_factory=list)
    """Of each of those, its commit file, else the directory itself."""
    files: list[Candidate] = field(default_factory=list)
    """Single files with a step."""
    stepless: list[Path] = field(default_factory=list)
    """Files whose names have no step."""
    local: dict[Path, list[Listing]] = field(default_factory=dict)
    """Directories with nvidia-resiliency-ext's local files, by their common parent."""
    trackers: dict[Path, Tracker] = field(default_factory=dict)


def search(directory: Path, max_depth: int, disk: Disk) -> tuple[list[Candidate], list[SkippedCheckpoint]]:
    """Candidates among `directory` and what is up to `max_depth` levels below it, and what is unreadable.

    Both in no order.

    Raises:
        TooSlowError: the deadline came first.
    """
    found, level = _Found(), [directory]
    for depth in range(max_depth + 1):
        below: list[Path] = []
        for path, listing in zip(level, disk.read_directories(level), strict=True):
            if isinstance(listing, OSError):
                # A directory that is not there yet, or that retention removed meanwhile, is no finding.
                if not isinstance(listing, FileNotFoundError):
                    found.skipped.append(SkippedCheckpoint(path, f"cannot be read: {listing.strerror}"))
            elif listing.stamp not in found.places:
                below += _look_into(listing, depth, found, disk)
        level = below
    return _candidates(found, disk), found.skipped


def _candidates(found: _Found, disk: Disk) -> list[Candidate]:
    directories = [*_dated(found, disk), *_local_candidates(found)]
    if any(one.form is not Form.UNMARKED for one in directories):
        # Files beside checkpoint directories are something else: exported weights, a tokenizer.
        return list(_compare_ranks(directories))
    if found.files:
        return [*directories, *found.files]
    return [*directories, *_file_candidates(found, found.stepless, [None] * len(found.stepless), disk)]


def _look_into(listing: Listing, depth: int, found: _Found, disk: Disk) -> Iterator[Path]:
    """Note what the directory is; yields the directories in it that are to be looked into."""
    if any(_LOCAL_FILE.fullmatch(name) for name in listing.files):
        found.local.setdefault(listing.path.parent, []).append(listing)
        return
    tracker = next((name for name in TRACKERS if name in listing.files), None)
    if tracker is not None and (named := _read_tracker(listing.path, tracker)) is not None:
        found.trackers[listing.path] = named
    candidate = recognise(listing, found.trackers.get(listing.path.parent))
    if candidate is not None and candidate.form is Form.UNMARKED and _holds_files(listing, depth):
        candidate = None
    if candidate is not None:
        found.places.add(listing.stamp)
        found.directories.append(candidate)
        found.last_written.append(listing.path / next((n for n in COMMIT_FILES if n in listing.files), ""))
    else:
        _note_files(listing, found, disk)
    if candidate is None or depth == 0:
        for name in listing.directories:
            if name[0] != "." and not is_set_aside(name):
                yield listing.path / name


def _holds_files(listing: Listing, depth: int) -> bool:
    """Whether a directory with a number, such as run-3, is where checkpoints lie and none itself."""
    return depth == 0 or any(name.endswith(".ckpt") and read_step(name) is not None for name in listing.files)


def recognise(listing: Listing, tracker: Tracker | None) -> Candidate | None:
    """The directory as a candidate, if it looks like one; `tracker` is its parent's."""
    path, names = listing.path, frozenset(listing.files)
    step = read_step(path.name)
    if step is None and path.is_symlink():
        step = read_step(path.resolve().name)
    if DCP_METADATA in names:
        return Candidate(path, step, True, 0, Form.DCP)
    if any(map(_RANK_METADATA.fullmatch, names)):
        return Candidate(path, step, True, 0, Form.RANK_DCP)
    if any(name.endswith(_SHARD_SUFFIX) for name in names):
        return Candidate(path, step, False, 0, Form.DCP)
    if TRAINER_STATE in names or (names and _HUGGING_FACE.fullmatch(path.name)):
        return Candidate(path, step, TRAINER_STATE in names, 0, Form.HUGGING_FACE)
    has_manifest = any(found and not found[0] for found in map(read_name, names))
    is_lightning = path.suffix == ".ckpt" and "latest" in names  # with DeepSpeed's strategy
    if has_manifest or is_lightning or not _OWN_MARKERS.isdisjoint(names):
        return Candidate(path, step, True, 0, Form.MARKED)
    if step is None or rank_of(path.name) is not None:
        return None
    if tracker is not None:
        return Candidate(path, step, tracker.covers(path.name, step), 0, Form.TRACKED)
    if parts := tuple(path / name for name in listing.files if _is_rank_file(name)):
        return Candidate(path, step, True, 0, Form.RANK_FILES, parts)
    return None if listing.directories else Candidate(path, step, False, 0, Form.UNMARKED)


def _is_rank_file(name: str) -> bool:
    return name.endswith(ZIP_SUFFIXES) and rank_of(name) is not None


def _dated(found: _Found, disk: Disk) -> Iterator[Candidate]:
    """Directories with the times of what is written last in them; a thousand may have to be asked for."""
    for candidate, stamp in zip(found.directories, disk.stamps(found.last_written), strict=True):
        yield replace(candidate, saved_ns=stamp.mtime_ns if isinstance(stamp, Stamp) else 0)


def _read_tracker(directory: Path, name: str) -> Tracker | None:
    try:
        with open(directory / name, "rb") as file:
            text = file.read(_TRACKER_BYTES).decode().strip()
    except (OSError, ValueError):
        return None
    return Tracker(name, text) if text else None


def _note_files(listing: Listing, found: _Found, disk: Disk) -> None:
    """Files that may be checkpoints by themselves."""
    wanted = [
        listing.path / name
        for name in listing.files
        if name.endswith(_FILE_SUFFIXES) and name[0] != "." and rank_of(name) is None
    ]
    named = [(path, read_step(path.name)) for path in wanted]
    unnamed = [path for path, step in named if step is None and _STEPLESS_FILE.search(path.name)]
    stamps = zip(unnamed, disk.stamps(unnamed), strict=True)
    inside = [(path, _step_inside(path, stamp, disk)) for path, stamp in stamps]
    known = [(path, step) for path, step in (*named, *inside) if step is not None]
    found.stepless += [path for path, step in inside if step is None]
    found.files += _file_candidates(found, [one for one, _ in known], [step for _, step in known], disk)


def _step_inside(path: Path, stamp: Stamp | OSError, disk: Disk) -> int | None:
    if isinstance(stamp, OSError):
        return None
    return disk.memory.recall("step", path, stamp, lambda: read_step_inside(path))


def _file_candidates(
    found: _Found, paths: Sequence[Path], steps: Sequence[int | None], disk: Disk
) -> Iterator[Candidate]:
    for path, step, stamp in zip(paths, steps, disk.stamps(paths), strict=True):
        if isinstance(stamp, OSError):
            continue
        place = (-1, stamp.inode)  # of files there are few, and on one file system
        if place not in found.places:
            found.places.add(place)
            yield Candidate(path, step, True, stamp.mtime_ns, Form.FILE)


def _local_candidates(found: _Found) -> Iterator[Candidate]:
    """One for each iteration of each session; finished if all ranks that save here have saved it.

    Its path, `iter_0000100` in the directory that holds those of the ranks, is a name and no file: the ranks
    find their files themselves, and all nodes know it by the same name.
    """
    for session, listings in found.local.items():
        by_iteration: dict[int, list[tuple[str, Path]]] = {}
        for listing in listings:
            for name in listing.files:
                if (match := _LOCAL_FILE.fullmatch(name)) is not None:
                    by_iteration.setdefault(int(match[1]), []).append((match[2], listing.path / name))
        for iteration, files in by_iteration.items():
            own = {path.parent for rank, path in files if path.parent.name == rank}
            is_finished = own >= {listing.path for listing in listings}
            parts = tuple(sorted(path for _, path in files))
            name = f"iter_{iteration:07d}"
            yield Candidate(session / name, iteration, is_finished, 0, Form.LOCAL, parts)


def _compare_ranks(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Directories with a file per rank are finished if none beside them has more ranks."""
    counts = {
        one.path: len({rank_of(part.name) for part in one.parts})
        for one in candidates
        if one.form is Form.RANK_FILES
    }
    for one in candidates:
        beside = [count for path, count in counts.items() if path.parent == one.path.parent]
        yield replace(one, is_finished=counts[one.path] >= max(beside)) if one.path in counts else one

"""Finds the newest whole checkpoints on disk; knows torch DCP directories only.

A checkpoint counts if its `.metadata` is there and every file that it names has the length that it needs.
Torch is not imported and tensors are not read: this runs before the workers start and in every restart.
What must be where and what is newest is decided in `ftrun.launcher.checkpoint_choice`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ftrun.launcher.checkpoint_choice import (
    Candidate,
    CheckpointChoice,
    MetadataError,
    SkippedCheckpoint,
    WholeCheckpoints,
    order_newest_first,
    read_required_lengths,
    read_step,
)
from ftrun.launcher.messages import SeenCheckpoint

METADATA_NAME = ".metadata"
SHARD_SUFFIX = ".distcp"


def find_newest_whole(directory: Path, max_depth: int = 2) -> CheckpointChoice:
    """The newest whole checkpoint among `directory` itself and the directories up to `max_depth` below it.

    As `find_whole` finds it.
    """
    found = find_whole(directory, 1, max_depth)
    newest = next(iter(found.seen), None)
    if newest is None:
        return CheckpointChoice(None, None, found.skipped)
    return CheckpointChoice(Path(newest.path), newest.step, found.skipped)


def find_whole(directory: Path, limit: int = 3, max_depth: int = 2) -> WholeCheckpoints:
    """The newest `limit` whole checkpoints among `directory` itself and those up to `max_depth` below it.

    Their paths are absolute. Never raises for what is on disk: whatever cannot be used is in `skipped`, with
    a reason that names the file, what was found and what was expected. A directory that does not exist has
    none.
    """
    candidates, skipped = _collect(directory.absolute(), max_depth)
    seen: list[SeenCheckpoint] = []
    for candidate in order_newest_first(candidates):
        if len(seen) == limit:
            break
        reason = _find_defect(candidate.path)
        if reason is None:
            seen.append(SeenCheckpoint(str(candidate.path), candidate.step))
        else:
            skipped.append(SkippedCheckpoint(candidate.path, reason))
    return WholeCheckpoints(tuple(seen), tuple(skipped))


def _collect(directory: Path, max_depth: int) -> tuple[list[Candidate], list[SkippedCheckpoint]]:
    """Directories that may be checkpoints, each once however many links lead to it; and unreadable ones."""
    candidates: dict[tuple[int, int], Candidate] = {}
    skipped: list[SkippedCheckpoint] = []
    pending = [(directory, 0)]
    while pending:
        path, depth = pending.pop(0)
        try:
            candidate, children = _look_into(path)
            status = path.stat()
        except OSError as error:
            # A directory that is not there yet, or that retention removed while we looked, is no finding.
            if not isinstance(error, FileNotFoundError):
                skipped.append(SkippedCheckpoint(path, f"cannot be read: {error.strerror}"))
            continue
        if candidate is not None:
            candidates.setdefault((status.st_dev, status.st_ino), candidate)
        if depth < max_depth and (candidate is None or depth == 0):
            pending.extend((child, depth + 1) for child in children)
    return list(candidates.values()), skipped


def _look_into(path: Path) -> tuple[Candidate | None, tuple[Path, ...]]:
    """The directory as a candidate if it looks like a checkpoint, and its subdirectories, links last.

    Links last: where "latest" points to step-40, the checkpoint is reported under its own name.

    Raises:
        OSError: the directory cannot be listed.
    """
    with os.scandir(path) as listing:
        entries = sorted(listing, key=lambda entry: (entry.is_symlink(), entry.name))
    # os.path.isdir, because DirEntry.is_dir raises for a link that leads to itself.
    children = tuple(path / entry.name for entry in entries if entry.name[0] != "." and os.path.isdir(entry))
    step = read_step(path.name)
    if step is None and path.is_symlink():
        step = read_step(path.resolve().name)
    has_metadata = any(entry.name == METADATA_NAME for entry in entries)
    has_shards = any(entry.name.endswith(SHARD_SUFFIX) for entry in entries)
    if not (has_metadata or has_shards or (step is not None and not children)):
        return None, children
    modified_ns = (path / METADATA_NAME if has_metadata else path).stat().st_mtime_ns
    return Candidate(path, step, has_metadata, modified_ns), children


def _find_defect(checkpoint: Path) -> str | None:
    """Why the checkpoint cannot be used, or None if it is whole."""
    path = checkpoint / METADATA_NAME
    try:
        status = path.stat()
        required = _required_lengths(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        return f"has no {METADATA_NAME}: the save did not finish, or this is not a torch DCP checkpoint"
    except OSError as error:
        return f"{METADATA_NAME} cannot be read: {error.strerror}"
    except MetadataError as error:
        return f"{METADATA_NAME} {error}"
    return next(_find_short_files(checkpoint, required), None)


@lru_cache(maxsize=32)
def _required_lengths(metadata: Path, mtime_ns: int, size: int) -> dict[str, int]:
    """What a metadata file asks for, read once while it stays as it is: it may have a million entries."""
    del mtime_ns, size
    return read_required_lengths(metadata.read_bytes())


def _find_short_files(checkpoint: Path, required: dict[str, int]) -> Iterator[str]:
    """One sentence for each file that is missing or shorter than it must be."""
    for name, needed_bytes in sorted(required.items()):
        try:
            found_bytes = (checkpoint / name).stat().st_size
        except OSError as error:
            yield f"shard {name} cannot be read: {error.strerror}"
            continue
        if found_bytes < needed_bytes:
            yield f"shard {name} has {found_bytes} bytes, {needed_bytes} are needed"

"""Checksums beside a checkpoint: which files a rank answers for, the form of its manifest, how it is read.

A manifest is written by one rank for the files that are its own, `ftrun.monitor.manifest_writer` does it;
`ftrun.launcher.checkpoint_evidence` compares. Its name begins with a dot and is nobody else's: torch DCP,
Megatron, Hugging Face, Lightning and nvidia-resiliency-ext look for names of their own and pass over it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

COMMIT_FILES = (
    ".metadata",  # torch DCP (torch/distributed/checkpoint/filesystem.py), nvidia-resiliency-ext, torchtitan
    "trainer_state.json",  # Hugging Face transformers, Trainer._save_checkpoint
    "commit_success.txt",  # Orbax and MaxText
    "_SUCCESS",  # Hadoop and Spark
    "COMMITTED",
    "_COMPLETE",
    ".complete",
    "latest",  # DeepSpeed below Lightning's and Hugging Face's own directory
)
"""Files inside a checkpoint that are written last, and by whom: what is there without one may be half."""

PARTIAL = ".partial"
"""What the name of a manifest ends with while it is written."""

_VERSION = 1
_NAME = re.compile(r"\.(?:(?P<file>.+)\.)?ftrun-manifest\.(?P<rank>[0-9]+)\.json")

# `__3_0.distcp` and `__3.metadata` are rank 3's (torch DCP's FileSystemWriter), `rng_state_3.pth` is too
# (Hugging Face), and `iter_0000100_3_local.pt` (nvidia-resiliency-ext's LocalCheckpointManager); else the
# first of `rank_3`, `rank3`, `rank-003` counts.
_RANK = re.compile(
    r"__(?P<dcp>[0-9]+)(?:_[0-9]+\.distcp|\.metadata)|(?:.*?[^a-z])?rank[_-]?(?P<named>[0-9]+)(?![0-9]).*|"
    r"iter_[0-9]+_(?P<local>[0-9]+)_local\.pt|rng_state_(?P<rng>[0-9]+)\.pth",
    re.IGNORECASE,
)


class ManifestError(ValueError):
    """The text is no manifest of this version, or only half of one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class CommitStamp:
    """A file of `COMMIT_FILES` as it was when the manifest was made: another one belongs to another save."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file as it was when it was read."""

    size_bytes: int
    mtime_ns: int
    sha256: str
    """Hexadecimal."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one rank says of its files of one checkpoint."""

    rank: int
    step: int | None
    commits: Mapping[str, CommitStamp]
    """By name; empty if the checkpoint has no commit file."""
    files: Mapping[str, FileRecord]
    """By path relative to the manifest's directory."""


def name_of_manifest(rank: int, file: str = "") -> str:
    """Name of a rank's manifest in a checkpoint directory, or beside a checkpoint that is one `file`."""
    return f".{file}.ftrun-manifest.{rank}.json" if file else f".ftrun-manifest.{rank}.json"


def read_name(name: str) -> tuple[str, int] | None:
    """The file that a manifest is about ("" for its directory) and the rank; None if it is no manifest."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match["file"] or "", int(match["rank"]))


def rank_of(name: str) -> int | None:
    """The rank whose file it is, by its name; None if the name tells none."""
    match = _RANK.fullmatch(name)
    if match is None:
        return None
    return next(int(number) for number in match.groups() if number is not None)


def is_own(name: str, rank: int) -> bool:
    """Whether `rank` answers for a file: for its own, and rank 0 for those that nobody's number is on."""
    return (rank_of(name) or 0) == rank


def encode(manifest: Manifest) -> str:
    """The text of a manifest file."""
    data = {
        "version": _VERSION,
        "rank": manifest.rank,
        "step": manifest.step,
        "commits": {name: [one.size_bytes, one.mtime_ns] for name, one in manifest.commits.items()},
        "files": {
            name: [one.size_bytes, one.mtime_ns, one.sha256] for name, one in sorted(manifest.files.items())
        },
    }
    return json.dumps(data, indent=1) + "\n"


def decode(text: str | bytes) -> Manifest:
    """The manifest in a file.

    Raises:
        ManifestError: it is none, of another version, or half written.
    """
    try:
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ManifestError(f"has version {data['version']!r}, expected is {_VERSION}")
        commits = {str(name): CommitStamp(int(a), int(b)) for name, (a, b) in data["commits"].items()}
        files = {
            str(name): FileRecord(int(size), int(mtime_ns), str(digest))
            for name, (size, mtime_ns, digest) in data["files"].items()
        }
        step = data["step"]
        return Manifest(int(data["rank"]), None if step is None else int(step), commits, files)
    except ManifestError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"is not a manifest ({type(error).__name__}: {error})") from None

"""Compares a checkpoint with the checksums that its ranks have left beside it; `ftrun.monitor.manifest`.

Only what is evidence counts: a manifest that is half written, of another version, or of an earlier save into
the same place says nothing. Each file is read once, and again when its stamp has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ftrun.launcher.checkpoint_choice import Candidate, Form
from ftrun.launcher.checkpoint_disk import Disk, Stamp, TooSlowError
from ftrun.launcher.checkpoint_files import Defect
from ftrun.monitor.manifest import FileRecord, Manifest, ManifestError, decode, read_name

_SHA256 = "sha256"


@dataclass(frozen=True, slots=True)
class Share:
    """Which ranks' files this node compares: those whose number leaves `index` when divided by `count`.

    Each node of a job reads its share, for all of them see the same checkpoint and one objection is enough.
    """

    index: int = 0
    count: int = 1

    def has(self, rank: int) -> bool:
        """Whether this node compares the files of `rank`."""
        return rank % self.count == self.index % self.count


WHOLE = Share()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the checksums say."""

    defect: Defect | None = None
    compared: int = 0
    """Files whose content is what it was."""
    left: int = 0
    """Files that could not be read in time."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a manifest says of one file that it is evidence for."""

    path: Path
    name: str
    stamp: Stamp
    record: FileRecord


def compare(candidate: Candidate, disk: Disk, share: Share = WHOLE) -> Comparison:
    """Compare all files of the checkpoint for which there is evidence, in this node's share of the ranks."""
    claims: list[_Claim] = []
    try:
        for base, about, manifest in _find_manifests(candidate, disk, share):
            defect = _collect(base, about, manifest, disk, claims)
            if defect is not None:
                return Comparison(defect)
        unread = [one for one in claims if disk.memory.known(_SHA256, one.path, one.stamp) is None]
        disk.map(lambda claim: _digest(claim, disk), unread, "reading the files", patience_s=0.0)
    except TooSlowError:
        pass  # what has been read still counts
    compared = 0
    for claim in claims:
        digest = disk.memory.known(_SHA256, claim.path, claim.stamp)
        if isinstance(digest, OSError):
            return Comparison(Defect(f"{claim.name} cannot be read: {digest.strerror}"), compared)
        if digest is not None and digest != claim.record.sha256:
            what = f"{claim.name} has changed since it was saved: its SHA-256 is {str(digest)[:12]}..."
            return Comparison(Defect(f"{what}, {claim.record.sha256[:12]}... was recorded"), compared)
        compared += digest is not None
    return Comparison(None, compared, len(claims) - compared)


def _find_manifests(candidate: Candidate, disk: Disk, share: Share) -> Iterator[tuple[Path, str, Manifest]]:
    """Directory, file ("" for all below the directory) and manifest, of this node's share."""
    if candidate.form is Form.LOCAL:
        wanted = {(part.parent, part.name) for part in candidate.parts}
    elif candidate.form is Form.FILE:
        wanted = {(candidate.path.parent, candidate.path.name)}
    else:
        wanted = {(candidate.path, "")}
    directories = sorted({directory for directory, _ in wanted})
    for listing in disk.read_directories(directories):
        if isinstance(listing, OSError):
            continue
        for name in listing.files:
            found = read_name(name)
            if found is None or (listing.path, found[0]) not in wanted or not share.has(found[1]):
                continue
            if (manifest := _read(listing.path / name, disk)) is not None:
                yield listing.path, found[0], manifest


def _read(path: Path, disk: Disk) -> Manifest | None:
    stamp = disk.stamp(path)
    return (
        None
        if isinstance(stamp, OSError)
        else disk.memory.recall("manifest", path, stamp, lambda: _parse(path))
    )


def _parse(path: Path) -> Manifest | None:
    try:
        return decode(path.read_bytes())
    except (OSError, ManifestError):
        return None


def _collect(base: Path, about: str, manifest: Manifest, disk: Disk, claims: list[_Claim]) -> Defect | None:
    """Add what the manifest says and is evidence for; what shows without reading a file is returned.

    Where a commit file is as it was, nothing has been saved anew, and every file must be as it was. Without
    one, a file that was written since belongs to a later save.
    """
    for name, commit in manifest.commits.items():
        found = disk.stamp(base / name)
        if isinstance(found, OSError) or (found.size_bytes, found.mtime_ns) != (
            commit.size_bytes,
            commit.mtime_ns,
        ):
            return None
    names = [name for name in manifest.files if _is_below(name) and (not about or name == about)]
    paths = [base / name for name in names]
    for name, path, stamp in zip(names, paths, disk.stamps(paths), strict=True):
        record = manifest.files[name]
        if isinstance(stamp, OSError):
            if manifest.commits:
                return Defect(f"{name}, which was there when it was saved, cannot be read: {stamp.strerror}")
            continue
        if not manifest.commits and stamp.mtime_ns != record.mtime_ns:
            continue
        if stamp.size_bytes != record.size_bytes:
            return Defect(f"{name} has {stamp.size_bytes} bytes, {record.size_bytes} were saved")
        claims.append(_Claim(path, name, stamp, record))
    return None


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _digest(claim: _Claim, disk: Disk) -> None:
    """Find out the file's checksum, unless the deadline comes first."""
    digest = disk.hash(claim.path)
    if digest is not None:
        disk.memory.remember(_SHA256, claim.path, claim.stamp, digest)

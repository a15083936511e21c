"""Judges the job's paths: whether they can be written and read back, their space, and their mounts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import PurePosixPath

from ftrun.healthchecks.host_snapshots import HostSnapshot, Mount, PathReading, StorageStep
from ftrun.healthchecks.result import Result, Status, Subject

_MISCONFIGURED = {"EACCES", "EPERM", "ENOENT", "ENOTDIR", "ENAMETOOLONG", "ELOOP"}
"""What a wrong path or user gives: on each node, and no sign of a sick one."""
_SPACE = {"ENOSPC", "EDQUOT"}


@dataclass(frozen=True, slots=True)
class StorageThresholds:
    """When a path is sick."""

    hung_readings: int = 2
    """So many time-outs in a row are no accident .."""
    hung_s: float = 30.0
    """.. if they are so far apart: a file server that fails over answers again (estimate)."""
    min_free_fraction: float = 0.1
    """gpud."""
    min_free_bytes: int = 500_000_000
    """gpud."""
    needed_bytes: int | None = None
    """What the next checkpoint will take on this path; None if unknown."""
    min_free_inode_fraction: float = 0.05
    slow_s: float = 5.0
    """A probe that takes longer is worth a word."""


def judge_path(
    recent: Sequence[PathReading],
    baseline: PathReading | None,
    thresholds: StorageThresholds = StorageThresholds(),
) -> tuple[Result, ...]:
    """One path of the job.

    Args:
        recent: readings of this path, oldest first, at least the newest one.
        baseline: as it was when the job began; None if the newest reading is that.
        thresholds: when to complain.
    """
    now, start = recent[-1], baseline or recent[-1]
    subject = Subject("path", now.path)
    return (
        _probe(recent, start, subject, thresholds),
        *_space(now, start, subject, thresholds),
        *_inodes(now, start, subject, thresholds),
    )


def _probe(
    recent: Sequence[PathReading], start: PathReading, subject: Subject, thresholds: StorageThresholds
) -> Result:
    now = recent[-1]
    if now.has_hung:
        return _hung(recent, subject, thresholds)
    if now.step is not StorageStep.DONE or now.error:
        return _failed(now, start, subject)
    if now.directory in map(str, PurePosixPath(start.directory).parents):
        # A lost mount looks like this too, and `judge_mounts` condemns that one.
        observed = f"{start.directory} is gone; the nearest directory is {now.directory}"
        remedy = "find out who removed it"
        return Result("storage.probe", Status.DEGRADED, subject, observed, start.directory, remedy)
    observed = f"{'written and ' if now.is_written else ''}read back in {now.took_s:.2f} s"
    if now.took_s > thresholds.slow_s:
        expected = f"within {thresholds.slow_s:g} s"
        return Result(
            "storage.probe", Status.DEGRADED, subject, observed, expected, "look at the server's load"
        )
    return Result("storage.probe", Status.HEALTHY, subject, observed)


def _hung(recent: Sequence[PathReading], subject: Subject, thresholds: StorageThresholds) -> Result:
    now = recent[-1]
    hung = tuple(takewhile(lambda reading: reading.has_hung, reversed(recent)))
    lasts_s = now.taken_at - hung[-1].taken_at
    is_sure = len(hung) >= thresholds.hung_readings and lasts_s >= thresholds.hung_s
    survivor = " and its probe cannot be killed" if now.is_abandoned else ""
    return Result(
        "storage.probe",
        Status.UNHEALTHY if is_sure else Status.UNKNOWN,
        subject,
        f"hangs in '{now.step.value}'{survivor} ({len(hung)} times in a row, {lasts_s:.0f} s)",
        "an answer within the deadline",
        "look at the file server and the network to it; a hard NFS mount waits for ever",
    )


def _failed(now: PathReading, start: PathReading, subject: Subject) -> Result:
    where = f" in {now.directory}" if now.directory else ""
    observed = f"{now.step.value}{where}: {now.error}"
    expected = "can be written and read back" if now.is_written else "is there and can be read"
    is_old = start is not now and start.step is now.step and start.errno_name == now.errno_name
    if now.step is StorageStep.START:
        return Result("storage.probe", Status.UNKNOWN, subject, observed, expected)
    if now.errno_name in _MISCONFIGURED:
        has_worked = start.step is StorageStep.DONE and not start.error
        # What is only read must be there already, and its mount may be missing on this node alone.
        status = Status.UNHEALTHY if has_worked or not now.is_written else Status.DEGRADED
        remedy = "check the path and the rights of this user"
    else:
        status, remedy = Status.UNHEALTHY, _remedy(now.errno_name)
    return Result("storage.probe", status, subject, observed, expected, remedy, is_persistent=is_old)


def _remedy(errno_name: str) -> str:
    if errno_name in _SPACE:
        return "free some space, or raise the quota"
    if errno_name == "EROFS":
        return "the filesystem has become read-only: look in dmesg for errors of its device"
    return "look in dmesg and at the file server; data written here may be lost"


def _space(
    now: PathReading, start: PathReading, subject: Subject, thresholds: StorageThresholds
) -> Iterator[Result]:
    if now.free_bytes is None or not now.total_bytes:
        return
    observed = f"{now.free_bytes / 1e9:.1f} of {now.total_bytes / 1e9:.1f} GB are free"
    remedy = "remove old checkpoints, or keep fewer"
    wanted = thresholds.needed_bytes
    if wanted is not None and now.free_bytes < wanted:
        expected = f"{wanted / 1e9:.1f} GB for the next checkpoint"
        yield Result("storage.space", Status.DEGRADED, subject, observed, expected, remedy)
    elif _is_short(now, thresholds):
        percent, gigabytes = f"{thresholds.min_free_fraction:.0%}", thresholds.min_free_bytes / 1e9
        expected = f"{percent} and {gigabytes:.1f} GB"
        yield Result(
            "storage.space",
            Status.DEGRADED,
            subject,
            observed,
            expected,
            remedy,
            is_persistent=start is not now and _is_short(start, thresholds),
        )
    else:
        yield Result("storage.space", Status.HEALTHY, subject, observed)


def _is_short(reading: PathReading, thresholds: StorageThresholds) -> bool:
    if reading.free_bytes is None or not reading.total_bytes:
        return False
    fraction = reading.free_bytes / reading.total_bytes
    return fraction < thresholds.min_free_fraction or reading.free_bytes < thresholds.min_free_bytes


def _inodes(
    now: PathReading, start: PathReading, subject: Subject, thresholds: StorageThresholds
) -> Iterator[Result]:
    if now.free_inodes is None or not now.total_inodes:
        return
    observed = f"{now.free_inodes} of {now.total_inodes} inodes are free"
    if now.free_inodes >= thresholds.min_free_inode_fraction * now.total_inodes:
        yield Result("storage.inodes", Status.HEALTHY, subject, observed)
        return
    before = start.free_inodes, start.total_inodes
    was_so = (
        start is not now
        and before[0] is not None
        and before[1] is not None
        and before[0] < thresholds.min_free_inode_fraction * before[1]
    )
    expected = f"at least {thresholds.min_free_inode_fraction:.0%}"
    remedy = "remove small files, such as old logs"
    yield Result("storage.inodes", Status.DEGRADED, subject, observed, expected, remedy, is_persistent=was_so)


def judge_mounts(
    now: HostSnapshot, baseline: HostSnapshot | None, paths: Collection[str], node: str
) -> tuple[Result, ...]:
    """Mounts that went or became read-only since the job began, and Lustre's own opinion.

    Nothing is touched but the kernel's table, so this also works while a mount hangs.

    Args:
        now: the newest reading.
        baseline: as it was when the job began; None if `now` is that.
        paths: the job's paths, absolute and without symbolic links (`PathReading.directory`).
        node: name of this node.
    """
    start = baseline or now
    results: list[Result] = []
    needed: set[str] = set()
    for path in paths:
        before = mount_of(path, start.mounts)
        if before is not None:
            needed.add(before.point)
            results.append(_mount(path, before, now))
    results += _other_mounts(now, start, needed, Subject("node", node))
    results += _lustre(now, start, paths, Subject("node", node))
    return tuple(results)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that `path` is on; None if the table is empty."""
    place = PurePosixPath(path)
    above = {str(place), *map(str, place.parents)}
    # Of two on one point the later covers the earlier.
    found = [(len(mount.point), index) for index, mount in enumerate(mounts) if mount.point in above]
    return mounts[max(found)[1]] if found else None


def _mount(path: str, before: Mount, now: HostSnapshot) -> Result:
    subject = Subject("path", path)
    after = mount_of(path, now.mounts)
    remain = {(mount.point, mount.filesystem) for mount in now.mounts}
    # The automounter takes a mount away that nobody uses, and brings it back.
    is_automatic = after is not None and after.filesystem == "autofs"
    if after is None or not (is_automatic or (before.point, before.filesystem) in remain):
        seen = f"{after.filesystem} of {after.point}" if after else "nothing"
        observed = f"is on {seen}: {before.filesystem} on {before.point} is gone"
        expected, remedy = f"{before.filesystem} on {before.point}", "mount it again"
        return Result("storage.mount", Status.UNHEALTHY, subject, observed, expected, remedy)
    observed = f"{after.filesystem} on {after.point}"
    if not after.is_read_only:
        return Result("storage.mount", Status.HEALTHY, subject, observed)
    result = Result(
        "storage.mount",
        Status.UNHEALTHY,
        subject,
        f"{observed} is read-only",
        "writable",
        "look in dmesg for errors of its device, then repair or replace it",
    )
    if before.is_read_only:
        return replace(result, status=Status.DEGRADED, is_persistent=True)
    return result


def _other_mounts(
    now: HostSnapshot, start: HostSnapshot, needed: set[str], subject: Subject
) -> Iterator[Result]:
    """Mounts that were writable and are not any more: the node's disk may be dying."""
    was_writable = {mount.point for mount in start.mounts if not mount.is_read_only}
    last = {mount.point: mount for mount in now.mounts}
    for point in sorted(was_writable - needed):
        if point in last and last[point].is_read_only:
            observed = f"{last[point].filesystem} on {point} has become read-only"
            remedy = "look in dmesg for errors of its device"
            yield Result("storage.mount", Status.DEGRADED, subject, observed, "writable", remedy)


def _lustre(
    now: HostSnapshot, start: HostSnapshot, paths: Collection[str], subject: Subject
) -> Iterator[Result]:
    if not now.lustre_health:
        return
    if now.lustre_health == "healthy":
        yield Result("storage.lustre", Status.HEALTHY, subject, now.lustre_health)
        return
    mounts = (mount_of(path, now.mounts) for path in paths)
    is_used = any(mount is not None and mount.filesystem == "lustre" for mount in mounts)
    was_so = start is not now and start.lustre_health == now.lustre_health
    yield Result(
        "storage.lustre",
        Status.UNHEALTHY if is_used and not was_so else Status.DEGRADED,
        subject,
        now.lustre_health.replace("\n", "; "),
        "healthy",
        "look at the Lustre servers and at dmesg",
        is_persistent=was_so,
    )

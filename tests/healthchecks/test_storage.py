"""The job's paths: probes, space and mounts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.host_snapshots import HostSnapshot, Mount, PathReading, StorageStep
from ftrun.healthchecks.result import Result, Status
from ftrun.healthchecks.storage import StorageThresholds, judge_mounts, judge_path, mount_of

GOOD = PathReading(
    path="/data/ckpt",
    taken_at=0.0,
    step=StorageStep.DONE,
    directory="/data/ckpt",
    took_s=0.01,
    total_bytes=10**12,
    free_bytes=5 * 10**11,
    total_inodes=10**6,
    free_inodes=5 * 10**5,
)


def failed(step: StorageStep, errno_name: str, error: str = "No luck") -> PathReading:
    return replace(GOOD, step=step, errno_name=errno_name, error=error)


HUNG = replace(
    GOOD, step=StorageStep.SYNC, has_hung=True, total_bytes=None, free_bytes=None, total_inodes=None
)


def judge(*recent: PathReading, baseline: PathReading | None = GOOD, **limits: object) -> dict[str, Result]:
    results = judge_path(recent, baseline, StorageThresholds(**limits))  # type: ignore[arg-type]
    return {result.check: result for result in results}


def probe(*recent: PathReading, baseline: PathReading | None = GOOD) -> tuple[Status, bool]:
    result = judge(*recent, baseline=baseline)["storage.probe"]
    return result.status, result.is_persistent


def test_path_that_works_is_healthy() -> None:
    """Probe, space and inodes answer."""
    assert {check: result.status for check, result in judge(GOOD).items()} == {
        "storage.probe": Status.HEALTHY,
        "storage.space": Status.HEALTHY,
        "storage.inodes": Status.HEALTHY,
    }


@pytest.mark.parametrize(
    ("reading", "baseline", "wanted"),
    [
        (failed(StorageStep.WRITE, "ENOSPC"), GOOD, (Status.UNHEALTHY, False)),
        (failed(StorageStep.WRITE, "ENOSPC"), failed(StorageStep.WRITE, "ENOSPC"), (Status.UNHEALTHY, True)),
        (failed(StorageStep.CREATE, "EROFS"), None, (Status.UNHEALTHY, False)),
        (failed(StorageStep.SYNC, "EIO"), GOOD, (Status.UNHEALTHY, False)),
        (failed(StorageStep.FIND, "ESTALE"), GOOD, (Status.UNHEALTHY, False)),
        (failed(StorageStep.READ_BACK, "", "read back otherwise"), GOOD, (Status.UNHEALTHY, False)),
        (failed(StorageStep.CREATE, "EACCES"), GOOD, (Status.UNHEALTHY, False)),
        (failed(StorageStep.CREATE, "EACCES"), None, (Status.DEGRADED, False)),
        (failed(StorageStep.CREATE, "EACCES"), failed(StorageStep.CREATE, "EACCES"), (Status.DEGRADED, True)),
        (failed(StorageStep.FIND, "ENOTDIR"), None, (Status.DEGRADED, False)),
        (failed(StorageStep.START, "", "cannot be started"), GOOD, (Status.UNKNOWN, False)),
        (replace(GOOD, took_s=5.1), GOOD, (Status.DEGRADED, False)),
        (replace(GOOD, directory="/data"), GOOD, (Status.DEGRADED, False)),
        (replace(GOOD, directory="/data"), replace(GOOD, directory="/data"), (Status.HEALTHY, False)),
        (GOOD, replace(GOOD, directory="/data"), (Status.HEALTHY, False)),
    ],
)
def test_probe(reading: PathReading, baseline: PathReading | None, wanted: tuple[Status, bool]) -> None:
    """A sick filesystem condemns, a wrong path or user warns, a probe that did not run tells nothing."""
    assert probe(reading, baseline=baseline) == wanted


def test_path_that_is_only_read_has_to_be_there() -> None:
    """It is not the job that makes it, and its mount may be missing on this node alone."""
    missing = replace(failed(StorageStep.FIND, "ENOENT"), is_written=False)
    assert probe(missing, baseline=None) == (Status.UNHEALTHY, False)
    assert probe(failed(StorageStep.FIND, "ENOENT"), baseline=None) == (Status.DEGRADED, False)
    result = judge(replace(GOOD, is_written=False))["storage.probe"]
    assert (result.status, result.observed) == (Status.HEALTHY, f"read back in {GOOD.took_s:.2f} s")


def test_path_that_hangs_condemns_when_it_still_does() -> None:
    """A server that fails over answers again after a while; two readings of one moment are one hang."""
    still = replace(HUNG, taken_at=HUNG.taken_at + 30.0)
    assert probe(GOOD, HUNG)[0] is Status.UNKNOWN
    assert probe(HUNG, replace(HUNG, taken_at=HUNG.taken_at + 29.0))[0] is Status.UNKNOWN
    assert probe(HUNG, GOOD, still)[0] is Status.UNKNOWN
    assert probe(HUNG, still)[0] is Status.UNHEALTHY
    assert probe(HUNG, still, GOOD)[0] is Status.HEALTHY
    text = judge(HUNG, replace(still, is_abandoned=True))["storage.probe"].observed
    assert text == "hangs in 'sync' and its probe cannot be killed (2 times in a row, 30 s)"


@pytest.mark.parametrize(
    ("free", "total", "needed", "wanted"),
    [
        (10**11, 10**12, None, Status.HEALTHY),
        (10**11 - 1, 10**12, None, Status.DEGRADED),
        (5 * 10**8, 10**9, None, Status.HEALTHY),
        (5 * 10**8 - 1, 10**9, None, Status.DEGRADED),
        (5 * 10**11, 10**12, 5 * 10**11, Status.HEALTHY),
        (5 * 10**11, 10**12, 5 * 10**11 + 1, Status.DEGRADED),
    ],
)
def test_space(free: int, total: int, needed: int | None, wanted: Status) -> None:
    """A tenth, half a gigabyte, and what the next checkpoint takes."""
    reading = replace(GOOD, free_bytes=free, total_bytes=total)
    assert judge(reading, needed_bytes=needed)["storage.space"].status is wanted


def test_short_of_space_since_before_the_job_says_so() -> None:
    """It is nothing new."""
    short = replace(GOOD, free_bytes=10**9)
    assert judge(replace(short, free_bytes=10**9 - 1), baseline=short)["storage.space"].is_persistent
    assert not judge(short)["storage.space"].is_persistent


@pytest.mark.parametrize(
    ("free", "total", "wanted"),
    [(50, 1000, Status.HEALTHY), (49, 1000, Status.DEGRADED), (None, None, None)],
)
def test_inodes(free: int | None, total: int | None, wanted: Status | None) -> None:
    """Some filesystems do not count them."""
    results = judge(replace(GOOD, free_inodes=free, total_inodes=total))
    found = results.get("storage.inodes")
    assert (found.status if found else None) is wanted


ROOT, DATA = Mount("/", "ext4", "/dev/sda"), Mount("/data", "nfs4", "server:/data")
LUSTRE = Mount("/data", "lustre", "mgs:/fs")


def host(*mounts: Mount, lustre: str = "") -> HostSnapshot:
    return HostSnapshot(0.0, 0.0, mounts=mounts, lustre_health=lustre)


def mounts(now: HostSnapshot, baseline: HostSnapshot | None) -> list[tuple[str, Status, bool]]:
    results = judge_mounts(now, baseline, ["/data/ckpt"], "node-a")
    return [(result.check, result.status, result.is_persistent) for result in results]


START = host(ROOT, DATA)
FINE = ("storage.mount", Status.HEALTHY, False)


@pytest.mark.parametrize(
    ("now", "baseline", "wanted"),
    [
        (START, START, [FINE]),
        (START, None, [FINE]),
        (host(ROOT), START, [("storage.mount", Status.UNHEALTHY, False)]),
        (host(), START, [("storage.mount", Status.UNHEALTHY, False)]),
        (host(ROOT), host(ROOT), [FINE]),
        (START, host(ROOT), [FINE]),
        (host(), host(), []),
        (host(ROOT, replace(DATA, is_read_only=True)), START, [("storage.mount", Status.UNHEALTHY, False)]),
        (
            host(ROOT, replace(DATA, is_read_only=True)),
            host(ROOT, replace(DATA, is_read_only=True)),
            [("storage.mount", Status.DEGRADED, True)],
        ),
        (
            host(replace(ROOT, is_read_only=True), DATA),
            START,
            [FINE, ("storage.mount", Status.DEGRADED, False)],
        ),
        (host(replace(ROOT, is_read_only=True), DATA), host(replace(ROOT, is_read_only=True), DATA), [FINE]),
    ],
)
def test_mounts(
    now: HostSnapshot, baseline: HostSnapshot | None, wanted: list[tuple[str, Status, bool]]
) -> None:
    """What went or became read-only condemns if the job is on it, and warns otherwise."""
    assert mounts(now, baseline) == wanted


def test_automounter_may_take_a_mount_away() -> None:
    """It comes back when it is used, and was not there before."""
    automatic = Mount("/data", "autofs", "auto.data")
    used = host(ROOT, automatic, DATA)
    assert mounts(host(ROOT, automatic), used) == [FINE]
    assert mounts(used, host(ROOT, automatic)) == [FINE]


def test_mount_of_a_path() -> None:
    """The deepest one, whole names only, the later of two on one point."""
    over = replace(DATA, filesystem="tmpfs")
    table = (ROOT, DATA, Mount("/data/ckp", "xfs", "x"), over)
    assert mount_of("/data/ckpt", table) == over
    assert mount_of("/data", table) == over
    assert mount_of("/database", table) == ROOT
    assert mount_of("/", table) == ROOT
    assert mount_of("/x", ()) is None


@pytest.mark.parametrize(
    ("now", "baseline", "wanted"),
    [
        (host(LUSTRE, lustre="healthy"), None, (Status.HEALTHY, False)),
        (host(LUSTRE, lustre="NOT HEALTHY"), host(LUSTRE, lustre="healthy"), (Status.UNHEALTHY, False)),
        (host(DATA, lustre="NOT HEALTHY"), host(DATA, lustre="healthy"), (Status.DEGRADED, False)),
        (host(LUSTRE, lustre="NOT HEALTHY"), host(LUSTRE, lustre="NOT HEALTHY"), (Status.DEGRADED, True)),
    ],
)
def test_lustre(now: HostSnapshot, baseline: HostSnapshot | None, wanted: tuple[Status, bool]) -> None:
    """Its own word counts if the job uses it."""
    results = judge_mounts(now, baseline, ["/data/ckpt"], "node-a")
    (found,) = (result for result in results if result.check == "storage.lustre")
    assert (found.status, found.is_persistent) == wanted

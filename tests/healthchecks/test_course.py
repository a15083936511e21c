"""What a job remembers of its node, check after check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.course import Course, Taken
from ftrun.healthchecks.gpu import judge_driver, judge_lost
from ftrun.healthchecks.host_snapshots import HostSnapshot, PathReading, StorageStep
from ftrun.healthchecks.policy import JobPath, Scope
from ftrun.healthchecks.reading import Missing, Value
from ftrun.healthchecks.registry import Source
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.snapshots import MigDevice, NvmlSnapshot, XidEvent, failed_snapshot
from ftrun.healthchecks.thresholds import Thresholds
from tests.support.network_snapshots import network, nic
from tests.support.nvml_snapshots import ERROR, HANGS, LOST, gpu, node, uuid

SINCE = 50.0


def course(scope: Scope = Scope("n0"), *paths: JobPath) -> Course:  # noqa: B008 (frozen)
    return Course(scope, Thresholds(), paths, SINCE)


def hung(at: float) -> Taken:
    return Taken(gpu=failed_snapshot(at, HANGS))


def xid(number: int, at: float = 100.0, index: int = 0) -> XidEvent:
    return XidEvent(number, uuid(index), "", at)


def driver_says(job: Course, taken: Taken) -> Status:
    e = job.take_in(taken)
    [result] = judge_driver(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.gpu, e.earlier_hangs)
    return result.status


@pytest.mark.parametrize(
    ("times", "last"),
    [
        ((100.0,), Status.UNKNOWN),
        ((100.0, 130.0), Status.UNHEALTHY),
        # One stuck child is met by the check before a round and by the wait for memory right after it.
        ((100.0, 101.0, 102.0), Status.UNKNOWN),
        ((100.0, 101.0, 111.0), Status.UNHEALTHY),
        ((100.0, 100.0 + 3600.0), Status.UNKNOWN),
        ((100.0, 100.0 + 3599.0), Status.UNHEALTHY),
    ],
)
def test_a_driver_that_hangs_twice_is_not_healthy(times: tuple[float, ...], last: Status) -> None:
    """Twice within an hour, and not the same hang seen twice."""
    job = course()
    job.take_in(Taken(gpu=node(at=60.0)))
    assert [driver_says(job, hung(at)) for at in times][-1] is last


def test_a_failure_that_is_no_hang_is_not_counted() -> None:
    """A node too busy to start the probe is not a driver that hangs."""
    job = course()
    for at in (100.0, 200.0, 300.0):
        job.take_in(Taken(gpu=failed_snapshot(at, ERROR)))
    assert driver_says(job, hung(400.0)) is Status.UNKNOWN


def test_the_first_reading_has_no_baseline_and_is_that_of_the_later_ones() -> None:
    """What is wrong at the begin is not excused by itself."""
    job, first = course(), node(at=60.0)
    evidence = job.take_in(Taken(gpu=first, network=network(nic(0)), host=HostSnapshot(1.0, 1.0)))
    assert (evidence.gpu_baseline, evidence.network_baseline, evidence.host_baseline) == (None, None, None)
    evidence = job.take_in(Taken(gpu=node(at=90.0), network=network(at=9.0), host=HostSnapshot(2.0, 2.0)))
    assert evidence.gpu_baseline == first
    assert evidence.network_baseline == network(nic(0))
    assert evidence.host_baseline == HostSnapshot(1.0, 1.0)


def test_a_begin_without_an_answer_has_its_baseline_later() -> None:
    """The driver may have hung just then."""
    job = course()
    job.take_in(hung(60.0))
    assert job.gpu_baseline is None
    job.take_in(Taken(gpu=node(at=90.0)))
    assert job.gpu_baseline == node(at=90.0)


def test_a_failed_reading_is_seen_once_and_not_kept() -> None:
    """Trends are of readings."""
    job = course()
    job.take_in(Taken(gpu=node(at=60.0)))
    assert [isinstance(s.init, Missing) for s in job.take_in(hung(90.0)).gpu] == [False, True]
    assert [s.taken_at for s in job.take_in(Taken(gpu=node(at=120.0))).gpu] == [60.0, 120.0]


def test_xids_of_both_sources_add_up_over_the_job() -> None:
    """A storm of one number must not push out the one that matters."""
    job = course()
    job.take_in(Taken(gpu=node(xids=(xid(79),)), kernel_xids=(xid(48),), has_kernel_log=True))
    for at in range(200, 1000):
        job.take_in(Taken(gpu=node(at=float(at), xids=tuple(xid(31, float(at)) for _ in range(10)))))
    evidence = job.take_in(Taken(host=HostSnapshot(1.0, 1.0)))
    assert {event.xid for event in evidence.xids} == {79, 48, 31}
    assert len(evidence.xids) < 200
    assert (evidence.has_kernel_log, evidence.xids_since) == (True, SINCE)


def lost(*indices: int) -> NvmlSnapshot:
    """Four GPUs, of which these are lost."""
    return node(*(gpu(i, handle=LOST, uuid=LOST) if i in indices else gpu(i) for i in range(4)))


@pytest.mark.parametrize(
    ("scope", "condemned"),
    [
        (Scope("n0"), [1]),
        (Scope("n0", local_world_size=4), [1]),
        (Scope("n0", local_world_size=1), []),
        (Scope("n0", visible_devices="1,2"), [1]),
        (Scope("n0", visible_devices="2,3"), []),
        (Scope("n0", visible_devices="2,1", local_world_size=1), []),
        (Scope("n0", visible_devices=uuid(1)), [1]),
        (Scope("n0", visible_devices=""), []),
    ],
)
@pytest.mark.parametrize("has_begun", [True, False])
def test_only_gpus_that_workers_use_condemn(scope: Scope, condemned: list[int], has_begun: bool) -> None:
    """Whether the GPU was lost in mid-run or already at the begin."""
    job = course(scope)
    if has_begun:
        job.take_in(Taken(gpu=lost()))
    e = job.take_in(Taken(gpu=lost(1)))
    results = judge_lost(e.gpu[-1], e.gpu_baseline, e.job)
    assert [r.subject.index for r in results if r.status is Status.UNHEALTHY] == condemned or (
        # By its whole UUID it is a GPU that nobody has seen yet.
        [r.subject.name for r in results if r.status is Status.UNHEALTHY] == [uuid(i) for i in condemned]
    )


def test_names_of_gpus_become_known_when_they_answer() -> None:
    """A GPU that could not say its UUID at the begin is not missed for ever."""
    job = course(Scope("n0", local_world_size=4))
    job.take_in(Taken(gpu=lost(1)))
    job.take_in(Taken(gpu=lost()))
    assert job.visible == tuple(uuid(i) for i in range(4))
    assert job.job().uuids == frozenset(uuid(i) for i in range(4))


def test_the_gpus_of_mig_devices_stay_known() -> None:
    """Also when the GPU cannot list its parts any more."""
    devices = tuple(MigDevice(f"MIG-{index}{'0' * 35}", index + 1, 0) for index in range(2))
    job = course(Scope("n0", visible_devices=",".join(one.uuid for one in devices), local_world_size=2))
    assert job.visible_gpus is None
    job.take_in(Taken(gpu=node(gpu(0), gpu(1, mig_devices=Value(devices)))))
    job.take_in(Taken(gpu=node(gpu(0), gpu(1, handle=LOST, mig_devices=LOST))))
    assert job.visible == tuple(one.uuid for one in devices)
    assert job.visible_gpus == (uuid(1), uuid(1))


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_a_job_that_sees_no_gpu_needs_no_driver(visible: str) -> None:
    """That a driver hangs is a warning then, also if it never answered."""
    job = course(Scope("n0", visible_devices=visible))
    assert job.job().uuids == frozenset()
    assert [driver_says(job, hung(at)) for at in (100.0, 200.0)] == [Status.DEGRADED] * 2


def test_sources_without_a_reading_are_not_judged() -> None:
    """A path that was not probed this time has no fresh reading."""
    path = JobPath("/ckpt", True, True)
    job = course(Scope("n0"), path)
    reading = PathReading("/ckpt", 1.0, StorageStep.DONE, "/ckpt")
    assert Taken(paths=(reading,)).sources == {Source.PATH}
    assert Taken(gpu=failed_snapshot(1.0, HANGS)).sources == {Source.GPU}
    assert job.take_in(Taken(paths=(reading,))).paths[0].is_fresh
    evidence = job.take_in(Taken(gpu=node()))
    assert (evidence.paths[0].is_fresh, evidence.paths[0].recent) == (False, (reading,))
    assert evidence.paths[0].baseline == reading


def test_nics_near_the_job_s_gpus_are_found_by_their_place_on_the_bus() -> None:
    """NVML's address of a GPU and sysfs's are the same."""
    job = course(Scope("n0", visible_devices=uuid(0)))
    evidence = job.take_in(Taken(gpu=replace(node(), init=Value(True)), network=network(nic(0))))
    assert set(evidence.affinity().near) == {"0000:3b:00.0"}
    without = course(Scope("n0", visible_devices="")).take_in(Taken(network=network(nic(0))))
    assert set(without.affinity().near) == set()

"""Whether the driver answers and the GPUs are there, usable and set as the job found them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ftrun.healthchecks import gpu as judges
from ftrun.healthchecks.gpu import GpuLimits, judge_count, judge_driver, judge_lost, judge_reset_required
from ftrun.healthchecks.gpu_findings import JobGpus, growth, known_gpus, within
from ftrun.healthchecks.reading import Lack, Missing, Reading, Value
from ftrun.healthchecks.result import Result, Status, Subject
from ftrun.healthchecks.snapshots import Gpu, MigDevice, Mode, NvmlSnapshot, failed_snapshot
from tests.support.nvml_snapshots import (
    ERROR,
    HANGS,
    JOB,
    LOST,
    NO_FUNCTION,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET,
    gpu,
    link,
    node,
    statuses,
    uuid,
)

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED
NO_LIBRARY = Missing(Lack.NOT_FOUND, "NVML Shared Library Not Found", 12)
NO_DRIVER = Missing(Lack.NOT_FOUND, "Driver Not Loaded", 9)
MISMATCH = Missing(Lack.ERROR, "RM has detected an NVML/RM version mismatch.", 18)
OVERLOADED = Missing(Lack.ERROR, "NVML was not asked within 1 s: this node is overloaded")
REFUSED = Missing(Lack.NO_PERMISSION, "/dev/nvidia0: Operation not permitted", 1)
FIRST = JobGpus("n0", frozenset({uuid(0)}))
NO_GPUS = JobGpus("n0", frozenset())


def driver(
    snapshot: NvmlSnapshot, baseline: NvmlSnapshot | None = None, job: JobGpus = JOB, hangs: int = 0
) -> Result:
    (result,) = judge_driver(snapshot, baseline, job, GpuLimits(), hangs)
    return result


@pytest.mark.parametrize(
    ("init", "baseline", "job", "status"),
    [
        (Value(True), None, JOB, HEALTHY),
        (NO_LIBRARY, None, JOB, SKIPPED),
        (NO_DRIVER, None, JOB, SKIPPED),
        (NO_DRIVER, None, FIRST, UNHEALTHY),
        (NO_DRIVER, node(), JOB, UNHEALTHY),
        (NO_DRIVER, node(), NO_GPUS, DEGRADED),
        (MISMATCH, None, JOB, UNHEALTHY),
        (MISMATCH, None, NO_GPUS, DEGRADED),
        (ERROR, None, JOB, UNKNOWN),
        (ERROR, None, FIRST, UNHEALTHY),
        (OVERLOADED, None, FIRST, UNKNOWN),
        (NO_PERMISSION, None, JOB, SKIPPED),
        (NO_PERMISSION, None, FIRST, UNKNOWN),
    ],
)
def test_the_driver_must_answer_where_gpus_are_needed(
    init: Reading[bool], baseline: NvmlSnapshot | None, job: JobGpus, status: Status
) -> None:
    """Without a driver a node that needs no GPU is fine; an error nobody understands is never healthy."""
    snapshot = node() if isinstance(init, Value) else failed_snapshot(100.0, init)
    assert driver(snapshot, baseline, job).status is status


def test_a_driver_that_hangs_once_is_unknown_and_twice_condemns_the_node() -> None:
    """A single hang may be a slow initialisation."""
    hung = failed_snapshot(100.0, HANGS)
    assert driver(hung, hangs=0).status is UNKNOWN
    twice = driver(hung, hangs=1)
    assert (twice.status, twice.subject) == (UNHEALTHY, Subject("node", "n0"))
    assert "2 of 2" in twice.observed


def test_a_container_that_lost_its_devices_is_to_be_restarted_and_no_gpu_is_blamed() -> None:
    """After a daemon-reload NVML says Unknown Error, since the cgroup refuses /dev/nvidia*."""
    found = driver(replace(failed_snapshot(1.0, ERROR), device_files=REFUSED), job=FIRST)
    assert (found.status, found.subject.kind) == (UNHEALTHY, "node")
    assert "restart the container" in found.remedy
    assert "Operation not permitted" in found.observed
    other = driver(replace(failed_snapshot(1.0, ERROR), device_files=Value(9)), job=FIRST)
    assert "container" not in other.remedy


@pytest.mark.parametrize(
    ("count", "expected", "baseline", "job", "status"),
    [
        (Value(2), None, None, JOB, SKIPPED),
        (Value(2), 2, None, JOB, HEALTHY),
        (Value(2), 1, None, JOB, HEALTHY),
        (Value(2), 8, None, JOB, UNHEALTHY),
        (Value(2), 8, None, FIRST, UNHEALTHY),
        (Value(2), None, node(gpu(0), gpu(1), gpu(2)), JOB, UNHEALTHY),
        (Value(2), None, node(gpu(0), gpu(1), gpu(2)), FIRST, DEGRADED),
        (Value(2), None, node(gpu(0), gpu(1), gpu(2)), JobGpus("n0", frozenset({uuid(2)})), UNHEALTHY),
        (ERROR, 2, None, JOB, UNKNOWN),
        (NO_PERMISSION, 2, None, JOB, SKIPPED),
    ],
)
def test_all_gpus_that_are_expected_must_be_there(
    count: Reading[int], expected: int | None, baseline: NvmlSnapshot | None, job: JobGpus, status: Status
) -> None:
    """Without a number to expect the check is skipped; one of the others that went missing is a warning."""
    (found,) = judge_count(node(device_count=count), baseline, job, GpuLimits(expected_count=expected))
    assert found.status is status


def test_without_nvml_nothing_is_said_of_gpus() -> None:
    """The driver's own check says why."""
    failed = failed_snapshot(1.0, NO_DRIVER)
    assert judge_count(failed, node(), JOB, GpuLimits()) == ()
    assert judge_lost(failed, node(), JOB) == ()
    assert judge_reset_required(failed, node(), JOB) == ()


@pytest.mark.parametrize(
    "lost",
    [
        Gpu(1, handle=LOST),
        Gpu(1, handle=Missing(Lack.GPU_LOST, "Unable to determine the device handle", 999)),
        gpu(1, temperature_c=LOST),
        gpu(1, recovery_action=LOST),
        gpu(1, nvlinks=Value((link(0, LOST),))),
        gpu(1, nvlinks=Value((link(0, replays=LOST),))),
        gpu(1, pci_vendor=Value(0xFFFF)),
    ],
)
def test_one_reading_is_enough_to_see_that_a_gpu_is_lost(lost: Gpu) -> None:
    """The count of devices stays, other calls go on working, and a dead bus reads as all ones."""
    results = judge_lost(node(gpu(0), lost), node(), JOB)
    assert statuses(results) == [HEALTHY, UNHEALTHY]
    assert results[1].subject == Subject("gpu", uuid(1), 1)


@pytest.mark.parametrize(("handle", "status"), [(ERROR, UNKNOWN), (RESET, UNKNOWN), (NO_PERMISSION, SKIPPED)])
def test_a_handle_that_is_refused_otherwise_is_no_lost_gpu(handle: Missing, status: Status) -> None:
    """A container may not be allowed to see all GPUs of its node."""
    assert statuses(judge_lost(node(gpu(0), Gpu(1, handle=handle)), None, JOB)) == [HEALTHY, status]


def test_a_lost_gpu_that_is_not_the_jobs_is_a_warning() -> None:
    """The job's GPU is named by UUID, and all of the job's are there."""
    snapshot = node(gpu(0), Gpu(1, handle=LOST))
    assert statuses(judge_lost(snapshot, node(), FIRST)) == [HEALTHY, DEGRADED]
    assert statuses(judge_lost(snapshot, None, FIRST)) == [HEALTHY, DEGRADED]
    missing = JobGpus("n0", frozenset({uuid(0), uuid(1)}))
    assert statuses(judge_lost(snapshot, None, missing)) == [HEALTHY, UNHEALTHY]


def test_a_gpu_that_is_not_listed_any_more_is_lost() -> None:
    """After a reload of the driver the others move up; the one that is missing is known by UUID."""
    moved = node(replace(gpu(1), index=0))
    results = judge_lost(moved, node(), JOB)
    assert [(result.status, result.subject) for result in results] == [
        (HEALTHY, Subject("gpu", uuid(1), 0)),
        (UNHEALTHY, Subject("gpu", uuid(0))),
    ]
    assert statuses(judge_lost(moved, node(), JobGpus("n0", frozenset({uuid(1)})))) == [HEALTHY]


def test_a_gpu_that_needs_a_reset_is_unhealthy_whatever_call_says_so() -> None:
    """Any call of NVML may answer so; without a handle nobody can tell."""
    snapshot = node(gpu(0, memory=RESET), Gpu(1, handle=ERROR), gpu(2))
    assert statuses(judge_reset_required(snapshot, None, JOB)) == [UNHEALTHY, UNKNOWN, HEALTHY]


@pytest.mark.parametrize(
    ("action", "status"),
    [
        (Value(0), HEALTHY),
        (Value(1), UNHEALTHY),
        (Value(2), UNHEALTHY),
        (Value(3), DEGRADED),
        (Value(4), UNHEALTHY),
        (Value(5), UNHEALTHY),
        (Value(6), UNHEALTHY),
        (Value(7), UNHEALTHY),
        (Value(8), UNKNOWN),
        (NOT_SUPPORTED, SKIPPED),
        (LOST, UNKNOWN),
        (ERROR, UNKNOWN),
    ],
)
def test_the_drivers_recommendation_is_followed(action: Reading[int], status: Status) -> None:
    """A field that could not be read has value 0 in NVML's answer, and is not taken for "none"."""
    (found,) = judges.judge_recovery(node(gpu(recovery_action=action)), None, JOB)
    assert found.status is status
    is_advised = isinstance(action, Value) and action.value != 0
    assert bool(found.remedy) == is_advised


Judge = Callable[[NvmlSnapshot, NvmlSnapshot | None, JobGpus], tuple[Result, ...]]


@pytest.mark.parametrize(
    ("judge", "changes", "before", "status", "is_persistent"),
    [
        (
            judges.judge_recovery,
            {"recovery_action": Value(1)},
            {"recovery_action": Value(1)},
            UNHEALTHY,
            True,
        ),
        (judges.judge_compute_mode, {}, {}, HEALTHY, False),
        (judges.judge_compute_mode, {"compute_mode": Value(2)}, {}, UNHEALTHY, False),
        (judges.judge_compute_mode, {"compute_mode": Value(3)}, {}, HEALTHY, False),
        (judges.judge_compute_mode, {"compute_mode": ERROR}, {}, UNKNOWN, False),
        (judges.judge_mig, {}, {}, HEALTHY, False),
        (judges.judge_mig, {"mig": NOT_SUPPORTED}, {}, SKIPPED, False),
        (judges.judge_mig, {"mig": Value(Mode(True, True))}, {}, DEGRADED, False),
        (
            judges.judge_mig,
            {"mig": Value(Mode(True, True))},
            {"mig": Value(Mode(True, True))},
            HEALTHY,
            False,
        ),
        (judges.judge_mig, {"mig": Value(Mode(False, True))}, {}, DEGRADED, False),
        (
            judges.judge_mig,
            {"mig": Value(Mode(False, True))},
            {"mig": Value(Mode(False, True))},
            DEGRADED,
            True,
        ),
        (judges.judge_persistence, {}, {}, HEALTHY, False),
        (judges.judge_persistence, {"is_persistent": Value(False)}, {}, HEALTHY, False),
        (judges.judge_persistence, {"is_persistent": NO_FUNCTION}, {}, SKIPPED, False),
        (judges.judge_inforom, {}, {}, HEALTHY, False),
        (judges.judge_inforom, {"inforom_valid": Value(False)}, {}, DEGRADED, False),
        (
            judges.judge_inforom,
            {"inforom_valid": Value(False)},
            {"inforom_valid": Value(False)},
            DEGRADED,
            True,
        ),
        (judges.judge_inforom, {"inforom_valid": Gpu(0).inforom_valid}, {}, SKIPPED, False),
        (judges.judge_inforom, {"inforom_valid": ERROR}, {}, UNKNOWN, False),
    ],
)
def test_settings_are_compared_with_the_jobs_begin(
    judge: Judge,
    changes: dict[str, object],
    before: dict[str, object],
    status: Status,
    is_persistent: bool,
) -> None:
    """What was so when the job began is marked as such."""
    (found,) = judge(node(gpu(0, **changes)), node(gpu(0, **before)), JOB)
    assert (found.status, found.is_persistent) == (status, is_persistent)


def test_an_exclusive_gpu_cannot_serve_two_ranks() -> None:
    """The second one would find it busy."""
    snapshot = node(gpu(compute_mode=Value(3)))
    two = JobGpus("n0", ranks_per_gpu=2)
    assert statuses(judges.judge_compute_mode(snapshot, None, two)) == [UNHEALTHY]


def test_a_mig_device_of_the_job_makes_its_gpu_the_jobs() -> None:
    """MIG devices are no GPUs of their own."""
    with_mig = gpu(1, mig_devices=Value((MigDevice("MIG-a", 1, 0), MigDevice("MIG-b", 2, 0))))
    known = known_gpus(node(gpu(0), with_mig), None, JobGpus("n0", frozenset({"MIG-b"})))
    assert [gpu.is_of_job for gpu in known] == [False, True]


def test_a_lost_gpu_is_the_jobs_by_the_mig_devices_that_it_had() -> None:
    """One finding, about the GPU; an instance that was taken away is one of its own."""
    devices = (MigDevice("MIG-a", 1, 0), MigDevice("MIG-b", 2, 0))
    before = node(gpu(0), gpu(1, mig_devices=Value(devices)))
    job = JobGpus("n0", frozenset({"MIG-b"}))
    results = judge_lost(node(gpu(0), Gpu(1, handle=LOST)), before, job)
    assert [(one.status, one.subject.name) for one in results] == [(HEALTHY, uuid(0)), (UNHEALTHY, uuid(1))]
    others = JobGpus("n0", frozenset({"MIG-c"}))
    assert judge_lost(node(gpu(0), Gpu(1, handle=LOST)), before, others)[1].status is DEGRADED
    results = judge_lost(node(gpu(0), gpu(1, mig_devices=Value(devices[:1]))), before, job)
    assert [one.subject.name for one in results if one.status is UNHEALTHY] == ["MIG-b"]


def test_a_counter_that_was_reset_has_grown_from_zero() -> None:
    """It is never the difference without its sign."""
    assert [growth(7, 5), growth(5, 5), growth(2, 5)] == [2, 0, 2]


@pytest.mark.parametrize(
    ("times", "window_s", "kept"),
    [
        ([], 60.0, []),
        ([5.0], 60.0, [5.0]),
        ([0.0, 30.0, 60.0, 90.0], 60.0, [30.0, 60.0, 90.0]),
        ([0.0, 20.0, 50.0, 90.0], 60.0, [20.0, 50.0, 90.0]),
        ([0.0, 90.0], 60.0, [0.0, 90.0]),
    ],
)
def test_a_window_reaches_back_to_the_last_reading_before_it(
    times: list[float], window_s: float, kept: list[float]
) -> None:
    """A counter's growth over a window needs its value from when the window began."""
    assert [snapshot.taken_at for snapshot in within([node(at=at) for at in times], window_s)] == kept

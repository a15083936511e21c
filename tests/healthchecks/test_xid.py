"""What Xids mean, and what they say of GPUs and nodes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.reading import Reading, Value
from ftrun.healthchecks.result import Result, Status, Subject
from ftrun.healthchecks.snapshots import Gpu, MigDevice, NvmlSnapshot, XidEvent
from ftrun.healthchecks.xid import KNOWN_XIDS, XidEffect, classify
from ftrun.healthchecks.xid_events import XidLimits, judge_xids
from tests.support.nvml_snapshots import ERROR, JOB, LOST, NOT_SUPPORTED, gpu, node, uuid

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED


@pytest.mark.parametrize(
    ("effect", "codes"),
    [
        (XidEffect.NONE, [14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153]),
        (XidEffect.NONE, [157, 160, 161, 162, 163, 164, 165, 166, 170]),
        (XidEffect.RESTART, [8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80]),
        (XidEffect.RESTART, [*range(82, 87), 88, 89, 94, *range(96, 106), *range(126, 136), 139]),
        (XidEffect.ECHO, [45, 154]),
        (XidEffect.GPU, [46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]),
        (XidEffect.NODE, [54, 78, 79, 151]),
        (XidEffect.LINK, [74, *range(144, 151)]),
        (XidEffect.UNDECIDED, [142, 159, 167, 168, 169, 171, 172]),
        (XidEffect.UNDECIDED, [1, 12, 56, 57, 58, 61, 65, 73, 81, 87, 90, 111, 125, 138, 173, 999]),
    ],
)
def test_every_xid_of_the_catalog_has_its_class(effect: XidEffect, codes: list[int]) -> None:
    """Numbers that the catalog calls unused, and new ones, are a warning."""
    assert {code: classify(code).effect for code in codes} == dict.fromkeys(codes, effect)
    assert all(classify(code).xid == code and classify(code).meaning for code in codes)


def test_an_application_can_cause_these_by_itself() -> None:
    """Its own illegal access, or its death; all others are not its mistake."""
    blamed = {code for code in KNOWN_XIDS if classify(code).blames_application}
    assert blamed == {11, 13, 25, 31, 32, 43, 45, 68, 69, 80, 109}


def test_what_takes_a_gpu_away_has_a_remedy() -> None:
    """A person has to do something about it."""
    grave = {XidEffect.GPU, XidEffect.NODE, XidEffect.LINK}
    assert [code for code in KNOWN_XIDS if classify(code).effect in grave and not classify(code).remedy] == []


def xid(code: int, index: int = 1, at: float = 10.0, detail: str = "", **more: object) -> XidEvent:
    return XidEvent(code, uuid(index), "", at, detail=detail, **more)  # type: ignore[arg-type]


def judged(
    events: Iterable[XidEvent],
    now: NvmlSnapshot | None = None,
    job: JobGpus = JOB,
    *,
    baseline: NvmlSnapshot | None = None,
    since: float = 0.0,
    has_kernel_log: bool = False,
) -> tuple[Result, ...]:
    """Results for GPU 0, GPU 1 and the node."""
    return judge_xids(
        list(events), now or node(), baseline, job, XidLimits(), since=since, has_kernel_log=has_kernel_log
    )


NONFATAL = "TLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000009 0x00000001)"
FATAL = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6 0x00000000)"


@pytest.mark.parametrize(
    ("events", "on_gpu", "on_node"),
    [
        ([], HEALTHY, HEALTHY),
        ([xid(63)], HEALTHY, HEALTHY),
        ([xid(45)], HEALTHY, HEALTHY),
        ([xid(45), xid(45, at=500.0), xid(45, at=900.0)], HEALTHY, HEALTHY),
        ([xid(154)], HEALTHY, HEALTHY),
        ([xid(31)], HEALTHY, HEALTHY),
        ([xid(13), xid(13, at=10.1), xid(13, at=10.2)], HEALTHY, HEALTHY),
        ([xid(31), xid(31, at=300.0)], DEGRADED, HEALTHY),
        ([xid(94)], DEGRADED, HEALTHY),
        ([xid(39)], DEGRADED, HEALTHY),
        ([xid(48)], UNHEALTHY, HEALTHY),
        ([xid(48), xid(63)], DEGRADED, HEALTHY),
        ([xid(94), xid(48)], DEGRADED, HEALTHY),
        ([xid(48), xid(63), xid(64)], UNHEALTHY, HEALTHY),
        ([xid(48), xid(94), xid(95)], UNHEALTHY, HEALTHY),
        ([xid(64)], UNHEALTHY, HEALTHY),
        ([xid(109)], HEALTHY, HEALTHY),
        ([xid(109), xid(109, at=300.0)], UNHEALTHY, HEALTHY),
        ([xid(119)], UNHEALTHY, HEALTHY),
        ([xid(120), xid(45)], UNHEALTHY, HEALTHY),
        ([xid(79)], UNHEALTHY, UNHEALTHY),
        ([xid(79), xid(45, 0)], UNHEALTHY, UNHEALTHY),
        ([xid(74)], UNHEALTHY, HEALTHY),
        ([xid(74), xid(74, 0)], UNHEALTHY, UNHEALTHY),
        ([xid(149)], UNHEALTHY, HEALTHY),
        ([xid(149, detail=FATAL)], UNHEALTHY, HEALTHY),
        ([xid(149, detail=FATAL), xid(145, 0, detail=FATAL)], UNHEALTHY, UNHEALTHY),
        ([xid(146, detail=NONFATAL)], DEGRADED, HEALTHY),
        ([xid(146), xid(146, detail=NONFATAL)], DEGRADED, HEALTHY),
        ([xid(146, detail=NONFATAL), xid(146, detail=FATAL)], UNHEALTHY, HEALTHY),
        ([xid(57)], DEGRADED, HEALTHY),
        ([xid(1234)], DEGRADED, HEALTHY),
    ],
)
def test_an_xid_condemns_what_its_class_says(events: list[XidEvent], on_gpu: Status, on_node: Status) -> None:
    """Mistakes of the application do not blame the GPU unless they come back to it; echoes never do."""
    _, of_gpu, of_node = judged(events)
    assert (of_gpu.status, of_gpu.subject) == (on_gpu, Subject("gpu", uuid(1), 1))
    assert (of_node.status, of_node.subject) == (on_node, Subject("node", "n0"))


def test_the_gravest_xid_is_named_first() -> None:
    """With its meaning and its remedy; the others follow."""
    _, found, _ = judged([xid(45), xid(31), xid(119, at=11.0)])
    assert found.observed.startswith("Xid 119 (the GPU system processor does not answer), Xid 45 (")
    assert "reset" in found.remedy


def test_xids_of_a_gpu_that_is_not_the_jobs_are_a_warning() -> None:
    """For the GPU and for the node."""
    first = JobGpus("n0", frozenset({uuid(0)}))
    assert [result.status for result in judged([xid(79)], job=first)] == [HEALTHY, DEGRADED, DEGRADED]
    assert [result.status for result in judged([xid(119)], job=first)] == [HEALTHY, DEGRADED, HEALTHY]


def test_events_from_before_the_job_do_not_count() -> None:
    """The kernel log goes back to the boot."""
    assert [result.status for result in judged([xid(79, at=10.0)], since=10.5)] == [HEALTHY] * 3
    assert judged([xid(79, at=10.5)], since=10.5)[1].status is UNHEALTHY


def test_an_event_that_both_sources_report_is_one() -> None:
    """NVML names the GPU by UUID, the kernel by PCI address."""
    address = "0000:3c:00.0"
    both = [xid(31), XidEvent(31, "", address, 10.4, "kernel", pid=7, detail="MMU Fault")]
    assert judged(both)[1].status is HEALTHY
    assert judged([XidEvent(119, "", address, 10.4, "kernel")])[1].status is UNHEALTHY


@pytest.mark.parametrize(
    ("events", "has_kernel_log", "status"),
    [
        (Value(True), False, HEALTHY),
        (NOT_SUPPORTED, False, SKIPPED),
        (ERROR, False, UNKNOWN),
        (LOST, False, UNKNOWN),
        (ERROR, True, HEALTHY),
    ],
)
def test_silence_is_healthy_only_if_somebody_listens(
    events: Reading[bool], has_kernel_log: bool, status: Status
) -> None:
    """To NVML's events or to the kernel log."""
    assert judged([], node(events=events), has_kernel_log=has_kernel_log)[1].status is status


def test_a_gpu_that_cannot_be_read_any_more_is_known_by_its_address() -> None:
    """The kernel reports that it fell off the bus; NVML has no handle for it."""
    fallen = node(gpu(0), Gpu(1, handle=LOST))
    event = XidEvent(79, "", "0000:3c:00.0", 10.0, "kernel")
    results = judged([event], fallen, baseline=node())
    assert [result.status for result in results] == [HEALTHY, UNHEALTHY, UNHEALTHY]
    assert results[1].subject == Subject("gpu", uuid(1), 1)


def test_a_gpu_that_is_not_listed_any_more_concerns_the_node() -> None:
    """If it was the job's; a device that the job has nothing to do with is a warning."""
    event = XidEvent(79, "", "0000:3c:00.0", 10.0, "kernel")
    gone = node(gpu(0))
    second, first = (JobGpus("n0", frozenset({uuid(index)})) for index in (1, 0))
    assert judged([event], gone, second, baseline=node())[-1].status is UNHEALTHY
    assert judged([event], gone, first, baseline=node())[-1].status is DEGRADED
    assert judged([event], gone, JOB)[-1].status is UNHEALTHY


def test_events_of_another_mig_instance_are_a_warning() -> None:
    """The GPU is shared with others, whose instances may fail without the job's."""
    shared = gpu(1, mig_devices=Value((MigDevice("MIG-a", 1, 0), MigDevice("MIG-b", 2, 0))))
    job = JobGpus("n0", frozenset({"MIG-a"}))
    assert judged([xid(95, gpu_instance=2)], node(gpu(0), shared), job)[1].status is DEGRADED
    assert judged([xid(95, gpu_instance=1)], node(gpu(0), shared), job)[1].status is UNHEALTHY
    assert judged([xid(95)], node(gpu(0), shared), job)[1].status is UNHEALTHY


def test_a_node_without_gpus_has_no_xids() -> None:
    """There is nothing to say."""
    assert judged([], node(gpus=(), device_count=Value(0))) == ()

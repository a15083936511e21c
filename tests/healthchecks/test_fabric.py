"""The NVLink fabric, and whether GPUs reach each other."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.fabric import judge_fabric, judge_peers
from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.reading import Reading, Value
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.snapshots import Fabric, Gpu, Mode, NvmlSnapshot, PeerAccess
from tests.support.nvml_snapshots import (
    ERROR,
    JOB,
    LOST,
    NO_FUNCTION,
    NOT_SUPPORTED,
    gpu,
    links,
    node,
    statuses,
    uuid,
)

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED


@pytest.mark.parametrize(
    ("fabric", "status"),
    [
        (Value(Fabric(3, 0, 0, 1)), HEALTHY),
        (Value(Fabric(3, 0, None, None)), HEALTHY),
        (Value(Fabric(3, 0, 0, 0)), HEALTHY),
        (Value(Fabric(3, 0, 0x2AA, 1)), UNHEALTHY),
        (Value(Fabric(3, 0, 0x0AA, 1)), HEALTHY),
        (Value(Fabric(3, 0, 0x1AA, 1)), HEALTHY),
        (Value(Fabric(0, 0)), SKIPPED),
        (NOT_SUPPORTED, SKIPPED),
        (NO_FUNCTION, SKIPPED),
        (ERROR, UNKNOWN),
        (Value(Fabric(2, 0)), DEGRADED),
        (Value(Fabric(1, 0)), UNHEALTHY),
        (Value(Fabric(9, 0)), UNHEALTHY),
        (Value(Fabric(3, 999)), UNHEALTHY),
        (Value(Fabric(3, 0, 1 << 0)), UNHEALTHY),
        (Value(Fabric(3, 0, 1 << 2)), UNHEALTHY),
        (Value(Fabric(3, 0, 1 << 4)), UNHEALTHY),
        (Value(Fabric(3, 0, 1 << 6)), UNHEALTHY),
        (Value(Fabric(3, 0, 4 << 8)), UNHEALTHY),
        (Value(Fabric(3, 0, 0, 2)), UNHEALTHY),
        (Value(Fabric(3, 0, 0, 3)), DEGRADED),
    ],
)
def test_a_fabric_must_be_completed_and_serve_its_gpus(fabric: Reading[Fabric], status: Status) -> None:
    """Completed with an error is bad, in progress is a matter of time, and a board without one is fine."""
    assert statuses(judge_fabric(node(gpu(fabric=fabric)), None, JOB)) == [status]


def test_a_fabric_that_was_so_when_the_job_began_is_a_warning() -> None:
    """The job has begun with it; any change condemns again."""
    before = node(gpu(fabric=Value(Fabric(3, 0, 1))))
    (found,) = judge_fabric(before, before, JOB)
    assert (found.status, found.is_persistent) == (DEGRADED, True)
    assert found.observed == "bandwidth is degraded"
    assert statuses(judge_fabric(node(gpu(fabric=Value(Fabric(3, 0, 1 | 1 << 4)))), before, JOB)) == [
        UNHEALTHY
    ]


def three(*states: Reading[int], gpus: tuple[Gpu, ...] = (gpu(0), gpu(1), gpu(2))) -> NvmlSnapshot:
    pairs = ((0, 1), (0, 2), (1, 2))
    peers = tuple(PeerAccess(a, b, state) for (a, b), state in zip(pairs, states, strict=True))
    return node(*gpus, peers=peers)


OK, BAD = Value(0), Value(5)
BRIDGELESS = tuple(gpu(index, nvlinks=links(18, range(18))) for index in range(3))
WITH_MIG = tuple(gpu(index, mig=Value(Mode(True, True))) for index in range(3))


@pytest.mark.parametrize(
    ("now", "before", "job", "status"),
    [
        (three(OK, OK, OK), None, JOB, HEALTHY),
        (three(BAD, BAD, BAD), None, JOB, UNHEALTHY),
        (three(BAD, BAD, BAD), three(OK, OK, OK), JOB, UNHEALTHY),
        (three(BAD, BAD, BAD), three(BAD, BAD, BAD), JOB, DEGRADED),
        (three(OK, BAD, BAD), None, JOB, HEALTHY),
        (three(OK, BAD, BAD), three(OK, OK, BAD), JOB, DEGRADED),
        (three(BAD, BAD, ERROR), None, JOB, UNKNOWN),
        (three(BAD, BAD, NOT_SUPPORTED), None, JOB, SKIPPED),
        (three(LOST, LOST, LOST), three(OK, OK, OK), JOB, UNKNOWN),
        (three(OK, ERROR, ERROR), three(OK, OK, OK), JOB, HEALTHY),
        (three(BAD, BAD, BAD, gpus=BRIDGELESS), None, JOB, SKIPPED),
        (three(BAD, BAD, BAD, gpus=WITH_MIG), None, JOB, SKIPPED),
        (three(BAD, BAD, BAD), None, JobGpus("n0", frozenset({uuid(0)})), SKIPPED),
        (three(OK, BAD, BAD), None, JobGpus("n0", frozenset({uuid(0), uuid(2)})), UNHEALTHY),
        (three(OK, BAD, BAD), None, JobGpus("n0", frozenset({uuid(0), uuid(1)})), HEALTHY),
        (node(gpu(0)), None, JOB, SKIPPED),
    ],
)
def test_gpus_that_none_reach_each_other_condemn_the_node(
    now: NvmlSnapshot, before: NvmlSnapshot | None, job: JobGpus, status: Status
) -> None:
    """Only the job's pairs count, single ones may have no link, and what is incomplete proves nothing."""
    (found,) = judge_peers(now, before, job)
    assert (found.status, found.subject.kind) == (status, "node")

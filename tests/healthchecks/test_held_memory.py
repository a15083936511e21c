"""Memory of GPUs that ended workers have not given back."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.gpu_memory import GpuMemoryLimits
from ftrun.healthchecks.held_memory import HeldMemory, find_held
from ftrun.healthchecks.reading import NOT_READ, Missing, Reading, Value
from ftrun.healthchecks.snapshots import GpuProcess, Memory, NvmlSnapshot, failed_snapshot
from tests.support.nvml_snapshots import ERROR, GIB, HANGS, LOST, NOT_SUPPORTED, RESET, gpu, node, uuid

MIB = 1 << 20
LIMITS = GpuMemoryLimits()
DISPLAY = GpuProcess(7, "graphics", GIB, "Xorg :0")
WORKER = GpuProcess(4242, "compute", 9 * GIB, "python train.py")


def using(
    used: int, *processes: GpuProcess, reserved: int | None = GIB // 2, memory: Reading[Memory] | None = None
) -> NvmlSnapshot:
    """A node whose first GPU has so much memory in use, by these."""
    given = memory or Value(Memory(80 * GIB, used, reserved))
    return node(gpu(0, memory=given, processes=Value(processes)), gpu(1))


def held(now: NvmlSnapshot, baseline: NvmlSnapshot | None = None) -> tuple[HeldMemory, ...] | Missing:
    return find_held(now, baseline, JobGpus("n0", frozenset({uuid(0)})), LIMITS)


def test_memory_of_a_worker_is_named_until_it_is_free() -> None:
    """With the process that holds it, and without those that were there before the job."""
    before = using(GIB, DISPLAY)
    found = held(using(10 * GIB, DISPLAY, WORKER), before)
    assert found == (HeldMemory(uuid(0), 0, 10 * GIB, GIB + LIMITS.held_tolerance_bytes, (WORKER,)),)
    assert str(found[0]) == "gpu 0: 10240 MiB used, 1536 allowed, by pid 4242 (python train.py)"
    assert held(using(GIB, DISPLAY), before) == ()


@pytest.mark.parametrize(("over", "is_held"), [(0, False), (1, True)])
def test_tolerance_is_beyond_what_was_used_before(over: int, is_held: bool) -> None:
    """Monitoring and MPS take some."""
    now = using(GIB + LIMITS.held_tolerance_bytes + over)
    assert bool(held(now, using(GIB))) is is_held


@pytest.mark.parametrize(
    ("reserved", "used", "is_held"),
    [(GIB // 2, 600 * MIB, True), (None, 600 * MIB, False), (None, 1600 * MIB, True)],
)
def test_without_a_begin_nothing_is_normal_but_what_the_driver_keeps(
    reserved: int | None, used: int, is_held: bool
) -> None:
    """Older drivers count that as used."""
    assert bool(held(using(used, reserved=reserved))) is is_held


def test_memory_that_cannot_be_read_is_not_free() -> None:
    """Nobody knows, and the reason is told; the same if NVML does not answer at all."""
    assert held(using(0, memory=ERROR)) == ERROR
    assert held(failed_snapshot(1.0, HANGS)) == HANGS
    error_and_held = node(gpu(0, memory=ERROR), gpu(1, memory=Value(Memory(80 * GIB, 70 * GIB, 0))))
    [found] = find_held(error_and_held, None, JobGpus("n0"), LIMITS) or ()
    assert found.index == 1, "what is known to be held is waited for in any case"


@pytest.mark.parametrize("why", [LOST, RESET])
def test_a_lost_gpu_holds_nobody_up(why: Missing) -> None:
    """No wait brings its memory back; that of the others is waited for as ever."""
    assert held(using(0, memory=why)) == ()
    assert held(node(gpu(0, handle=why, uuid=why, memory=NOT_READ), gpu(1)), node()) == ()
    assert held(node(gpu(0, uuid=why, memory=NOT_READ), gpu(1)), node()) == ()
    full = gpu(1, memory=Value(Memory(80 * GIB, 70 * GIB, 0)))
    [found] = find_held(node(gpu(0, memory=why), full), None, JobGpus("n0"), LIMITS) or ()
    assert found.index == 1


def test_devices_that_do_not_count_their_memory_are_left_out() -> None:
    """Unified memory is the node's."""
    assert held(using(0, memory=NOT_SUPPORTED)) == ()


def test_gpus_of_others_may_be_full() -> None:
    """Only the job's own have to be free."""
    others = node(gpu(0), gpu(1, memory=Value(Memory(80 * GIB, 70 * GIB, 0))))
    assert held(others) == ()


def test_a_holder_without_a_name_is_said_to_be_one() -> None:
    """In a container NVML's process ids mean nothing; a crashed context may have none."""
    [found] = held(using(10 * GIB, GpuProcess(99, "compute", None))) or ()
    assert str(found).endswith("by pid 99")
    [found] = held(using(10 * GIB)) or ()
    assert str(found).endswith("by no process that NVML knows")

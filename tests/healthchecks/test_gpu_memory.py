"""ECC errors, repairs of memory, and memory that ended workers have not given back."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.gpu_memory import (
    GpuMemoryLimits,
    judge_corrected_ecc,
    judge_ecc,
    judge_memory,
    judge_processes,
    judge_repair,
    judge_retired_pages,
    judge_row_remap,
    judge_sram,
)
from ftrun.healthchecks.reading import Reading, Value
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.snapshots import (
    GpuProcess,
    Memory,
    Mode,
    RemappedRows,
    RepairPending,
    RetiredPages,
)
from tests.support.nvml_snapshots import (
    ERROR,
    GIB,
    JOB,
    LOST,
    NO_FUNCTION,
    NO_PERMISSION,
    NOT_SUPPORTED,
    gpu,
    node,
    statuses,
    uuid,
)

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED
LIMITS = GpuMemoryLimits()
MIB = 1 << 20
FAILED_ROWS = Value(RemappedRows(0, 3, False, True))
PENDING_ROWS = Value(RemappedRows(0, 1, True, False))


@pytest.mark.parametrize(
    ("before", "changes", "status"),
    [
        (0, {"ecc_uncorrected_volatile": Value(0)}, HEALTHY),
        (0, {"ecc_uncorrected_volatile": Value(5)}, DEGRADED),
        (5, {"ecc_uncorrected_volatile": Value(5)}, HEALTHY),
        (5, {"ecc_uncorrected_volatile": Value(6)}, DEGRADED),
        (5, {"ecc_uncorrected_volatile": Value(0)}, HEALTHY),
        (5, {"ecc_uncorrected_volatile": Value(2)}, DEGRADED),
        (None, {"ecc_uncorrected_volatile": Value(0)}, HEALTHY),
        (None, {"ecc_uncorrected_volatile": Value(5)}, DEGRADED),
        (0, {"ecc_uncorrected_aggregate": Value(900)}, HEALTHY),
        (0, {"ecc_uncorrected_volatile": Value(5), "remapped_rows": FAILED_ROWS}, UNHEALTHY),
        (0, {"ecc_uncorrected_volatile": Value(5), "remapped_rows": PENDING_ROWS}, DEGRADED),
        (0, {"ecc_uncorrected_volatile": Value(5), "recovery_action": Value(1)}, UNHEALTHY),
        (0, {"ecc_uncorrected_volatile": Value(5), "recovery_action": Value(3)}, DEGRADED),
        (0, {"ecc_uncorrected_volatile": Value(5), "recovery_action": ERROR}, DEGRADED),
        (0, {"ecc_uncorrected_volatile": NOT_SUPPORTED}, SKIPPED),
        (0, {"ecc_uncorrected_volatile": NO_PERMISSION}, SKIPPED),
        (0, {"ecc_uncorrected_volatile": NO_FUNCTION}, SKIPPED),
        (0, {"ecc_uncorrected_volatile": ERROR}, UNKNOWN),
        (0, {"ecc_uncorrected_volatile": LOST}, UNKNOWN),
        (0, {"ecc_uncorrected_volatile": Value(5), "ecc": Value(Mode(False, False))}, SKIPPED),
        (0, {"ecc_uncorrected_volatile": Value(5), "virtualization": Value(2)}, SKIPPED),
        (0, {"ecc_uncorrected_volatile": Value(5), "virtualization": Value(1)}, DEGRADED),
    ],
)
def test_uncorrectable_errors_warn_when_they_grow_and_condemn_when_they_could_not_be_repaired(
    before: int | None, changes: dict[str, object], status: Status
) -> None:
    """The driver contains and remaps; what the board has had in its life says nothing of today."""
    baseline = None if before is None else node(gpu(ecc_uncorrected_volatile=Value(before)))
    assert statuses(judge_ecc(node(gpu(**changes)), baseline, JOB)) == [status]


def test_errors_of_a_gpu_that_is_not_the_jobs_are_a_warning() -> None:
    """Also those that would condemn one of the job's."""
    bad = gpu(1, ecc_uncorrected_volatile=Value(5), remapped_rows=FAILED_ROWS)
    first = JobGpus("n0", frozenset({uuid(0)}))
    assert statuses(judge_ecc(node(gpu(0), bad), node(), first)) == [HEALTHY, DEGRADED]
    assert statuses(judge_ecc(node(gpu(0), bad), node(), JOB)) == [HEALTHY, UNHEALTHY]


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ([1_000_000, 2_000_000], DEGRADED),
        ([1_000_000, 1_500_000], HEALTHY),
        ([0, 60_000_000], DEGRADED),
        ([60_000_000, 60_000_000], HEALTHY),
        ([60_000_000, 3], HEALTHY),
        ([600_000_000], HEALTHY),
    ],
)
def test_only_a_storm_of_corrected_errors_is_worth_a_warning(counts: list[int], status: Status) -> None:
    """Its rate counts, and not what there was before the job; a reset counter is no storm."""
    history = [node(gpu(ecc_corrected_volatile=Value(count)), at=i * 60.0) for i, count in enumerate(counts)]
    assert statuses(judge_corrected_ecc(history, history[0], JOB, LIMITS)) == [status]


def test_a_burst_between_two_close_readings_is_no_storm() -> None:
    """The rate is that of a whole window."""
    history = [node(gpu(ecc_corrected_volatile=Value(n)), at=at) for n, at in ((0, 0.0), (20_000, 0.5))]
    assert statuses(judge_corrected_ecc(history, None, JOB, LIMITS)) == [HEALTHY]


@pytest.mark.parametrize("reading", [ERROR, NOT_SUPPORTED])
def test_corrected_errors_that_cannot_be_read_are_not_healthy(reading: Reading[int]) -> None:
    """Skipped if the GPU does not have them, unknown otherwise."""
    found = judge_corrected_ecc([node(gpu(ecc_corrected_volatile=reading))], None, JOB, LIMITS)
    assert statuses(found) == [UNKNOWN if reading is ERROR else SKIPPED]


@pytest.mark.parametrize(
    ("rows", "before", "status", "is_persistent"),
    [
        (RemappedRows(0, 0, False, False), None, HEALTHY, False),
        (RemappedRows(9, 4, False, False), None, HEALTHY, False),
        (RemappedRows(0, 3, False, True), None, UNHEALTHY, False),
        (RemappedRows(0, 3, True, True), RemappedRows(0, 3, True, True), UNHEALTHY, True),
        (RemappedRows(0, 1, True, False), None, DEGRADED, False),
        (RemappedRows(0, 1, True, False), RemappedRows(0, 1, True, False), DEGRADED, True),
        (RemappedRows(0, 511, False, False), None, HEALTHY, False),
        (RemappedRows(0, 512, False, False), None, DEGRADED, False),
        (RemappedRows(0, 512, False, False), RemappedRows(0, 512, False, False), DEGRADED, True),
    ],
)
def test_a_failed_remapping_condemns_and_a_pending_one_waits(
    rows: RemappedRows, before: RemappedRows | None, status: Status, is_persistent: bool
) -> None:
    """Applications may go on until the reset that completes a remapping."""
    baseline = None if before is None else node(gpu(remapped_rows=Value(before)))
    (found,) = judge_row_remap(node(gpu(remapped_rows=Value(rows))), baseline, JOB, LIMITS)
    assert (found.status, found.is_persistent) == (status, is_persistent)


@pytest.mark.parametrize(
    ("pages", "before", "status"),
    [
        (RetiredPages(2, 1, False), None, HEALTHY),
        (RetiredPages(2, 1, True), None, DEGRADED),
        (RetiredPages(40, 22, False), None, HEALTHY),
        (RetiredPages(40, 23, False), None, UNHEALTHY),
        (RetiredPages(40, 23, False), RetiredPages(40, 23, False), DEGRADED),
        (RetiredPages(41, 23, False), RetiredPages(40, 23, False), UNHEALTHY),
        (RetiredPages(0, 16, False), RetiredPages(0, 15, False), UNHEALTHY),
        (RetiredPages(0, 16, False), RetiredPages(0, 16, False), HEALTHY),
        (RetiredPages(0, 15, False), RetiredPages(0, 14, False), HEALTHY),
    ],
)
def test_retired_pages_condemn_when_the_board_runs_out_of_them(
    pages: RetiredPages, before: RetiredPages | None, status: Status
) -> None:
    """And when a board that has many gets more."""
    baseline = None if before is None else node(gpu(retired_pages=Value(before)))
    assert statuses(judge_retired_pages(node(gpu(retired_pages=Value(pages))), baseline, JOB, LIMITS)) == [
        status
    ]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, HEALTHY),
        ({"is_memory_unrepairable": Value(True)}, UNHEALTHY),
        ({"is_memory_unrepairable": Value(True), "repair_pending": ERROR}, UNHEALTHY),
        ({"repair_pending": Value(RepairPending(True, False))}, DEGRADED),
        ({"repair_pending": Value(RepairPending(False, True)), "is_memory_unrepairable": ERROR}, DEGRADED),
        ({"is_memory_unrepairable": NO_FUNCTION, "repair_pending": NO_FUNCTION}, SKIPPED),
        ({"is_memory_unrepairable": NO_FUNCTION, "repair_pending": ERROR}, UNKNOWN),
    ],
)
def test_memory_that_cannot_be_repaired_condemns(changes: dict[str, object], status: Status) -> None:
    """Drivers that do not know of it are skipped."""
    assert statuses(judge_repair(node(gpu(**changes)), None, JOB)) == [status]


@pytest.mark.parametrize(
    ("reading", "status"),
    [(Value(False), HEALTHY), (Value(True), UNHEALTHY), (NO_FUNCTION, SKIPPED), (ERROR, UNKNOWN)],
)
def test_the_sram_threshold_of_the_driver_is_final(reading: Reading[bool], status: Status) -> None:
    """It asks for the board's replacement."""
    assert statuses(judge_sram(node(gpu(is_sram_threshold_exceeded=reading)), None, JOB)) == [status]


def memory(used_bytes: int, reserved_bytes: int | None = GIB // 2) -> Value[Memory]:
    return Value(Memory(80 * GIB, used_bytes, reserved_bytes))


@pytest.mark.parametrize(
    ("used", "before", "status"),
    [
        (memory(0), None, HEALTHY),
        (memory(512 * MIB), None, HEALTHY),
        (memory(513 * MIB), None, DEGRADED),
        (memory(1500 * MIB, None), None, HEALTHY),
        (memory(1537 * MIB, None), None, DEGRADED),
        (memory(40 * GIB), memory(40 * GIB), HEALTHY),
        (memory(41 * GIB), memory(40 * GIB), DEGRADED),
        (NOT_SUPPORTED, None, SKIPPED),
        (ERROR, memory(0), UNKNOWN),
        (LOST, memory(0), UNKNOWN),
    ],
)
def test_memory_that_was_not_given_back_is_noticed(
    used: Reading[Memory], before: Reading[Memory] | None, status: Status
) -> None:
    """Against what was used before the job; memory that cannot be read is never taken for free."""
    baseline = None if before is None else node(gpu(memory=before))
    assert statuses(judge_memory(node(gpu(memory=used)), baseline, JOB, LIMITS)) == [status]


def test_what_holds_memory_is_named() -> None:
    """With its command where it is visible; otherwise memory alone tells."""
    processes = (
        GpuProcess(4242, "compute", 3 * GIB, "python train.py"),
        GpuProcess(77, "mps", None),
    )
    held = gpu(memory=memory(3 * GIB), processes=Value(processes))
    (found,) = judge_memory(node(held), None, JOB, LIMITS)
    assert found.observed == "3072 MiB used, by pid 4242 (python train.py) 3072 MiB, pid 77"
    (found,) = judge_memory(node(gpu(memory=memory(3 * GIB))), None, JOB, LIMITS)
    assert found.observed == "3072 MiB used, by no process that NVML knows"
    (found,) = judge_memory(node(gpu(memory=memory(3 * GIB), processes=NO_PERMISSION)), None, JOB, LIMITS)
    assert "not known (Insufficient Permissions)" in found.observed


@pytest.mark.parametrize(
    ("processes", "before", "status"),
    [
        ((), (), HEALTHY),
        ((GpuProcess(10, "compute", GIB, "python train.py"),), (), HEALTHY),
        ((GpuProcess(11, "compute", GIB, "python other.py"),), (), DEGRADED),
        ((GpuProcess(11, "compute", GIB),), (), HEALTHY),
        ((GpuProcess(11, "mps", 0, "mps-server"),), (GpuProcess(11, "mps", 0, "mps-server"),), HEALTHY),
        ((GpuProcess(11, "compute", 0, "python"),), (GpuProcess(11, "mps", 0, "mps-server"),), DEGRADED),
    ],
)
def test_a_process_of_others_is_noticed_only_if_it_is_there_and_new(
    processes: tuple[GpuProcess, ...], before: tuple[GpuProcess, ...], status: Status
) -> None:
    """Process ids of another namespace, and those of the dead, cannot be compared."""
    baseline = node(gpu(processes=Value(before)))
    job = JobGpus("n0", own_pids=frozenset({10}))
    assert statuses(judge_processes(node(gpu(processes=Value(processes))), baseline, job)) == [status]

"""Judges the memory of GPUs: ECC errors, repairs of rows and pages, and what is still held of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.healthchecks.gpu_findings import (
    Finding,
    JobGpus,
    KnownGpu,
    growth,
    healthy,
    is_vgpu,
    judge_each,
    lacking,
    samples_of,
    skipped,
    within,
)
from ftrun.healthchecks.reading import Missing, Reading, Value, value_of
from ftrun.healthchecks.result import Result, Status
from ftrun.healthchecks.snapshots import Gpu, GpuProcess, Memory, NvmlSnapshot

_MIB = 1 << 20
_NO_RECOVERY = (0, 3)
"""Recovery actions (field 230) that leave the GPU in use: none, drain P2P."""


@dataclass(frozen=True, slots=True)
class GpuMemoryLimits:
    """Thresholds of the judges in this module."""

    max_corrected_per_s: float = 10_000.0
    """Corrected ECC errors per second. At 17,700 a GPU made its monitor stall for 45 s (NVIDIA/DCGM#313)."""
    max_corrected: int = 50_000_000
    """Corrected ECC errors since the job began (facebookresearch/gcm)."""
    corrected_window_s: float = 60.0
    max_uncorrectable_rows: int = 512
    """Rows remapped for uncorrectable errors; DCGM warns from here on."""
    max_retired_pages: int = 63
    """Before Ampere, of both causes; DCGM fails from here on, and the board has room for 64."""
    max_double_bit_pages: int = 15
    """Before Ampere; with more of them each further one is a failure (DCGM)."""
    held_tolerance_bytes: int = 512 * _MIB
    """Memory above what was used before the job's first workers; nvidia-resiliency-ext's tolerance."""
    reserved_allowance_bytes: int = 1024 * _MIB
    """What the driver keeps for itself at most (0.3 to 1 GiB seen), where it counts as used."""


def judge_ecc(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.ecc": uncorrectable errors since the job began.

    The driver contains them and remaps the row, so they are a warning, unless the remapping failed or the
    driver asks for a reset. The aggregate of the board's life is only told: it never goes down.
    """
    return judge_each("gpu.ecc", now, baseline, job, _find_ecc)


def _find_ecc(known: KnownGpu) -> Finding:
    gpu, before = known.gpu, known.before
    obstacle = _no_ecc(gpu)
    if obstacle is not None:
        return obstacle
    count = gpu.ecc_uncorrected_volatile
    if isinstance(count, Missing):
        return lacking(count)
    old = value_of(before.ecc_uncorrected_volatile) if before is not None else None
    new = growth(count.value, old) if old is not None else 0
    aggregate = value_of(gpu.ecc_uncorrected_aggregate)
    life = "" if aggregate is None else f", {aggregate} in the board's life"
    observed = (
        f"{new} uncorrectable errors since the job began, {count.value} since the driver was loaded{life}"
    )
    if new == 0:
        is_old = count.value > 0
        return Finding(
            Status.DEGRADED if is_old and old is None else Status.HEALTHY, observed, is_persistent=is_old
        )
    rows = value_of(gpu.remapped_rows)
    action = value_of(gpu.recovery_action)
    if (rows is not None and rows.has_failed) or (action is not None and action not in _NO_RECOVERY):
        observed += ", and the driver could not repair it by itself"
        return Finding(Status.UNHEALTHY, observed, "no uncorrectable errors", "reset the GPU")
    return Finding(Status.DEGRADED, observed, "no uncorrectable errors", "reset the GPU when it is idle")


def _no_ecc(gpu: Gpu) -> Finding | None:
    """Why nothing can be said of ECC errors; None if something can."""
    if is_vgpu(gpu):
        return skipped("a vGPU does not see the board's ECC errors")
    if isinstance(gpu.ecc, Value) and not gpu.ecc.value.is_on:
        return skipped("ECC is off")
    return None


def judge_corrected_ecc(
    history: Sequence[NvmlSnapshot], baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuMemoryLimits
) -> tuple[Result, ...]:
    """ "gpu.ecc_corrected": a storm of corrected errors slows the GPU and whoever reads its counters.

    Args:
        history: readings of this job, oldest first; the last one is judged.
        baseline: the reading of the job's begin.
        job: whose GPUs these are.
        limits: thresholds.
    """
    recent = within(history, limits.corrected_window_s)
    return judge_each(
        "gpu.ecc_corrected", history[-1], baseline, job, lambda known: _find_corrected(known, recent, limits)
    )


def _find_corrected(known: KnownGpu, recent: Sequence[NvmlSnapshot], limits: GpuMemoryLimits) -> Finding:
    count = known.gpu.ecc_corrected_volatile
    obstacle = _no_ecc(known.gpu)
    if obstacle is not None:
        return obstacle
    if isinstance(count, Missing):
        return lacking(count)
    old = value_of(known.before.ecc_corrected_volatile) if known.before is not None else None
    total = growth(count.value, old) if old is not None else 0
    samples = [
        (at, value)
        for at, gpu in samples_of(known, recent)
        if (value := value_of(gpu.ecc_corrected_volatile)) is not None
    ]
    rate = 0.0
    if len(samples) > 1:
        # Over the whole window even if the readings are closer: a burst between two of them is no storm.
        duration_s = max(samples[-1][0] - samples[0][0], limits.corrected_window_s)
        rate = growth(samples[-1][1], samples[0][1]) / duration_s
    observed = f"{total} corrected errors since the job began, {rate:.1f} per second"
    if rate <= limits.max_corrected_per_s and total <= limits.max_corrected:
        return healthy(observed)
    expected = f"at most {limits.max_corrected} errors and {limits.max_corrected_per_s:g} per second"
    return Finding(Status.DEGRADED, observed, expected, "reset the GPU when it is idle")


def judge_sram(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.sram": whether uncorrectable SRAM errors have passed the driver's own threshold."""
    return judge_each("gpu.sram", now, baseline, job, _find_sram)


def _find_sram(known: KnownGpu) -> Finding:
    reading = known.gpu.is_sram_threshold_exceeded
    if isinstance(reading, Missing):
        return lacking(reading)
    if not reading.value:
        return healthy("SRAM error threshold not exceeded")
    is_persistent = known.before is not None and known.before.is_sram_threshold_exceeded == reading
    return Finding(
        Status.UNHEALTHY,
        "SRAM error threshold exceeded",
        "not exceeded",
        "have the board replaced",
        is_persistent,
    )


def judge_row_remap(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuMemoryLimits
) -> tuple[Result, ...]:
    """ "gpu.row_remap": a failed remapping condemns; a pending one only waits for the next reset."""
    return judge_each("gpu.row_remap", now, baseline, job, lambda known: _find_row_remap(known, limits))


def _find_row_remap(known: KnownGpu, limits: GpuMemoryLimits) -> Finding:
    reading = known.gpu.remapped_rows
    if isinstance(reading, Missing):
        return lacking(reading)
    rows = reading.value
    before = value_of(known.before.remapped_rows) if known.before is not None else None
    counts = (
        f"{rows.correctable} rows remapped for correctable and {rows.uncorrectable} for uncorrectable errors"
    )
    if rows.has_failed:
        was_so = before is not None and before.has_failed
        observed = f"a row could not be remapped; {counts}"
        return Finding(Status.UNHEALTHY, observed, "no failed remapping", "have the board replaced", was_so)
    if rows.is_pending:
        was_so = before is not None and before.is_pending
        observed = f"a remapping is pending; {counts}"
        return Finding(
            Status.DEGRADED, observed, "no pending remapping", "reset the GPU when it is idle", was_so
        )
    if rows.uncorrectable >= limits.max_uncorrectable_rows:
        was_so = before is not None and before.uncorrectable >= limits.max_uncorrectable_rows
        expected = f"fewer than {limits.max_uncorrectable_rows} for uncorrectable errors"
        return Finding(Status.DEGRADED, counts, expected, "have the board checked", was_so)
    return healthy(counts)


def judge_retired_pages(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuMemoryLimits
) -> tuple[Result, ...]:
    """ "gpu.retired_pages": what row remapping is to newer GPUs (before Ampere)."""
    return judge_each(
        "gpu.retired_pages", now, baseline, job, lambda known: _find_retired_pages(known, limits)
    )


def _find_retired_pages(known: KnownGpu, limits: GpuMemoryLimits) -> Finding:
    reading = known.gpu.retired_pages
    if isinstance(reading, Missing):
        return lacking(reading)
    pages = reading.value
    before = value_of(known.before.retired_pages) if known.before is not None else None
    total = pages.single_bit + pages.double_bit
    observed = f"{pages.single_bit} pages retired for single-bit and {pages.double_bit} for double-bit errors"
    is_more = before is None or total > before.single_bit + before.double_bit
    has_new_double = before is not None and pages.double_bit > before.double_bit
    is_bad = total >= limits.max_retired_pages
    if (is_bad and is_more) or (has_new_double and pages.double_bit > limits.max_double_bit_pages):
        expected = (
            f"fewer than {limits.max_retired_pages}, and no new one beyond {limits.max_double_bit_pages}"
        )
        return Finding(Status.UNHEALTHY, observed, expected, "have the board replaced")
    if is_bad:
        expected = f"fewer than {limits.max_retired_pages}"
        return Finding(Status.DEGRADED, observed, expected, "have the board replaced", is_persistent=True)
    if pages.is_pending:
        was_so = before is not None and before.is_pending
        return Finding(
            Status.DEGRADED,
            f"{observed}, more pending",
            "none pending",
            "reset the GPU when it is idle",
            was_so,
        )
    return healthy(observed)


def judge_repair(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.repair": memory that cannot be repaired, and repairs that wait for a reset (newest drivers)."""
    return judge_each("gpu.repair", now, baseline, job, _find_repair)


def _find_repair(known: KnownGpu) -> Finding:
    flag, repair = known.gpu.is_memory_unrepairable, known.gpu.repair_pending
    if value_of(flag):
        was_so = known.before is not None and known.before.is_memory_unrepairable == flag
        return Finding(
            Status.UNHEALTHY, "memory cannot be repaired", "it can", "have the board replaced", was_so
        )
    pending = value_of(repair)
    if pending is not None and (pending.channel or pending.tpc):
        was_so = known.before is not None and known.before.repair_pending == repair
        what = " and ".join(name for name in ("channel", "tpc") if getattr(pending, name))
        return Finding(
            Status.DEGRADED, f"{what} repair is pending", "none", "reset the GPU when it is idle", was_so
        )
    missing = [reading for reading in (flag, repair) if isinstance(reading, Missing)]
    return _most_telling(missing) if missing else healthy("no repair is pending")


def _most_telling(missing: Sequence[Missing]) -> Finding:
    findings = [lacking(reading) for reading in missing]
    return next((finding for finding in findings if finding.status is Status.UNKNOWN), findings[0])


def judge_memory(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuMemoryLimits
) -> tuple[Result, ...]:
    """ "gpu.memory": whether ended workers have given their memory back.

    Means something only while the job has no process on its GPUs. What was used in the baseline, read before
    the first workers started, belongs to others (display, MPS, monitoring). Memory is compared rather than
    processes, since NVML's process ids may be of another namespace. Of a memory that cannot be read nobody
    says that it is free.
    """
    return judge_each("gpu.memory", now, baseline, job, lambda known: _find_memory(known, limits))


def _find_memory(known: KnownGpu, limits: GpuMemoryLimits) -> Finding:
    reading = known.gpu.memory
    if isinstance(reading, Missing):
        return lacking(reading)
    memory = reading.value
    before = value_of(known.before.memory) if known.before is not None else None
    allowed = allowed_bytes(memory, before, limits)
    observed = f"{memory.used_bytes // _MIB} MiB used"
    if memory.used_bytes <= allowed:
        return healthy(observed)
    holders = _holders(known.gpu.processes)
    return Finding(
        Status.DEGRADED,
        f"{observed}, {holders}",
        f"at most {allowed // _MIB} MiB before workers start",
        "end what holds it; if nothing does, reset the GPU",
    )


def allowed_bytes(memory: Memory, before: Memory | None, limits: GpuMemoryLimits) -> int:
    """The most that may be in use while the job has no process on a GPU; `before` it has had any."""
    if before is not None:
        return before.used_bytes + limits.held_tolerance_bytes
    reserved_bytes = limits.reserved_allowance_bytes if memory.reserved_bytes is None else 0
    return reserved_bytes + limits.held_tolerance_bytes


def _holders(processes: Reading[tuple[GpuProcess, ...]]) -> str:
    if isinstance(processes, Missing):
        return f"by whom is not known ({processes})"
    names = [_name_of(process) for process in processes.value]
    return f"by {', '.join(names)}" if names else "by no process that NVML knows"


def _name_of(process: GpuProcess) -> str:
    command = f" ({process.command})" if process.command else ""
    held = "" if process.used_bytes is None else f" {process.used_bytes // _MIB} MiB"
    return f"pid {process.pid}{command}{held}"


def judge_processes(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.processes": processes that are neither the job's nor were there when it began.

    Only those that are visible here count: the others are dead, or of another pid namespace, in which no
    number can be compared with `job.own_pids`.
    """
    return judge_each("gpu.processes", now, baseline, job, lambda known: _find_processes(known, job))


def _find_processes(known: KnownGpu, job: JobGpus) -> Finding:
    reading = known.gpu.processes
    if isinstance(reading, Missing):
        return lacking(reading)
    before = value_of(known.before.processes) if known.before is not None else None
    pids_before = {(process.pid, process.command) for process in before or ()}
    others = [process for process in reading.value if process.command and process.pid not in job.own_pids]
    foreign = [process for process in others if (process.pid, process.command) not in pids_before]
    if foreign:
        observed = ", ".join(_name_of(process) for process in foreign)
        return Finding(Status.DEGRADED, observed, "only this job's processes", "end them, or move this job")
    old = f", {len(others)} of others that were there before" if others else ""
    return healthy(f"{len(reading.value)} processes{old}")

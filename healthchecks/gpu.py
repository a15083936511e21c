"""Judges whether the driver answers and the GPUs are there, usable and set as the job found them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from ftrun.healthchecks.gpu_findings import (
    Finding,
    JobGpus,
    KnownGpu,
    healthy,
    judge_each,
    known_gpus,
    lacking,
    result_of,
    skipped,
)
from ftrun.healthchecks.reading import Lack, Missing, Reading, Value, value_of
from ftrun.healthchecks.result import Result, Status, Subject, as_warning
from ftrun.healthchecks.snapshots import Gpu, NvmlSnapshot

_LIBRARY_MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH."""
_DEAD_BUS = 0xFFFF
"""What a PCI device reads as that answers no more."""
_PROHIBITED, _EXCLUSIVE_PROCESS = 2, 3
"""nvmlComputeMode_t."""
_ANSWERS = "an NVIDIA driver that answers"

_RECOVERY = {
    0: (Status.HEALTHY, "none", ""),
    1: (Status.UNHEALTHY, "GPU reset", "reset the GPU: nvidia-smi --gpu-reset"),
    2: (Status.UNHEALTHY, "node reboot", "reboot the node"),
    # Peers can be drained and the GPU goes on computing: DCGM warns, too.
    3: (Status.DEGRADED, "drain P2P", "stop peer-to-peer traffic of the GPU and reset it when it is idle"),
    4: (Status.UNHEALTHY, "drain and reset", "take new work off the GPU and reset it"),
    5: (Status.UNHEALTHY, "recover the IMEX domain", "recover the IMEX domain of the NVLink fabric"),
    6: (Status.UNHEALTHY, "bus reset", "reset the GPU's PCI bus"),
    7: (Status.UNHEALTHY, "system reboot", "reboot the node"),
}
"""nvmlDeviceGpuRecoveryAction_t as nvml.h has it: what is recommended, and what that makes of the GPU."""


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Thresholds of the judges in this module."""

    expected_count: int | None = None
    """GPUs of the node; None: as many as in the baseline."""
    max_hangs: int = 2
    """Readings without an answer, this one included, that make the node unhealthy. NVSentinel waits for three
    polls, gpud for two check intervals."""


def judge_driver(
    now: NvmlSnapshot,
    baseline: NvmlSnapshot | None,
    job: JobGpus,
    limits: GpuLimits,
    earlier_hangs: int = 0,
) -> tuple[Result, ...]:
    """ "gpu.driver": whether NVML could be initialised and answered in time (one result, the node's).

    Args:
        now: a snapshot; `failed_snapshot` if the probe gave none.
        baseline: the snapshot of the job's begin.
        job: tells whether GPUs are needed at all.
        limits: thresholds.
        earlier_hangs: readings of this job before this one that had no answer.
    """
    if isinstance(now.init, Value):
        finding = healthy(f"driver {_shown(now.driver_version)}")
    elif now.init.lack is Lack.TIMEOUT:
        finding = _hung(now.init, earlier_hangs + 1, limits)
    elif job.uuids or limits.expected_count or (baseline is not None and baseline.gpus):
        finding = _failed_init(now, now.init, is_needed=True)
    elif now.init.lack is Lack.NOT_FOUND:
        finding = skipped(f"no NVIDIA driver here: {now.init}")
    else:
        finding = _failed_init(now, now.init, is_needed=False)
    result = result_of("gpu.driver", Subject("node", job.node), finding)
    return (as_warning(result, "this job uses no GPU") if job.uuids == frozenset() else result,)


def _hung(why: Missing, hangs: int, limits: GpuLimits) -> Finding:
    status = Status.UNHEALTHY if hangs >= limits.max_hangs else Status.UNKNOWN
    observed = f"{why} ({hangs} of {limits.max_hangs} times)"
    return Finding(status, observed, _ANSWERS, "reboot the node if the driver hangs again")


def _failed_init(now: NvmlSnapshot, why: Missing, is_needed: bool) -> Finding:
    if why.code == _LIBRARY_MISMATCH:
        remedy = "reload the driver or reboot; in a container, restart it with the libraries of this driver"
        return Finding(Status.UNHEALTHY, str(why), "library and kernel module of one version", remedy)
    if isinstance(now.device_files, Missing) and now.device_files.lack is Lack.NO_PERMISSION:
        # After a `systemctl daemon-reload` a container's cgroup may have lost its devices: NVML says 999.
        remedy = "restart the container: it has lost access to the devices; the GPUs are not to blame"
        return Finding(Status.UNHEALTHY, f"{why}; {now.device_files}", "/dev/nvidia* can be opened", remedy)
    if not is_needed:
        return lacking(why)
    # An error without a number of NVML's is the checker's: a child that did not start, or not in time.
    is_own = why.lack is Lack.ERROR and why.code is None
    is_untold = is_own or why.lack in (Lack.NO_PERMISSION, Lack.NOT_READ)
    status = Status.UNKNOWN if is_untold else Status.UNHEALTHY
    return Finding(
        status, str(why), _ANSWERS, "see the NVRM lines of the kernel log; reload the driver or reboot"
    )


def judge_count(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuLimits
) -> tuple[Result, ...]:
    """ "gpu.count": whether all GPUs of the node are there (one result, the node's).

    A GPU that is missing condemns the node if a number is configured or one of the job's may be missing.
    """
    if isinstance(now.init, Missing):
        return ()
    finding = _counted(now, baseline, job, limits)
    return (result_of("gpu.count", Subject("node", job.node), finding),)


def _counted(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuLimits) -> Finding:
    if isinstance(now.device_count, Missing):
        return lacking(now.device_count)
    count = now.device_count.value
    learned = len(baseline.gpus) if baseline is not None else None
    expected = limits.expected_count or learned
    if expected is None:
        return skipped(f"{count} GPUs; no number is expected")
    if count >= expected:
        return healthy(f"{count} GPUs")
    has_all = job.uuids is not None and not _gone(now, baseline, job)
    is_needed = limits.expected_count is not None or not has_all
    return Finding(
        Status.UNHEALTHY if is_needed else Status.DEGRADED,
        f"{count} GPUs",
        f"{expected} GPUs",
        "look for Xid 79 and PCIe errors in the kernel log; reboot the node",
        is_persistent=learned == count,
    )


def _gone(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> list[str]:
    """UUIDs of the job that no GPU of the snapshot has, unless one that cannot say its UUID may have it."""
    known = known_gpus(now, baseline, job)
    if any(not gpu.uuid for gpu in known):
        return []
    there = {name for gpu in known for name in gpu.names}
    wanted = job.uuids
    if wanted is None:
        wanted = frozenset(u for gpu in (baseline.gpus if baseline else ()) if (u := value_of(gpu.uuid)))
    return sorted(wanted - there)


def judge_lost(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.lost": whether each GPU answers; any single reading that says it is lost decides.

    The count of devices still includes a lost GPU, and calls that need no hardware still succeed.
    """
    if isinstance(now.init, Missing):
        return ()
    gone = [
        result_of("gpu.lost", Subject("gpu", uuid), _lost("no GPU of this node has this UUID", False))
        for uuid in _gone(now, baseline, job)
    ]
    return (*judge_each("gpu.lost", now, baseline, job, _find_lost), *gone)


def _find_lost(known: KnownGpu) -> Finding:
    why = _first(known.gpu, Lack.GPU_LOST)
    if why is not None:
        return _lost(str(why), _had(known.before, Lack.GPU_LOST))
    if known.gpu.pci_vendor == Value(_DEAD_BUS):
        observed = "its PCI configuration space reads as all ones"
        return _lost(observed, known.before is not None and known.before.pci_vendor == Value(_DEAD_BUS))
    if isinstance(known.gpu.handle, Missing):
        return lacking(known.gpu.handle)
    return healthy("answers")


def _lost(observed: str, is_persistent: bool) -> Finding:
    remedy = "reboot the node; if it happens again, have the GPU, its slot and its power checked"
    return Finding(Status.UNHEALTHY, observed, "a GPU that answers", remedy, is_persistent)


def judge_reset_required(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus
) -> tuple[Result, ...]:
    """ "gpu.reset": whether some reading said that the GPU must be reset before it can be used."""
    return judge_each("gpu.reset", now, baseline, job, _find_reset_required)


def _find_reset_required(known: KnownGpu) -> Finding:
    why = _first(known.gpu, Lack.RESET_REQUIRED)
    if why is not None:
        remedy = "reset the GPU: nvidia-smi --gpu-reset"
        is_persistent = _had(known.before, Lack.RESET_REQUIRED)
        return Finding(Status.UNHEALTHY, str(why), "no reset is required", remedy, is_persistent)
    if isinstance(known.gpu.handle, Missing):
        return lacking(known.gpu.handle)
    return healthy("no reset is required")


def _first(gpu: Gpu, lack: Lack) -> Missing | None:
    """The first reading of the GPU, its links included, that is missing for that reason."""
    return next((r for r in _readings(gpu) if isinstance(r, Missing) and r.lack is lack), None)


def _had(gpu: Gpu | None, lack: Lack) -> bool:
    return gpu is not None and _first(gpu, lack) is not None


def _readings(gpu: Gpu) -> Iterator[object]:
    yield from (getattr(gpu, field.name) for field in fields(gpu))
    for link in value_of(gpu.nvlinks) or ():
        yield from (getattr(link, field.name) for field in fields(link))


def judge_recovery(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.recovery": what the driver recommends to do about the GPU (field 230, driver 570 and later).

    Older drivers do not have it: skipped, while the other checks of the GPU go on.
    """
    return judge_each("gpu.recovery", now, baseline, job, _find_recovery)


def _find_recovery(known: KnownGpu) -> Finding:
    reading = known.gpu.recovery_action
    if isinstance(reading, Missing):
        return lacking(reading)
    unheard_of = (
        Status.UNKNOWN,
        f"action {reading.value}, which this version does not know",
        "ask nvidia-smi -q",
    )
    status, observed, remedy = _RECOVERY.get(reading.value, unheard_of)
    if status is Status.HEALTHY:
        return healthy(f"recommended action: {observed}")
    is_persistent = known.before is not None and known.before.recovery_action == reading
    return Finding(
        status, f"recommended action: {observed}", "recommended action: none", remedy, is_persistent
    )


def judge_compute_mode(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.compute_mode": whether the job's processes may use the GPU."""
    return judge_each("gpu.compute_mode", now, baseline, job, lambda known: _find_compute_mode(known, job))


def _find_compute_mode(known: KnownGpu, job: JobGpus) -> Finding:
    mode = known.gpu.compute_mode
    if isinstance(mode, Missing):
        return lacking(mode)
    remedy = "set it to default: nvidia-smi --compute-mode 0"
    is_persistent = known.before is not None and known.before.compute_mode == mode
    if mode.value == _PROHIBITED:
        return Finding(Status.UNHEALTHY, "compute mode prohibited", "default", remedy, is_persistent)
    if mode.value == _EXCLUSIVE_PROCESS and job.ranks_per_gpu > 1:
        observed = f"compute mode exclusive process, with {job.ranks_per_gpu} ranks on the GPU"
        return Finding(Status.UNHEALTHY, observed, "default", remedy, is_persistent)
    return healthy(f"compute mode {mode.value}")


def judge_mig(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.mig": whether MIG is as it was when the job began, and stays so after the next reset."""
    return judge_each("gpu.mig", now, baseline, job, _find_mig)


def _find_mig(known: KnownGpu) -> Finding:
    mode = known.gpu.mig
    if isinstance(mode, Missing):
        return lacking(mode)
    before = value_of(known.before.mig) if known.before is not None else None
    if before is not None and before.is_on != mode.value.is_on:
        observed, expected = f"MIG is {_on(mode.value.is_on)}", f"{_on(before.is_on)}, as when the job began"
        return Finding(
            Status.DEGRADED, observed, expected, "start the job anew with this layout or set it back"
        )
    if mode.value.is_on_pending != mode.value.is_on:
        pending = _on(mode.value.is_on_pending)
        observed = f"MIG is {_on(mode.value.is_on)} and will be {pending} after the next reset"
        return Finding(Status.DEGRADED, observed, "no change is pending", "", before == mode.value)
    return healthy(f"MIG is {_on(mode.value.is_on)}")


def judge_persistence(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.persistence": tells whether the driver stays loaded between processes; never a fault."""
    return judge_each("gpu.persistence", now, baseline, job, _find_persistence)


def _find_persistence(known: KnownGpu) -> Finding:
    is_on = known.gpu.is_persistent
    if isinstance(is_on, Missing):
        return lacking(is_on)
    if is_on.value:
        return healthy("persistence mode is on")
    return Finding(
        Status.HEALTHY,
        "persistence mode is off: the first process to use an idle GPU waits for its initialisation",
        remedy="start nvidia-persistenced",
    )


def judge_inforom(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.inforom": whether the board's configuration memory is intact."""
    return judge_each("gpu.inforom", now, baseline, job, _find_inforom)


def _find_inforom(known: KnownGpu) -> Finding:
    is_valid = known.gpu.inforom_valid
    if isinstance(is_valid, Missing):
        # Reading it takes up to 100 ms, so it is not part of every snapshot.
        return skipped("not read this time") if is_valid.lack is Lack.NOT_READ else lacking(is_valid)
    if is_valid.value:
        return healthy("infoROM is valid")
    is_persistent = known.before is not None and known.before.inforom_valid == is_valid
    return Finding(
        Status.DEGRADED, "infoROM is corrupt", "a valid infoROM", "have the board checked", is_persistent
    )


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _shown(reading: Reading[str]) -> str:
    return reading.value if isinstance(reading, Value) else "of unknown version"

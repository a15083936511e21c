"""What ended workers have not given back of the GPUs' memory, and who holds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.healthchecks.gpu_findings import JobGpus, KnownGpu, known_gpus
from ftrun.healthchecks.gpu_memory import GpuMemoryLimits, allowed_bytes
from ftrun.healthchecks.reading import SKIPPING, Lack, Missing, value_of
from ftrun.healthchecks.snapshots import Gpu, GpuProcess, NvmlSnapshot

_MIB = 1 << 20
_HOPELESS = {Lack.GPU_LOST, Lack.RESET_REQUIRED}
"""Of such a GPU no wait will tell more. Whether it can be used at all is the question of its own checks."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """A GPU of the job whose memory is not free although no worker is alive."""

    uuid: str
    index: int
    used_bytes: int
    allowed_bytes: int
    """What was used before the first workers started, and the tolerance."""
    processes: tuple[GpuProcess, ...]
    """Those that were not there then; empty if NVML names none."""

    def __str__(self) -> str:
        """As a person reads it: "gpu 3: 1024 of 512 MiB, by pid 17 (python train.py)"."""
        names = [f"pid {p.pid} ({p.command})" if p.command else f"pid {p.pid}" for p in self.processes]
        held = f"gpu {self.index}: {self.used_bytes // _MIB} MiB used, {self.allowed_bytes // _MIB} allowed"
        return f"{held}, by {', '.join(names) or 'no process that NVML knows'}"


def find_held(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: GpuMemoryLimits
) -> tuple[HeldMemory, ...] | Missing:
    """GPUs of the job with more memory in use than before its first workers started.

    If there is none, but the memory of one of them cannot be read, the reason for that: nobody says that it
    is free. A device that does not count its memory (unified memory, MIG) is left out, and so is a lost one.

    Args:
        now: with the memory of each GPU and its processes.
        baseline: from before the first workers; None if there is none.
        job: whose GPUs these are.
        limits: tolerances.
    """
    if isinstance(now.init, Missing):
        return now.init
    held: list[HeldMemory] = []
    unread: Missing | None = None
    for known in known_gpus(now, baseline, job):
        if not known.is_of_job:
            continue
        if isinstance(known.gpu.memory, Missing):
            unread = unread if _is_out_of_question(known.gpu, known.gpu.memory) else known.gpu.memory
            continue
        before = value_of(known.before.memory) if known.before is not None else None
        used, allowed = (
            known.gpu.memory.value.used_bytes,
            allowed_bytes(known.gpu.memory.value, before, limits),
        )
        if used > allowed:
            held.append(HeldMemory(known.uuid, known.gpu.index, used, allowed, _newcomers(known)))
    return tuple(held) if held or unread is None else unread


def _is_out_of_question(gpu: Gpu, why: Missing) -> bool:
    """It does not count its memory, or is lost."""
    lacks = {one.lack for one in (gpu.handle, gpu.uuid, gpu.pci_address, why) if isinstance(one, Missing)}
    return why.lack in SKIPPING or bool(lacks & _HOPELESS)


def _newcomers(known: KnownGpu) -> tuple[GpuProcess, ...]:
    before = value_of(known.before.processes) if known.before is not None else None
    pids = {(process.pid, process.command) for process in before or ()}
    return tuple(p for p in value_of(known.gpu.processes) or () if (p.pid, p.command) not in pids)

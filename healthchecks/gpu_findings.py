"""What all judges of GPUs share: which GPUs are the job's, and how a finding becomes a result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ftrun.healthchecks.reading import SKIPPING, Missing, Value, value_of
from ftrun.healthchecks.result import Result, Status, Subject, SubjectKind, as_warning, nameless
from ftrun.healthchecks.snapshots import Gpu, NvmlSnapshot, gpu_by_index, gpu_by_uuid

NOT_OF_THE_JOB = "not a GPU of this job"
VGPU = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: ECC, NVLink and PCIe are what the hypervisor makes up."""
PASSTHROUGH = 1
"""NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: the PCIe link that the guest sees is the hypervisor's."""


@dataclass(frozen=True, slots=True)
class JobGpus:
    """What the job has of this node."""

    node: str
    """Host name, the subject of what concerns all GPUs."""
    uuids: frozenset[str] | None = None
    """UUIDs of the job's GPUs or MIG devices; None if it has all of the node, or that is not known. Others
    give warnings at most."""
    own_pids: frozenset[int] = frozenset()
    """Processes that may use the job's GPUs: workers, standbys and their children."""
    ranks_per_gpu: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """A result without its subject."""

    status: Status
    observed: str
    expected: str = ""
    remedy: str = ""
    is_persistent: bool = False


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU with who it is and what it was when the job began."""

    gpu: Gpu
    uuid: str
    """From the baseline where the GPU cannot say it any more; "" if nobody knows."""
    is_of_job: bool
    before: Gpu | None
    """The same GPU in the baseline; None if there is no baseline or it was not there."""
    names: frozenset[str] = frozenset()
    """UUIDs by which the job may list it: its own and those of its MIG devices, also if it is lost by now."""

    def subject(self, kind: SubjectKind = "gpu") -> Subject:
        """The GPU, or its links, as the subject of a result."""
        return Subject(kind, self.uuid or nameless(self.gpu.index), self.gpu.index)


def known_gpus(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[KnownGpu, ...]:
    """All GPUs of a snapshot, known by UUID.

    A GPU that cannot say its UUID any more is the one that had its index in the baseline, unless that one has
    moved to another index. One that nobody knows is the job's if one of the job's is missing.
    """
    found = [_recognise(gpu, now, baseline) for gpu in now.gpus]
    named = frozenset(name for known in found for name in known.names)
    is_one_missing = job.uuids is None or bool(job.uuids - named)
    return tuple(
        replace(known, is_of_job=_is_of_job(known, job) if known.uuid else is_one_missing) for known in found
    )


def _recognise(gpu: Gpu, now: NvmlSnapshot, baseline: NvmlSnapshot | None) -> KnownGpu:
    uuid = value_of(gpu.uuid) or _uuid_before(gpu, now, baseline)
    before = gpu_by_uuid(baseline, uuid) if baseline is not None and uuid else None
    listed = gpu.mig_devices
    if isinstance(listed, Missing) and before is not None:
        listed = before.mig_devices  # a lost GPU cannot list them any more, and is the job's all the same
    names = frozenset({uuid, *(device.uuid for device in value_of(listed) or ())})
    return KnownGpu(gpu, uuid, False, before, names)


def _uuid_before(gpu: Gpu, now: NvmlSnapshot, baseline: NvmlSnapshot | None) -> str:
    before = gpu_by_index(baseline, gpu.index) if baseline is not None else None
    uuid = value_of(before.uuid) if before is not None else None
    return uuid if uuid is not None and gpu_by_uuid(now, uuid) is None else ""


def _is_of_job(known: KnownGpu, job: JobGpus) -> bool:
    return job.uuids is None or bool(known.names & job.uuids)


def judge_each(
    check: str,
    now: NvmlSnapshot,
    baseline: NvmlSnapshot | None,
    job: JobGpus,
    find: Callable[[KnownGpu], Finding],
    kind: SubjectKind = "gpu",
) -> tuple[Result, ...]:
    """Results of a check that looks at one GPU at a time; what is not the job's gets a warning at most."""
    return tuple(_judged(check, known, find(known), kind) for known in known_gpus(now, baseline, job))


def _judged(check: str, known: KnownGpu, finding: Finding, kind: SubjectKind) -> Result:
    result = result_of(check, known.subject(kind), finding)
    return result if known.is_of_job else as_warning(result, NOT_OF_THE_JOB)


def result_of(check: str, subject: Subject, finding: Finding) -> Result:
    """The finding about that subject."""
    return Result(
        check,
        finding.status,
        subject,
        finding.observed,
        finding.expected,
        finding.remedy,
        finding.is_persistent,
    )


def healthy(observed: str) -> Finding:
    """Nothing to complain of."""
    return Finding(Status.HEALTHY, observed)


def skipped(why: str) -> Finding:
    """The check does not apply."""
    return Finding(Status.SKIPPED, why)


def lacking(missing: Missing) -> Finding:
    """What a check says if it did not get its reading: skipped or unknown, never healthy."""
    status = Status.SKIPPED if missing.lack in SKIPPING else Status.UNKNOWN
    return Finding(status, str(missing), "a reading" if status is Status.UNKNOWN else "")


def is_mig_on(gpu: Gpu) -> bool:
    """MIG is on; False if that is not known."""
    mode = value_of(gpu.mig)
    return mode is not None and mode.is_on


def is_vgpu(gpu: Gpu) -> bool:
    """This is a virtual machine's share of a GPU."""
    return gpu.virtualization == Value(VGPU)


def growth(now: int, before: int) -> int:
    """How far a counter has risen. One that is lower than before was reset, and all of it has come since."""
    return now - before if now >= before else now


def within(history: Sequence[NvmlSnapshot], window_s: float) -> tuple[NvmlSnapshot, ...]:
    """Readings of the last `window_s` seconds, oldest first, and the last one before them.

    Args:
        history: oldest first; the last one is now.
        window_s: seconds.
    """
    if not history:
        return ()
    start = history[-1].taken_at - window_s
    first = max((i for i, snapshot in enumerate(history) if snapshot.taken_at <= start), default=0)
    return tuple(history[first:])


def samples_of(known: KnownGpu, history: Sequence[NvmlSnapshot]) -> Iterator[tuple[float, Gpu]]:
    """When and how that GPU was read, oldest first; readings that lack it are left out."""
    for snapshot in history:
        gpu = gpu_by_uuid(snapshot, known.uuid)
        if gpu is not None:
            yield snapshot.taken_at, gpu

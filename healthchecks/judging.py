"""Which judge gives the results of which checks: turns evidence into results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.healthchecks import fabric, gpu, gpu_memory, gpu_speed, host, nvlink, storage, xid_events
from ftrun.healthchecks.evidence import Evidence
from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.netdev import judge_interfaces
from ftrun.healthchecks.nic import judge_nics
from ftrun.healthchecks.nic_counters import judge_counters
from ftrun.healthchecks.pci import judge_nic_slots
from ftrun.healthchecks.registry import CHECKS, NAMES, Severity, Source
from ftrun.healthchecks.result import Result, Status, Subject, as_warning
from ftrun.healthchecks.snapshots import NvmlSnapshot

_Results: TypeAlias = Sequence[Result]
_OfGpus: TypeAlias = Callable[[NvmlSnapshot, NvmlSnapshot | None, JobGpus], _Results]
_ONLY_A_WARNING = "a warning at most"
_NOT_NEEDED = "the job can go on without it"


@dataclass(frozen=True, slots=True)
class Judge:
    """One judge."""

    source: Source
    """It needs a reading of this one."""
    checks: tuple[str, ...]
    """Names of the results that it gives."""
    judge: Callable[[Evidence], _Results]


def _gpus(check: str, judge: Callable[[Evidence], _Results]) -> Judge:
    return Judge(Source.GPU, (check,), judge)


def _each_gpu(check: str, judge: _OfGpus) -> Judge:
    """A judge that looks at the newest reading and at the baseline only."""
    return _gpus(check, lambda e: judge(e.gpu[-1], e.gpu_baseline, e.job))


def _network(checks: str, judge: Callable[[Evidence], _Results]) -> Judge:
    return Judge(Source.NETWORK, tuple(f"nic.{name}" for name in checks.split()), judge)


def _xids(e: Evidence) -> _Results:
    return xid_events.judge_xids(
        e.xids,
        e.gpu[-1],
        e.gpu_baseline,
        e.job,
        e.thresholds.xid,
        since=e.xids_since,
        has_kernel_log=e.has_kernel_log,
    )


def _row_remap(e: Evidence) -> _Results:
    return gpu_memory.judge_row_remap(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.gpu_memory)


def _retired_pages(e: Evidence) -> _Results:
    return gpu_memory.judge_retired_pages(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.gpu_memory)


def _memory(e: Evidence) -> _Results:
    return gpu_memory.judge_memory(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.gpu_memory)


def _corrected(e: Evidence) -> _Results:
    return gpu_memory.judge_corrected_ecc(e.gpu, e.gpu_baseline, e.job, e.thresholds.gpu_memory)


def _interfaces(e: Evidence) -> _Results:
    return judge_interfaces(
        e.network, e.network_baseline, e.affinity(), e.job_interfaces, e.thresholds.interface
    )


def _mounts(e: Evidence) -> _Results:
    starts = [path.baseline or path.recent[0] for path in e.paths if path.is_needed and path.recent]
    return storage.judge_mounts(e.host[-1], e.host_baseline, {s.directory for s in starts} - {""}, e.node)


def _paths(e: Evidence) -> _Results:
    results: list[Result] = []
    for path in (path for path in e.paths if path.is_fresh):
        found = storage.judge_path(path.recent, path.baseline, e.thresholds.storage)
        results += found if path.is_needed else (as_warning(result, _NOT_NEEDED) for result in found)
    return results


JUDGES: tuple[Judge, ...] = (
    _gpus(
        "gpu.driver",
        lambda e: gpu.judge_driver(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.gpu, e.earlier_hangs),
    ),
    _gpus("gpu.count", lambda e: gpu.judge_count(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.gpu)),
    _each_gpu("gpu.lost", gpu.judge_lost),
    _each_gpu("gpu.reset", gpu.judge_reset_required),
    _each_gpu("gpu.recovery", gpu.judge_recovery),
    _gpus("gpu.xid", _xids),
    _each_gpu("gpu.ecc", gpu_memory.judge_ecc),
    _gpus("gpu.ecc_corrected", _corrected),
    _each_gpu("gpu.sram", gpu_memory.judge_sram),
    _gpus("gpu.row_remap", _row_remap),
    _gpus("gpu.retired_pages", _retired_pages),
    _each_gpu("gpu.repair", gpu_memory.judge_repair),
    _gpus(
        "gpu.slowdown",
        lambda e: gpu_speed.judge_slowdown(e.gpu, e.gpu_baseline, e.job, e.thresholds.gpu_speed),
    ),
    _each_gpu("gpu.temperature", gpu_speed.judge_temperature),
    _each_gpu("gpu.pcie_width", gpu_speed.judge_pcie_width),
    _each_gpu("gpu.pcie_generation", gpu_speed.judge_pcie_generation),
    _gpus(
        "gpu.pcie_replay",
        lambda e: gpu_speed.judge_pcie_replays(e.gpu, e.gpu_baseline, e.job, e.thresholds.gpu_speed),
    ),
    _each_gpu("gpu.compute_mode", gpu.judge_compute_mode),
    _each_gpu("gpu.mig", gpu.judge_mig),
    _gpus("gpu.memory", _memory),
    _each_gpu("gpu.processes", gpu_memory.judge_processes),
    _each_gpu("gpu.persistence", gpu.judge_persistence),
    _each_gpu("gpu.inforom", gpu.judge_inforom),
    _each_gpu("gpu.fabric", fabric.judge_fabric),
    _each_gpu("gpu.p2p", fabric.judge_peers),
    _each_gpu("nvlink.state", nvlink.judge_links),
    _gpus(
        "nvlink.count",
        lambda e: nvlink.judge_link_count(e.gpu[-1], e.gpu_baseline, e.job, e.thresholds.nvlink),
    ),
    _gpus(
        "nvlink.errors", lambda e: nvlink.judge_link_errors(e.gpu, e.gpu_baseline, e.job, e.thresholds.nvlink)
    ),
    _network(
        "present count state rate gid verbs",
        lambda e: judge_nics(e.network, e.network_baseline, e.affinity(), e.node, e.thresholds.nic),
    ),
    _network("interface speed mtu bond flaps", _interfaces),
    _network("errors flaps", lambda e: judge_counters(e.network, e.affinity(), e.thresholds.counters)),
    _network("pcie", lambda e: judge_nic_slots(e.network[-1], e.network_baseline, e.affinity())),
    Judge(
        Source.HOST,
        tuple(check.name for check in CHECKS if check.group == "host"),
        lambda e: host.judge_host(e.host, e.host_baseline, e.node, e.uses_rdma, e.thresholds.host),
    ),
    Judge(Source.HOST, ("storage.mount", "storage.lustre"), _mounts),
    Judge(Source.PATH, ("storage.probe", "storage.space", "storage.inodes"), _paths),
)
"""All judges. The checks of `Source.EXTERNAL` judge themselves."""


def judge_all(evidence: Evidence, sources: Collection[Source], checks: Collection[str]) -> tuple[Result, ...]:
    """Results of these checks, as far as these sources have given a reading. In no particular order.

    A judge that fails is a mistake of ours and says nothing of the node: unknown.
    """
    results: list[Result] = []
    for judge in JUDGES:
        wanted = set(judge.checks) & set(checks)
        if judge.source in sources and wanted:
            try:
                found = judge.judge(evidence)
            except Exception as error:
                found = [_failed(check, evidence.node, error) for check in sorted(wanted)]
            results += (result for result in found if result.check in wanted)
    return tuple(results)


def _failed(check: str, node: str, error: Exception) -> Result:
    observed = f"the check failed: {type(error).__name__}: {error}"
    return Result(check, Status.UNKNOWN, Subject("node", node), observed, "a verdict", "report this mistake")


def without_echoes(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results without those that a lost GPU could not give: one fault is not twenty."""
    lost = {r.subject.name for r in results if r.check == "gpu.lost" and r.status is Status.UNHEALTHY}
    return tuple(r for r in results if r.status is not Status.UNKNOWN or r.subject.name not in lost)


def as_configured(results: Iterable[Result], severities: Mapping[str, Severity]) -> tuple[Result, ...]:
    """The results in the registry's order; off ones are left out, and those that only warn are milder."""
    kept = [result for result in results if severities[result.check] is not Severity.OFF]
    milder = (
        as_warning(result, _ONLY_A_WARNING) if severities[result.check] is Severity.WARN else result
        for result in kept
    )
    return tuple(sorted(milder, key=lambda result: _ORDER[result.check]))


_ORDER = {name: place for place, name in enumerate(NAMES)}

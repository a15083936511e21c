"""Judges what connects the GPUs of a node: the NVLink fabric and peer access. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftrun.healthchecks.gpu_findings import (
    Finding,
    JobGpus,
    KnownGpu,
    healthy,
    is_mig_on,
    judge_each,
    known_gpus,
    lacking,
    result_of,
    skipped,
)
from ftrun.healthchecks.nvlink import active_links
from ftrun.healthchecks.reading import Missing, Reading, Value
from ftrun.healthchecks.result import Result, Status, Subject
from ftrun.healthchecks.snapshots import Fabric, NvmlSnapshot

_NOT_SUPPORTED, _NOT_STARTED, _IN_PROGRESS, _COMPLETED = range(4)
"""nvmlGpuFabricState_t."""
_SUMMARY_UNHEALTHY, _SUMMARY_LIMITED = 2, 3
"""nvmlGpuFabricHealthSummary_t."""
_MASK_BITS = (
    (0, "bandwidth is degraded"),
    (2, "a route is being recovered"),
    (4, "a route is unhealthy"),
    (6, "access times out and is being recovered"),
)
"""Shift and meaning of two-bit fields of the health mask; 1 is yes, 0 not supported and 2 no."""
_MASK_CONFIGURATION_SHIFT, _MASK_CONFIGURATION_FINE = 8, (0, 1)
_P2P_OK = 0


def judge_fabric(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.fabric": whether the GPU has joined its NVLink fabric and the fabric serves it.

    What was already so when the job began is a warning, since the job has begun with it.
    """
    return judge_each("gpu.fabric", now, baseline, job, _find_fabric)


def _find_fabric(known: KnownGpu) -> Finding:
    reading = known.gpu.fabric
    if isinstance(reading, Missing):
        return lacking(reading)
    fabric = reading.value
    if fabric.state == _NOT_SUPPORTED:
        return skipped("this GPU has no fabric")
    if fabric.state == _IN_PROGRESS:
        remedy = "wait: it takes minutes after a boot"
        return Finding(Status.DEGRADED, "registration is in progress", "completed", remedy)
    faults = _fabric_faults(fabric)
    if faults:
        was_so = known.before is not None and known.before.fabric == reading
        status = Status.DEGRADED if was_so else Status.UNHEALTHY
        remedy = "look at the fabric manager (on NVL72: at the rack's NMX), then reset the GPU"
        return Finding(status, ", ".join(faults), "a fabric that is completed and healthy", remedy, was_so)
    if fabric.summary == _SUMMARY_LIMITED:
        return Finding(Status.DEGRADED, "capacity is limited", "full capacity", "look at the fabric manager")
    return healthy("completed")


def _fabric_faults(fabric: Fabric) -> list[str]:
    if fabric.state == _NOT_STARTED:
        return ["registration has not started"]
    if fabric.state != _COMPLETED:
        return [f"state {fabric.state} is not known"]
    faults = [] if fabric.status == 0 else [f"registration ended with NVML error {fabric.status}"]
    mask = fabric.health_mask or 0
    faults += [meaning for shift, meaning in _MASK_BITS if (mask >> shift & 3) == 1]
    configuration = (mask >> _MASK_CONFIGURATION_SHIFT) & 15
    if configuration not in _MASK_CONFIGURATION_FINE:
        faults.append(f"configuration is wrong ({configuration})")
    if fabric.summary == _SUMMARY_UNHEALTHY:
        faults.append("the fabric calls itself unhealthy")
    return faults


def judge_peers(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.p2p": whether the job's GPUs reach each other over NVLink (one result, the node's).

    Only when no pair does, while links are active: single pairs may have no link between them.
    """
    if isinstance(now.init, Missing):
        return ()
    return (result_of("gpu.p2p", Subject("node", job.node), _find_peers(now, baseline, job)),)


def _find_peers(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> Finding:
    gpus = [known for known in known_gpus(now, baseline, job) if known.is_of_job]
    pairs = _pairs(now, gpus)
    if not pairs:
        return skipped("no pair of the job's GPUs to look at")
    if any(is_mig_on(known.gpu) for known in gpus):
        return skipped("with MIG on there is no peer access")
    if not any(active_links(known.gpu) for known in gpus):
        return skipped("no NVLink is active")
    return _judge_pairs(pairs, baseline, gpus)


def _pairs(snapshot: NvmlSnapshot, gpus: Sequence[KnownGpu]) -> dict[tuple[int, int], Reading[int]]:
    indices = {known.gpu.index for known in gpus}
    return {
        (peers.index_a, peers.index_b): peers.status
        for peers in snapshot.peers
        if {peers.index_a, peers.index_b} <= indices
    }


def _judge_pairs(
    pairs: Mapping[tuple[int, int], Reading[int]], baseline: NvmlSnapshot | None, gpus: Sequence[KnownGpu]
) -> Finding:
    stayed = [known for known in gpus if known.before is not None and known.before.index == known.gpu.index]
    old = _pairs(baseline, stayed) if baseline is not None else {}
    reached = {pair for pair, status in pairs.items() if status == Value(_P2P_OK)}
    reached_before = {pair for pair, status in old.items() if status == Value(_P2P_OK)}
    missing = next((status for status in pairs.values() if isinstance(status, Missing)), None)
    observed, remedy = (
        f"{len(reached)} of {len(pairs)} pairs",
        "look at the fabric manager and the links",
    )
    if not reached and missing is not None:
        return lacking(missing)
    if not reached:
        was_so = bool(old) and not reached_before
        status = Status.DEGRADED if was_so else Status.UNHEALTHY
        return Finding(status, f"{observed} reach each other", "all pairs, over NVLink", remedy, was_so)
    lost = sorted(reached_before - reached)
    if lost and missing is None:
        names = ", ".join(f"{a}-{b}" for a, b in lost)
        observed = f"{observed} reach each other, not any more {names}"
        return Finding(Status.DEGRADED, observed, "as when the job began", remedy)
    return healthy(f"{observed} reach each other")

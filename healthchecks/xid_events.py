"""Judges GPUs by the Xids that they had since the job began. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftrun.healthchecks.gpu_findings import (
    NOT_OF_THE_JOB,
    Finding,
    JobGpus,
    KnownGpu,
    healthy,
    known_gpus,
    lacking,
    result_of,
)
from ftrun.healthchecks.reading import Value, value_of
from ftrun.healthchecks.result import Result, Status, Subject, as_warning
from ftrun.healthchecks.snapshots import NvmlSnapshot, XidEvent
from ftrun.healthchecks.xid import XidClass, XidEffect, classify

_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
"""How the driver marks an NVLink 5 error (144 to 150) that needs nothing done."""
_DOUBLE_BIT = 48
_CONTAINED = {63, 94}
"""With one of these after a double-bit error the row was remapped, or the error kept to some processes."""
_NOT_CONTAINED = {64, 95}


@dataclass(frozen=True, slots=True)
class XidLimits:
    """Thresholds of the judge in this module."""

    episode_s: float = 60.0
    """Events of one number and GPU that are closer than this are one: a fault writes many lines, and NVML and
    the kernel log both report it."""
    suspect_after: int = 2
    """Episodes of an error that a restart mends, after which the GPU is suspected."""
    node_after_links: int = 2
    """GPUs with a failed link that point to what connects them."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one Xid says of one GPU."""

    status: Status
    is_of_node: bool
    is_link: bool
    text: str
    remedy: str


def judge_xids(
    events: Sequence[XidEvent],
    now: NvmlSnapshot,
    baseline: NvmlSnapshot | None,
    job: JobGpus,
    limits: XidLimits,
    *,
    since: float,
    has_kernel_log: bool,
) -> tuple[Result, ...]:
    """ "gpu.xid": one result per GPU and one for the node.

    Args:
        events: of both sources, in any order; the caller leaves out those of a GPU that was reset since.
        now: tells which GPUs there are, and whether events are registered.
        baseline: the snapshot of the job's begin.
        job: whose GPUs these are.
        limits: thresholds.
        since: CLOCK_MONOTONIC, seconds; earlier events are older than the job.
        has_kernel_log: the kernel log was read, too.
    """
    known = known_gpus(now, baseline, job)
    by_gpu: dict[int, list[XidEvent]] = {gpu.gpu.index: [] for gpu in known}
    strangers: list[XidEvent] = []
    for event in sorted((e for e in events if e.seen_at >= since), key=lambda e: e.seen_at):
        index = next((gpu.gpu.index for gpu in known if _is_of(event, gpu)), None)
        (by_gpu[index] if index is not None else strangers).append(event)
    verdicts = {gpu.gpu.index: list(_verdicts(by_gpu[gpu.gpu.index], limits)) for gpu in known}
    silence = _silence(now, has_kernel_log)
    results = [_of_gpu(gpu, by_gpu[gpu.gpu.index], verdicts[gpu.gpu.index], silence, job) for gpu in known]
    vanished = [event for event in strangers if _is_of_vanished(event, baseline, job)]
    others = [event for event in strangers if event not in vanished]
    verdicts_of_none = (list(_verdicts(vanished, limits)), list(_verdicts(others, limits)))
    node = _of_node(known, verdicts, verdicts_of_none, limits, job)
    return (*results, node) if known or strangers else ()


def _is_of(event: XidEvent, known: KnownGpu) -> bool:
    if event.uuid:
        return event.uuid == known.uuid
    before = known.before.pci_address if known.before is not None else None
    return bool(event.pci_address) and Value(event.pci_address) in (known.gpu.pci_address, before)


def _is_of_vanished(event: XidEvent, baseline: NvmlSnapshot | None, job: JobGpus) -> bool:
    """The event is of a GPU of the job that NVML does not list any more."""
    if job.uuids is None:
        return True
    gpus = baseline.gpus if baseline is not None else ()
    at_address = {value_of(gpu.uuid) for gpu in gpus if gpu.pci_address == Value(event.pci_address)}
    return bool(job.uuids & ({event.uuid} | at_address))


def _silence(now: NvmlSnapshot, has_kernel_log: bool) -> Finding:
    """What it means that a GPU had no event."""
    if has_kernel_log or isinstance(now.events, Value):
        return healthy("no Xid since the job began")
    return lacking(now.events)


def _verdicts(events: Sequence[XidEvent], limits: XidLimits) -> Iterator[_Verdict]:
    """One per number; `events` are of one GPU, oldest first."""
    by_xid: dict[int, list[XidEvent]] = {}
    for event in events:
        by_xid.setdefault(event.xid, []).append(event)
    for xid, same in by_xid.items():
        kind = classify(xid)
        times = _episodes(same, limits)
        effect = _effect(kind, same, times, by_xid)
        repeated = f", {times} times" if times > 1 else ""
        yield _Verdict(
            _status(effect, kind, times, limits),
            effect is XidEffect.NODE,
            effect is XidEffect.LINK,
            f"Xid {xid} ({kind.meaning}){repeated}",
            kind.remedy,
        )


def _episodes(events: Sequence[XidEvent], limits: XidLimits) -> int:
    times = [event.seen_at for event in events]
    return 1 + sum(later - earlier > limits.episode_s for earlier, later in pairwise(times))


def _effect(
    kind: XidClass, events: Sequence[XidEvent], times: int, by_xid: Mapping[int, Sequence[XidEvent]]
) -> XidEffect:
    """The effect of the table, or a milder one that the circumstances allow."""
    is_contained = bool(_CONTAINED & by_xid.keys()) and not _NOT_CONTAINED & by_xid.keys()
    if times <= kind.tolerated or (kind.xid == _DOUBLE_BIT and is_contained):
        return XidEffect.RESTART
    told = [event for event in events if event.detail]
    if kind.effect is XidEffect.LINK and told and all(_NONFATAL.search(event.detail) for event in told):
        return XidEffect.UNDECIDED
    return kind.effect


def _status(effect: XidEffect, kind: XidClass, times: int, limits: XidLimits) -> Status:
    if effect in (XidEffect.NONE, XidEffect.ECHO):
        return Status.HEALTHY
    if effect is XidEffect.RESTART:
        is_suspect = times >= limits.suspect_after or not kind.blames_application
        return Status.DEGRADED if is_suspect else Status.HEALTHY
    return Status.DEGRADED if effect is XidEffect.UNDECIDED else Status.UNHEALTHY


def _of_gpu(
    known: KnownGpu,
    events: Sequence[XidEvent],
    verdicts: Sequence[_Verdict],
    silence: Finding,
    job: JobGpus,
) -> Result:
    finding = _summary(verdicts) if verdicts else silence
    result = result_of("gpu.xid", known.subject(), finding)
    is_of_job = known.is_of_job and not _is_of_other_instances(known, events, job)
    return result if is_of_job else as_warning(result, NOT_OF_THE_JOB)


def _summary(verdicts: Sequence[_Verdict]) -> Finding:
    gravest_first = sorted(verdicts, key=lambda v: _GRAVITY.index(v.status))
    gravest = gravest_first[0]
    observed = ", ".join(verdict.text for verdict in gravest_first)
    expected = "" if gravest.status is Status.HEALTHY else "no such Xid"
    return Finding(gravest.status, observed, expected, gravest.remedy)


_GRAVITY = (Status.UNHEALTHY, Status.DEGRADED, Status.HEALTHY)


def _is_of_other_instances(known: KnownGpu, events: Sequence[XidEvent], job: JobGpus) -> bool:
    """All events are of MIG instances, none of them the job's."""
    devices = value_of(known.gpu.mig_devices) or ()
    own = {device.gpu_instance for device in devices if job.uuids is not None and device.uuid in job.uuids}
    return bool(own and events) and all(
        event.gpu_instance is not None and event.gpu_instance not in own for event in events
    )


def _of_node(
    known: Sequence[KnownGpu],
    verdicts: Mapping[int, Sequence[_Verdict]],
    of_none: tuple[Sequence[_Verdict], Sequence[_Verdict]],
    limits: XidLimits,
    job: JobGpus,
) -> Result:
    """What concerns the whole node; `of_none` are verdicts of the job's vanished GPUs, and of strangers."""
    vanished, strange = of_none
    subject = Subject("node", job.node)
    own = [verdict for gpu in known if gpu.is_of_job for verdict in verdicts[gpu.gpu.index]]
    others = [verdict for gpu in known if not gpu.is_of_job for verdict in verdicts[gpu.gpu.index]]
    grave = [verdict for verdict in own if verdict.is_of_node]
    grave += [verdict for verdict in vanished if verdict.status is Status.UNHEALTHY]
    with_links = [
        gpu.gpu.index for gpu in known if gpu.is_of_job and any(v.is_link for v in verdicts[gpu.gpu.index])
    ]
    if grave:
        return result_of("gpu.xid", subject, _summary(grave))
    if len(with_links) >= limits.node_after_links:
        observed = f"NVLink errors on GPUs {', '.join(map(str, with_links))}"
        remedy = "have the switches and boards that connect them checked; reboot the node"
        return result_of("gpu.xid", subject, Finding(Status.UNHEALTHY, observed, "no such Xid", remedy))
    warnings = [verdict for verdict in others if verdict.is_of_node]
    warnings += [verdict for verdict in strange if verdict.status is not Status.HEALTHY]
    if warnings:
        return as_warning(result_of("gpu.xid", subject, _summary(warnings)), NOT_OF_THE_JOB)
    return result_of("gpu.xid", subject, healthy("no Xid that concerns the whole node"))

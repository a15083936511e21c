"""Judges the NVLinks of GPUs: their state, their number and their errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftrun.healthchecks.gpu_findings import (
    Finding,
    JobGpus,
    KnownGpu,
    growth,
    healthy,
    is_mig_on,
    is_vgpu,
    judge_each,
    lacking,
    samples_of,
    skipped,
    within,
)
from ftrun.healthchecks.reading import NOT_READ, SKIPPING, Missing, Reading, Value, value_of
from ftrun.healthchecks.result import Result, Status
from ftrun.healthchecks.snapshots import Gpu, NvLink, NvmlSnapshot

_LINKS_OF_MODEL = (
    (re.compile(r"A100-SXM"), 12),
    (re.compile(r"H100 80GB HBM3|H200(?! NVL)|H20\b|GH200|B200|B300"), 18),
)
"""Links of a GPU on a board with NVSwitch (NVIDIA health validation, per product)."""

_ERRORS_PER_MINUTE = (
    *("replays", "recoveries", "malformed_packets", "buffer_overruns", "receive_errors"),
    *("integrity_errors", "failed_recoveries", "recovery_events", "effective_errors"),
)
"""Counters of `NvLink` that stand still on a good link; `symbol_errors`, which are corrected, do not."""
_ERRORS = (*_ERRORS_PER_MINUTE, "crc_errors")


_NONE = "this GPU has no NVLink"


@dataclass(frozen=True, slots=True)
class NvLinkLimits:
    """Thresholds of the judges in this module."""

    expected_links: int | None = None
    """Active links of each GPU; None: as many as before, as the other GPUs have and as the model has."""
    error_window_s: float = 60.0
    max_errors_per_minute: float = 1.0
    """Of each counter but CRC errors, over all links of a GPU: from one replay or recovery per minute on DCGM
    fails, and nvidia-resiliency-ext counts the window."""
    max_crc_per_s: float = 100.0
    """DCGM fails from here on, and warns of fewer."""
    sustained_window_s: float = 900.0
    sustained_fraction: float = 0.5
    """Of the intervals between the readings in the window: more than 15 of 30 (nvidia-resiliency-ext)."""
    sustained_min_intervals: int = 10


def _no_links(gpu: Gpu) -> Finding | None:
    """Why nothing can be said of the GPU's links; None if something can."""
    if is_mig_on(gpu):
        return skipped("with MIG on, NVML reports links as down")
    if is_vgpu(gpu):
        return skipped("a vGPU does not see the board's links")
    if isinstance(gpu.nvlinks, Missing):
        return lacking(gpu.nvlinks)
    return None


def _links(gpu: Gpu) -> tuple[NvLink, ...]:
    return gpu.nvlinks.value if isinstance(gpu.nvlinks, Value) else ()


def active_links(gpu: Gpu | None) -> frozenset[int]:
    """Numbers of the active links."""
    links = _links(gpu) if gpu is not None else ()
    return frozenset(link.number for link in links if link.is_active == Value(True))


def _unread(gpu: Gpu) -> Missing | None:
    """Why the state of some link is not known; an error rather than a reason to skip."""
    missing = [link.is_active for link in _links(gpu) if isinstance(link.is_active, Missing)]
    return next(
        (reading for reading in missing if reading.lack not in SKIPPING), missing[0] if missing else None
    )


def _has_bridge(gpu: Gpu) -> bool:
    return any(isinstance(link.remote, Value) and link.remote.value for link in _links(gpu))


def judge_links(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "nvlink.state": links that were active when the job began and are not any more.

    The subject is all links of a GPU.
    """
    return judge_each("nvlink.state", now, baseline, job, _find_links, "nvlink")


def _find_links(known: KnownGpu) -> Finding:
    obstacle = _no_links(known.gpu)
    if obstacle is not None:
        return obstacle
    active = active_links(known.gpu)
    unread = _unread(known.gpu)
    down = frozenset(link.number for link in _links(known.gpu) if link.is_active == Value(False))
    # A link that is not listed any more is down, too, unless the list may have ended early.
    fallen = sorted(active_links(known.before) & down if unread else active_links(known.before) - active)
    if fallen:
        numbers = ", ".join(map(str, fallen))
        remedy = "reset the GPU; look for Xid 74 and 144 to 150 of this GPU and of its neighbours"
        return Finding(Status.UNHEALTHY, f"links {numbers} are down", "active, as when the job began", remedy)
    if unread is not None:
        return lacking(unread)
    count = len(_links(known.gpu))
    if count == 0:
        return skipped(_NONE)
    if not active and not _has_bridge(known.gpu):
        # What should be there is the question of `judge_link_count`.
        return skipped(f"none of {count} links has anything at its other end")
    return healthy(f"{len(active)} of {count} links active")


def judge_link_count(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus, limits: NvLinkLimits
) -> tuple[Result, ...]:
    """ "nvlink.count": active links against the configured number, the node's other GPUs, and the model.

    Fewer than configured condemns. So does fewer than another GPU of the same model, unless it was so when
    the job began. Fewer than the model has is a warning: a virtual machine may have a part of a board.
    """
    most: dict[str, int] = {}
    for gpu in now.gpus:
        name = value_of(gpu.name) or ""
        most[name] = max(most.get(name, 0), len(active_links(gpu)))
    return judge_each(
        "nvlink.count", now, baseline, job, lambda known: _find_count(known, most, limits), "nvlink"
    )


def _find_count(known: KnownGpu, most: Mapping[str, int], limits: NvLinkLimits) -> Finding:
    obstacle = _no_links(known.gpu)
    if obstacle is not None:
        return obstacle
    unread = _unread(known.gpu)
    if unread is not None:
        return lacking(unread)
    name = value_of(known.gpu.name) or ""
    count = len(active_links(known.gpu))
    was_so = known.before is not None and len(active_links(known.before)) == count
    observed, remedy = f"{count} links active", "reset the GPU; look at its bridge or NVSwitch"
    if limits.expected_links is not None:
        if count >= limits.expected_links:
            return healthy(observed)
        expected = f"{limits.expected_links}, as configured"
        return Finding(Status.UNHEALTHY, observed, expected, remedy, was_so)
    if count < most.get(name, 0):
        status = Status.DEGRADED if was_so else Status.UNHEALTHY
        return Finding(status, observed, f"{most[name]}, as another GPU of this node", remedy, was_so)
    of_model = next((links for pattern, links in _LINKS_OF_MODEL if pattern.search(name)), 0)
    if count < of_model:
        return Finding(Status.DEGRADED, observed, f"{of_model}, as {name} has", remedy, was_so)
    return healthy(observed) if count else skipped("no link is active, and none is expected")


def judge_link_errors(
    history: Sequence[NvmlSnapshot],
    baseline: NvmlSnapshot | None,
    job: JobGpus,
    limits: NvLinkLimits,
) -> tuple[Result, ...]:
    """ "nvlink.errors": growth of the error counters of each GPU's links, together.

    A warning while it lasts; it condemns when most of a long window has it, or with a storm of CRC errors.

    Args:
        history: readings of this job, oldest first; the last one is judged.
        baseline: the reading of the job's begin.
        job: whose GPUs these are.
        limits: thresholds.
    """
    recent = within(history, limits.error_window_s)
    long = within(history, limits.sustained_window_s)
    return judge_each(
        "nvlink.errors",
        history[-1],
        baseline,
        job,
        lambda known: _find_errors(known, recent, long, limits),
        "nvlink",
    )


def _find_errors(
    known: KnownGpu, recent: Sequence[NvmlSnapshot], long: Sequence[NvmlSnapshot], limits: NvLinkLimits
) -> Finding:
    obstacle = _no_links(known.gpu)
    if obstacle is not None:
        return obstacle
    if not _links(known.gpu):
        return skipped(_NONE)
    unread = _unread_counters(known.gpu)
    if unread is not None:
        return lacking(unread)
    samples = list(samples_of(known, recent))
    if len(samples) < 2:
        return healthy("no reading to compare with")
    duration_s = max(samples[-1][0] - samples[0][0], limits.error_window_s)
    grown = _grown(samples[0][1], samples[-1][1])
    crc_per_s = grown.pop("crc_errors", 0) / duration_s
    bad = {name: n for name, n in grown.items() if n * 60 / duration_s >= limits.max_errors_per_minute}
    if not bad and crc_per_s == 0:
        return healthy("no growth of errors")
    shown = [f"{count} {name.replace('_', ' ')}" for name, count in sorted(bad.items())]
    shown += [f"{crc_per_s:.2g} CRC errors per second"] if crc_per_s else []
    observed = f"{', '.join(shown)} in {duration_s:.0f} s"
    is_bad = crc_per_s >= limits.max_crc_per_s or _is_sustained(known, long, limits)
    status = Status.UNHEALTHY if is_bad else Status.DEGRADED
    return Finding(
        status, observed, "no growth of errors", "reset the GPU; have its links and bridge checked"
    )


def _unread_counters(gpu: Gpu) -> Missing | None:
    """Why the errors are not known: some counter could not be read, or the links have none at all."""
    links = _links(gpu)
    readings = [_counter(link, name) for link in links for name in _ERRORS]
    missing = [reading for reading in readings if isinstance(reading, Missing)]
    broken = [reading for reading in missing if reading.lack not in SKIPPING and reading != NOT_READ]
    if broken:
        return broken[0]
    return missing[0] if missing and len(missing) == len(readings) else None


def _counter(link: NvLink, name: str) -> Reading[int]:
    reading: Reading[int] = getattr(link, name)
    return reading


def _grown(before: Gpu, now: Gpu) -> dict[str, int]:
    """Growth by counter, over all links that both readings have."""
    old_links = {link.number: link for link in _links(before)}
    grown: dict[str, int] = {}
    for link in _links(now):
        old = old_links.get(link.number)
        for name in _ERRORS:
            count = value_of(_counter(link, name))
            old_count = value_of(_counter(old, name)) if old is not None else None
            if count is not None and old_count is not None:
                grown[name] = grown.get(name, 0) + growth(count, old_count)
    return grown


def _is_sustained(known: KnownGpu, long: Sequence[NvmlSnapshot], limits: NvLinkLimits) -> bool:
    gpus = [gpu for _, gpu in samples_of(known, long)]
    intervals = [any(_grown(before, after).values()) for before, after in pairwise(gpus)]
    is_enough = len(intervals) >= limits.sustained_min_intervals
    return is_enough and sum(intervals) > limits.sustained_fraction * len(intervals)

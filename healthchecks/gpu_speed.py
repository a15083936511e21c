"""Judges what makes a working GPU slow: throttled clocks, heat and its PCIe link. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.healthchecks.gpu_findings import (
    PASSTHROUGH,
    VGPU,
    Finding,
    JobGpus,
    KnownGpu,
    growth,
    healthy,
    judge_each,
    lacking,
    samples_of,
    skipped,
    within,
)
from ftrun.healthchecks.reading import Missing, Reading, Value, value_of
from ftrun.healthchecks.result import Result, Status
from ftrun.healthchecks.snapshots import Gpu, NvmlSnapshot

_HW_THERMAL, _POWER_BRAKE = 0x40, 0x80
"""nvmlClocksEventReasons. Others are normal: idle 0x1, application clocks 0x2, software power cap 0x4, sync
boost 0x10; 0x8 (hardware slowdown) comes with one of the two or means little alone."""
_P0 = 0
_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""Per second and lane, by PCIe generation."""


@dataclass(frozen=True, slots=True)
class GpuSpeedLimits:
    """Thresholds of the judges in this module."""

    slowdown_window_s: float = 600.0
    slowdown_fraction: float = 0.6
    """Of the readings in the window: six of ten, one per minute (leptonai/gpud)."""
    slowdown_min_samples: int = 6
    """With fewer readings nothing is said of a window: a single one is noise."""
    replay_window_s: float = 60.0
    replay_errors_per_bit: float = 1e-12
    """Bit error rate that PCIe allows; DCGM's limit of replays per minute follows from it."""


def judge_slowdown(
    history: Sequence[NvmlSnapshot],
    baseline: NvmlSnapshot | None,
    job: JobGpus,
    limits: GpuSpeedLimits,
) -> tuple[Result, ...]:
    """ "gpu.slowdown": clocks that the hardware has held down for most of a window.

    Heat is a warning. A power brake (a signal of the node's power supply) in every reading of a whole window
    condemns, unless it was already there when the job began.

    Args:
        history: readings of this job, oldest first; the last one is judged.
        baseline: the reading of the job's begin.
        job: whose GPUs these are.
        limits: thresholds.
    """
    recent = within(history, limits.slowdown_window_s)
    return judge_each(
        "gpu.slowdown", history[-1], baseline, job, lambda known: _find_slowdown(known, recent, limits)
    )


def _find_slowdown(known: KnownGpu, recent: Sequence[NvmlSnapshot], limits: GpuSpeedLimits) -> Finding:
    reading = known.gpu.clocks_event_reasons
    if isinstance(reading, Missing):
        return lacking(reading)
    samples = [
        (at, reasons)
        for at, gpu in samples_of(known, recent)
        if (reasons := value_of(gpu.clocks_event_reasons)) is not None
    ]
    if len(samples) < limits.slowdown_min_samples:
        return healthy(f"reasons {reading.value:#x}, too few readings for a verdict ({len(samples)})")
    heat, brake = (sum(bool(reasons & bit) for _, reasons in samples) for bit in (_HW_THERMAL, _POWER_BRAKE))
    observed = f"of {len(samples)} readings {heat} show a thermal slowdown and {brake} a power brake"
    expected = f"fewer than {limits.slowdown_fraction:.0%} of either"
    threshold = limits.slowdown_fraction * len(samples)
    if brake >= threshold:
        before = value_of(known.before.clocks_event_reasons) if known.before is not None else None
        was_so = before is not None and bool(before & _POWER_BRAKE)
        is_whole = brake == len(samples) and samples[-1][0] - samples[0][0] >= limits.slowdown_window_s
        status = Status.UNHEALTHY if is_whole and not was_so else Status.DEGRADED
        return Finding(status, observed, expected, "check the power supplies of the node", was_so)
    if heat >= threshold:
        return Finding(Status.DEGRADED, observed, expected, "check fans, air flow or coolant of the node")
    return healthy(observed)


def judge_temperature(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.temperature": GPU and memory against the board's own thresholds; a threshold of 0 is none."""
    return judge_each("gpu.temperature", now, baseline, job, _find_temperature)


def _find_temperature(known: KnownGpu) -> Finding:
    gpu = known.gpu
    if isinstance(gpu.temperature_c, Missing):
        return lacking(gpu.temperature_c)
    limit_c = value_of(gpu.temperature_max_c) or value_of(gpu.temperature_slowdown_c) or None
    observed = f"{gpu.temperature_c.value} °C"
    memory_c = value_of(gpu.memory_temperature_c) or None
    memory_limit_c = value_of(gpu.memory_temperature_max_c) or None
    if memory_c is not None:
        observed += f", memory {memory_c} °C"
    is_hot = limit_c is not None and gpu.temperature_c.value > limit_c
    is_memory_hot = memory_c is not None and memory_limit_c is not None and memory_c > memory_limit_c
    if is_hot or is_memory_hot or _has_lost_its_margin(known):
        expected = f"at most {limit_c or 'unknown'} °C, memory {memory_limit_c or 'unknown'} °C"
        return Finding(Status.DEGRADED, observed, expected, "check fans, air flow or coolant of the node")
    if limit_c is not None:
        return healthy(observed)
    maximum = gpu.temperature_max_c
    return skipped(f"{observed}; no threshold") if isinstance(maximum, Value) else lacking(maximum)


def _has_lost_its_margin(known: KnownGpu) -> bool:
    """The distance to the slowdown was positive and is no more. Boards that do not know it say 0 or less."""
    margin_c = value_of(known.gpu.temperature_margin_c)
    before_c = value_of(known.before.temperature_margin_c) if known.before is not None else None
    return margin_c is not None and margin_c <= 0 and before_c is not None and before_c > 0


def judge_pcie_width(now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus) -> tuple[Result, ...]:
    """ "gpu.pcie_width": lanes in use; unlike the generation they do not change when the GPU idles."""
    return judge_each("gpu.pcie_width", now, baseline, job, _find_width)


def _find_width(known: KnownGpu) -> Finding:
    gpu = known.gpu
    if _is_link_made_up(gpu):
        return skipped(_MADE_UP)
    width, maximum = gpu.pcie_width, gpu.pcie_width_max
    if isinstance(width, Missing):
        return lacking(width)
    if isinstance(maximum, Missing):
        return lacking(maximum)
    if width.value >= maximum.value:
        return healthy(f"x{width.value}")
    was_so = known.before is not None and known.before.pcie_width == width
    return Finding(
        Status.DEGRADED,
        f"x{width.value}",
        f"x{maximum.value}",
        "reset or reboot; if it stays so, have the GPU reseated",
        was_so,
    )


def judge_pcie_generation(
    now: NvmlSnapshot, baseline: NvmlSnapshot | None, job: JobGpus
) -> tuple[Result, ...]:
    """ "gpu.pcie_generation": speed of the link, which is judged at full performance (P0) only."""
    return judge_each("gpu.pcie_generation", now, baseline, job, _find_generation)


def _find_generation(known: KnownGpu) -> Finding:
    gpu = known.gpu
    if _is_link_made_up(gpu):
        return skipped(_MADE_UP)
    state, generation, maximum = gpu.performance_state, gpu.pcie_generation, gpu.pcie_generation_max
    if isinstance(state, Missing):
        return lacking(state)
    if isinstance(generation, Missing):
        return lacking(generation)
    if isinstance(maximum, Missing):
        return lacking(maximum)
    observed = f"generation {generation.value} in P{state.value}"
    if state.value != _P0:
        return skipped(f"{observed}: an idle GPU slows its link down on purpose")
    if generation.value >= maximum.value:
        return healthy(observed)
    before = known.before
    was_so = before is not None and (before.performance_state, before.pcie_generation) == (state, generation)
    return Finding(
        Status.DEGRADED,
        observed,
        f"generation {maximum.value}",
        "reset or reboot; if it stays so, have the GPU reseated",
        was_so,
    )


_MADE_UP = "in this virtual machine the PCIe link is not the real one"


def _is_link_made_up(gpu: Gpu) -> bool:
    return gpu.virtualization in (Value(PASSTHROUGH), Value(VGPU))


def judge_pcie_replays(
    history: Sequence[NvmlSnapshot],
    baseline: NvmlSnapshot | None,
    job: JobGpus,
    limits: GpuSpeedLimits,
) -> tuple[Result, ...]:
    """ "gpu.pcie_replay": packets sent again, per minute.

    Args:
        history: readings of this job, oldest first; the last one is judged.
        baseline: the reading of the job's begin.
        job: whose GPUs these are.
        limits: thresholds.
    """
    recent = within(history, limits.replay_window_s)
    return judge_each(
        "gpu.pcie_replay", history[-1], baseline, job, lambda known: _find_replays(known, recent, limits)
    )


def _find_replays(known: KnownGpu, recent: Sequence[NvmlSnapshot], limits: GpuSpeedLimits) -> Finding:
    gpu = known.gpu
    if isinstance(gpu.pcie_replays, Missing):
        return lacking(gpu.pcie_replays)
    samples = [
        (at, value)
        for at, gpu in samples_of(known, recent)
        if (value := value_of(gpu.pcie_replays)) is not None
    ]
    if len(samples) < 2:
        return healthy(f"{gpu.pcie_replays.value} replays since the driver was loaded")
    # Over the whole window even if the readings are closer: a handful in a second is not a rate.
    duration_s = max(samples[-1][0] - samples[0][0], limits.replay_window_s)
    per_minute = growth(samples[-1][1], samples[0][1]) * 60 / duration_s
    allowed = max_replays_per_minute(gpu.pcie_generation_max, gpu.pcie_width_max, limits)
    observed = f"{per_minute:.1f} replays per minute"
    unread = [r for r in (gpu.pcie_generation_max, gpu.pcie_width_max) if isinstance(r, Missing)]
    if unread:
        return lacking(unread[0])
    if allowed is None:
        return skipped(f"{observed}; the link's speed is not known")
    if per_minute <= allowed:
        return healthy(observed)
    return Finding(
        Status.DEGRADED, observed, f"at most {allowed}", "have the GPU reseated and its riser checked"
    )


def max_replays_per_minute(
    generation: Reading[int], width: Reading[int], limits: GpuSpeedLimits
) -> int | None:
    """Replays that the allowed bit error rate makes likely: 16 for generation 4 x16, 31 for generation 5 x16.

    None if the link's speed is not known. Each lane carries about one bit per transfer.
    """
    if not isinstance(generation, Value) or not isinstance(width, Value):
        return None
    gigatransfers = _GIGATRANSFERS.get(generation.value)
    if gigatransfers is None or width.value <= 0:
        return None
    return math.ceil(gigatransfers * 1e9 * limits.replay_errors_per_bit * 60 * width.value)

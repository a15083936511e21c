"""Throttled clocks, heat and the PCIe link."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.gpu_speed import (
    GpuSpeedLimits,
    judge_pcie_generation,
    judge_pcie_replays,
    judge_pcie_width,
    judge_slowdown,
    judge_temperature,
    max_replays_per_minute,
)
from ftrun.healthchecks.reading import Value
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.snapshots import NvmlSnapshot
from tests.support.nvml_snapshots import ERROR, JOB, LOST, NOT_SUPPORTED, gpu, node, statuses

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED
LIMITS = GpuSpeedLimits()


def slowed(*reasons: int, every_s: float = 60.0) -> list[NvmlSnapshot]:
    return [node(gpu(clocks_event_reasons=Value(bits)), at=i * every_s) for i, bits in enumerate(reasons)]


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        ([0x0] * 10, HEALTHY),
        ([0x1 | 0x2 | 0x4 | 0x10] * 10, HEALTHY),
        ([0x8] * 10, HEALTHY),
        ([0x20] * 10, HEALTHY),
        ([0x40] * 5, HEALTHY),
        ([0x0] * 9 + [0x40], HEALTHY),
        ([0x0, 0x40] * 5, HEALTHY),
        ([0x40] * 6 + [0x0] * 4, DEGRADED),
        ([0x4 | 0x8 | 0x40] * 10, DEGRADED),
        ([0x80] * 8 + [0x0] * 2, DEGRADED),
        ([0x80] * 10, DEGRADED),
        ([0x80] * 11, UNHEALTHY),
        ([0x80] * 12, UNHEALTHY),
        ([0x40] * 12, DEGRADED),
    ],
)
def test_clocks_count_as_held_down_when_most_of_a_window_is(reasons: list[int], status: Status) -> None:
    """A power cap, idling and single readings are normal; bits are looked at one by one."""
    assert statuses(judge_slowdown(slowed(*reasons), None, JOB, LIMITS)) == [status]


def test_a_power_brake_from_the_jobs_begin_does_not_condemn() -> None:
    """The job has begun with it."""
    history = slowed(*[0x80] * 12)
    (found,) = judge_slowdown(history, history[0], JOB, LIMITS)
    assert (found.status, found.is_persistent) == (DEGRADED, True)


def test_readings_without_the_gpu_are_no_evidence() -> None:
    """The check of a hung driver gives none, and a lost GPU cannot tell."""
    history = slowed(*[0x40] * 12)
    assert statuses(judge_slowdown([*history, node(gpu(clocks_event_reasons=LOST))], None, JOB, LIMITS)) == [
        UNKNOWN
    ]
    gaps = [snapshot if i % 3 == 0 else node(gpus=(), at=i * 60.0) for i, snapshot in enumerate(history)]
    assert statuses(judge_slowdown([*gaps, history[-1]], None, JOB, LIMITS)) == [HEALTHY]


@pytest.mark.parametrize(
    ("changes", "before", "status"),
    [
        ({}, {}, HEALTHY),
        ({"temperature_c": Value(87)}, {}, HEALTHY),
        ({"temperature_c": Value(88)}, {}, DEGRADED),
        ({"temperature_c": Value(88), "temperature_max_c": Value(0)}, {}, HEALTHY),
        ({"temperature_c": Value(91), "temperature_max_c": Value(0)}, {}, DEGRADED),
        ({"temperature_max_c": Value(0), "temperature_slowdown_c": Value(0)}, {}, SKIPPED),
        ({"temperature_max_c": NOT_SUPPORTED, "temperature_slowdown_c": NOT_SUPPORTED}, {}, SKIPPED),
        ({"temperature_max_c": ERROR, "temperature_slowdown_c": ERROR}, {}, UNKNOWN),
        ({"temperature_c": ERROR}, {}, UNKNOWN),
        ({"memory_temperature_c": Value(96)}, {}, DEGRADED),
        ({"memory_temperature_c": Value(96), "memory_temperature_max_c": Value(0)}, {}, HEALTHY),
        ({"temperature_margin_c": Value(-5)}, {"temperature_margin_c": Value(-5)}, HEALTHY),
        ({"temperature_margin_c": Value(0)}, {"temperature_margin_c": Value(0)}, HEALTHY),
        ({"temperature_margin_c": Value(0)}, {"temperature_margin_c": Value(12)}, DEGRADED),
        ({"temperature_margin_c": Value(3)}, {"temperature_margin_c": Value(12)}, HEALTHY),
    ],
)
def test_heat_is_judged_by_the_boards_own_thresholds(
    changes: dict[str, object], before: dict[str, object], status: Status
) -> None:
    """A threshold of 0 is none, and a margin counts only on a board that has shown one."""
    assert statuses(judge_temperature(node(gpu(**changes)), node(gpu(**before)), JOB)) == [status]


@pytest.mark.parametrize(
    ("changes", "before", "status", "is_persistent"),
    [
        ({}, {}, HEALTHY, False),
        ({"pcie_width": Value(8)}, {}, DEGRADED, False),
        ({"pcie_width": Value(8)}, {"pcie_width": Value(8)}, DEGRADED, True),
        ({"pcie_width": Value(8), "performance_state": Value(8)}, {}, DEGRADED, False),
        ({"pcie_width": Value(8), "pcie_width_max": Value(8)}, {}, HEALTHY, False),
        ({"pcie_width": Value(8), "virtualization": Value(1)}, {}, SKIPPED, False),
        ({"pcie_width": Value(8), "virtualization": Value(2)}, {}, SKIPPED, False),
        ({"pcie_width": ERROR}, {}, UNKNOWN, False),
        ({"pcie_width_max": NOT_SUPPORTED}, {}, SKIPPED, False),
    ],
)
def test_lanes_that_are_missing_are_a_warning(
    changes: dict[str, object], before: dict[str, object], status: Status, is_persistent: bool
) -> None:
    """Idle or not; in a virtual machine the link is not the real one."""
    (found,) = judge_pcie_width(node(gpu(**changes)), node(gpu(**before)), JOB)
    assert (found.status, found.is_persistent) == (status, is_persistent)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, HEALTHY),
        ({"pcie_generation": Value(4)}, DEGRADED),
        ({"pcie_generation": Value(1), "performance_state": Value(8)}, SKIPPED),
        ({"pcie_generation": Value(4), "pcie_generation_max": Value(4)}, HEALTHY),
        ({"pcie_generation": Value(4), "performance_state": ERROR}, UNKNOWN),
        ({"pcie_generation": NOT_SUPPORTED}, SKIPPED),
        ({"pcie_generation_max": ERROR}, UNKNOWN),
        ({"pcie_generation": Value(4), "virtualization": Value(1)}, SKIPPED),
    ],
)
def test_the_links_speed_is_judged_at_full_performance_only(
    changes: dict[str, object], status: Status
) -> None:
    """An idle GPU slows its link down on purpose."""
    assert statuses(judge_pcie_generation(node(gpu(**changes)), None, JOB)) == [status]


@pytest.mark.parametrize(
    ("generation", "width", "replays"),
    [(4, 16, 16), (5, 16, 31), (5, 8, 16), (3, 16, 8), (7, 16, None), (5, 0, None)],
)
def test_replays_allowed_follow_from_the_links_speed(
    generation: int, width: int, replays: int | None
) -> None:
    """One bit in 10¹² may be wrong."""
    assert max_replays_per_minute(Value(generation), Value(width), LIMITS) == replays


@pytest.mark.parametrize(
    ("readings", "changes", "status"),
    [
        ([(0.0, 0), (60.0, 31)], {}, HEALTHY),
        ([(0.0, 0), (60.0, 32)], {}, DEGRADED),
        ([(0.0, 0), (60.0, 17)], {"pcie_generation_max": Value(4)}, DEGRADED),
        ([(0.0, 9000), (60.0, 9000)], {}, HEALTHY),
        ([(0.0, 9000), (60.0, 2)], {}, HEALTHY),
        ([(0.0, 0), (0.5, 20)], {}, HEALTHY),
        ([(0.0, 0), (600.0, 300)], {}, HEALTHY),
        ([(0.0, 5000)], {}, HEALTHY),
        ([(0.0, 0), (60.0, 900)], {"pcie_generation_max": ERROR}, UNKNOWN),
        ([(0.0, 0), (60.0, 900)], {"pcie_generation_max": Value(9)}, SKIPPED),
    ],
)
def test_replays_are_judged_by_their_rate(
    readings: list[tuple[float, int]], changes: dict[str, object], status: Status
) -> None:
    """What the counter had before says nothing, and neither does its reset."""
    history = [node(gpu(pcie_replays=Value(count), **changes), at=at) for at, count in readings]
    assert statuses(judge_pcie_replays(history, None, JOB, LIMITS)) == [status]


def test_replays_that_cannot_be_read_are_unknown() -> None:
    """Not healthy, although the readings before were."""
    history = [node(at=0.0), node(gpu(pcie_replays=ERROR), at=60.0)]
    assert statuses(judge_pcie_replays(history, None, JOB, LIMITS)) == [UNKNOWN]

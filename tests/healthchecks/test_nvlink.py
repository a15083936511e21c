"""State, number and errors of NVLinks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.nvlink import NvLinkLimits, judge_link_count, judge_link_errors, judge_links
from ftrun.healthchecks.reading import Reading, Value
from ftrun.healthchecks.result import Status, Subject
from ftrun.healthchecks.snapshots import Gpu, Mode, NvLink, NvmlSnapshot
from tests.support.nvml_snapshots import (
    ERROR,
    JOB,
    LOST,
    NO_FUNCTION,
    NO_PERMISSION,
    NOT_SUPPORTED,
    gpu,
    link,
    links,
    node,
    statuses,
    uuid,
)

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED
LIMITS = NvLinkLimits()
H100_PCIE = Value("NVIDIA H100 PCIe")
ALL_DOWN = links(18, range(18))
MIG = Value(Mode(True, True))


@pytest.mark.parametrize(
    ("now", "before", "status"),
    [
        ({}, {}, HEALTHY),
        ({"nvlinks": links(18, [7])}, {}, UNHEALTHY),
        ({"nvlinks": links(18, [7])}, None, HEALTHY),
        ({"nvlinks": links(18, [7])}, {"nvlinks": links(18, [7])}, HEALTHY),
        ({"nvlinks": links(18, [3, 7])}, {"nvlinks": links(18, [7])}, UNHEALTHY),
        ({"nvlinks": ALL_DOWN}, {}, UNHEALTHY),
        ({"nvlinks": ALL_DOWN}, None, SKIPPED),
        ({"nvlinks": ALL_DOWN}, {"nvlinks": ALL_DOWN}, SKIPPED),
        ({"nvlinks": ALL_DOWN, "mig": MIG}, {}, SKIPPED),
        ({"nvlinks": ALL_DOWN, "virtualization": Value(2)}, {}, SKIPPED),
        ({"nvlinks": Value(())}, {}, UNHEALTHY),
        ({"nvlinks": Value(())}, {"nvlinks": Value(())}, SKIPPED),
        ({"nvlinks": NOT_SUPPORTED}, {}, SKIPPED),
        ({"nvlinks": NO_FUNCTION}, {}, SKIPPED),
        ({"nvlinks": ERROR}, {}, UNKNOWN),
        ({"nvlinks": Value((link(0, LOST), link(1, LOST)))}, {}, UNKNOWN),
        ({"nvlinks": Value((link(0, ERROR), link(1)))}, {"nvlinks": links(2)}, UNKNOWN),
        ({"nvlinks": Value((link(0, ERROR), link(1, False)))}, {"nvlinks": links(2)}, UNHEALTHY),
        ({"nvlinks": Value((link(0, NO_PERMISSION), link(1)))}, {"nvlinks": links(2)}, SKIPPED),
    ],
)
def test_a_link_that_went_down_since_the_jobs_begin_condemns(
    now: dict[str, object], before: dict[str, object] | None, status: Status
) -> None:
    """Links that nobody has connected, or that MIG hides, are no fault; what nobody could read is not up."""
    baseline = None if before is None else node(gpu(**before))
    assert statuses(judge_links(node(gpu(**now)), baseline, JOB)) == [status]


def test_the_links_that_fell_are_named() -> None:
    """By number; the subject is the links of that GPU."""
    results = judge_links(node(gpu(0), gpu(1, nvlinks=links(18, [3, 11]))), node(), JOB)
    assert results[1].subject == Subject("nvlink", uuid(1), 1)
    assert results[1].observed == "links 3, 11 are down"


def test_links_of_a_gpu_that_is_not_the_jobs_warn() -> None:
    """The job does not use them."""
    first = JobGpus("n0", frozenset({uuid(0)}))
    now = node(gpu(0), gpu(1, nvlinks=links(18, [3])))
    assert statuses(judge_links(now, node(), first)) == [HEALTHY, DEGRADED]


@pytest.mark.parametrize(
    ("gpus", "before", "expected", "found"),
    [
        ((gpu(0), gpu(1)), None, None, [HEALTHY, HEALTHY]),
        ((gpu(0), gpu(1, nvlinks=links(18, [7]))), None, None, [HEALTHY, UNHEALTHY]),
        (
            (gpu(0), gpu(1, nvlinks=links(18, [7]))),
            (gpu(0), gpu(1, nvlinks=links(18, [7]))),
            None,
            [HEALTHY, DEGRADED],
        ),
        ((gpu(0), gpu(1, nvlinks=links(18, [7]))), None, 17, [HEALTHY, HEALTHY]),
        (
            (gpu(0), gpu(1, nvlinks=links(18, [7]))),
            (gpu(0), gpu(1, nvlinks=links(18, [7]))),
            18,
            [HEALTHY, UNHEALTHY],
        ),
        ((gpu(0, nvlinks=ALL_DOWN), gpu(1, nvlinks=ALL_DOWN)), None, None, [DEGRADED, DEGRADED]),
        ((gpu(0, nvlinks=ALL_DOWN), gpu(1, nvlinks=ALL_DOWN)), None, 18, [UNHEALTHY, UNHEALTHY]),
        ((gpu(0, nvlinks=ALL_DOWN, name=H100_PCIE),), None, None, [SKIPPED]),
        ((gpu(0, nvlinks=ALL_DOWN, name=H100_PCIE), gpu(1)), None, None, [SKIPPED, HEALTHY]),
        ((gpu(0, nvlinks=ALL_DOWN, mig=MIG), gpu(1)), None, 18, [SKIPPED, HEALTHY]),
        ((gpu(0, nvlinks=links(12), name=Value("NVIDIA A100-SXM4-80GB")),), None, None, [HEALTHY]),
        ((gpu(0, nvlinks=links(12, [0]), name=Value("NVIDIA A100-SXM4-80GB")),), None, None, [DEGRADED]),
        ((gpu(0, nvlinks=links(12), name=Value("NVIDIA A100 80GB PCIe")),), None, None, [HEALTHY]),
        ((gpu(0, nvlinks=links(4), name=Value("NVIDIA H200 NVL")),), None, None, [HEALTHY]),
        ((gpu(0, nvlinks=links(18), name=Value("NVIDIA GB200")),), None, None, [HEALTHY]),
        ((gpu(0, nvlinks=links(17), name=Value("NVIDIA GB200")),), None, None, [DEGRADED]),
        ((gpu(0, nvlinks=Value((link(0, ERROR), link(1)))),), None, 2, [UNKNOWN]),
        ((gpu(0, nvlinks=Value(())),), None, 18, [UNHEALTHY]),
        ((gpu(0, nvlinks=Value(()), name=H100_PCIE),), None, None, [SKIPPED]),
        ((gpu(0, nvlinks=NOT_SUPPORTED),), None, 18, [SKIPPED]),
    ],
)
def test_a_gpu_has_as_many_links_as_configured_or_as_its_peers(
    gpus: tuple[Gpu, ...], before: tuple[Gpu, ...] | None, expected: int | None, found: list[Status]
) -> None:
    """All links down on a board that should have them is a warning at least, even if no peer has more."""
    baseline = None if before is None else node(*before)
    limits = NvLinkLimits(expected_links=expected)
    assert statuses(judge_link_count(node(*gpus), baseline, JOB, limits)) == found


def errors(*rows: Mapping[str, Reading[int]], every_s: float = 30.0) -> list[NvmlSnapshot]:
    """Readings of one GPU with two links; the first link has these counters."""
    return [node(gpu(nvlinks=Value((link(0, **row), link(1)))), at=i * every_s) for i, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("counters", "status"),
    [
        ([{}, {}, {}], HEALTHY),
        ([{}], HEALTHY),
        ([{"replays": Value(500)}, {"replays": Value(500)}, {"replays": Value(500)}], HEALTHY),
        ([{"replays": Value(0)}, {"replays": Value(0)}, {"replays": Value(1)}], DEGRADED),
        ([{"recoveries": Value(3)}, {"recoveries": Value(3)}, {"recoveries": Value(4)}], DEGRADED),
        ([{"replays": Value(9)}, {"replays": Value(9)}, {"replays": Value(0)}], HEALTHY),
        ([{}, {}, {"crc_errors": Value(10)}], DEGRADED),
        ([{}, {}, {"crc_errors": Value(5_999)}], DEGRADED),
        ([{}, {}, {"crc_errors": Value(6_000)}], UNHEALTHY),
        ([{"symbol_errors": Value(0)}, {}, {"symbol_errors": Value(9_000)}], HEALTHY),
        ([{"effective_errors": Value(0)}, {}, {"effective_errors": Value(7)}], DEGRADED),
        ([{}, {}, {"replays": ERROR}], UNKNOWN),
        ([{}, {}, {"replays": LOST}], UNKNOWN),
        ([{"replays": Value(1 << 33)}, {}, {"replays": Value((1 << 33) + 5)}], DEGRADED),
    ],
)
def test_errors_of_links_count_when_they_grow(
    counters: list[dict[str, Reading[int]]], status: Status
) -> None:
    """What a link had before, a counter's reset and errors that are corrected by design say nothing."""
    assert statuses(judge_link_errors(errors(*counters), None, JOB, LIMITS)) == [status]


def test_counters_that_a_link_does_not_have_are_skipped() -> None:
    """Not healthy: nothing was looked at."""
    none = gpu(nvlinks=Value((NvLink(0, Value(True), replays=NOT_SUPPORTED, crc_errors=NOT_SUPPORTED),)))
    bare = [node(none, at=at) for at in (0.0, 60.0)]
    found = judge_link_errors(bare, None, JOB, LIMITS)
    assert statuses(found) == [SKIPPED]


@pytest.mark.parametrize(
    ("bad_of_30", "status"), [(0, HEALTHY), (1, DEGRADED), (15, DEGRADED), (16, UNHEALTHY), (30, UNHEALTHY)]
)
def test_errors_in_most_of_a_long_window_condemn(bad_of_30: int, status: Status) -> None:
    """A single one is a warning while it lasts."""
    grows = [False] * (30 - bad_of_30) + [True] * bad_of_30
    counts = [sum(grows[:i]) for i in range(31)]
    history = errors(*({"replays": Value(count)} for count in counts))
    assert statuses(judge_link_errors(history, None, JOB, LIMITS)) == [status]


def test_a_short_history_does_not_condemn() -> None:
    """Three of four intervals may be one event."""
    history = errors(*({"replays": Value(count)} for count in range(5)))
    assert statuses(judge_link_errors(history, None, JOB, LIMITS)) == [DEGRADED]


@pytest.mark.parametrize(
    "changes",
    [{"mig": MIG}, {"virtualization": Value(2)}, {"nvlinks": NOT_SUPPORTED}, {"nvlinks": Value(())}],
)
def test_errors_of_links_that_cannot_be_seen_are_skipped(changes: dict[str, object]) -> None:
    """MIG and vGPU do not show them."""
    history = [node(gpu(**changes), at=at) for at in (0.0, 60.0)]
    assert statuses(judge_link_errors(history, None, JOB, LIMITS)) == [SKIPPED]

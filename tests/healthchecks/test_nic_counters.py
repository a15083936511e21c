"""Event counters: growth condemns or warns, old errors and resets do not."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.host_snapshots import Counter, NetworkSnapshot
from ftrun.healthchecks.nic_counters import LIMITS, NAMES, judge_counters
from ftrun.healthchecks.result import Result, Status
from tests.support.network_snapshots import NEAR, counted, history, network, nic


def of_first(snapshots: tuple[NetworkSnapshot, ...]) -> list[Result]:
    return [result for result in judge_counters(snapshots, NEAR) if result.subject.name == "mlx5_0"]


def judge(name: str, *values: int) -> Status:
    """The only result for mlx5_0 in readings 30 s apart."""
    (result,) = of_first(counted(name, *values))
    return result.status


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("link_error_recovery", (0, 5), Status.HEALTHY),
        ("link_error_recovery", (0, 6), Status.DEGRADED),
        ("port_rcv_errors", (0, 300), Status.HEALTHY),
        ("port_rcv_errors", (0, 301), Status.DEGRADED),
        ("port_xmit_discards", (0, 3000), Status.HEALTHY),
        ("port_xmit_discards", (0, 3001), Status.DEGRADED),
        ("local_ack_timeout_err", (0, 31), Status.DEGRADED),
        ("roce_slow_restart", (0, 301), Status.DEGRADED),
        ("symbol_error", (0, 300), Status.HEALTHY),
        ("symbol_error", (0, 301), Status.DEGRADED),
        ("excessive_buffer_overrun_errors", (0, 1), Status.UNHEALTHY),
        ("local_link_integrity_errors", (0, 1), Status.UNHEALTHY),
        ("no_completion_cmds", (0, 1), Status.UNHEALTHY),
        ("cmds_err", (0, 11), Status.DEGRADED),
        ("rx_drops", (0, 3001), Status.DEGRADED),
        ("retrans_timeout_events", (0, 31), Status.DEGRADED),
    ],
)
def test_limits(name: str, values: tuple[int, ...], wanted: Status) -> None:
    """Each counter has a limit; at the limit all is well."""
    assert judge(name, *values) is wanted


def test_peers_that_die_do_not_condemn() -> None:
    """After each failure of another node this counter has grown."""
    assert judge("rnr_nak_retry_err", 0, 7) is Status.DEGRADED


def test_errors_from_before_the_job_do_not_count() -> None:
    """Counters are as old as the driver."""
    assert judge("excessive_buffer_overrun_errors", 12, 12) is Status.HEALTHY


def test_counter_that_went_back_starts_over() -> None:
    """Cleared, or the driver was loaded again; it is no error by itself."""
    assert judge("excessive_buffer_overrun_errors", 1000, 0) is Status.HEALTHY
    assert judge("excessive_buffer_overrun_errors", 1000, 0, 1) is Status.UNHEALTHY


def test_rate_recovers() -> None:
    """The newest interval decides, not the worst."""
    assert judge("port_rcv_errors", 0, 9000) is Status.DEGRADED
    assert judge("port_rcv_errors", 0, 9000, 9000) is Status.HEALTHY


def test_one_event_between_two_close_readings_is_no_rate() -> None:
    """A check before a round may follow the periodic one at once."""
    first, second = counted("port_rcv_errors", 0, 1)
    snapshots = history(first, second)
    close = (snapshots[0], NetworkSnapshot(snapshots[0].taken_at + 0.01, snapshots[1].nics))
    (result,) = of_first(close)
    assert result.status is Status.HEALTHY


@pytest.mark.parametrize(
    ("values", "wanted"),
    [((4, 4), Status.HEALTHY), ((4, 5), Status.DEGRADED), ((4, 5, 6, 7), Status.UNHEALTHY)],
)
def test_flaps(values: tuple[int, ...], wanted: Status) -> None:
    """One loss of the link warns, three condemn, and nothing for ever: old ones are out of the readings."""
    assert judge("link_downed", *values) is wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((0, 200, 200, 200), Status.HEALTHY),
        ((0, 40, 80, 120), Status.HEALTHY),
        ((0, 41, 82, 123), Status.UNHEALTHY),
    ],
)
def test_bit_errors(values: tuple[int, ...], wanted: Status) -> None:
    """Steady errors condemn a link; one burst, as training makes it, does not."""
    assert judge("symbol_error", *values) is wanted


def test_counters_of_the_device_itself() -> None:
    """EFA has some that belong to no port."""
    snapshots = history(
        *(network(nic(0, counters=(Counter("no_completion_cmds", value),))) for value in (3, 4))
    )
    (result,) = of_first(snapshots)
    assert (result.status, result.observed) == (
        Status.UNHEALTHY,
        "no_completion_cmds grew by 1 in 30 s: EFA commands that never completed",
    )


def test_nic_that_serves_no_gpu_only_warns() -> None:
    """The storage card's errors are the storage's."""
    pair = history(*(network(nic(2, counters=(Counter("no_completion_cmds", value),))) for value in (3, 4)))
    (result,) = judge_counters(pair, NEAR)
    assert result.status is Status.DEGRADED


def test_one_reading_says_nothing() -> None:
    """There is no growth yet."""
    assert judge_counters(counted("link_downed", 99), NEAR) == ()


def test_device_that_came_later_has_no_growth_yet() -> None:
    """Nor does one that is missing from a reading in between break the count."""
    first, second = counted("link_downed", 5, 6)
    assert judge_counters((network(), second), NEAR)[0].status is Status.HEALTHY
    (result,) = of_first(history(first, network(), second))
    assert (result.status, result.check) == (Status.DEGRADED, "nic.flaps")


def test_reader_is_told_all_that_is_judged() -> None:
    """No limit is for a counter that nobody reads."""
    assert {limit.name for limit in LIMITS} | {"link_downed"} == NAMES

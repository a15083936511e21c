"""NICs are judged by what they were when the job began, and by whom they serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.affinity import Affinity
from ftrun.healthchecks.host_snapshots import LinkLayer, NetworkSnapshot, Port
from ftrun.healthchecks.nic import NicThresholds, judge_nics
from ftrun.healthchecks.reading import Lack, Missing
from ftrun.healthchecks.result import Result, Status, worst
from tests.support.network_snapshots import DOWN, NEAR, history, network, nic, port

GOOD = network(nic(0), nic(1), nic(2))
EFA = port(layer=LinkLayer.EFA)


def judge(
    *snapshots: NetworkSnapshot,
    baseline: NetworkSnapshot | None = GOOD,
    affinity: Affinity = NEAR,
    **thresholds: object,
) -> tuple[Result, ...]:
    limits = NicThresholds(**thresholds)  # type: ignore[arg-type]
    return judge_nics(history(*snapshots), baseline, affinity, "node-a", limits)


def of(results: tuple[Result, ...], check: str, name: str) -> Result:
    (found,) = (result for result in results if (result.check, result.subject.name) == (check, name))
    return found


def status(results: tuple[Result, ...], check: str, name: str = "mlx5_0") -> tuple[Status, bool]:
    found = of(results, check, name)
    return found.status, found.is_persistent


def with_first(*ports: Port, **fields: object) -> NetworkSnapshot:
    return network(nic(0, *ports, **fields), nic(1), nic(2))


def test_node_as_it_was_is_healthy() -> None:
    """Every device and port has a healthy result, none another."""
    results = judge(GOOD)
    assert {result.status for result in results} == {Status.HEALTHY}
    assert {result.subject.name for result in results} == {"mlx5_0", "mlx5_1", "mlx5_2"}


def test_down_port_condemns_when_it_is_seen_twice() -> None:
    """One reading can meet a port between two states."""
    assert status(judge(GOOD, with_first(DOWN)), "nic.state") == (Status.DEGRADED, False)
    result = of(judge(GOOD, with_first(DOWN), with_first(DOWN)), "nic.state", "mlx5_0")
    assert result.status is Status.UNHEALTHY
    assert result.observed == "DOWN, Disabled in 2 readings"
    assert "cable" in result.remedy


def test_port_that_came_back_is_healthy() -> None:
    """One flap does not condemn for ever; readings before a good one do not count."""
    assert status(judge(with_first(DOWN), with_first(DOWN), GOOD), "nic.state")[0] is Status.HEALTHY
    assert status(judge(with_first(DOWN), GOOD, with_first(DOWN)), "nic.state")[0] is Status.DEGRADED


def test_port_that_waits_for_the_subnet_manager_gets_more_time() -> None:
    """INIT with the link up is on its way to ACTIVE."""
    waiting = with_first(port(1, "INIT"))
    assert status(judge(waiting, waiting, waiting), "nic.state")[0] is Status.DEGRADED
    result = of(judge(*[waiting] * 4), "nic.state", "mlx5_0")
    assert (result.status, result.remedy) == (Status.UNHEALTHY, "look at the subnet manager")


def test_second_port_that_is_down_on_purpose_is_not_judged() -> None:
    """It was down when the job began, and the first port works."""
    dual = with_first(port(), port(2, "DOWN", "Polling"))
    results = judge(dual, dual, baseline=dual)
    assert status(results, "nic.state", "mlx5_0/2") == (Status.SKIPPED, True)
    assert status(results, "nic.state", "mlx5_0") == (Status.HEALTHY, False)


def test_nic_down_since_before_the_job_warns_if_its_peers_are_up() -> None:
    """It does not condemn, but it is not normal that one of several like it does not work."""
    bad = with_first(DOWN)
    result = of(judge(bad, bad, baseline=None), "nic.state", "mlx5_0")
    assert (result.status, result.is_persistent) == (Status.DEGRADED, True)
    assert result.expected == "ACTIVE as mlx5_1"


def test_all_nics_down_since_before_the_job_are_not_judged() -> None:
    """A node that uses other means has them switched off."""
    off = network(nic(0, DOWN), nic(1, DOWN))
    results = judge(off, off, baseline=off)
    assert {result.status for result in results if result.check == "nic.state"} == {Status.SKIPPED}


def test_nic_down_before_that_works_now_is_healthy() -> None:
    """Somebody has repaired it."""
    assert status(judge(GOOD, baseline=with_first(DOWN)), "nic.state")[0] is Status.HEALTHY


def test_storage_nic_only_warns() -> None:
    """It serves no GPU of the job."""
    bad = network(nic(0), nic(1), nic(2, DOWN))
    result = of(judge(bad, bad, bad), "nic.state", "mlx5_2")
    assert result.status is Status.DEGRADED
    assert "serves no GPU of this job" in result.observed
    gone = network(nic(0), nic(1))
    assert status(judge(gone, gone, gone), "nic.present", "mlx5_2")[0] is Status.DEGRADED


def test_device_that_is_gone_condemns_when_it_stays_away() -> None:
    """A driver that is loaded again takes its devices away for a moment."""
    gone = network(nic(1), nic(2))
    assert status(judge(GOOD, gone, gone), "nic.present")[0] is Status.DEGRADED
    result = of(judge(GOOD, gone, gone, gone), "nic.present", "mlx5_0")
    assert result.status is Status.UNHEALTHY
    assert result.observed == "gone in 3 readings at 0000:19:00.0"


def test_all_rdma_gone_is_not_no_rdma() -> None:
    """Where there were devices, a missing class condemns them."""
    gone = NetworkSnapshot(0.0, has_rdma=False)
    assert status(judge(gone, gone, gone), "nic.present")[0] is Status.UNHEALTHY


def test_node_without_rdma_is_skipped() -> None:
    """One result says so; neither healthy nor broken."""
    nothing = NetworkSnapshot(0.0, has_rdma=False)
    (result,) = judge(nothing, baseline=None)
    assert (result.status, result.subject.kind) == (Status.SKIPPED, "node")
    assert "class/infiniband" in result.observed


def test_expected_nics_without_any_are_not_healthy() -> None:
    """Thresholds without data must not look well."""
    nothing = NetworkSnapshot(0.0, has_rdma=False)
    assert worst(judge(nothing, baseline=None, expected_nics=8)) is Status.UNHEALTHY


@pytest.mark.parametrize(("expected", "wanted"), [(2, Status.HEALTHY), (3, Status.UNHEALTHY)])
def test_expected_nics_are_counted_among_those_of_the_job(expected: int, wanted: Status) -> None:
    """A storage card does not fill the gap."""
    assert of(judge(GOOD, expected_nics=expected), "nic.count", "node-a").status is wanted


def test_renamed_device_is_the_same() -> None:
    """Its place on the bus tells."""
    renamed = with_first(name="rocep25s0")
    result = of(judge(renamed), "nic.present", "mlx5_0")
    assert (result.status, "rocep25s0" in result.observed) == (Status.HEALTHY, True)


def unreadable(lack: Lack) -> NetworkSnapshot:
    return with_first(replace(port(), state=Missing(lack, f"state: {lack.value}")))


def test_vanished_state_file_is_unknown() -> None:
    """Its device is there, so the port should say what it does."""
    lost = with_first(ports=())
    assert status(judge(lost, lost), "nic.state")[0] is Status.UNKNOWN
    missing = unreadable(Lack.NOT_FOUND)
    assert status(judge(missing, missing), "nic.state")[0] is Status.UNKNOWN


def test_state_that_never_could_be_read_is_skipped() -> None:
    """Masked in this container; an error of the driver is another matter."""
    masked = network(unreadable(Lack.NO_PERMISSION).nics[0])
    assert status(judge(masked, baseline=masked), "nic.state") == (Status.SKIPPED, True)
    broken = network(unreadable(Lack.ERROR).nics[0])
    assert status(judge(broken, baseline=broken), "nic.state")[0] is Status.UNKNOWN


def test_efa_state_is_not_believed() -> None:
    """Its driver says ACTIVE always."""
    device = with_first(EFA)
    assert status(judge(device, baseline=device), "nic.state")[0] is Status.SKIPPED


@pytest.mark.parametrize(
    ("before", "now", "expected", "wanted"),
    [
        (400.0, 400.0, None, (Status.HEALTHY, False)),
        (400.0, 200.0, None, (Status.DEGRADED, False)),
        (200.0, 200.0, None, (Status.HEALTHY, False)),
        (400.0, 200.0, 400.0, (Status.UNHEALTHY, False)),
        (200.0, 200.0, 400.0, (Status.UNHEALTHY, True)),
        (400.0, 800.0, 400.0, (Status.HEALTHY, False)),
    ],
)
def test_rate(before: float, now: float, expected: float | None, wanted: tuple[Status, bool]) -> None:
    """Less than before warns, less than the configuration asks for condemns."""
    start, later = with_first(port(rate_gbps=before)), with_first(port(rate_gbps=now))
    assert status(judge(later, baseline=start, expected_rate_gbps=expected), "nic.rate") == wanted


def test_rate_of_a_down_port_is_not_judged() -> None:
    """It means nothing, and the state says enough."""
    results = judge(with_first(replace(DOWN, rate_gbps=10.0)))
    assert not [result for result in results if (result.check, result.subject.name) == ("nic.rate", "mlx5_0")]


def test_roce_port_without_an_address() -> None:
    """No GID, no peer; on InfiniBand the table is not looked at."""
    good = with_first(port(layer=LinkLayer.ETHERNET))
    bad = with_first(port(layer=LinkLayer.ETHERNET, has_gid=False))
    assert status(judge(bad, baseline=good), "nic.gid")[0] is Status.DEGRADED
    assert status(judge(bad, bad, baseline=good), "nic.gid") == (Status.UNHEALTHY, False)
    assert status(judge(bad, bad, baseline=bad), "nic.gid") == (Status.DEGRADED, True)
    assert status(judge(good, baseline=good), "nic.gid")[0] is Status.HEALTHY
    infiniband = judge(with_first(port(has_gid=False)))
    assert not [result for result in infiniband if result.check == "nic.gid"]


def test_character_device_is_needed() -> None:
    """Only that of verbs, only if it was there, and not where nothing shows it."""
    bad = with_first(has_verbs=False)
    assert status(judge(bad), "nic.verbs") == (Status.DEGRADED, False)
    assert status(judge(bad, bad, bad), "nic.verbs") == (Status.UNHEALTHY, False)
    assert status(judge(bad, bad, bad, baseline=bad), "nic.verbs") == (Status.DEGRADED, True)
    hidden = with_first(has_verbs=None)
    assert not [r for r in judge(hidden) if (r.check, r.subject.name) == ("nic.verbs", "mlx5_0")]

"""Network interfaces and bonds are judged by what they were when the job began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.affinity import Scope
from ftrun.healthchecks.host_snapshots import Interface, LinkLayer, NetworkSnapshot
from ftrun.healthchecks.netdev import is_up, judge_interfaces
from ftrun.healthchecks.result import Result, Status
from tests.support.network_snapshots import NEAR, history, interface, network, nic, port

ROCE = nic(0, port(layer=LinkLayer.ETHERNET), interfaces=("p0",))
P0 = interface("p0")
DOWN = replace(P0, operstate="down", has_carrier=False)


def node(*interfaces: Interface) -> NetworkSnapshot:
    return network(ROCE, interfaces=interfaces)


def judge(
    *snapshots: NetworkSnapshot, baseline: NetworkSnapshot | None = None, names: tuple[str, ...] = ()
) -> dict[tuple[str, str], Result]:
    results = judge_interfaces(history(*snapshots), baseline or node(P0), NEAR, names)
    return {(result.check, result.subject.name): result for result in results}


def test_interface_as_it_was_is_healthy() -> None:
    """State and speed say so."""
    assert {key: result.status for key, result in judge(node(P0)).items()} == {
        ("nic.interface", "p0"): Status.HEALTHY,
        ("nic.speed", "p0"): Status.HEALTHY,
    }


def test_interface_of_a_roce_port_condemns_when_it_is_down_twice() -> None:
    """There the link shows."""
    assert judge(node(DOWN))["nic.interface", "p0"].status is Status.DEGRADED
    result = judge(node(DOWN), node(DOWN))["nic.interface", "p0"]
    assert (result.status, result.observed) == (Status.UNHEALTHY, "down, no carrier in 2 readings")
    gone = judge(node(), node(), node())["nic.interface", "p0"]
    assert (gone.status, gone.observed) == (Status.UNHEALTHY, "gone in 3 readings")


def test_ipoib_may_be_down() -> None:
    """InfiniBand does without it, unless the job names it."""
    device = nic(0, interfaces=("p0",))
    start, bad = network(device, interfaces=(P0,)), network(device, interfaces=(DOWN,))
    assert judge(bad, bad, baseline=start)["nic.interface", "p0"].status is Status.DEGRADED
    named = judge(bad, bad, baseline=start, names=("p0",))["nic.interface", "p0"]
    assert named.status is Status.UNHEALTHY


def test_interface_down_since_before_the_job_is_not_judged() -> None:
    """An unused port of the board."""
    result = judge(node(DOWN), node(DOWN), baseline=node(DOWN))["nic.interface", "p0"]
    assert (result.status, result.is_persistent) == (Status.SKIPPED, True)


def test_interfaces_without_hardware_are_left_alone() -> None:
    """Bridges of containers come and go."""
    bridge = replace(P0, name="docker0", pci=None)
    assert judge(node(), baseline=node(bridge)) == {}
    assert ("nic.interface", "docker0") in judge(node(), baseline=node(bridge), names=("docker0",))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"operstate": "up"}, True),
        ({"operstate": "unknown"}, True),
        ({"operstate": "", "has_carrier": None}, True),
        ({"operstate": "lowerlayerdown"}, False),
        ({"operstate": "dormant"}, False),
        ({"operstate": "up", "has_carrier": False}, False),
        ({"operstate": "unknown", "is_up": False}, False),
    ],
)
def test_up(fields: dict[str, object], wanted: bool) -> None:
    """A driver that does not tell is believed, a lost carrier too."""
    assert is_up(replace(P0, **fields)) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("speed", "wanted"),
    [(400000, Status.HEALTHY), (800000, Status.HEALTHY), (100000, Status.DEGRADED)],
)
def test_speed(speed: int, wanted: Status) -> None:
    """Slower than before warns."""
    assert judge(node(replace(P0, speed_mbps=speed)))["nic.speed", "p0"].status is wanted


def test_speed_that_a_driver_does_not_tell_is_not_judged() -> None:
    """-1 is no speed."""
    assert ("nic.speed", "p0") not in judge(node(replace(P0, speed_mbps=None)))


def test_other_mtu_warns() -> None:
    """Large packets would be lost."""
    results = judge(node(replace(P0, mtu=1500)))
    assert results["nic.mtu", "p0"].observed == "MTU 1500"
    assert ("nic.mtu", "p0") not in judge(node(P0))


@pytest.mark.parametrize(
    ("counts", "flaps"), [((1, 3), False), ((1, 3, 4), True), ((9, 1, 2), False), ((9, 0, 3), True)]
)
def test_flaps(counts: tuple[int, ...], flaps: bool) -> None:
    """More than two changes warn; a counter that went back starts over."""
    results = judge(*(node(replace(P0, carrier_changes=count)) for count in counts))
    assert (("nic.flaps", "p0") in results) is flaps


def bond(*members: Interface, operstate: str = "up") -> NetworkSnapshot:
    names = tuple(member.name for member in members)
    whole = Interface("bond0", True, operstate, operstate == "up", members=names)
    return node(*(replace(member, bond="bond0") for member in members), whole)


P1 = interface("p1")


def test_bond_goes_on_without_a_member() -> None:
    """That is what it is for; but it is worth a word."""
    results = judge(*[bond(DOWN, P1)] * 3, baseline=bond(P0, P1))
    assert results["nic.interface", "bond0"].status is Status.HEALTHY
    assert results["nic.interface", "p0"].status is Status.DEGRADED
    assert (results["nic.bond", "bond0"].status, results["nic.bond", "bond0"].observed) == (
        Status.DEGRADED,
        "without p0",
    )
    assert judge(bond(P0, P1), baseline=bond(P0, P1))["nic.bond", "bond0"].status is Status.HEALTHY


def test_bond_without_any_member_condemns() -> None:
    """It serves the GPU through the RDMA device of its member."""
    dead = bond(DOWN, replace(DOWN, name="p1"), operstate="down")
    assert NEAR.scope(ROCE.key) is Scope.GPU
    assert judge(dead, dead, baseline=bond(P0, P1))["nic.interface", "bond0"].status is Status.UNHEALTHY

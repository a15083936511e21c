"""How devices sit on the PCI bus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.host_snapshots import PciDevice
from ftrun.healthchecks.pci import judge_device, judge_nic_slots
from ftrun.healthchecks.result import Status, Subject
from tests.support.network_snapshots import NEAR, network, nic, pci

GOOD = pci("0000:19:00.0")
X8, SLOW = replace(GOOD, link_width=8), replace(GOOD, link_speed_gts=16.0)


def judge(
    now: PciDevice, before: PciDevice | None = GOOD, judges_speed: bool = True
) -> list[tuple[Status, bool]]:
    results = judge_device("nic.pcie", Subject("nic", "mlx5_0"), now, before, judges_speed)
    return [(result.status, result.is_persistent) for result in results]


@pytest.mark.parametrize(
    ("now", "before", "wanted"),
    [
        (GOOD, GOOD, (Status.HEALTHY, False)),
        (GOOD, None, (Status.HEALTHY, False)),
        (X8, GOOD, (Status.DEGRADED, False)),
        (X8, X8, (Status.DEGRADED, True)),
        (X8, None, (Status.DEGRADED, True)),
        (SLOW, GOOD, (Status.DEGRADED, False)),
        (replace(GOOD, link_width=None, link_speed_gts=None), GOOD, (Status.HEALTHY, False)),
        (replace(X8, link_width_max=None), replace(X8, link_width_max=None), (Status.HEALTHY, False)),
        (replace(GOOD, fatal_errors=1), GOOD, (Status.DEGRADED, False)),
        (replace(GOOD, nonfatal_errors=5), replace(GOOD, nonfatal_errors=5), (Status.HEALTHY, False)),
        (replace(GOOD, config_vendor=0xFFFF), GOOD, (Status.UNHEALTHY, False)),
        (replace(GOOD, config_vendor=None), GOOD, (Status.HEALTHY, False)),
    ],
)
def test_device(now: PciDevice, before: PciDevice | None, wanted: tuple[Status, bool]) -> None:
    """A device that does not answer condemns; a link with fewer lanes warns, and so do new errors."""
    assert judge(now, before) == [wanted]


def test_gpu_may_slow_its_link_down() -> None:
    """It does so when it idles; lanes it keeps."""
    assert judge(SLOW, judges_speed=False) == [(Status.HEALTHY, False)]
    assert judge(X8, judges_speed=False) == [(Status.DEGRADED, False)]


def test_dead_card_condemns_only_near_a_gpu_of_the_job() -> None:
    """And a device without hardware has no slot to judge."""
    dead = [replace(nic(index), pci=replace(pci(nic(index).key), config_vendor=0xFFFF)) for index in (0, 2)]
    results = judge_nic_slots(network(*dead, nic(3, pci=None)), network(nic(0), nic(2)), NEAR)
    assert {result.subject.name: result.status for result in results} == {
        "mlx5_0": Status.UNHEALTHY,
        "mlx5_2": Status.DEGRADED,
    }


def test_slot_is_named() -> None:
    """Somebody has to find the card."""
    (result,) = judge_device("nic.pcie", Subject("nic", "mlx5_0"), replace(X8, slot="7"), GOOD)
    assert result.observed == "PCIe width x8 of 0000:19:00.0 (slot 7)"

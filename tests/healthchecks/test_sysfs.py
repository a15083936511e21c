"""Reading NICs, interfaces and PCI devices from trees of well-known machines, and from this machine's own."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ftrun.healthchecks.host_snapshots import LinkLayer, NetworkSnapshot, Nic, value_in
from ftrun.healthchecks.reading import Lack, Missing, Value, from_json, to_json
from ftrun.healthchecks.sysfs import NetworkReader
from tests.support.sysfs_trees import SysfsTree, dgx_gpu, dgx_h100, gb200, p5_efa, roce_bond


def read(tree: SysfsTree, counters: frozenset[str] | None = None) -> NetworkSnapshot:
    return NetworkReader(counters, tree.sysfs, tree.proc).read(now=1.0)


def nic(snapshot: NetworkSnapshot, name: str) -> Nic:
    return next(nic for nic in snapshot.nics if nic.name == name)


def test_port_of_an_infiniband_card(tmp_path: Path) -> None:
    """State, rate, layer and counters are read; a counter without a number is left out."""
    snapshot = read(dgx_h100(tmp_path))
    (port,) = nic(snapshot, "mlx5_3").ports
    assert (port.state, port.physical_state) == (Value("ACTIVE"), Value("LinkUp"))
    assert (port.layer, port.rate_gbps, port.has_gid) == (LinkLayer.INFINIBAND, 400.0, True)
    assert value_in(port.counters, "link_downed") == 0
    assert value_in(port.counters, "rnr_nak_retry_err") == 0
    assert value_in(port.counters, "port_rcv_data") is None
    assert value_in(port.counters, "lifespan") is None


def test_place_of_a_card(tmp_path: Path) -> None:
    """Ancestors, NUMA node, slot, link and resets come from the PCI function of the device."""
    snapshot = read(dgx_h100(tmp_path))
    pci = nic(snapshot, "mlx5_0").pci
    assert pci is not None
    assert pci.chain == ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0")
    assert (pci.address, pci.numa_node, pci.driver, pci.config_vendor) == (
        "0000:14:00.0",
        0,
        "mlx5_core",
        0x15B3,
    )
    assert (pci.link_width, pci.link_speed_gts, pci.fatal_errors) == (16, 32.0, 0)
    assert pci.reset_methods == ("flr", "bus")
    assert [gpu.address for gpu in snapshot.gpus] == [dgx_gpu(index) for index in range(8)]
    assert snapshot.gpus[2].slot == "GPU-2"


def test_natural_order_and_devices_without_hardware(tmp_path: Path) -> None:
    """mlx5_2 comes before mlx5_10; a software device has no place on the bus."""
    snapshot = read(dgx_h100(tmp_path))
    assert [nic.name for nic in snapshot.nics] == [*(f"mlx5_{index}" for index in range(10)), "rxe0"]
    assert nic(snapshot, "rxe0").pci is None
    assert nic(snapshot, "rxe0").has_verbs is False
    assert nic(snapshot, "mlx5_1").has_verbs is True


def test_domains_other_than_0000(tmp_path: Path) -> None:
    """On GB200 most devices are in domains of their own."""
    assert {nic.pci.chain[0] for nic in read(gb200(tmp_path)).nics if nic.pci} == {
        "pci0000:00",
        "pci0002:00",
        "pci0010:00",
        "pci0012:00",
    }


def test_efa_is_known_by_its_driver(tmp_path: Path) -> None:
    """Its names say nothing, and its counters are the device's and the port's."""
    device = nic(read(p5_efa(tmp_path)), "rdmap68s0")
    assert device.ports[0].layer is LinkLayer.EFA
    assert value_in(device.counters, "no_completion_cmds") == 0
    assert value_in(device.ports[0].counters, "rx_drops") == 0


def test_bond_and_its_members(tmp_path: Path) -> None:
    """The bond has no device; its members know it, and "bonding_masters" is no interface."""
    snapshot = read(roce_bond(tmp_path))
    bond, member = snapshot.interface("bond0"), snapshot.interface("p0")
    assert bond is not None
    assert member is not None
    assert (bond.members, bond.pci, bond.speed_mbps) == (("p0", "p1"), None, 800000)
    assert member.bond == "bond0"
    assert [interface.name for interface in snapshot.interfaces] == ["bond0", "p0", "p1"]
    assert nic(snapshot, "mlx5_bond_0").interfaces == ("p0",)


@pytest.mark.parametrize("make", [dgx_h100, gb200, p5_efa, roce_bond])
def test_snapshot_travels_as_json(tmp_path: Path, make: object) -> None:
    """A child can print it."""
    assert callable(make)
    snapshot = read(make(tmp_path))
    assert from_json(NetworkSnapshot, to_json(snapshot)) == snapshot


def test_no_sysfs_at_all(tmp_path: Path) -> None:
    """Nothing is there, and nothing is raised."""
    snapshot = NetworkReader(None, tmp_path / "sys", tmp_path / "proc").read(2.0)
    assert snapshot == NetworkSnapshot(taken_at=2.0, has_rdma=False)


def test_state_file_that_vanished_is_not_healthy(tmp_path: Path) -> None:
    """The reading says that there is none, and why."""
    tree = dgx_h100(tmp_path)
    tree.remove("class/infiniband/mlx5_0/ports/1/state")
    state = nic(read(tree), "mlx5_0").ports[0].state
    assert isinstance(state, Missing)
    assert (state.lack, state.reason.rpartition(": ")[2]) == (Lack.NOT_FOUND, "No such file or directory")


def test_dead_device_reads_as_all_ones(tmp_path: Path) -> None:
    """The kernel remembers the vendor, the configuration space does not; a width of 255 is none."""
    tree = dgx_h100(tmp_path)
    path = tree.sysfs / "bus/pci/devices" / dgx_gpu(1)
    (path / "config").write_bytes(b"\xff" * 64)
    (path / "current_link_width").write_text("255\n")
    reader = NetworkReader(None, tree.sysfs, tree.proc)
    device = reader.read_pci(dgx_gpu(1))
    assert device is not None
    assert (device.vendor, device.config_vendor, device.link_width) == (0x10DE, 0xFFFF, None)
    assert reader.read_pci("0000:ff:1f.7") is None


def test_only_wanted_counters_are_read(tmp_path: Path) -> None:
    """A port has forty; each one may cost a question to the card."""
    (port,) = nic(read(dgx_h100(tmp_path), frozenset({"link_downed"})), "mlx5_0").ports
    assert [counter.name for counter in port.counters] == ["link_downed"]


def test_counter_that_the_card_refuses_is_not_asked_again(tmp_path: Path) -> None:
    """Each refusal of a port that is not ours writes a line to the kernel log (node_exporter#3434)."""
    refusing = Path("/sys/class/net/lo/speed")
    try:
        refusing.read_text()
    except OSError as error:
        if error.errno != errno.EINVAL:
            pytest.skip("needs a file of sysfs that refuses to be read")
    else:
        pytest.skip("needs a file of sysfs that refuses to be read")
    tree = dgx_h100(tmp_path)
    reader = NetworkReader(None, tree.sysfs, tree.proc)
    counter = tree.sysfs / "class/infiniband/mlx5_0/ports/1/counters/symbol_error"

    def counted(by: NetworkReader) -> list[int | None]:
        snapshot = by.read(1.0)
        return [
            value_in(nic(snapshot, f"mlx5_{index}").ports[0].counters, "symbol_error") for index in (0, 1)
        ]

    counter.unlink()
    counter.symlink_to(refusing)
    assert counted(reader) == [None, 0]
    counter.unlink()
    counter.write_text("7\n")
    assert counted(reader) == [None, 0], "this reader does not ask again"
    assert counted(NetworkReader(None, tree.sysfs, tree.proc)) == [7, 0]


def test_default_route_of_ipv6_alone(tmp_path: Path) -> None:
    """Without one of IPv4 the one of IPv6 shows the management network."""
    tree = dgx_h100(tmp_path)
    (tree.proc / "net/route").write_text(
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    )
    zero, gateway = "0" * 32, "fe80" + "0" * 28
    (tree.proc / "net/ipv6_route").write_text(
        f"{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003     eno1\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
    )
    assert read(tree).default_routes == ("eno1",)


def test_this_machine() -> None:
    """The real tree can be read, and the loopback interface is there."""
    if not Path("/sys/class/net/lo").exists():
        pytest.skip("needs a mounted sysfs with network interfaces")
    snapshot = NetworkReader().read(0.0)
    loopback = snapshot.interface("lo")
    assert loopback is not None
    assert (loopback.pci, loopback.mtu is not None) == (None, True)
    assert from_json(NetworkSnapshot, to_json(snapshot)) == snapshot

"""Which NICs serve which GPU, on well-known machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.healthchecks.affinity import Affinity, Level, Scope, distance, place_nics
from ftrun.healthchecks.host_snapshots import NetworkSnapshot
from ftrun.healthchecks.sysfs import NetworkReader
from ftrun.healthchecks.topology_file import read_chains
from tests.support.sysfs_trees import (
    AZURE_TOPOLOGY,
    SysfsTree,
    azure,
    dgx_gpu,
    dgx_h100,
    gb200,
    p5_efa,
    roce_bond,
)


def network(tree: SysfsTree) -> NetworkSnapshot:
    return NetworkReader(None, tree.sysfs, tree.proc).read(0.0)


def place(tree: SysfsTree, *gpus: str, topology: str = "") -> Affinity:
    reader = NetworkReader(None, tree.sysfs, tree.proc)
    chains = read_chains(topology) if topology else None
    return place_nics({gpu: reader.read_pci(gpu) for gpu in gpus}, reader.read(0.0), chains)


def names(tree: SysfsTree, affinity: Affinity, gpu: str) -> list[str]:
    found = network(tree)
    return [nic.name for nic in found.nics if nic.key in affinity.near[gpu].keys]


def scope_of(tree: SysfsTree, affinity: Affinity, name: str) -> Scope:
    return affinity.scope(next(nic.key for nic in network(tree).nics if nic.name == name))


def test_dgx_pairs_each_gpu_with_the_nic_behind_its_switch(tmp_path: Path) -> None:
    """Storage cards and software devices serve no GPU."""
    tree = dgx_h100(tmp_path)
    affinity = place(tree, *map(dgx_gpu, range(8)))
    for index in range(8):
        assert affinity.near[dgx_gpu(index)].level is Level.PIX
        assert names(tree, affinity, dgx_gpu(index)) == [f"mlx5_{index}"]
        assert scope_of(tree, affinity, f"mlx5_{index}") is Scope.GPU
    assert scope_of(tree, affinity, "mlx5_8") is Scope.OTHER
    assert scope_of(tree, affinity, "rxe0") is Scope.OTHER
    assert affinity.gpus_served("0000:14:00.0") == (dgx_gpu(0),)


def test_nics_of_gpus_that_the_job_does_not_have_are_other(tmp_path: Path) -> None:
    """Half a node is another job's."""
    tree = dgx_h100(tmp_path)
    affinity = place(tree, dgx_gpu(4))
    assert scope_of(tree, affinity, "mlx5_4") is Scope.GPU
    assert scope_of(tree, affinity, "mlx5_0") is Scope.OTHER


def test_gb200_falls_back_to_the_numa_node(tmp_path: Path) -> None:
    """GPU and NIC share no host bridge; such a NIC counts for the whole node."""
    tree = gb200(tmp_path)
    affinity = place(tree, "0008:01:00.0", "0018:01:00.0")
    assert affinity.near["0008:01:00.0"].level is Level.NODE
    assert names(tree, affinity, "0008:01:00.0") == ["mlx5_0", "mlx5_1"]
    assert names(tree, affinity, "0018:01:00.0") == ["mlx5_2", "mlx5_3"]
    assert scope_of(tree, affinity, "mlx5_3") is Scope.NODE


def test_p5_has_four_nics_for_each_gpu(tmp_path: Path) -> None:
    """All at the best level count, not one of them."""
    tree = p5_efa(tmp_path)
    affinity = place(tree, "0000:43:00.0", "0000:63:00.0")
    assert names(tree, affinity, "0000:43:00.0") == [f"rdmap{bus}s0" for bus in range(68, 72)]
    assert names(tree, affinity, "0000:63:00.0") == [f"rdmap{bus}s0" for bus in range(100, 104)]


def test_azure_hides_the_tree_so_all_nics_count_for_the_node(tmp_path: Path) -> None:
    """Nobody knows which GPU a NIC serves."""
    tree = azure(tmp_path)
    affinity = place(tree, "0001:00:00.0", "0002:00:00.0")
    assert affinity.near["0001:00:00.0"].level is Level.SYS
    assert affinity.near["0001:00:00.0"].keys == ()
    assert {scope_of(tree, affinity, f"mlx5_ib{index}") for index in range(2)} == {Scope.NODE}


def test_azure_with_its_topology_file_is_known(tmp_path: Path) -> None:
    """NCCL's file has the switches that the virtual machine does not show."""
    tree = azure(tmp_path)
    affinity = place(tree, "0001:00:00.0", "0002:00:00.0", topology=AZURE_TOPOLOGY)
    assert names(tree, affinity, "0001:00:00.0") == ["mlx5_ib0"]
    assert names(tree, affinity, "0002:00:00.0") == ["mlx5_ib1"]
    assert scope_of(tree, affinity, "mlx5_ib0") is Scope.GPU


def test_topology_file_must_be_xml() -> None:
    """The error says what was expected."""
    with pytest.raises(ValueError, match="topology file of NCCL"):
        read_chains("not xml <")


def test_nic_with_the_default_route_is_management(tmp_path: Path) -> None:
    """Also as a member of the bond that has it."""
    tree = roce_bond(tmp_path)
    assert scope_of(tree, place(tree, "0000:18:00.0"), "mlx5_bond_0") is Scope.GPU
    tree.default_route("bond0")
    assert scope_of(tree, place(tree, "0000:18:00.0"), "mlx5_bond_0") is Scope.OTHER


def test_virtual_functions_count_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    """A container may have been given nothing but them."""
    tree = dgx_h100(tmp_path)
    tree.write("bus/pci/devices/0000:14:00.0/physfn/vendor", "0x15b3")
    assert names(tree, place(tree, dgx_gpu(0)), dgx_gpu(0)) != ["mlx5_0"]
    alone = network(tree)
    alone = replace(alone, nics=tuple(nic for nic in alone.nics if nic.name == "mlx5_0"))
    gpu = NetworkReader(None, tree.sysfs, tree.proc).read_pci(dgx_gpu(0))
    assert place_nics({dgx_gpu(0): gpu}, alone).near[dgx_gpu(0)].keys == ("0000:14:00.0",)


def test_nothing_is_known_without_sysfs(tmp_path: Path) -> None:
    """No device, no NIC, no error."""
    affinity = place_nics({"0000:18:00.0": None}, NetworkSnapshot(0.0, has_rdma=False))
    assert affinity.near["0000:18:00.0"].level is Level.SYS
    assert affinity.gpus_served("mlx5_0") == ()
    assert affinity.scope("mlx5_0") is Scope.OTHER


@pytest.mark.parametrize(
    ("a", "b", "numa", "level"),
    [
        ("h r s d1 x", "h r s d2 y", (0, 0), (Level.PIX, 4)),
        ("h r s d1 s2 d3 x", "h r s d2 y", (0, 0), (Level.PXB, 6)),
        ("h r x", "h r y", (0, 0), (Level.PXB, 2)),
        ("h r1 x", "h r2 s d y", (0, 0), (Level.PHB, 0)),
        ("h x", "i y", (1, 1), (Level.NODE, 0)),
        ("h x", "i y", (0, 1), (Level.SYS, 0)),
        ("h x", "i y", (-1, -1), (Level.SYS, 0)),
        ("", "", (0, 0), (Level.NODE, 0)),
    ],
)
def test_distance(a: str, b: str, numa: tuple[int, int], level: tuple[Level, int]) -> None:
    """The shared part of the two paths decides; NUMA nodes only if nothing is shared and both are known."""
    assert distance(tuple(a.split()), numa[0], tuple(b.split()), numa[1]) == level

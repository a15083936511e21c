"""Readings of a small node with two GPUs and a NIC near each, to be changed by tests of the judges."""

from __future__ import annotations

from dataclasses import replace

from ftrun.healthchecks.affinity import Affinity, Level, NearNics, Scope
from ftrun.healthchecks.host_snapshots import (
    Counter,
    Interface,
    LinkLayer,
    NetworkSnapshot,
    Nic,
    PciDevice,
    Port,
)
from ftrun.healthchecks.reading import Value

GPUS = ("0000:18:00.0", "0000:28:00.0")
INTERVAL_S = 30.0


def pci(address: str, **fields: object) -> PciDevice:
    device = PciDevice(address, (f"pci{address[:7]}", address), 0, 0x15B3, 0x020700, 0x15B3)
    full = replace(device, link_width=16, link_width_max=16, link_speed_gts=32.0, link_speed_max_gts=32.0)
    return replace(full, fatal_errors=0, nonfatal_errors=0, **fields)  # type: ignore[arg-type]


def port(number: int = 1, state: str = "ACTIVE", physical: str = "LinkUp", **fields: object) -> Port:
    made = Port(number, Value(state), Value(physical), LinkLayer.INFINIBAND, 400.0, True)
    return replace(made, **fields)  # type: ignore[arg-type]


DOWN = port(1, "DOWN", "Disabled")


def nic(index: int, *ports: Port, **fields: object) -> Nic:
    made = Nic(
        f"mlx5_{index}", pci(f"0000:{index + 1}9:00.0"), "mlx5_core", ports or (port(),), has_verbs=True
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def interface(name: str, **fields: object) -> Interface:
    made = Interface(name, True, "up", True, 1, 400000, 9000, pci("0000:19:00.0"))
    return replace(made, **fields)  # type: ignore[arg-type]


def network(*nics: Nic, interfaces: tuple[Interface, ...] = (), at: float = 0.0) -> NetworkSnapshot:
    return NetworkSnapshot(at, nics, interfaces)


def history(*snapshots: NetworkSnapshot) -> tuple[NetworkSnapshot, ...]:
    """These readings, one each 30 s."""
    return tuple(replace(snapshot, taken_at=index * INTERVAL_S) for index, snapshot in enumerate(snapshots))


def counted(name: str, *values: int) -> tuple[NetworkSnapshot, ...]:
    """Readings in which a counter of mlx5_0's port takes these values; mlx5_1 is quiet."""
    quiet = nic(1, port(counters=(Counter(name, 7),)))
    return history(*(network(nic(0, port(counters=(Counter(name, value),))), quiet) for value in values))


NEAR = Affinity(
    near={GPUS[0]: NearNics(Level.PIX, (nic(0).key,)), GPUS[1]: NearNics(Level.PIX, (nic(1).key,))},
    scopes={nic(0).key: Scope.GPU, nic(1).key: Scope.GPU, nic(2).key: Scope.OTHER},
)
"""mlx5_0 and mlx5_1 serve a GPU each, mlx5_2 none."""

"""Which NICs serve which GPU, and so for whom a sick NIC counts. Pure.

Like NCCL, it takes the shortest way over PCI; and unlike tables of machine types it needs no update. Where
the PCI tree is hidden (Azure) NCCL's own topology file tells the places (`topology_file`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from ftrun.healthchecks.host_snapshots import NetworkSnapshot, Nic, PciDevice

_NO_HOPS = 0
"""Beyond one PCI switch the count of bridges says nothing of the distance."""


class Level(IntEnum):
    """How far a NIC is from a GPU, in the words of `nvidia-smi topo`; less is nearer."""

    PIX = 0
    """At most one PCI bridge between them."""
    PXB = 1
    """Several PCI bridges, not the host bridge."""
    PHB = 2
    """The same host bridge."""
    NODE = 3
    """The same NUMA node."""
    SYS = 4
    """Another NUMA node, or nothing known."""


@dataclass(frozen=True, slots=True)
class NearNics:
    """The NICs that serve one GPU."""

    level: Level
    keys: tuple[str, ...]
    """`Nic.key` of each; empty at level SYS."""


class Scope(Enum):
    """For whom a sick NIC counts."""

    GPU = "gpu"
    """For the GPUs it serves."""
    NODE = "node"
    """For all GPUs of the node: nobody knows which it serves."""
    OTHER = "other"
    """For none: storage, management, a second port."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """The NICs of a node and the job's GPUs."""

    near: Mapping[str, NearNics]
    """By PCI address of the GPU."""
    scopes: Mapping[str, Scope]
    """By `Nic.key`."""

    def scope(self, key: str) -> Scope:
        """For whom the NIC counts; one that is not known counts for none."""
        return self.scopes.get(key, Scope.OTHER)

    def gpus_served(self, key: str) -> tuple[str, ...]:
        """PCI addresses of the job's GPUs that the NIC is nearest to."""
        return tuple(gpu for gpu, near in self.near.items() if key in near.keys)


def place_nics(
    gpus: Mapping[str, PciDevice | None],
    network: NetworkSnapshot,
    chains: Mapping[str, tuple[str, ...]] | None = None,
) -> Affinity:
    """The NICs near each of the job's GPUs.

    Args:
        gpus: the job's GPUs by PCI address; None where sysfs does not show the device.
        network: as read at the job's begin, when all NICs were there.
        chains: places by PCI address that override sysfs (`topology_file.read_chains`).
    """
    overrides = chains or {}
    candidates = _candidates(network)
    near = {
        address: _nearest(_placed(gpu, overrides), candidates, overrides) if gpu else NearNics(Level.SYS, ())
        for address, gpu in gpus.items()
    }
    return Affinity(near, dict(_scopes(network, candidates, near)))


def _candidates(network: NetworkSnapshot) -> tuple[Nic, ...]:
    """RDMA hardware without management; virtual functions only if there is nothing else."""
    real = [nic for nic in network.nics if nic.pci and not set(nic.interfaces) & _management(network)]
    physical = tuple(nic for nic in real if nic.pci and not nic.pci.is_virtual_function)
    return physical or tuple(real)


def _management(network: NetworkSnapshot) -> set[str]:
    """Interfaces with the default route, and what they bond."""
    routes = set(network.default_routes)
    return routes | {interface.name for interface in network.interfaces if interface.bond in routes}


def _placed(device: PciDevice, chains: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], int]:
    return chains.get(device.address, device.chain), device.numa_node


def _nearest(
    gpu: tuple[tuple[str, ...], int], nics: Iterable[Nic], chains: Mapping[str, tuple[str, ...]]
) -> NearNics:
    ways = {nic.key: distance(*gpu, *_placed(nic.pci, chains)) for nic in nics if nic.pci}
    best = min(ways.values(), default=(Level.SYS, _NO_HOPS))
    if best[0] is Level.SYS:
        return NearNics(Level.SYS, ())
    return NearNics(best[0], tuple(key for key, way in ways.items() if way == best))


def distance(
    chain_a: tuple[str, ...], numa_a: int, chain_b: tuple[str, ...], numa_b: int
) -> tuple[Level, int]:
    """Level and, where bridges between the two count, their hops over PCI."""
    shared = 0
    for a, b in zip(chain_a, chain_b, strict=False):
        if a != b:
            break
        shared += 1
    hops = len(chain_a) + len(chain_b) - 2 * shared
    if shared >= 2:
        # A switch has an upstream and a downstream port: four steps are one switch.
        return (Level.PIX if shared >= 3 and hops <= 4 else Level.PXB), hops
    if shared == 1:
        return Level.PHB, _NO_HOPS
    return (Level.NODE if numa_a == numa_b >= 0 else Level.SYS), _NO_HOPS


def _scopes(
    network: NetworkSnapshot, candidates: tuple[Nic, ...], near: Mapping[str, NearNics]
) -> Iterator[tuple[str, Scope]]:
    by_gpu = {key for nics in near.values() if nics.level <= Level.PHB for key in nics.keys}
    by_node = {key for nics in near.values() if nics.level is Level.NODE for key in nics.keys}
    # A GPU that is near no NIC at all may use any of them.
    is_unplaced = any(nics.level is Level.SYS for nics in near.values())
    usable = {nic.key for nic in candidates}
    for nic in network.nics:
        if nic.key in by_gpu:
            yield nic.key, Scope.GPU
        elif nic.key in by_node or (is_unplaced and nic.key in usable):
            yield nic.key, Scope.NODE
        else:
            yield nic.key, Scope.OTHER

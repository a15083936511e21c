"""Which CPUs each worker is bound to, given what is known of CPUs and GPUs. Pure.

The four modes mean what torch.numa.binding says of torchrun's `--numa-binding`, with these differences: a
layout that is not known is a reason to bind nothing rather than to fail; `exclusive` and `core-complex`
divide a NUMA node among the workers that are there, not among GPUs that no worker uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftrun.healthchecks.gpu_addresses import GpuAddress


class Mode(Enum):
    """Values of `--numa-binding`."""

    NODE = "node"
    """All CPUs of the GPU's NUMA node."""
    SOCKET = "socket"
    """All CPUs of all NUMA nodes on the GPU's socket."""
    EXCLUSIVE = "exclusive"
    """Whole cores of the GPU's NUMA node that no other worker is given."""
    CORE_COMPLEX = "core-complex"
    """The CPUs of one last-level cache of the GPU's NUMA node; another one per worker while there are any."""


@dataclass(frozen=True, slots=True)
class Topology:
    """CPUs of this node that this process may use, by number; what could not be read is absent."""

    cpus_of_node: Mapping[int, frozenset[int]]
    """By NUMA node."""
    package_of_cpu: Mapping[int, int]
    core_of_cpu: Mapping[int, int]
    """A core is named by the lowest number of its hardware threads."""
    cache_of_cpu: Mapping[int, int]
    """A last-level cache is named by the lowest number of the CPUs that share it."""
    node_of_gpu: Mapping[str, int]
    """By PCI address; -1 where firmware does not say."""


@dataclass(frozen=True, slots=True)
class NumaBinding:
    """The CPUs of each worker (per local rank), or why there is no binding."""

    cpus: Mapping[int, frozenset[int]]
    """By local rank; empty if nothing is bound."""
    degraded: str = ""
    """Why nothing is bound, as a sentence; "" if all are."""
    survivor_pid: int | None = None
    """A child that hangs in the GPU driver and had to be left behind."""


class _UnknownError(Exception):
    """Something that the mode needs is not known; says what."""


def choose(mode: Mode, gpu_of_rank: Sequence[str], topology: Topology) -> NumaBinding:
    """CPUs for every local rank, or for none with the reason.

    Args:
        mode: how closely to bind.
        gpu_of_rank: PCI address of each local rank's GPU.
        topology: must have what `mode` needs.
    """
    try:
        nodes = [_node_of(address, topology) for address in gpu_of_rank]
        sets = [_CHOICES[mode](local_rank, nodes, topology) for local_rank in range(len(nodes))]
    except _UnknownError as error:
        return NumaBinding({}, str(error))
    return NumaBinding(dict(enumerate(sets)))


def gpus_of_ranks(
    gpus: Sequence[GpuAddress], visible: str | None, local_world_size: int
) -> tuple[tuple[str, ...], str]:
    """PCI address of each local rank's GPU, and a reason if that is not known for all ("" if it is).

    CUDA numbers the devices that `visible` (CUDA_VISIBLE_DEVICES; None if unset) lists, and ignores the list
    from the first one on that is not there. A worker's device is the one whose number is its local rank.
    CUDA's own order is taken to be NVML's, which holds wherever all GPUs of a node are alike.
    """
    addresses: list[str] = []
    names = [str(gpu.index) for gpu in gpus] if visible is None else visible.split(",")
    for name in names:
        gpu = _named_gpu(gpus, name.strip())
        if gpu is None:
            break
        addresses.append(gpu.pci_address)
    if len(addresses) >= local_world_size:
        return tuple(addresses[:local_world_size]), ""
    if visible is None:
        return (), f"local rank {len(addresses)} has no GPU: this node has {len(gpus)}"
    if any(name.strip().startswith("MIG-") for name in names):
        return (), "CUDA_VISIBLE_DEVICES lists MIG devices, and NVML does not say to which GPU they belong"
    count = len(addresses)
    return (), f"local rank {count} has no GPU: CUDA_VISIBLE_DEVICES lists {count} that this node has"


def _named_gpu(gpus: Sequence[GpuAddress], name: str) -> GpuAddress | None:
    """The GPU that CUDA means by an index, a UUID or its beginning, or an old MIG name (MIG-GPU-..)."""
    if name.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    uuid = name.removeprefix("MIG-").partition("/")[0]
    matches = [gpu for gpu in gpus if uuid.startswith("GPU-") and gpu.uuid.startswith(uuid)]
    return matches[0] if len(matches) == 1 else None


def _node_of(address: str, topology: Topology) -> int:
    node = topology.node_of_gpu.get(address)
    nodes = [number for number, cpus in topology.cpus_of_node.items() if cpus]
    if not nodes:
        raise _UnknownError("the kernel shows no NUMA node with a CPU that this process may use")
    if node is None:
        raise _UnknownError(f"the kernel does not say on which NUMA node GPU {address} is")
    if node < 0:
        if len(topology.cpus_of_node) == 1:
            return nodes[0]
        raise _UnknownError(f"the firmware does not say on which NUMA node GPU {address} is")
    if node not in nodes:
        raise _UnknownError(f"this process may use no CPU of NUMA node {node}, where GPU {address} is")
    return node


def _choose_node(local_rank: int, nodes: Sequence[int], topology: Topology) -> frozenset[int]:
    return topology.cpus_of_node[nodes[local_rank]]


def _choose_socket(local_rank: int, nodes: Sequence[int], topology: Topology) -> frozenset[int]:
    packages = _by_node(topology, topology.package_of_cpu, "socket")
    package = packages[nodes[local_rank]]
    return frozenset().union(*(topology.cpus_of_node[node] for node in packages if packages[node] == package))


def _choose_exclusive(local_rank: int, nodes: Sequence[int], topology: Topology) -> frozenset[int]:
    node = nodes[local_rank]
    cores = [cpus for _, cpus in sorted(_groups(node, topology, topology.core_of_cpu, "core").items())]
    position, sharers = _place(local_rank, nodes)
    if len(cores) < sharers:
        raise _UnknownError(f"NUMA node {node} has {len(cores)} cores for the {sharers} workers of its GPUs")
    each, extra = divmod(len(cores), sharers)
    start = position * each + min(position, extra)
    return frozenset().union(*cores[start : start + each + (position < extra)])


def _choose_core_complex(local_rank: int, nodes: Sequence[int], topology: Topology) -> frozenset[int]:
    groups = _groups(nodes[local_rank], topology, topology.cache_of_cpu, "last-level cache")
    largest_first = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    position, _ = _place(local_rank, nodes)
    return largest_first[position % len(largest_first)][1]


_CHOICES: Mapping[Mode, Callable[[int, Sequence[int], Topology], frozenset[int]]] = {
    Mode.NODE: _choose_node,
    Mode.SOCKET: _choose_socket,
    Mode.EXCLUSIVE: _choose_exclusive,
    Mode.CORE_COMPLEX: _choose_core_complex,
}


def _place(local_rank: int, nodes: Sequence[int]) -> tuple[int, int]:
    """Position of a worker among those of its NUMA node, and how many they are."""
    sharers = [other for other, node in enumerate(nodes) if node == nodes[local_rank]]
    return sharers.index(local_rank), len(sharers)


def _by_node(topology: Topology, name_of_cpu: Mapping[int, int], what: str) -> dict[int, int]:
    """The socket of each NUMA node that has CPUs: that of its first CPU."""
    first = {node: min(cpus) for node, cpus in topology.cpus_of_node.items() if cpus}
    return {node: _name(cpu, name_of_cpu, what) for node, cpu in first.items()}


def _groups(
    node: int, topology: Topology, name_of_cpu: Mapping[int, int], what: str
) -> dict[int, frozenset[int]]:
    groups: dict[int, set[int]] = {}
    for cpu in topology.cpus_of_node[node]:
        groups.setdefault(_name(cpu, name_of_cpu, what), set()).add(cpu)
    return {name: frozenset(cpus) for name, cpus in groups.items()}


def _name(cpu: int, name_of_cpu: Mapping[int, int], what: str) -> int:
    if cpu not in name_of_cpu:
        raise _UnknownError(f"the kernel does not say which {what} CPU {cpu} belongs to")
    return name_of_cpu[cpu]

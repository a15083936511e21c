"""NUMA binding of workers: reads GPUs and CPUs, and sets affinities. What is chosen is `numa_choice`'s.

Only CPUs are bound. Memory follows by first touch: Linux takes a page from the node of the CPU that first
writes it, and a worker allocates after it was bound. numactl is not needed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ftrun.healthchecks.gpu_addresses import NvmlError, read_gpus
from ftrun.launcher.numa_choice import Mode, NumaBinding, Topology, choose, gpus_of_ranks

_SYSFS = Path("/sys")
_NVML_TIMEOUT_S = 30.0
"""Without persistence mode a GPU takes 1 to 3 s to initialise, one after the other, and nodes have eight."""


def bind(
    mode: str,
    local_world_size: int,
    environ: Mapping[str, str],
    sysfs: Path = _SYSFS,
    timeout_s: float = _NVML_TIMEOUT_S,
) -> NumaBinding:
    """CPUs for the workers of this node: those near the GPU that each one will use.

    Args:
        mode: a value of `--numa-binding`.
        local_world_size: workers of this node.
        environ: of the workers, for CUDA_VISIBLE_DEVICES.
        sysfs: where sysfs is mounted.
        timeout_s: how long NVML may take to list the GPUs, in seconds.
    """
    try:
        gpus = read_gpus(timeout_s)
    except NvmlError as error:
        return NumaBinding({}, f"the GPUs of this node are not known: {error.reason}", error.survivor_pid)
    addresses, reason = gpus_of_ranks(gpus, environ.get("CUDA_VISIBLE_DEVICES"), local_world_size)
    return NumaBinding({}, reason) if reason else choose_cpus(mode, addresses, sysfs)


def choose_cpus(mode: str, gpu_of_rank: Sequence[str], sysfs: Path = _SYSFS) -> NumaBinding:
    """CPUs for each local rank, near the GPU whose PCI address `gpu_of_rank` holds for it."""
    allowed = frozenset(os.sched_getaffinity(0))
    return choose(Mode(mode), gpu_of_rank, _read_topology(Mode(mode), gpu_of_rank, sysfs, allowed))


def apply(pid: int, cpus: Iterable[int]) -> str:
    """Bind every thread of process `pid` to `cpus`; threads and children that come later inherit it.

    Never raises; returns why it was not done, or "".
    """
    wanted, bound = frozenset(cpus), set[int]()
    # A thread not yet bound may start another one meanwhile: look again until there is no new one.
    try:
        while new := {int(name) for name in os.listdir(f"/proc/{pid}/task")} - bound:
            for tid in new:
                _set_affinity(tid, wanted)
            bound |= new
    except (OSError, ValueError, OverflowError) as error:
        return f"process {pid} cannot be bound to CPUs {format_cpus(wanted)}: {error}"
    return ""


def _set_affinity(tid: int, cpus: frozenset[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # the thread has ended
        os.sched_setaffinity(tid, cpus)


def parse_cpus(text: str) -> frozenset[int]:
    """CPUs of a list as the kernel writes it: "0-2,4" is 0, 1, 2 and 4.

    Raises:
        ValueError: it is not such a list.
    """
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The list that the kernel would write for `cpus`: 0, 1, 2 and 4 are "0-2,4"."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def _read_topology(mode: Mode, gpus: Iterable[str], sysfs: Path, allowed: frozenset[int]) -> Topology:
    """What sysfs has of the things that `mode` needs (the files of a large node are thousands)."""
    directories = {cpu: sysfs / f"devices/system/cpu/cpu{cpu}" for cpu in allowed}
    package_of_cpu, core_of_cpu, cache_of_cpu = {}, {}, {}
    for cpu, directory in directories.items():
        if mode is Mode.SOCKET:
            package_of_cpu[cpu] = _read_int(directory / "topology/physical_package_id")
        elif mode is Mode.EXCLUSIVE:
            threads = _read_cpus(directory / "topology/thread_siblings_list")
            core_of_cpu[cpu] = min(threads, default=None)
        elif mode is Mode.CORE_COMPLEX:
            cache_of_cpu[cpu] = min(_read_last_level_sharers(directory / "cache"), default=None)
    node_of_gpu = {gpu: _read_int(sysfs / "bus/pci/devices" / gpu / "numa_node") for gpu in gpus}
    return Topology(
        _read_nodes(sysfs / "devices/system/node", allowed),
        _known(package_of_cpu),
        _known(core_of_cpu),
        _known(cache_of_cpu),
        _known(node_of_gpu),
    )


_K = TypeVar("_K")


def _known(values: Mapping[_K, int | None]) -> dict[_K, int]:
    return {key: value for key, value in values.items() if value is not None}


def _read_nodes(directory: Path, allowed: frozenset[int]) -> dict[int, frozenset[int]]:
    """CPUs of each NUMA node, of those that are `allowed`; nodes of memory alone are left out."""
    all_cpus = {path.name: _read_cpus(path / "cpulist") for path in directory.glob("node[0-9]*")}
    return {int(name.removeprefix("node")): cpus & allowed for name, cpus in all_cpus.items() if cpus}


def _read_last_level_sharers(directory: Path) -> frozenset[int]:
    """CPUs that share the highest-level data or unified cache of a CPU; empty if that is not known."""
    levels: dict[int, frozenset[int]] = {}
    for index in directory.glob("index[0-9]*"):
        level = _read_int(index / "level")
        if level is not None and _read_text(index / "type") in ("Unified", "Data"):
            levels[level] = _read_cpus(index / "shared_cpu_list")
    return levels[max(levels)] if levels else frozenset()


def _read_cpus(path: Path) -> frozenset[int]:
    try:
        return parse_cpus(_read_text(path))
    except ValueError:
        return frozenset()


def _read_int(path: Path) -> int | None:
    try:
        return int(_read_text(path))
    except ValueError:
        return None


def _read_text(path: Path) -> str:
    """Content of a small file without the newline; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""Workers are bound to CPUs near their GPU; whatever is missing for that is a reason to bind none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.healthchecks.gpu_addresses import GpuAddress
from ftrun.launcher.numa import apply, bind, choose_cpus, format_cpus, parse_cpus
from ftrun.launcher.numa_choice import Mode, NumaBinding, Topology, choose, gpus_of_ranks
from tests.support.fakenvml.build import FakeNvml, build

# Two sockets of two NUMA nodes each; a node has two cores of two threads (0 and 8, 1 and 9, ...), and each
# core has a last-level cache of its own. GPUs: two on node 0, one on node 1, one on node 3.
NODES = {0: {0, 1, 8, 9}, 1: {2, 3, 10, 11}, 2: {4, 5, 12, 13}, 3: {6, 7, 14, 15}}
GPUS = {"gpu0": 0, "gpu1": 0, "gpu2": 1, "gpu3": 3}


def topology(nodes: dict[int, set[int]] = NODES, gpus: dict[str, int] = GPUS) -> Topology:
    cpus = sorted(set().union(*nodes.values()))
    return Topology(
        cpus_of_node={node: frozenset(members) for node, members in nodes.items()},
        package_of_cpu={cpu: cpu % 8 // 4 for cpu in cpus},
        core_of_cpu={cpu: cpu % 8 for cpu in cpus},
        cache_of_cpu={cpu: cpu % 8 for cpu in cpus},
        node_of_gpu=gpus,
    )


def chosen(mode: Mode, *gpus: str, known: Topology | None = None) -> list[set[int]]:
    binding = choose(mode, gpus, known or topology())
    assert binding.degraded == ""
    assert list(binding.cpus) == list(range(len(gpus)))
    return [set(cpus) for cpus in binding.cpus.values()]


def test_node_gives_all_cpus_of_the_gpus_numa_node() -> None:
    """Two workers whose GPUs are on one NUMA node share its CPUs."""
    assert chosen(Mode.NODE, "gpu0", "gpu1", "gpu3") == [NODES[0], NODES[0], NODES[3]]


def test_socket_gives_all_nodes_of_the_gpus_socket() -> None:
    """The NUMA nodes of a socket are taken together."""
    assert chosen(Mode.SOCKET, "gpu2", "gpu3") == [NODES[0] | NODES[1], NODES[2] | NODES[3]]


def test_exclusive_gives_whole_cores_to_one_worker_each() -> None:
    """Both threads of a core go to the same worker; a worker alone on its node has all of it."""
    assert chosen(Mode.EXCLUSIVE, "gpu0", "gpu1", "gpu2") == [{0, 8}, {1, 9}, NODES[1]]


def test_exclusive_gives_extra_cores_to_the_first_workers() -> None:
    """Three cores for two workers: the first has two, and none is left over."""
    known = topology({0: {0, 1, 2, 8, 9, 10}}, {"a": 0, "b": 0})
    assert chosen(Mode.EXCLUSIVE, "a", "b", known=known) == [{0, 1, 8, 9}, {2, 10}]


def test_exclusive_needs_a_core_for_each_worker() -> None:
    """When cores cannot be exclusive, nothing is bound, and the numbers are given."""
    known = topology({0: {0, 8}}, {"a": 0, "b": 0})
    assert choose(Mode.EXCLUSIVE, ["a", "b"], known) == NumaBinding(
        {}, "NUMA node 0 has 1 cores for the 2 workers of its GPUs"
    )


def test_core_complex_prefers_large_caches_and_spreads_workers() -> None:
    """Workers of one NUMA node get one cache each, the one with most usable CPUs first, and then share."""
    known = topology({0: {0, 1, 9}}, {"a": 0, "b": 0, "c": 0})
    assert chosen(Mode.CORE_COMPLEX, "a", "b", "c", known=known) == [{1, 9}, {0}, {1, 9}]


def test_unknown_node_of_a_gpu_means_the_only_node_there_is() -> None:
    """Firmware of single-node machines says -1; with several nodes that is not known."""
    assert chosen(Mode.NODE, "a", known=topology({0: {0, 1}}, {"a": -1})) == [{0, 1}]
    assert choose(Mode.NODE, ["a"], topology(gpus={"a": -1})).degraded == (
        "the firmware does not say on which NUMA node GPU a is"
    )


@pytest.mark.parametrize(
    ("mode", "known", "reason"),
    [
        (Mode.NODE, topology(gpus={}), "the kernel does not say on which NUMA node GPU gpu0 is"),
        (Mode.NODE, topology({0: set()}), "no NUMA node with a CPU"),
        (Mode.NODE, topology({0: set(), 1: {2}}), "may use no CPU of NUMA node 0, where GPU gpu0 is"),
        (Mode.SOCKET, Topology({0: frozenset({0})}, {}, {}, {}, GPUS), "which socket CPU 0 belongs to"),
        (Mode.EXCLUSIVE, Topology({0: frozenset({0})}, {}, {}, {}, GPUS), "which core CPU 0 belongs to"),
        (Mode.CORE_COMPLEX, Topology({0: frozenset({0})}, {}, {}, {}, GPUS), "which last-level cache CPU 0"),
    ],
)
def test_what_is_not_known_degrades_with_a_reason(mode: Mode, known: Topology, reason: str) -> None:
    """Nothing is bound for any rank, because ranks of unequal speed are worse than unbound ones."""
    binding = choose(mode, ["gpu0"], known)
    assert binding.cpus == {}
    assert reason in binding.degraded


@given(
    st.sampled_from(Mode),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.sets(st.integers(0, 15), min_size=1),
)
def test_every_worker_gets_usable_cpus_or_none_gets_any(
    mode: Mode, nodes: list[int], allowed: set[int]
) -> None:
    """Whatever CPUs a process may use, sets are not empty, not foreign, and exclusive ones do not overlap."""
    gpus = {f"g{index}": node for index, node in enumerate(nodes)}
    binding = choose(mode, list(gpus), topology({n: cpus & allowed for n, cpus in NODES.items()}, gpus))
    sets = list(binding.cpus.values())
    assert (len(sets) == len(nodes)) != bool(binding.degraded)
    assert all(cpus and cpus <= allowed for cpus in sets)
    if mode is Mode.EXCLUSIVE:
        assert sum(map(len, sets)) == len(frozenset().union(*sets))


FOUR = tuple(GpuAddress(i, f"GPU-{letter * 8}", f"pci{i}") for i, letter in enumerate("abcd"))


@pytest.mark.parametrize(
    ("visible", "addresses"),
    [
        (None, ("pci0", "pci1")),
        ("2,1", ("pci2", "pci1")),
        (" 3 , 0 ", ("pci3", "pci0")),
        ("GPU-dddddddd,GPU-a", ("pci3", "pci0")),
        ("1,2,7,3", ("pci1", "pci2")),
        ("MIG-GPU-bbbbbbbb/1/0,3", ("pci1", "pci3")),
    ],
)
def test_local_rank_is_a_number_among_visible_devices(
    visible: str | None, addresses: tuple[str, ...]
) -> None:
    """A worker's GPU is the one that CUDA calls by its local rank, by index, UUID or the UUID's beginning."""
    assert gpus_of_ranks(FOUR, visible, 2) == (addresses, "")


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        ("2", "local rank 1 has no GPU: CUDA_VISIBLE_DEVICES lists 1 that this node has"),
        ("2,-1,3", "local rank 1 has no GPU"),
        ("", "local rank 0 has no GPU"),
        ("GPU-", "local rank 0 has no GPU"),
        ("MIG-5,MIG-6", "CUDA_VISIBLE_DEVICES lists MIG devices"),
    ],
)
def test_local_rank_without_a_gpu_is_a_reason(visible: str, reason: str) -> None:
    """CUDA stops at the first name that it does not find."""
    addresses, why = gpus_of_ranks(FOUR, visible, 2)
    assert addresses == ()
    assert why.startswith(reason)


def test_more_workers_than_gpus_is_a_reason() -> None:
    """The sentence has both numbers."""
    assert gpus_of_ranks(FOUR[:1], None, 2)[1] == "local rank 1 has no GPU: this node has 1"


@given(st.sets(st.integers(0, 300)))
def test_kernel_lists_of_cpus_are_read_back_as_written(cpus: set[int]) -> None:
    """Ranges are closed, and an empty list is no CPU."""
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize(("cpus", "text"), [({0, 1, 2, 4, 6, 7}, "0-2,4,6-7"), ({3}, "3"), (set(), "")])
def test_lists_of_cpus_are_written_as_the_kernel_does(cpus: set[int], text: str) -> None:
    """Neighbours become a range."""
    assert format_cpus(cpus) == text


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A tree like /sys with one NUMA node that has this process's CPUs and one that has others."""
    cpus = sorted(os.sched_getaffinity(0))
    others = [max(cpus) + 1, max(cpus) + 2]
    files = {
        "devices/system/node/node0/cpulist": format_cpus([*cpus, others[0]]),
        "devices/system/node/node1/cpulist": format_cpus(others[1:]),
        "devices/system/node/node2/cpulist": "",
        "bus/pci/devices/0000:3b:00.0/numa_node": "0",
        "bus/pci/devices/0000:d8:00.0/numa_node": "1",
    }
    for cpu in cpus:
        directory = f"devices/system/cpu/cpu{cpu}"
        files[f"{directory}/topology/physical_package_id"] = "0"
        files[f"{directory}/topology/thread_siblings_list"] = str(cpu)
        for index, (level, kind, sharers) in enumerate(
            [("1", "Instruction", str(cpu)), ("1", "Data", str(cpu)), ("3", "Unified", format_cpus(cpus))]
        ):
            files[f"{directory}/cache/index{index}/level"] = level
            files[f"{directory}/cache/index{index}/type"] = kind
            files[f"{directory}/cache/index{index}/shared_cpu_list"] = sharers
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


@pytest.mark.parametrize("mode", ["node", "socket", "core-complex", "exclusive"])
def test_sysfs_is_read_for_each_mode(sysfs: Path, mode: str) -> None:
    """Only CPUs that this process may use are given, whatever the kernel lists."""
    binding = choose_cpus(mode, ["0000:3b:00.0"], sysfs)
    assert binding == NumaBinding({0: frozenset(os.sched_getaffinity(0))})


def test_gpu_on_a_node_that_may_not_be_used_is_a_reason(sysfs: Path) -> None:
    """A cpuset that does not fit the GPUs is told rather than silently ignored."""
    binding = choose_cpus("node", ["0000:d8:00.0"], sysfs)
    assert binding.degraded == "this process may use no CPU of NUMA node 1, where GPU 0000:d8:00.0 is"


def test_empty_sysfs_is_a_reason(tmp_path: Path) -> None:
    """Containers may hide all of it."""
    assert choose_cpus("node", ["0000:3b:00.0"], tmp_path).degraded != ""


def test_binding_goes_from_nvml_to_cpus(
    sysfs: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs from NVML, the worker's one from CUDA_VISIBLE_DEVICES, its node and CPUs from sysfs."""
    directory = build(tmp_path_factory.mktemp("fakenvml"))
    fake = FakeNvml(directory, directory / "state")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    fake.list_gpus(("GPU-a", "00000000:D8:00.0"), ("GPU-b", "00000000:3B:00.0"))
    binding = bind("node", 1, {"CUDA_VISIBLE_DEVICES": "GPU-b"}, sysfs)
    assert binding == NumaBinding({0: frozenset(os.sched_getaffinity(0))})
    fake.set("call.nvmlInitWithFlags.ret", 9)
    assert bind("node", 1, {}, sysfs) == NumaBinding(
        {}, "the GPUs of this node are not known: nvmlInit: Driver Not Loaded"
    )


@pytest.fixture
def threaded() -> Iterator[subprocess.Popen[str]]:
    """A process with three threads, which prints its CPUs as seen by a thread that starts later."""
    code = (
        "import os, sys, threading; wait = threading.Event()\n"
        "for _ in range(2): threading.Thread(target=wait.wait, daemon=True).start()\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "late = threading.Thread(target=lambda: print(sorted(os.sched_getaffinity(0)), flush=True))\n"
        "late.start(); late.join(); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_every_thread_of_a_process_is_bound(threaded: subprocess.Popen[str]) -> None:
    """Threads that are there already are bound one by one, and those that come later inherit it."""
    assert threaded.stdin is not None
    assert threaded.stdout is not None
    assert threaded.stdout.readline() == "ready\n"
    cpu = max(os.sched_getaffinity(0))
    assert apply(threaded.pid, {cpu}) == ""
    tids = [int(name) for name in os.listdir(f"/proc/{threaded.pid}/task")]
    assert len(tids) >= 3
    assert [os.sched_getaffinity(tid) for tid in tids] == [{cpu}] * len(tids)
    threaded.stdin.write("\n")
    threaded.stdin.flush()
    assert threaded.stdout.readline() == f"[{cpu}]\n"


@pytest.mark.parametrize("cpus", [set(), {100_000}, {-1}])
def test_cpus_that_are_not_there_are_a_reason(threaded: subprocess.Popen[str], cpus: set[int]) -> None:
    """The kernel's refusal becomes a sentence, not an exception."""
    assert apply(threaded.pid, cpus).startswith(f"process {threaded.pid} cannot be bound to CPUs")


def test_process_that_has_ended_is_a_reason() -> None:
    """A worker may be gone before it is bound."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=30)
    assert "No such file or directory" in apply(process.pid, {0})

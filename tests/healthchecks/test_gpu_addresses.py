"""The GPUs of a node are listed by a child with a deadline, and what goes wrong there becomes a sentence."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.healthchecks import probe_process
from ftrun.healthchecks.gpu_addresses import GpuAddress, NvmlError, read_gpus
from ftrun.healthchecks.nvml import sysfs_address
from ftrun.monitor.process_tree import children
from tests.support.fakenvml.build import FakeNvml, build
from tests.support.waiting import until

DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def fake(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A node with eight GPUs, for every child of this process."""
    fake = FakeNvml(library, tmp_path / "state")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.mark.parametrize(
    ("bus_id", "name"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
    ],
)
def test_bus_id_becomes_the_name_that_sysfs_uses(bus_id: str, name: str) -> None:
    """The domain has four digits, more only where they are needed, and letters are small."""
    assert sysfs_address(bus_id) == name


def test_gpus_are_listed_in_the_order_of_nvml(fake: FakeNvml) -> None:
    """Each GPU comes with its index, its UUID and its name in sysfs."""
    fake.list_gpus(("GPU-aaa", "00000000:3B:00.0"), ("GPU-bbb", "00000001:D8:00.0"))
    assert read_gpus(DEADLINE_S) == (
        GpuAddress(0, "GPU-aaa", "0000:3b:00.0"),
        GpuAddress(1, "GPU-bbb", "0001:d8:00.0"),
    )


def test_node_without_gpus_gives_an_empty_list(fake: FakeNvml) -> None:
    """A driver that sees no GPU is no error of NVML."""
    fake.list_gpus()
    assert read_gpus(DEADLINE_S) == ()


def test_missing_driver_is_said_in_one_sentence(fake: FakeNvml) -> None:
    """The library is there and the kernel module is not: NVML's own words reach the reader."""
    fake.set("call.nvmlInitWithFlags.ret", 9)
    with pytest.raises(NvmlError, match=r"^nvmlInit: Driver Not Loaded$"):
        read_gpus(DEADLINE_S)


def test_lost_gpu_is_named(fake: FakeNvml) -> None:
    """NVML still counts a GPU that has fallen off the bus; the reason says which one it is."""
    fake.set("gpu.1.lost", 1)
    with pytest.raises(NvmlError, match=r"^GPU 1: .*lost"):
        read_gpus(DEADLINE_S)


def test_hung_driver_costs_the_deadline_and_no_more(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that never answers hangs the child, which is killed; the caller goes on."""
    monkeypatch.setattr(probe_process, "DEATH_S", 20.0)  # a busy machine takes a moment to end it
    fake.set("call.nvmlInitWithFlags.hang", "sleep")
    began = time.monotonic()
    with pytest.raises(NvmlError, match=r"^nvmlInit has not returned after 4 s") as caught:
        read_gpus(4.0)  # in which the child has come to that call, on a busy machine too
    assert time.monotonic() - began < 30
    assert caught.value.survivor_pid is None
    assert not _children_that_load_nvml(os.getpid())


def test_broken_library_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without a library of NVIDIA's that can be loaded says so."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(NvmlError, match=r"^nvmlInit: .*Not Found$"):
        read_gpus(DEADLINE_S)


def test_hung_child_does_not_outlive_its_caller(fake: FakeNvml) -> None:
    """A launcher that is killed while it waits for the driver leaves nothing behind."""
    fake.set("call.nvmlInitWithFlags.hang", "sleep")
    code = "from ftrun.healthchecks.gpu_addresses import read_gpus; read_gpus(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        until(lambda: _children_that_load_nvml(caller.pid), lambda: "no child has loaded NVML", DEADLINE_S)
        pidfds = [os.pidfd_open(pid) for pid in _children_that_load_nvml(caller.pid)]
        caller.kill()
    ended, _, _ = select.select(pidfds, [], [], DEADLINE_S)
    for pidfd in pidfds:
        os.close(pidfd)
    assert ended == pidfds


def test_files_in_the_working_directory_are_not_imported(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training directory may hold a json.py or a pynvml.py of its own, even on PYTHONPATH."""
    (tmp_path / "json.py").write_text("raise SystemExit(5)")
    (tmp_path / "signal.py").write_text("raise SystemExit(6)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert len(read_gpus(DEADLINE_S)) == 8


def test_caller_does_not_load_nvml(fake: FakeNvml) -> None:
    """The library is mapped into the child alone."""
    read_gpus(DEADLINE_S)
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()


def _children_that_load_nvml(pid: int) -> list[int]:
    """Children of `pid` with the library mapped: they have set their death signal long before."""
    found = []
    for child in children(pid):
        with contextlib.suppress(OSError):  # it has ended
            if "libnvidia-ml" in Path(f"/proc/{child}/maps").read_text():
                found.append(child)
    return found

"""NVML is read in a child process with a deadline, and what goes wrong there becomes a sentence."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ftrun.healthchecks.nvml import GpuAddress, NvmlError, read_gpus, sysfs_address
from tests.support.fakenvml.build import build

DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def fake(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets the environment of the child; has the fake library in it."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return monkeypatch


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


def test_gpus_are_listed_in_the_order_of_nvml(fake: pytest.MonkeyPatch) -> None:
    """Each GPU comes with its index, its UUID and its name in sysfs."""
    fake.setenv("FAKE_NVML_GPUS", "GPU-aaa@00000000:3B:00.0,GPU-bbb@00000001:D8:00.0")
    assert read_gpus(DEADLINE_S) == (
        GpuAddress(0, "GPU-aaa", "0000:3b:00.0"),
        GpuAddress(1, "GPU-bbb", "0001:d8:00.0"),
    )


def test_node_without_gpus_gives_an_empty_list(fake: pytest.MonkeyPatch) -> None:
    """A driver that sees no GPU is no error of NVML."""
    assert read_gpus(DEADLINE_S) == ()


def test_missing_driver_is_said_in_one_sentence(fake: pytest.MonkeyPatch) -> None:
    """The library is there and the kernel module is not: NVML's own words reach the reader."""
    fake.setenv("FAKE_NVML_INIT", "9")
    with pytest.raises(NvmlError, match=r"^NVML: Driver Not Loaded$"):
        read_gpus(DEADLINE_S)


def test_lost_gpu_is_named(fake: pytest.MonkeyPatch) -> None:
    """NVML still counts a GPU that has fallen off the bus; the reason says which one it is."""
    fake.setenv("FAKE_NVML_GPUS", "GPU-aaa@00000000:3B:00.0,GPU-bbb@lost")
    with pytest.raises(NvmlError, match=r"^NVML, GPU 1: .*lost"):
        read_gpus(DEADLINE_S)


def test_hung_driver_costs_the_deadline_and_no_more(fake: pytest.MonkeyPatch) -> None:
    """A driver that never answers hangs the child, which is killed; the caller goes on."""
    fake.setenv("FAKE_NVML_INIT", "hang")
    began = time.monotonic()
    with pytest.raises(NvmlError, match=r"did not answer within 1 s") as caught:
        read_gpus(1.0)
    assert time.monotonic() - began < 10
    assert caught.value.survivor_pid is None
    assert not _children_that_read_nvml(os.getpid())


def test_broken_library_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without a library of NVIDIA's that can be loaded says so, whatever was printed before."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(NvmlError, match=r"^NVML: .*Not Found$"):
        read_gpus(DEADLINE_S)


def test_hung_child_does_not_outlive_its_caller(fake: pytest.MonkeyPatch) -> None:
    """A launcher that is killed while it waits for the driver leaves nothing behind."""
    fake.setenv("FAKE_NVML_INIT", "hang")
    code = "from ftrun.healthchecks.nvml import read_gpus; read_gpus(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        (pidfd,) = [os.pidfd_open(pid) for pid in _wait_for_hung_child(caller.pid)]
        caller.kill()
    ended, _, _ = select.select([pidfd], [], [], DEADLINE_S)
    os.close(pidfd)
    assert ended


def test_files_in_the_working_directory_are_not_imported(fake: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A training directory may hold a json.py or a pynvml.py of its own."""
    (tmp_path / "json.py").write_text("raise SystemExit(5)")
    (tmp_path / "pynvml.py").write_text("raise SystemExit(6)")
    fake.chdir(tmp_path)
    assert read_gpus(DEADLINE_S) == ()


def test_program_prints_json_and_nothing_else(fake: pytest.MonkeyPatch) -> None:
    """Run by hand, the module is a small tool: JSON on stdout, exit code 0, silent on stderr."""
    fake.setenv("FAKE_NVML_GPUS", "GPU-aaa@00000000:3B:00.0")
    result = _run_program()
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == [{"index": 0, "uuid": "GPU-aaa", "pci_address": "0000:3b:00.0"}]


def test_program_fails_with_one_line(fake: pytest.MonkeyPatch) -> None:
    """Run by hand on a node without a driver, it says so on stderr and exits with 1."""
    fake.setenv("FAKE_NVML_INIT", "9")
    result = _run_program()
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "NVML: Driver Not Loaded\n")


def test_caller_does_not_load_nvml(fake: pytest.MonkeyPatch) -> None:
    """The library is mapped into the child alone."""
    read_gpus(DEADLINE_S)
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()


def _run_program() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default", "-m", "ftrun.healthchecks.nvml"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def _wait_for_hung_child(caller: int) -> list[int]:
    """The child of `caller`, once it has loaded the library (and so has set its death signal)."""
    deadline, nobody_sets_it = time.monotonic() + DEADLINE_S, threading.Event()
    while time.monotonic() < deadline:
        for pid in _children_that_read_nvml(caller):
            if "libnvidia-ml" in Path(f"/proc/{pid}/maps").read_text():
                return [pid]
        nobody_sets_it.wait(0.01)
    return []


def _children_that_read_nvml(pid: int) -> list[int]:
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{tid}/children").read_text().split():
            if b"ftrun.healthchecks.nvml" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found

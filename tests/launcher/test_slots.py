"""`--nproc-per-node` becomes the number that torchrun would take, with a reason a person can read."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import warnings

import pytest
import torch

from ftrun.launcher.slots import Slots, SlotsError, resolve

CPUS = len(os.sched_getaffinity(0))


def give_cuda(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Makes torch report `count` CUDA devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    device = torch.device("cuda") if count else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    return result.stdout.strip()


def test_a_number_is_taken_as_it_is() -> None:
    """Most jobs give a number; whether the node has as many devices is the script's business."""
    assert resolve("4", {}) == Slots(4, "--nproc-per-node is 4")


@pytest.mark.parametrize("number", ["0", "-2"])
def test_fewer_than_one_worker_is_refused(number: str) -> None:
    """A node without workers has no part in a job."""
    with pytest.raises(SlotsError, match=rf"--nproc-per-node is {number}; expected at least one"):
        resolve(number, {})


def test_cpu_counts_what_this_process_may_use() -> None:
    """A container or taskset that allows one CPU gets one worker, not one for each CPU of the machine."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from ftrun.launcher.slots import resolve; slots = resolve('cpu', {});"
        "print(slots.count, slots.reason)"
    )
    count, _, reason = run_python(code).partition(" ")
    assert count == "1"
    assert reason.startswith("--nproc-per-node cpu: 1 ")
    assert reason.endswith(" is available to this process")


@pytest.mark.parametrize("word", ["4", "cpu"])
def test_torch_is_not_imported_where_it_knows_nothing(word: str) -> None:
    """The import costs seconds, and workers start after it."""
    code = (
        f"import sys; from ftrun.launcher.slots import resolve; resolve('{word}', {{}});"
        "print('torch' in sys.modules)"
    )
    assert run_python(code) == "False"


def test_import_of_torch_is_silent() -> None:
    """What torch or a deprecated package says while it is imported is not for the user of a launcher."""
    code = "from ftrun.launcher.slots import resolve; print(resolve('auto', {}).count)"
    assert int(run_python(code)) > 0


def test_auto_without_an_accelerator_counts_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says that no accelerator was found, because on a GPU node that is the news."""
    give_cuda(monkeypatch, 0)
    slots = resolve("auto", {})
    assert slots.count == CPUS
    assert slots.reason.startswith(f"--nproc-per-node auto: {CPUS}")
    assert slots.reason.endswith("available to this process and torch finds no accelerator")


def test_auto_says_what_torch_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU node whose driver is broken starts one worker per CPU, as with torchrun; here it is said why."""
    give_cuda(monkeypatch, 0)

    def complain() -> bool:
        warnings.warn("CUDA initialization: driver too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.accelerator, "is_available", complain)
    assert resolve("auto", {}).reason.endswith("no accelerator (CUDA initialization: driver too old)")


def test_auto_counts_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker for each device that torch can use."""
    give_cuda(monkeypatch, 8)
    assert resolve("auto", {}) == Slots(8, "--nproc-per-node auto: torch finds 8 cuda devices")


def test_reason_counts_the_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES is the usual cause of a surprising number; its value is not repeated."""
    give_cuda(monkeypatch, 2)
    slots = resolve("gpu", {"CUDA_VISIBLE_DEVICES": "4,6,99"})
    assert slots == Slots(2, "--nproc-per-node gpu: torch finds 2 cuda devices; CUDA_VISIBLE_DEVICES lists 3")


def test_several_mig_devices_count_as_one_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA shows a process one MIG device only; the reason says how to use the others."""
    give_cuda(monkeypatch, 1)
    slots = resolve("gpu", {"CUDA_VISIBLE_DEVICES": "MIG-11, MIG-22,MIG-33"})
    assert slots.count == 1
    assert "lists 3 MIG devices" in slots.reason
    assert slots.reason.endswith("use --nproc-per-node 3 --virtual-local-rank")


def test_gpu_without_cuda_is_refused_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU build of torch on a GPU node is a common mistake, so the message names the build."""
    give_cuda(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(SlotsError) as caught:
        resolve("gpu", {})
    assert "torch can use no cuda device" in str(caught.value)
    assert f"torch {torch.__version__} is built without CUDA" in str(caught.value)
    assert "Use --nproc-per-node cpu" in str(caught.value)


def test_xpu_without_a_device_is_refused() -> None:
    """A word that names a device is never answered with CPUs."""
    if torch.xpu.is_available():
        pytest.skip("this machine has an XPU")
    with pytest.raises(SlotsError, match="torch can use no xpu device on this node"):
        resolve("xpu", {})


@pytest.mark.parametrize("word", ["many", "cuda:0", "2.5", "", "meta"])
def test_unknown_word_is_refused(word: str) -> None:
    """The message lists what would have been understood."""
    with pytest.raises(SlotsError, match="knows no such kind of device; expected a number above 0, auto"):
        resolve(word, {})


def test_private_backend_counts_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of a third party registers a module with torch, and its name is a valid word."""
    backend = types.ModuleType("torch.privateuseone")
    backend.is_available = lambda: True  # type: ignore[attr-defined]
    backend.device_count = lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "privateuseone", backend, raising=False)
    slots = resolve("privateuseone", {})
    assert slots == Slots(3, "--nproc-per-node privateuseone: torch finds 3 privateuseone devices")

"""The health of a whole node: real children, real threads, faults that come and go, and things that hang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.healthchecks.policy import HealthPolicy, Scope
from ftrun.healthchecks.readers import Places
from ftrun.healthchecks.reading import Missing
from ftrun.healthchecks.registry import NAMES, Occasion, Severity, severities
from ftrun.healthchecks.result import Result, Status
from ftrun.healthchecks.runner import Health, HealthReport
from tests.support.fakenvml.build import FakeNvml, build
from tests.support.sysfs_trees import SysfsTree, dgx_gpu, dgx_h100
from tests.support.waiting import until

DEADLINE_S = 20.0
SLACK_S = 0.2
"""Beyond its deadline a check takes so much at most; `LOADED_S` more where other tests run beside it."""
LOADED_S = 4.5
HUNG_FUSE = Path(__file__).parents[1] / "support" / "hung_fuse.py"
LOST = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def fake(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Eight GPUs, where the tree of `Node` has them."""
    fake = FakeNvml(library, tmp_path / "state")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    for index in range(8):
        fake.set(f"gpu.{index}.bus", f"0000{dgx_gpu(index).upper()}")
    return fake


class Node:
    """A node with a fake sysfs, and the health of a job on it."""

    def __init__(self, directory: Path) -> None:
        self.tree: SysfsTree = dgx_h100(directory / "node")
        self.log = directory / "kmsg"
        self.log.touch()
        self.checkpoints = directory / "checkpoints"
        self.checkpoints.mkdir()
        self.scope = Scope("n0", checkpoint_dir=str(self.checkpoints))
        self.policy = HealthPolicy()
        self.opened: list[Health] = []

    def health(self) -> Health:
        places = Places(sysfs=self.tree.sysfs, kernel_log=str(self.log))
        self.opened.append(Health(self.policy, self.scope, places=places))
        return self.opened[-1]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for health in node.opened:
        health.close()
    until(lambda: not Health.child_pids(), lambda: f"left behind: {Health.child_pids()}")


def say(report: HealthReport, *statuses: Status) -> list[tuple[str, str]]:
    """Check and subject of the results with one of these statuses."""
    return [(r.check, r.subject.name) for r in report.results if r.status in statuses]


def bad(report: HealthReport) -> list[tuple[str, str]]:
    return say(report, Status.UNHEALTHY)


def of(report: HealthReport, check: str) -> list[Result]:
    return [result for result in report.results if result.check == check]


def before_round(health: Health, deadline_s: float = DEADLINE_S) -> HealthReport:
    return health.check(Occasion.BEFORE_ROUND, deadline_s)


def when(health: Health, is_so: Callable[[HealthReport], bool]) -> HealthReport:
    """The first report that is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so(report := before_round(health)):
        assert time.monotonic() < deadline, report.results
    return report


def test_faults_of_every_source_are_found_and_found_cleared(fake: FakeNvml, node: Node) -> None:
    """A GPU, a port, the checkpoint directory; one report has them all, in the order of the registry."""
    health = node.health()
    assert bad(health.begin(DEADLINE_S)) == []
    fake.set("gpu.1.lost", 1)
    node.tree.write("class/infiniband/mlx5_3/ports/1/state", "1: DOWN")
    node.checkpoints.rmdir()
    node.checkpoints.touch()
    assert ("nic.state", "mlx5_3") in say(before_round(health), Status.DEGRADED)
    # One look at a port may meet it between two states; two of one moment are one.
    report = when(health, lambda report: ("nic.state", "mlx5_3") in bad(report))
    assert bad(report) == [
        ("gpu.lost", LOST),
        ("nic.state", "mlx5_3"),
        ("storage.probe", str(node.checkpoints)),
    ]
    order = [NAMES.index(result.check) for result in report.results]
    assert order == sorted(order)
    fake.clear("gpu.1.lost")
    node.tree.write("class/infiniband/mlx5_3/ports/1/state", "4: ACTIVE")
    node.checkpoints.unlink()
    node.checkpoints.mkdir()
    assert bad(before_round(health)) == []


def test_severity_decides_what_a_fault_leads_to(fake: FakeNvml, node: Node) -> None:
    """Warn is degraded; off is not there."""
    fake.set("gpu.1.lost", 1)
    node.policy = replace(node.policy, severities=severities({"gpu": Severity.WARN, "host": Severity.OFF}))
    report = node.health().begin(DEADLINE_S)
    assert (bad(report), {r.status for r in of(report, "gpu.lost")}) == (
        [],
        {Status.DEGRADED, Status.HEALTHY},
    )
    assert not [r for r in report.results if r.check.startswith("host.")]


def test_a_sick_nic_counts_for_the_gpus_it_serves(fake: FakeNvml, node: Node) -> None:
    """The job has GPUs 0 and 1; the NIC of GPU 5 is another's."""
    node.scope = replace(node.scope, visible_devices="0,1")
    health = node.health()
    health.begin(DEADLINE_S)
    for nic in ("mlx5_1", "mlx5_5"):
        node.tree.write(f"class/infiniband/{nic}/ports/1/state", "1: DOWN")
    report = when(health, lambda report: "nic.state" in dict(bad(report)))
    assert [subject for check, subject in bad(report) if check == "nic.state"] == ["mlx5_1"]
    assert ("nic.state", "mlx5_5") in say(report, Status.DEGRADED)


def test_nothing_is_asked_twice_of_a_node_without_a_driver(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML once, and no child is kept; with GPUs expected it is asked again, and its absence condemns."""
    empty = tmp_path / "none"
    empty.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(empty))
    health = node.health()
    report = health.begin(DEADLINE_S)
    [driver] = of(report, "gpu.driver")
    if driver.status is not Status.SKIPPED:
        pytest.skip("this machine has an NVIDIA driver")
    assert health.child_pids() == frozenset()
    assert [r.status for r in of(before_round(health), "gpu.driver")] == [Status.SKIPPED]
    assert (health.memory_holders(DEADLINE_S), health.visible_gpus) == ((), None)
    node.policy = replace(node.policy, thresholds={"gpu.expected_count": 8})
    assert ("gpu.driver", "n0") in bad(node.health().begin(DEADLINE_S))


def test_a_driver_that_hangs_costs_the_deadline_and_twice_the_node(fake: FakeNvml, node: Node) -> None:
    """The first time nobody knows; all other checks have their answers. It may come back."""
    health = node.health()
    health.begin(DEADLINE_S)
    fake.set("call.nvmlDeviceGetCount_v2.hang", "sleep")
    for status in (Status.UNKNOWN, Status.UNKNOWN):
        began = time.monotonic()
        report = before_round(health, 4.0)
        assert time.monotonic() - began < 4.0 + SLACK_S + LOADED_S
        [driver] = of(report, "gpu.driver")
        assert driver.status is status
        assert of(report, "nic.state")
        assert [r.status for r in of(report, "storage.probe")] == [Status.HEALTHY]
        # Both within ten seconds, so one hang as far as anybody can tell.
        assert "1 of 2 times" in driver.observed
    fake.clear("call.nvmlDeviceGetCount_v2.hang")
    assert [r.status for r in of(before_round(health), "gpu.driver")] == [Status.HEALTHY]


def test_a_file_of_sysfs_that_hangs_holds_its_own_source_only(fake: FakeNvml, node: Node) -> None:
    """The network is unknown until it answers again, and no second reading waits behind the first."""
    health = node.health()
    health.begin(DEADLINE_S)
    state = node.tree.sysfs / "class/infiniband/mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)  # to open it for reading waits for a writer
    for _ in range(2):
        began = time.monotonic()
        report = before_round(health, 3.0)
        assert time.monotonic() - began < 3.0 + SLACK_S + LOADED_S
        [result] = of(report, "nic.readings")
        assert result.status is Status.DEGRADED
        assert result.observed.startswith("no answer after")
        assert of(report, "gpu.lost")
        assert not of(report, "nic.state")
    assert sum(thread.name == "ftrun-health-network" for thread in threading.enumerate()) == 1
    writer = os.open(state, os.O_RDWR)
    state.unlink()
    node.tree.write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    os.close(writer)
    until(lambda: of(before_round(health, 5.0), "nic.state"), lambda: "the network is never read again")


@pytest.mark.slow
def test_a_hang_that_cannot_be_killed(library: Path, tmp_path: Path) -> None:
    """A call of NVML and the checkpoint path hang in the kernel: each check is in time, and so is the end."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    mount = tmp_path / "hung"
    mount.mkdir()
    fake = FakeNvml(library, tmp_path / "state")
    fake.set("call.nvmlDeviceGetCount_v2.hang", "stat")
    environ = {**os.environ, **fake.environment, "FAKE_NVML_HANG_PATH": str(mount / "driver")}
    program = _UNKILLABLE.format(mount=str(mount))
    command = [sys.executable, str(HUNG_FUSE), str(mount), sys.executable, "-c", program]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=environ)
    if "mount" in done.stderr:
        pytest.skip(f"no FUSE mounts here: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["True 2"] * 3 + ["unhealthy True", "closed True"], done.stderr
    assert time.monotonic() - began < 90


_UNKILLABLE = """
import time
from ftrun.healthchecks.policy import HealthPolicy, Scope
from ftrun.healthchecks.registry import Occasion
from ftrun.healthchecks.runner import Health
policy = HealthPolicy(thresholds={{"storage.hung_s": 7.0}})
health = Health(policy, Scope("n0", checkpoint_dir="{mount}/ckpt"))
deadline = time.monotonic() + 60
for number in range(1000):
    time.sleep(0.05)
    began = time.monotonic()
    report = health.check(Occasion.BEFORE_ROUND, 2.0)
    took_s = time.monotonic() - began
    status_of = {{r.check: r.status.value for r in report.results}}
    if number < 3:
        print(took_s < 6.0, len(health.child_pids()), flush=True)
    if status_of["storage.probe"] == "unhealthy" or time.monotonic() > deadline:
        break
print(status_of["storage.probe"], status_of["gpu.driver"] != "healthy", flush=True)
began = time.monotonic()
health.close()
print("closed", time.monotonic() - began < 5.0, flush=True)
"""


def test_xids_of_the_driver_and_of_the_kernel_log_condemn(fake: FakeNvml, node: Node) -> None:
    """Each is reported with the check that has found it; the verdict stays."""
    health = node.health()
    health.begin(DEADLINE_S)
    fake.report_xid(2, 48)
    with node.log.open("a") as log:
        print(f"4,9,1000,-;NVRM: Xid (PCI:{dgx_gpu(3)[:-2]}): 79, GPU has fallen off the bus.", file=log)
    report = before_round(health)
    assert sorted(xid.xid for xid in report.xids) == [48, 79]
    assert [subject[-1] for check, subject in bad(report) if check == "gpu.xid"] == ["2", "3", "0"]
    later = before_round(health)
    assert (later.xids, bad(later)) == ((), bad(report))


def test_memory_that_is_not_given_back_is_named(fake: FakeNvml, node: Node) -> None:
    """Beyond what was in use before the first workers; a reading that fails says nothing."""
    fake.set("gpu.*.mem.used", 3 << 30)
    health = node.health()
    health.begin(DEADLINE_S)
    assert health.memory_holders(DEADLINE_S) == ()
    fake.set("gpu.4.mem.used", 30 << 30)
    fake.set("gpu.4.processes", f"{os.getpid()}:27648")
    [held] = health.memory_holders(DEADLINE_S) or ()
    assert (held.index, held.used_bytes >> 30, [p.pid for p in held.processes]) == (4, 30, [os.getpid()])
    fake.set("gpu.4.call.nvmlDeviceGetMemoryInfo_v2.ret", 999)
    unread = health.memory_holders(DEADLINE_S)
    assert isinstance(unread, Missing)
    assert unread.reason.startswith("nvmlDeviceGetMemoryInfo: ")
    fake.clear("gpu.4.call.nvmlDeviceGetMemoryInfo_v2.ret")
    fake.clear("gpu.4.mem.used")
    fake.clear("gpu.4.processes")
    fake.set("gpu.*.mem.used", 3 << 30)
    assert health.memory_holders(DEADLINE_S) == ()


def test_a_command_and_the_daemon_gate_a_round(node: Node, tmp_path: Path) -> None:
    """They are not asked while training runs; one that takes too long is unknown."""
    marker = tmp_path / "ran"
    script = tmp_path / "nhc"
    script.write_text(f"#!/bin/sh\necho x >> {marker}\necho 'fan 3 stands still'\nexit 1\n")
    script.chmod(0o755)
    node.policy = replace(node.policy, command=(str(script),), nvhcd_endpoint=str(tmp_path / "none.sock"))
    health = node.health()
    report = health.begin(DEADLINE_S)
    [command] = of(report, "external.command")
    assert (command.status, command.observed) == (Status.UNHEALTHY, "nhc: fan 3 stands still")
    assert [r.status for r in of(report, "external.nvhcd")] == [Status.UNKNOWN]
    health.check(Occasion.PERIODIC, DEADLINE_S)
    assert marker.read_text() == "x\n"
    sleep = shutil.which("sleep")
    assert sleep is not None
    node.policy = replace(node.policy, command=(sleep, "60"), nvhcd_endpoint="", external_timeout_s=0.5)
    began = time.monotonic()
    [command] = of(node.health().begin(DEADLINE_S), "external.command")
    assert (command.status, time.monotonic() - began < 10) == (Status.UNKNOWN, True)


def test_paths_are_not_written_to_at_every_look_while_training_runs(node: Node) -> None:
    """A thousand nodes would be felt by the file server; before a round it is always done."""
    health = node.health()
    assert of(health.begin(DEADLINE_S), "storage.probe")
    assert not of(health.check(Occasion.PERIODIC, DEADLINE_S), "storage.probe")
    assert of(health.check(Occasion.PERIODIC, DEADLINE_S), "storage.mount")
    assert of(before_round(health), "storage.probe")


def test_data_of_the_job_must_be_readable(node: Node, tmp_path: Path) -> None:
    """A data set whose mount is missing keeps the node out."""
    node.policy = replace(node.policy, paths=(str(tmp_path / "data"),))
    assert ("storage.probe", str(tmp_path / "data")) in bad(node.health().begin(DEADLINE_S))


def test_a_hundred_checks_leave_nothing_behind(fake: FakeNvml, node: Node) -> None:
    """Neither processes nor descriptors nor threads; what the children are is known while they run."""
    health = node.health()
    health.begin(DEADLINE_S)
    before_round(health)

    def counts() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(health.child_pids())

    first = counts()
    assert first[2] == 1  # the warm probe
    for number in range(100):
        occasion = Occasion.PERIODIC if number % 4 else Occasion.BEFORE_ROUND
        health.check(occasion, DEADLINE_S)
    assert counts() == first
    began = time.monotonic()
    health.close()
    assert time.monotonic() - began < SLACK_S + LOADED_S
    until(lambda: not health.child_pids(), lambda: "the probe outlives its owner")


def test_processes_of_others_are_looked_for_when_one_s_own_are_known(fake: FakeNvml, node: Node) -> None:
    """Without them every worker would be a stranger."""
    fake.set("gpu.0.processes", f"{os.getpid()}:100")
    health = node.health()
    assert not of(health.begin(DEADLINE_S), "gpu.processes")
    own = health.check(Occasion.PERIODIC, DEADLINE_S, frozenset({os.getpid()}))
    assert {r.status for r in of(own, "gpu.processes")} == {Status.HEALTHY}

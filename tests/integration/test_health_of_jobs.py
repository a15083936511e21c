"""Jobs on nodes whose GPUs fail: what ends a round, what does not, who leaves, and that nothing waits for it.

The workers train on the CPU; the GPUs are those of a fake library, read by the real pynvml in the real probe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.fakenvml.build import FakeNvml, build
from tests.support.nodes import TRAINING
from tests.support.rank_words import SAID, weights_after
from tests.support.run import WORKER, Run, start

HUNG_FUSE = str(Path(__file__).parents[1] / "support" / "hung_fuse.py")
DEADLINE_S = 1.0
SLACK_S = 0.5
LOADED_S = 6.0
"""What a machine that does much else may add; a check that is waited for takes ten seconds."""
HASTY = ("--ft-set", f"health.deadline_before_round={DEADLINE_S}")
OFTEN = ("--ft-set", "health.interval=0.3")
SELDOM = ("--ft-set", "health.interval=600")
WORKS = """
from ftrun.monitor.client import heartbeat
say("began")
while not (directory / "end").exists():
    heartbeat()
    if (directory / f"die{rank}.{restart_count}").exists():
        die(9)
    time.sleep(0.01)
"""
HANG = "call.nvmlDeviceGetTemperature.hang"
SLOW = "call.nvmlDeviceGetCount_v2.sleep_ms"
"""Comes before all questions about single GPUs."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> FakeNvml:
    """A node with two GPUs."""
    fake = FakeNvml(library, tmp_path / "state")
    fake.set("device_count", 2)
    return fake


@contextmanager
def job(
    directory: Path, fake: FakeNvml, *options: str, code: str = WORKS, visible: str | None = None
) -> Iterator[Run]:
    """Two ranks on the fake node; `visible` is CUDA_VISIBLE_DEVICES."""
    arguments = ("--nproc-per-node", "2", *options, WORKER, code)
    more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with start(directory / "job", *arguments, environment={**fake.environment, **more}) as run:
        yield run


def probes(run: Run) -> list[int]:
    """Processes that ask NVML."""
    return [pid for pid, command in run.living().items() if "ftrun.healthchecks.probe" in command]


def changes(run: Run, check: str) -> list[tuple[str, str]]:
    """What a check has said, as subject and status, oldest first."""
    found = [one for one in run.events(events.HealthChanged) if one.check == check]
    return [(one.subject.split(" (")[0], one.status) for one in found]


def seconds_between(run: Run, first: type[events.Event], last: type[events.Event]) -> float:
    """From the last event of the one kind to the last of the other."""
    at = {type(record.event): record.at for record in run.records()}
    return at[last] - at[first]


def test_gpu_lost_in_mid_run_ends_the_round_and_the_node_leaves(fake: FakeNvml, tmp_path: Path) -> None:
    """No rank fails by itself, two looks agree, and the rank of that GPU is named."""
    with job(tmp_path, fake, *OFTEN, "--max-restarts", "3") as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.1.lost", 1)
        assert run.wait() == 94
        run.wait_until_gone(20)
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_rank) == ("gpu_lost", 1)
    assert incident.reasons[0].startswith("the GPU of rank 1 (pid ")
    assert "GPU is lost (gpu.lost)" in incident.reasons[0]
    assert incident.confidence >= 0.9
    [ended] = run.events(events.RunEnded)
    assert "no restart here, since this node is not healthy" in ended.reason
    assert changes(run, "gpu.lost") == [("gpu 1", "unhealthy")]


def test_single_bad_reading_ends_nothing(fake: FakeNvml, tmp_path: Path) -> None:
    """Nothing is worse than ending a healthy job: it is journalled, and that it has passed."""
    with job(tmp_path, fake, "--ft-set", "health.interval=1") as run:
        run.wait_for_text("began", 2)
        fake.set(SLOW, 2000)  # the next look asks about the GPU so much later: by then the fault is gone
        fake.set("gpu.1.lost", 1)
        run.wait_for_event(events.HealthChanged)
        run.wait_until(lambda: ("gpu 1", "unhealthy") in changes(run, "gpu.lost"), "it is seen")
        fake.clear("gpu.1.lost")
        fake.clear(SLOW)
        run.wait_until(lambda: changes(run, "gpu.lost")[-1] == ("gpu 1", "healthy"), "it is seen")
        (run.directory / "end").touch()
        assert run.wait() == 0
    assert changes(run, "gpu.lost") == [("gpu 1", "unhealthy"), ("gpu 1", "healthy")]


def test_gpu_of_no_worker_ends_nothing(fake: FakeNvml, tmp_path: Path) -> None:
    """A third GPU of the node may be lost: a warning, once, however often it is looked at."""
    fake.set("device_count", 3)
    with job(tmp_path, fake, *OFTEN) as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.2.lost", 1)
        run.wait_until(lambda: changes(run, "gpu.lost"), "it is seen")
        fake.set("gpu.0.temp", 99)
        run.wait_until(lambda: changes(run, "gpu.temperature"), "a later check")
        (run.directory / "end").touch()
        assert run.wait() == 0
    assert changes(run, "gpu.lost") == [("gpu 2", "degraded")]


def test_degraded_gpu_is_only_journalled(fake: FakeNvml, tmp_path: Path) -> None:
    """Neither the round nor a restart minds it."""
    with job(tmp_path, fake, *OFTEN) as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.1.remap.pending", 1)
        run.wait_until(lambda: changes(run, "gpu.row_remap"), "it is seen")
        (run.directory / "die0.0").touch()
        run.wait_for_text("began", 4)
        (run.directory / "end").touch()
        assert run.wait() == 0
    assert changes(run, "gpu.row_remap") == [("gpu 1", "degraded")]
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_rank) == ("killed", 0)


def test_node_that_is_sick_from_the_start_runs_no_worker(fake: FakeNvml, tmp_path: Path) -> None:
    """It ends with 94 and says why, before any round."""
    fake.set("gpu.0.remap.failed", 1)
    with job(tmp_path, fake) as run:
        assert run.wait() == 94
    assert "began" not in run.stdout
    assert run.events(events.RoundClosed) == []
    [ended] = run.events(events.RunEnded)
    assert ended.reason.startswith("node ")
    assert "is not healthy: gpu 0 (" in ended.reason
    assert "gpu.row_remap" in run.stderr


def test_check_that_is_switched_off_excludes_nobody(fake: FakeNvml, tmp_path: Path) -> None:
    """The user knows better."""
    fake.set("gpu.0.remap.failed", 1)
    with job(tmp_path, fake, "--ft-set", "health.checks={gpu.row_remap: warn}") as run:
        run.wait_for_text("began", 2)
        (run.directory / "end").touch()
        assert run.wait() == 0
    assert changes(run, "gpu.row_remap") == [("gpu 0", "degraded")]


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_hung_driver_holds_up_neither_restart_nor_exit(fake: FakeNvml, tmp_path: Path, how: str) -> None:
    """The node goes on without the answer after the deadline; a driver that hangs twice is not used."""
    with job(tmp_path, fake, *SELDOM, *HASTY) as run:
        run.wait_for_text("began", 2)
        fake.set(HANG, how)
        (run.directory / "die0.0").touch()
        run.wait_for_text("began", 4)
        assert seconds_between(run, events.RestartDecided, events.RoundClosed) < SLACK_S + LOADED_S
        stopped_s = seconds_between(run, events.RoundStopped, events.RoundClosed)
        assert stopped_s < DEADLINE_S + SLACK_S + LOADED_S, stopped_s
        run.wait_until(lambda: changes(run, "gpu.driver"), "the check's answer, which a busy node has late")
        assert [status for _, status in changes(run, "gpu.driver")] == ["unknown"]
        began = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.wait() == 143
        assert time.monotonic() - began < 2 * SLACK_S + LOADED_S
        run.wait_until_gone(20)


def test_agent_ends_at_once_while_a_check_hangs(fake: FakeNvml, tmp_path: Path) -> None:
    """A periodic check is under way for ten seconds; the job is done in the middle of it."""
    with job(tmp_path, fake, *OFTEN) as run:
        run.wait_for_text("began", 2)
        fake.set(HANG, "sleep")
        hangs_at = time.monotonic() + 1.0
        run.wait_until(lambda: time.monotonic() > hangs_at, "a check has begun, at the interval's end")
        (run.directory / "end").touch()
        assert run.wait() == 0
        assert seconds_between(run, events.RoundStopped, events.RunEnded) < SLACK_S + LOADED_S
        run.wait_until_gone(20)


def test_memory_of_ended_workers_is_waited_for_and_its_holder_named(fake: FakeNvml, tmp_path: Path) -> None:
    """New workers start only once it is free."""
    with job(tmp_path, fake, *SELDOM) as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.1.mem.used", 40 << 30)
        fake.set("gpu.1.processes", "4242:40960")
        (run.directory / "die1.0").touch()
        run.wait_for_event(events.RoundStopped)
        free_at = time.monotonic() + 3.0
        run.wait_until(lambda: time.monotonic() > free_at, "some time passes")
        assert len(run.events(events.RoundClosed)) == 1
        fake.clear("gpu.1.mem.used")
        run.wait_for_text("began", 4)
        (run.directory / "end").touch()
        assert run.wait() == 0
    [held] = run.events(events.GpuMemoryAwaited)
    assert held.is_freed
    assert held.subject.startswith("gpu 1 (")
    assert "4242" in held.holders[0]
    assert held.waited_s > 1.0


def test_memory_that_is_never_given_back_does_not_stop_the_job(fake: FakeNvml, tmp_path: Path) -> None:
    """After its time the workers start all the same: they may well have enough."""
    config = tmp_path / "ft.yaml"
    config.write_text("fault_tolerance:\n  gpu_memory_reclaim_timeout: 0.5\n")
    with job(tmp_path, fake, *SELDOM, "--ft-config", str(config)) as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.0.mem.used", 40 << 30)
        (run.directory / "die1.0").touch()
        run.wait_for_text("began", 4)
        (run.directory / "end").touch()
        assert run.wait() == 0
    [held] = run.events(events.GpuMemoryAwaited)
    assert not held.is_freed
    assert held.held_bytes > 30 << 30


def test_memory_that_cannot_be_read_is_waited_for_and_told(fake: FakeNvml, tmp_path: Path) -> None:
    """It is not taken for free; after the time of a check the workers start all the same."""
    time_s = 4.0  # on a busy node the driver has to answer the check in it, too
    with job(tmp_path, fake, *SELDOM, "--ft-set", f"health.deadline_before_round={time_s}") as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.1.call.nvmlDeviceGetMemoryInfo_v2.ret", 999)
        (run.directory / "die1.0").touch()
        run.wait_for_text("began", 4)
        waited_s = seconds_between(run, events.RoundStopped, events.RoundClosed)
        assert time_s - SLACK_S < waited_s < time_s + SLACK_S + LOADED_S, waited_s
        (run.directory / "end").touch()
        assert run.wait() == 0
    told = [one.reason for one in run.events(events.HealthCheckDelayed)]
    [reason] = [one for one in told if "the check has not ended" not in one]  # as on a busy node
    assert "memory of the ended workers" in reason
    assert "nvmlDeviceGetMemoryInfo" in reason
    assert run.events(events.GpuMemoryAwaited) == []


def test_xid_on_the_culprits_gpu_changes_what_its_end_is_called(fake: FakeNvml, tmp_path: Path) -> None:
    """A rank that aborts when the driver reports an uncorrectable error was not aborted by a bug."""
    code = WORKS.replace("die(9)", "die(6)")
    with job(tmp_path, fake, *SELDOM, code=code) as run:
        run.wait_for_text("began", 2)
        fake.report_xid(1, 94)
        (run.directory / "die1.0").touch()
        run.wait_for_text("began", 4)
        (run.directory / "end").touch()
        assert run.wait() == 0
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_rank) == ("ecc_error", 1)
    assert "Xid 94" in incident.reasons[0]
    assert "aborted" in incident.reasons[1]


@pytest.mark.slow
def test_node_goes_on_without_the_gpu_if_the_world_may_shrink(fake: FakeNvml, tmp_path: Path) -> None:
    """One worker fewer, which sees the other GPU only; what it trains is what was trained, bit for bit."""
    options = (*OFTEN, "--ft-set", "world.shrink=gpu", "--max-restarts", "3")
    arguments = ("--nproc-per-node", "2", *options, TRAINING)
    with start(tmp_path / "job", *arguments, environment=fake.environment) as run:
        run.wait_for_text("as rank 0 of 2", timeout_s=90)
        run.wait_until(lambda: (run.directory / "saved.json").exists(), "a checkpoint", 60)
        fake.set("gpu.0.lost", 1)
        run.wait_for_text("as rank 0 of 1", timeout_s=60)
        (run.directory / "end").touch()
        assert run.wait(60) == 0
    [reduced] = run.events(events.SlotsReduced)
    assert reduced.slots == 1
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_local_rank) == ("gpu_lost", 0)
    said = [json.loads(line) for line in (run.directory / SAID).read_text().splitlines()]
    [done] = [one for one in said if one["what"] == "done"]
    assert (done["world"], done["local_rank"]) == (1, 0)
    assert done["more"]["weights"] == weights_after(done["more"]["step"])


def test_workers_see_only_the_gpus_that_are_left(fake: FakeNvml, tmp_path: Path) -> None:
    """By UUID, since the driver may number them anew."""
    code = WORKS.replace('say("began")', 'say("began", os.environ.get("CUDA_VISIBLE_DEVICES"))')
    with job(tmp_path, fake, *OFTEN, "--ft-set", "world.shrink=gpu", code=code) as run:
        run.wait_for_text("began None", 2)
        fake.set("gpu.0.lost", 1)
        run.wait_for_text("[r0 rc1] began GPU-00000000-0000-0000-0000-000000000001")
        fake.clear("gpu.0.lost")
        run.wait_until(lambda: changes(run, "gpu.lost")[-1] == ("gpu 0", "healthy"), "it is back")
        (run.directory / "die0.1").touch()
        run.wait_for_text("rc2] began None", 2)
        (run.directory / "end").touch()
        assert run.wait() == 0


def test_gpu_whose_rank_fails_again_and_again_is_left_out(fake: FakeNvml, tmp_path: Path) -> None:
    """No check finds anything: its second abort takes it out, and the node goes on with the other GPU."""
    options = (*SELDOM, "--ft-set", "world.shrink=gpu", "--ft-set", "restart.exclude_after=2")
    code = WORKS.replace("die(9)", "die(6)").replace(
        'say("began")', 'say("began", os.environ.get("CUDA_VISIBLE_DEVICES"))'
    )
    with job(tmp_path, fake, *options, code=code) as run:
        run.wait_for_text("began None", 2)
        (run.directory / "die1.0").touch()
        run.wait_for_text("rc1] began None", 2)
        (run.directory / "die1.1").touch()
        run.wait_for_text("[r0 rc2] began GPU-00000000-0000-0000-0000-000000000000")
        (run.directory / "end").touch()
        assert run.wait() == 0
    gpu = "GPU-00000000-0000-0000-0000-000000000001"
    [reduced] = run.events(events.SlotsReduced)
    assert (reduced.slots, reduced.reason) == (1, f"excluded: {gpu}")
    decided = run.events(events.RestartDecided)[-1]
    assert f"2nd time on {gpu} of node" in decided.reason


def test_fault_of_a_gpu_takes_away_its_mig_devices_only(fake: FakeNvml, tmp_path: Path) -> None:
    """A lost GPU cannot say which instances it had; the worker on the other GPU's goes on."""
    fake.set("gpu.*.mig", 1)
    fake.set("gpu.*.mig.devices", 1)
    devices = [f"MIG-00000000-0000-0000-{gpu:04d}-000000000000" for gpu in range(2)]
    code = WORKS.replace('say("began")', 'say("began", os.environ.get("CUDA_VISIBLE_DEVICES"))')
    options = (*OFTEN, "--ft-set", "world.shrink=gpu")
    with job(tmp_path, fake, *options, code=code, visible=",".join(devices)) as run:
        run.wait_for_text(f"began {devices[0]},{devices[1]}", 2)
        fake.set("gpu.0.lost", 1)
        run.wait_for_text(f"[r0 rc1] began {devices[1]}")
        (run.directory / "end").touch()
        assert run.wait() == 0
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_rank) == ("gpu_lost", 0)
    assert changes(run, "gpu.lost") == [("gpu 0", "unhealthy")]


def test_driver_that_hangs_too_often_is_not_used(fake: FakeNvml, tmp_path: Path) -> None:
    """Here once is too often; nothing else is wrong with the node, and its workers have run well."""
    options = (*SELDOM, *HASTY, "--ft-set", "health.thresholds={gpu.max_hangs: 1}")
    with job(tmp_path, fake, *options) as run:
        run.wait_for_text("began", 2)
        fake.set(HANG, "sleep")
        for restart_count in range(3):  # a busy node may have no answer yet when the next round begins
            (run.directory / f"die0.{restart_count}").touch()
        assert run.wait() == 94
        run.wait_until_gone(20)
    # "unknown" before, if a busy node was too late for asking the driver.
    assert [status for _, status in changes(run, "gpu.driver")][-1] == "unhealthy"
    [ended] = run.events(events.RunEnded)
    assert "gpu.driver" in ended.reason


def test_node_does_not_shrink_below_what_the_job_needs(fake: FakeNvml, tmp_path: Path) -> None:
    """With world.min_size 2 one of two GPUs is not enough."""
    options = (*OFTEN, "--ft-set", "world.shrink=gpu", "--ft-min-world-size", "2")
    with job(tmp_path, fake, *options) as run:
        run.wait_for_text("began", 2)
        fake.set("gpu.0.lost", 1)
        assert run.wait() == 94


def test_unkillable_child_holds_up_neither_restart_nor_exit(fake: FakeNvml, tmp_path: Path) -> None:
    """The probe sleeps in the kernel: it is no process of the round, and nobody waits for it."""
    mount_point = tmp_path / "hung"
    mount_point.mkdir()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    wrapper = (sys.executable, HUNG_FUSE, str(mount_point))
    environment = {**fake.environment, "FAKE_NVML_HANG_PATH": str(mount_point / "x")}
    arguments = ("--nproc-per-node", "2", *SELDOM, *HASTY, WORKER, WORKS)
    with start(tmp_path / "job", *arguments, environment=environment, wrapper=wrapper) as run:
        run.wait_for_text("began", 2)
        fake.set(HANG, "stat")
        (run.directory / "die0.0").touch()
        run.wait_for_text("began", 4)
        stopped_s = seconds_between(run, events.RoundStopped, events.RoundClosed)
        assert stopped_s < DEADLINE_S + SLACK_S + LOADED_S
        (run.directory / "end").touch()
        assert run.wait() == 0
    assert seconds_between(run, events.RoundStopped, events.RunEnded) < SLACK_S + LOADED_S
    assert run.events(events.ProcessSwept) == []
    assert run.events(events.WorkerUnkillable) == []


@pytest.mark.slow
def test_probes_do_not_pile_up_over_many_rounds(fake: FakeNvml, tmp_path: Path) -> None:
    """A hundred restarts with a driver that hangs now and then: one probe at a time, and none at the end."""
    code = """
from ftrun.monitor.client import heartbeat
heartbeat()
if restart_count < 100:
    if rank == 0:
        sys.exit(3)
    time.sleep(60)
"""
    many = ("--max-restarts", "100", "--ft-set", "restart.max_in_window=0")
    options = (*many, "--ft-set", "health.checks={gpu.driver: warn}")
    most = 0
    with job(tmp_path, fake, *options, "--ft-set", "health.deadline_before_round=0.3", code=code) as run:
        hung_at = time.monotonic()

        def is_over() -> bool:
            nonlocal most, hung_at
            most = max(most, len(probes(run)))
            if time.monotonic() - hung_at > 3.0:
                hung_at = time.monotonic()
                is_hung = len(run.events(events.RoundClosed)) % 2
                fake.set(HANG, "sleep" if is_hung else "off")
            return run.process.poll() is not None

        run.wait_until(is_over, "a hundred rounds", 1200)
        assert run.wait() == 0
        run.wait_until_gone(20)
    assert len(run.events(events.RoundClosed)) == 101
    assert most <= 2, "one that is being killed, and the next"
    assert run.events(events.ProcessSwept) == []

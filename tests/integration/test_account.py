"""What a real run journals for its account, and what the report makes of it."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from ftrun.monitor import events
from ftrun.monitor.report import make_report
from ftrun.monitor.runs import read_runs
from tests.support.accounted_training import SAVE_S, STEP_S
from tests.support.run import WORKER, Run, start

TRAINING = str(Path(__file__).parents[1] / "support" / "accounted_training.py")
OPTIONS = ("--nproc-per-node", "2", "--ft-set", "ftrun.journal.progress_interval=0.3")


def kill_rank_1(run: Run) -> None:
    """Of the round that runs."""
    victim = [one for one in run.events(events.WorkerStarted) if one.rank == 1][-1]
    os.kill(victim.pid, signal.SIGKILL)


def last_save(directory: Path, rank: int) -> str:
    """Its step, as the training keeps it."""
    file = directory / f"saved-{rank}"
    return file.read_text() if file.exists() else ""


def test_account_of_a_run_with_saves_and_a_fault(tmp_path: Path) -> None:
    """Saves, steps done again and steps that counted are each in their bucket; progress is told in lines."""
    with start(tmp_path, *OPTIONS, TRAINING, "80", "20") as run:
        run.wait_for_event(events.CheckpointSaved, 1)
        run.wait_until(
            lambda: any(one.step and one.step >= 79 for one in run.events(events.ProgressObserved)), "79"
        )
        run.wait_until(lambda: all(last_save(tmp_path, rank) == "60" for rank in (0, 1)), "both saved at 60")
        kill_rank_1(run)
        run.wait_for_event(events.RoundStopped)  # with "go" before, rank 0 might do its last step
        (tmp_path / "go").touch()
        assert run.wait() == 0
    saves = run.events(events.CheckpointSaved)
    assert {one.rank for one in saves} <= {0, 1}
    blocked = [one.blocking_s for one in saves if one.blocking_s is not None]
    assert len(blocked) == len(saves)
    assert min(blocked) == pytest.approx(SAVE_S, abs=0.15)
    assert max(blocked) < 10 * SAVE_S  # a machine that does much else holds up one or the other
    assert {one.step for one in saves if one.round == 0} >= {60}
    last = [one for one in run.events(events.ProgressObserved) if one.round == 0][-1]
    assert (last.steps, last.step, last.is_told) == (79, 79, False)
    [found] = read_runs(tmp_path / "run", time.time())
    goodput = make_report(found.run, found.name, "").goodput
    told_s = sum(one.count * (one.blocking_s or 0.0) for one in saves)
    assert goodput.buckets_s["checkpoint"] == pytest.approx(told_s, rel=0.6)
    assert goodput.buckets_s["redone"] > 15 * STEP_S
    assert goodput.buckets_s["productive"] > 20 * STEP_S
    # What the first rank does before the other has begun is no step of the job.
    assert goodput.buckets_s["productive"] + goodput.buckets_s["starting"] > 60 * STEP_S
    assert sum(one.lost for one in found.run.work) == 19
    assert re.search(r"\[ftrun [\d:]+\] step \d+, [\d.]+ steps/s; last checkpoint at step \d+, ", run.stderr)


def test_configuration_is_journalled_with_its_origins_and_without_secrets(tmp_path: Path) -> None:
    """What was set, by its key; the script's arguments and its environment are nowhere."""
    options = ("--ft-set", "ftrun.stop.kill_timeout=7", "--rdzv-conf", "token=hunter2")
    with start(
        tmp_path,
        *options,
        "-m",
        "this",
        "--password",
        "hunter3",
        environment={"PET_FT_STANDBY": "off", "API_KEY": "hunter4"},
    ) as run:
        assert run.wait() == 0
    [told] = run.events(events.RunConfigured)
    settings = dict(zip(told.names, zip(told.values, told.origins, strict=True), strict=True))
    assert settings["ftrun.stop.kill_timeout"] == ("7.0", "command line --ft-set")
    assert settings["ftrun.standby.mode"] == ('"off"', "environment PET_FT_STANDBY")
    assert settings["launch.rdzv_conf"][0] == '{token: "***"}'
    assert "hunter" not in "".join(path.read_text() for path in (tmp_path / "run").glob("*.jsonl"))


@pytest.mark.slow
def test_checkpoint_that_no_script_reports_is_seen_on_the_disk(tmp_path: Path) -> None:
    """By the look that the launcher takes while training runs."""
    code = (
        "import torch; from ftrun.monitor.client import heartbeat\n"
        "def save(step):\n"
        "    place = directory / 'c' / f'step-{step}.pt'; place.parent.mkdir(exist_ok=True)\n"
        "    if not place.exists(): torch.save({'weight': torch.ones(8)}, place)\n"
        "save(10)\n"
        "while not (directory / 'end').exists():\n"
        "    heartbeat(); time.sleep(0.02)\n"
        "    if (directory / 'save').exists(): save(20)"
    )
    # The last chance is looked at too.
    options = ("--max-restarts", "0", "--ft-checkpoint-dir", str(tmp_path / "c"))
    with start(tmp_path, *options, WORKER, code) as run:
        run.wait_for_event(events.WorkerProgressed)
        (tmp_path / "save").touch()
        run.wait_until(
            lambda: any(one.step == 20 for one in run.events(events.CheckpointSaved)), "step 20", 60
        )
        (tmp_path / "end").touch()
        assert run.wait() == 0
    saved = [one for one in run.events(events.CheckpointSaved) if one.step == 20]
    assert [(one.rank, one.path, one.blocking_s) for one in saved] == [
        (None, str(tmp_path / "c" / "step-20.pt"), None)
    ]
    assert 0 <= saved[0].age_s < 60

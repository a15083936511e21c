"""After a failure the grace ends early for survivors that cannot act on it, and only for those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import WORKER, Run, start

WAITING = str(Path(__file__).parents[1] / "support/waiting_ranks.py")
THREE = ("--nproc-per-node", "3")
TWO = ("--nproc-per-node", "2")
LONG_GRACE = ("--ft-set", "stop.grace_after_failure=30")
LONG_S = 180.0
NO_MEMORY_LIMIT = ("--ft-set", "standby.min_free_memory=0")
SOON_S = 10.0
"""A third of the grace, on a machine that does much else."""

SAVES = """
from ftrun.monitor.client import heartbeat
def save(*_):
    with open(directory / "checkpoint", "wb", buffering=0) as file:
        begun = time.monotonic()
        while time.monotonic() < begun + 3.0:
            file.write(bytes(65536))
            os.fsync(file)
            {between}
    os.rename(directory / "checkpoint", directory / "whole")
    raise SystemExit(0)
heartbeat()
if restart_count == 0:
    if rank == 0:
        signal.signal(signal.SIGTERM, save)
        (directory / "ready").touch()
    else:
        wait_for("ready")
        die(signal.SIGKILL)
    time.sleep(60)
"""
SAVES_IN_A_CHILD = """
from ftrun.monitor.client import heartbeat
CHILD = '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("checkpoint", "wb", buffering=0) as file:
    for _ in range(30):
        file.write(bytes(65536))
        time.sleep(0.1)
os.rename("checkpoint", "whole")
'''
def save(*_):
    subprocess.run([sys.executable, "-c", CHILD], cwd=directory, check=True)
    raise SystemExit(0)
heartbeat()
if restart_count == 0:
    if rank == 0:
        signal.signal(signal.SIGTERM, save)
        (directory / "ready").touch()
    else:
        wait_for("ready")
        die(signal.SIGKILL)
    time.sleep(60)
"""


def printed(run: Run, what: str) -> list[float]:
    """The times that workers printed, CLOCK_MONOTONIC seconds."""
    return [float(at) for at in re.findall(rf"\] {what} (\d+\.\d+)$", run.stdout, re.MULTILINE)]


@pytest.mark.slow
def test_survivors_that_wait_in_a_collective_are_not_waited_for(tmp_path: Path) -> None:
    """All ranks have a SIGTERM handler that sets a flag; from the kill of one to the next step."""
    options = (*THREE, *LONG_GRACE, *NO_MEMORY_LIMIT, "--max-restarts", "1")
    with start(tmp_path, *options, WAITING) as run:
        run.wait_for_event(events.StandbyReadied, count=3, timeout_s=LONG_S)
        (tmp_path / "go").touch()
        assert run.wait(LONG_S) == 0, run.stderr
    [killed_at] = printed(run, "killed")
    next_step_s = max(printed(run, "first step")[-3:]) - killed_at
    print(f"kill to next step: {next_step_s:.2f} s")
    ended = run.events(events.GraceEnded)
    assert sorted(one.rank for one in ended) == [0, 2]
    assert all(0.5 <= one.after_s < SOON_S for one in ended)
    assert next_step_s < SOON_S
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.culprit_rank, incident.incident_kind) == (1, "killed")
    assert set(incident.collateral_ranks) == {0, 2}


def check_save(run: Run, directory: Path) -> None:
    """The checkpoint is whole, and nobody's grace was cut short."""
    assert run.wait(LONG_S) == 0, run.stderr
    assert (directory / "whole").stat().st_size >= 65536
    assert [one.rank for one in run.events(events.GraceEnded)] == []
    [stopped] = [one for one in run.events(events.RoundStopped) if one.round == 0]
    assert stopped.stop_s > 2.9


def test_rank_that_saves_keeps_its_grace(tmp_path: Path) -> None:
    """Its signal handler writes for 3 s, pausing now and then."""
    script = SAVES.format(between="time.sleep(0.2)")
    with start(tmp_path, *TWO, *LONG_GRACE, WORKER, script) as run:
        check_save(run, tmp_path)


@pytest.mark.slow
def test_rank_that_saves_in_a_child_keeps_its_grace(tmp_path: Path) -> None:
    """Its main thread only waits, in C, for a process that writes."""
    with start(tmp_path, *TWO, *LONG_GRACE, WORKER, SAVES_IN_A_CHILD) as run:
        check_save(run, tmp_path)

"""A healthy job is never taken for a hung one, whatever long things it does; in scaled times."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import Run, start

TRAINING = str(Path(__file__).parents[1] / "support/healthy_training.py")
FLOOR_S = 7.0
"""For 60 s. Above the 5 s of a stopped process, and those after which a DataLoader looks around."""
QUIET_S = 8.0
STOPPED_S = 5.0
LONG_S = 180.0
PHASES = (
    "evaluation",
    "checkpoint",
    "data",
    "threads",
    "compilation",
    "worker is stopped",
    "agent is stopped",
)


def stop(pid: int) -> None:
    """As with a debugger: for a while, and on."""
    os.kill(pid, signal.SIGSTOP)
    nobody_sets_it = threading.Event()
    nobody_sets_it.wait(STOPPED_S)
    os.kill(pid, signal.SIGCONT)


def begin(run: Run, phase: str) -> None:
    """Until the job is in it."""
    run.wait_for_text(f"begins {phase}", timeout_s=LONG_S)
    assert run.events(events.HangDetected) == [], run.stderr


@pytest.mark.slow
def test_long_pauses_of_a_healthy_job_are_no_hangs(tmp_path: Path) -> None:
    """Slow first step, evaluation, checkpoint, data stall, helper threads, compilers, stopped processes.

    Each is longer than the limit for a time without signs, or a pause of 5 s. The hang that comes at the end
    is found, so the limit was there.
    """
    stall = ("--ft-set", f"timeouts.stall_floor={FLOOR_S}", "--ft-safety-factor", "1")
    options = ("--nproc-per-node", "2", *stall, "--max-restarts", "0")
    with start(tmp_path, *options, TRAINING, str(QUIET_S), str(STOPPED_S + 1.0)) as run:
        for phase in PHASES[:-2]:
            begin(run, phase)
        begin(run, "worker is stopped")
        stop(run.events(events.WorkerStarted)[1].pid)
        begin(run, "agent is stopped")
        stop(run.process.pid)
        run.wait_for_text("ended agent is stopped", timeout_s=LONG_S)
        assert run.wait(LONG_S) == 1, run.stderr
    assert re.findall(r"^\[r0\] ended (.*)$", run.stdout, re.MULTILINE) == list(PHASES)
    [hang] = run.events(events.HangDetected)
    assert (hang.rule, hang.culprit_ranks) == ("stall", (1,))
    assert FLOOR_S <= hang.limit_s < QUIET_S, hang

"""Ranks that wait for a disk or another program are not taken for hung, and real hangs beside them are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import WORKER, finish, start

TWO = ("--nproc-per-node", "2")
SHORT_STALL = ("--ft-safety-factor", "1", "--ft-set", "timeouts.stall_floor=3")
LONG_S = 180.0
TRAINING = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.01)
def train(seconds):
    end, is_over = time.monotonic() + seconds, torch.tensor(0)
    while not is_over:
        parameter.sum().backward()
        optimizer.step()
        time.sleep(0.02)
        is_over.fill_(int(time.monotonic() > end))
        dist.all_reduce(is_over, dist.ReduceOp.MIN)
"""
CHILD_THEN_HANG = """
if restart_count == 0:
    # Its two processes live on to the end of the round, with batches ready.
    batches = iter(DataLoader(torch.ones(1000, 4), num_workers=2, persistent_workers=True))
    next(batches)
    train(3.0)
    if rank == 0:
        subprocess.run(["sleep", "6"])
        say("child ended")
    dist.barrier()
    train(1.0)
    if rank == 0:
        say("trains on")
    if rank == 1:
        time.sleep(1e6)
train(0.2)
say("done")
os._exit(0)  # torch now and then ends a busy process with SIGABRT
"""
EVALUATES = """
train(0.5)
end = time.monotonic() + 4.0
while rank == 0 and time.monotonic() < end:
    sum(range(1000))
dist.barrier()
say("evaluated")
if restart_count == 0 and rank == 1:
    time.sleep(1e6)
train(0.2)
os._exit(0)  # torch now and then ends a busy process with SIGABRT
"""
SAVES_IN_HANDLER = """
import _thread, functools
import torch
import torch.distributed.checkpoint as dcp
from ftrun.monitor.client import heartbeat
lock = _thread.allocate_lock()
lock.acquire()
def save(*_):
    # A slow disk: from within torch's own frame, as fsync is.
    os.fsync = functools.partial(lock.acquire, timeout=3.0)
    dcp.save({"weights": torch.ones(4)}, checkpoint_id=directory / "checkpoint", no_dist=True)
    say("saved")
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


@pytest.mark.slow
def test_wait_for_a_child_is_no_hang_and_one_beside_data_loaders_is(tmp_path: Path) -> None:
    """A child that sleeps for twice the limit; later the other rank leaves the collective out."""
    script = TRAINING + CHILD_THEN_HANG
    code, run = finish(tmp_path, *TWO, *SHORT_STALL, "--max-restarts", "1", WORKER, script, timeout_s=LONG_S)
    assert code == 0, run.stderr
    assert "trains on" in run.stdout
    [hang] = run.events(events.HangDetected)
    assert (hang.rule, hang.culprit_ranks) == ("stall", (1,))
    assert hang.limit_s < 6.0


@pytest.mark.slow
def test_evaluation_without_steps_is_no_hang_of_an_unedited_script(tmp_path: Path) -> None:
    """With a heartbeat limit that is shorter than it; the hang that follows is found by that limit."""
    limits = ("--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "2")
    script = TRAINING + EVALUATES
    code, run = finish(tmp_path, *TWO, *limits, "--max-restarts", "1", WORKER, script, timeout_s=LONG_S)
    assert code == 0, run.stderr
    assert run.stdout.count("rc0] evaluated") == 2
    [hang] = run.events(events.HangDetected)
    assert (hang.rule, hang.culprit_ranks) == ("steady", (1,))


@pytest.mark.slow
def test_checkpoint_of_a_signal_handler_is_written_to_its_end(tmp_path: Path) -> None:
    """By torch's own checkpointing, on a disk that takes three seconds; the grace is longer."""
    options = (*TWO, "--ft-set", "stop.grace_after_failure=30", "--max-restarts", "1")
    with start(tmp_path, *options, WORKER, SAVES_IN_HANDLER) as run:
        assert run.wait(LONG_S) == 0, run.stderr
    assert "saved" in run.stdout
    assert run.events(events.GraceEnded) == []

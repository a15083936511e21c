"""Whatever is killed, the example ends with the weights of a run in which nothing was."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftrun.monitor.events import RecoveryCompleted, WorkerProgressed, WorkerStarted
from tests.support.run import Run, start

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "train_fsdp.py")
SMALL = ("--width", "32", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "2")
STEPS, EVERY, KILLS = 600, 20, 5
LONG_S = 300.0


def train(directory: Path, kills: int) -> tuple[str, Run]:
    """Train on two ranks with that many SIGKILLs, of either rank in turn; the hash of the final weights."""
    checkpoints = str(directory / "checkpoints")
    launcher = ("--nproc-per-node", "2", "--max-restarts", "10", "--ft-checkpoint-dir", checkpoints)
    script = (EXAMPLE, *SMALL, "--steps", str(STEPS), "--checkpoint-every", str(EVERY))
    saving = ("--checkpoint-dir", checkpoints, "--final-hash", str(directory / "hash"))
    with start(directory, *launcher, *script, *saving) as run:
        for number in range(kills):
            run.wait_for_event(WorkerProgressed, count=2 * (number + 1), timeout_s=LONG_S)
            # In the middle of a round: a checkpoint of this round exists, so some of its work is kept.
            seen = len(list((directory / "checkpoints").glob("step-*")))
            run.wait_until(
                lambda seen=seen: len(list((directory / "checkpoints").glob("step-*"))) > seen,
                "a new checkpoint",
                timeout_s=LONG_S,
            )
            # And the step after it is done, which that checkpoint does not hold.
            steps = [int(path.name.partition("-")[2]) for path in (directory / "checkpoints").glob("step-*")]
            run.wait_for_text(f"step {max(steps) + 1} loss", timeout_s=LONG_S)
            victim = [w for w in run.events(WorkerStarted) if w.round == number and w.rank == number % 2]
            os.kill(victim[0].pid, signal.SIGKILL)
        assert run.wait(timeout_s=LONG_S) == 0, run.stderr
    return (directory / "hash").read_text(), run


@pytest.mark.slow
def test_five_kills_change_no_bit_of_the_final_weights(tmp_path: Path) -> None:
    """Resume is exact: weights, optimizer and data order are those of the undisturbed run."""
    undisturbed, _ = train(tmp_path / "undisturbed", kills=0)
    killed, run = train(tmp_path / "killed", kills=KILLS)
    assert killed == undisturbed
    # torch aborts some processes whose script is done (see test_example.py): later rounds are of that.
    redone = [one.steps_redone for one in run.events(RecoveryCompleted) if one.round <= KILLS]
    assert len(redone) == KILLS
    assert None not in redone
    # A kill may come right after one of the next checkpoints.
    assert sum(steps or 0 for steps in redone) >= KILLS

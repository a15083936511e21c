"""Whatever happens around saving and loading, training goes on from the newest good checkpoint, or stops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftrun.monitor.events import (
    CheckpointQuarantined,
    CheckpointRenamed,
    RecoveryCompleted,
    RoundClosed,
)
from tests.support.run import Run, finish
from tests.support.saving import train

LONG_S = 300.0
"""Seven starts of Python and torch, of which most are cold."""
SCRIPT = str(Path(__file__).parents[1] / "support" / "saving.py")


def run(directory: Path, steps: int, *deeds: str) -> tuple[int, Run]:
    """The job, with checkpoints below `directory`."""
    checkpoints = str(directory / "checkpoints")
    options = ("--nproc-per-node", "1", "--max-restarts", "10", "--ft-checkpoint-dir", checkpoints)
    return finish(directory, *options, SCRIPT, checkpoints, str(steps), *deeds, timeout_s=LONG_S)


def expected_end(steps: int) -> str:
    """What an undisturbed job prints at its end."""
    return f"end {train(torch.zeros(64), 0, steps).double().sum().item():.17g}"


def resume_steps(run: Run) -> list[int | None]:
    """What each round began from."""
    return [event.resume_step for event in run.events(RoundClosed)]


@pytest.mark.slow
def test_faults_around_saving_and_loading_cost_no_more_than_they_must(tmp_path: Path) -> None:
    """Killed in a save, killed twice in loading, then weights that are not numbers: the end is the same.

    The kills cost no checkpoint its trust; the poisoned one is set aside after two rounds.
    """
    deeds = ("kill_in_save", "kill_in_load", "kill_in_load", "poison")
    code, done = run(tmp_path, 50, *deeds)
    assert code == 0, done.stderr
    assert resume_steps(done) == [None, 10, 10, 10, 30, 30, 20]
    assert done.stdout.splitlines()[-1] == expected_end(50)
    [lost] = done.events(CheckpointQuarantined)
    assert (Path(lost.path).name, lost.step) == ("step-30", 30)
    assert "the weights are not finite" in lost.reason
    [renamed] = done.events(CheckpointRenamed)
    assert renamed.new_path == f"{lost.path}.ftrun-quarantined"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-10",
        "step-20",
        "step-30",
        "step-30.ftrun-quarantined",
        "step-40",
        "step-50",
    ]
    ages = [event.checkpoint_age_s for event in done.events(RecoveryCompleted)]
    assert ages
    assert all(age is not None and 0 <= age < LONG_S for age in ages)

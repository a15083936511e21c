"""A tiny training job that saves with torch DCP, and goes wrong around saving and loading.

`python saving.py DIRECTORY STEPS [DEED...]`: a DEED is what goes wrong in one round, by the restart count:
"kill_in_save" (the second save of the round has its shard and no metadata yet), "kill_in_load", "poison"
(saves what is not a number, and fails). A checkpoint every ten steps; prints where it begins and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from ftrun.monitor import client

EVERY = 10


def gradient(step: int) -> torch.Tensor:
    """Of a step; all that the next weights depend on, besides the weights."""
    return torch.linspace(-1, 1, 64) / (step + 1)


def save(directory: Path, weight: torch.Tensor, step: int) -> Path:
    """One checkpoint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.save({"weight": weight, "step": step}, checkpoint_id=directory / f"step-{step}", no_dist=True)
    return directory / f"step-{step}"


def train(weight: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """The weights after these steps."""
    for step in range(first, last):
        weight = weight - 0.1 * (gradient(step) + 0.01 * weight)
    return weight


def kill() -> None:
    """As by somebody else."""
    os.kill(os.getpid(), signal.SIGKILL)


def load(path: str, deed: str) -> tuple[torch.Tensor, int]:
    """Weights and step of a checkpoint."""
    state = {"weight": torch.zeros(64), "step": 0}
    if deed == "kill_in_load":
        kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(state, checkpoint_id=path, no_dist=True)
    if not torch.isfinite(state["weight"]).all():
        raise ValueError("the weights are not finite")
    return state["weight"], int(state["step"])


def main() -> None:
    directory, steps, deeds = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    deed = deeds[count] if count < len(deeds) else ""
    weight, step = torch.zeros(64), 0
    resume_from = client.resume_from()
    if resume_from is not None:
        weight, step = load(resume_from, deed)
    print(f"begin {step}", flush=True)
    saves = 0
    while step < steps:
        weight = train(weight, step, step + 1)
        step += 1
        client.heartbeat(step)
        if step % EVERY:
            continue
        saves += 1
        if deed == "kill_in_save" and saves == 2:
            (save(directory, weight, step) / ".metadata").unlink()
            kill()
        if deed == "poison" and saves == 2:
            client.checkpoint_saved(save(directory, weight * float("nan"), step), step)
            raise RuntimeError("the loss is not a number")
        client.checkpoint_saved(save(directory, weight, step), step)
    print(f"end {weight.double().sum().item():.17g}", flush=True)


if __name__ == "__main__":
    main()

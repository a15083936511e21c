"""A small training on gloo with checkpoints, in which each round goes wrong in another way.

`python faulty_training.py CHECKPOINTS [DEED:RANK ...]`: one deed for each round that the job has; the round
after the last one trains until there is a file `end` in the job's directory (`$D`). A deed is a function of
this module, done after some steps; `waits` is done by nobody: something outside ends that round.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ftrun.monitor.client import checkpoint_saved, resume_from

STEP_S = 0.1
STEPS_BEFORE_DEED = 17
EVERY = 10


def dies_of_sigkill() -> None:
    """As if somebody had killed it."""
    os.kill(os.getpid(), signal.SIGKILL)


def raises() -> None:
    """A bug that not every batch shows."""
    raise ValueError("loss is nan at batch 4711")


def sleeps_for_ever() -> None:
    """Waits for what does not come."""
    time.sleep(1e6)


def reads_address_zero() -> None:
    """Dies of SIGSEGV."""
    ctypes.string_at(0)


checkpoints, *deeds = sys.argv[1:]
job = Path(os.environ["D"])
dist.init_process_group("gloo")
rank = dist.get_rank()
round_number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
deed, _, doer = (deeds[round_number] if round_number < len(deeds) else "").partition(":")
parameter = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([parameter], lr=0.01)
state = {"parameter": parameter.data, "step": torch.zeros(1, dtype=torch.int64)}
if (path := resume_from()) is not None:
    dcp.load(state, checkpoint_id=path)
    parameter.data = state["parameter"]
done = 0
while True:
    parameter.grad = torch.ones(8)
    stops = torch.tensor([not deed and rank == 0 and (job / "end").exists()], dtype=torch.int64)
    dist.all_reduce(parameter.grad)
    dist.all_reduce(stops)
    if stops:
        break
    optimizer.step()
    done += 1
    state["step"] += 1
    step = int(state["step"])
    if step % EVERY == 0:
        dcp.save(state, checkpoint_id=f"{checkpoints}/step-{step}")
        checkpoint_saved(f"{checkpoints}/step-{step}", step)
    if deed and deed != "waits" and done >= STEPS_BEFORE_DEED and rank == int(doer):
        globals()[deed]()
    if rank == 0:
        (job / f"steps-{round_number}").write_text(str(done))
    time.sleep(STEP_S)
dist.destroy_process_group()

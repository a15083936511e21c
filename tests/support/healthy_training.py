"""A healthy training job that does what launchers take for a hang, each for longer than its limit.

`python healthy_training.py QUIET_S STOP_S`: seconds of each pause, and the time that the test needs to stop
a process for a while. All ranks take part in each phase; "begins X" and "ended X" are said by rank 0. At the
end rank 1 does hang.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

QUIET_S, STOP_S = map(float, sys.argv[1:])
STEP_S = 0.05
LEARN_S = 4.5
DIRECTORY = Path(os.environ["D"])
WRITER = """
import os, sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        file.write(bytes(256 * 1024))
        time.sleep(0.25)
"""
COMPILER = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""
rank = int(os.environ["RANK"])


def say(*words: object) -> None:
    """One line on stdout with who says it, in a single write."""
    os.write(1, f"[r{rank}] {' '.join(map(str, words))}\n".encode())


class SlowSamples(Dataset[torch.Tensor]):
    """Whose storage does not answer for a while."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1:
            time.sleep(QUIET_S)
        return torch.ones(4)


def evaluate() -> None:
    """Rank 0 does, step by step."""
    end = time.monotonic() + QUIET_S
    while rank == 0 and time.monotonic() < end:
        with torch.no_grad():
            model(torch.ones(8, 4))
        time.sleep(STEP_S)


def save_checkpoint() -> None:
    """Rank 0 waits, in C, for a process that writes."""
    if rank == 0:
        arguments = [str(DIRECTORY / "checkpoint"), str(QUIET_S)]
        subprocess.run([sys.executable, "-c", WRITER, *arguments], check=True)


def wait_for_data() -> None:
    """No rank gets a sample; the loader asks now and then whether its worker is still alive."""
    assert sum(len(batch) for batch in DataLoader(SlowSamples(), num_workers=1)) == 3


def tokenize() -> None:
    """A single C call per thread, while rank 0's main thread waits in C."""
    if rank == 0:
        begun = time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
        count = int(100_000 * QUIET_S / (time.monotonic() - begun))
        thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", count))
        thread.start()
        thread.join()


def compile_in_processes() -> None:
    """The children work, and each rank's main thread waits for them in C."""
    subprocess.run([sys.executable, "-c", COMPILER, str(QUIET_S)], check=True)


def is_stopped_from_outside() -> None:
    """By the test, while training goes on."""
    train(STOP_S)


def train(seconds: float) -> None:
    """Steps, until all ranks have done so for some time."""
    end = time.monotonic() + seconds
    is_time = torch.tensor(0)
    while not is_time:
        step()
        is_time.fill_(int(time.monotonic() > end))
        dist.all_reduce(is_time, dist.ReduceOp.MIN)
        time.sleep(STEP_S)


def step() -> None:
    """Of the optimizer."""
    loss = model(torch.ones(4)).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


def phase(what: Callable[[], None], name: str) -> None:
    """What is no hang, and some steps after it."""
    if rank == 0:
        say("begins", name)
    what()
    dist.barrier()
    train(0.5)
    if rank == 0:
        say("ended", name)


dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
time.sleep(QUIET_S)  # the first step is slow
train(LEARN_S)
phase(evaluate, "evaluation")
phase(save_checkpoint, "checkpoint")
phase(wait_for_data, "data")
phase(tokenize, "threads")
phase(compile_in_processes, "compilation")
phase(is_stopped_from_outside, "worker is stopped")
phase(is_stopped_from_outside, "agent is stopped")
if rank == 1:
    time.sleep(1e6)
dist.barrier()

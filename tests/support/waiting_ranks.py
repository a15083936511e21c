"""Three ranks with a SIGTERM handler that sets a flag; in the first round rank 1 dies, and nobody notices.

The others wait in collectives that never end, and gloo cannot tell them of the death: so do ranks with NCCL,
in C and for many minutes. Prints what a test measures, CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
stop_asked = []
signal.signal(signal.SIGTERM, lambda *_: stop_asked.append(True))


def say(*words: object) -> None:
    """One line on stdout with who says it, in a single write."""
    os.write(1, f"[r{rank}] {' '.join(map(str, words))}\n".encode())


dist.init_process_group("gloo")
pairs = {0: dist.new_group([0, 2]), 2: dist.new_group([0, 2])}
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.01)
parameter.sum().backward()
dist.all_reduce(parameter.grad)
optimizer.step()
say("first step", time.monotonic())
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank in pairs:
        dist.all_reduce(parameter.grad, group=pairs[rank])
    while not Path(os.environ["D"], "go").exists():
        time.sleep(0.01)
    time.sleep(1.0)  # until the others wait
    say("killed", time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(0)  # torch 2.13 aborts some processes at the end of the interpreter, on a busy machine

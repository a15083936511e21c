"""A tiny training job on gloo in which rank 1 goes wrong after a while, in the first round only.

`python training.py CLIENT DEED`. CLIENT says what is told of the training: "none" (the script is not edited),
"ftrun" or "nvrx"; DEED is a function of this module. `$STEPS` steps are done before the deed, and as many after
it; the times that a test measures are printed, CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable

STARTED_AT = time.monotonic()

import torch
import torch.distributed as dist

CLIENT, DEED = sys.argv[1:]
STEPS = int(os.environ.get("STEPS", "20"))
STEP_S = 0.05
rank = int(os.environ["RANK"])
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(*words: object) -> None:
    """One line on stdout with who says it, in a single write."""
    os.write(1, f"[r{rank} rc{restart_count}] {' '.join(map(str, words))}\n".encode())


def is_stopped() -> None:
    """As by a debugger, or a node that swaps."""
    os.kill(os.getpid(), signal.SIGSTOP)


def sleeps_for_ever() -> None:
    """Waits for what does not come."""
    time.sleep(1e6)


def skips_a_collective() -> None:
    """Goes on to another one, which the others never reach."""
    dist.barrier(group=others)


def holds_the_gil() -> None:
    """Waits in C for a lock of its own, and no other thread of it can run Python either."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    while True:
        libc.pthread_mutex_lock(mutex)


def matches_a_bad_pattern() -> None:
    """Backtracks for longer than anybody waits, holding the GIL."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def beat_of(client: str) -> Callable[[], None]:
    """What an edited script calls after each step."""
    if client == "none":
        return lambda: None
    if client == "ftrun":
        from ftrun.monitor.client import heartbeat

        return heartbeat
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    return monitor.send_heartbeat


say("script began", STARTED_AT)
dist.init_process_group("gloo")
others = dist.new_group()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
beat = beat_of(CLIENT)
for step in range(2 * STEPS):
    if restart_count == 0 and step == STEPS:
        say("last beat", time.monotonic())
        if rank == 1:
            globals()[DEED]()
    loss = model(torch.ones(4)).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    beat()
    if step == 0:
        say("first step", time.monotonic())
    time.sleep(STEP_S)
dist.destroy_process_group()
say("done")

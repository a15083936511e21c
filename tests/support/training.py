"""A tiny training job on gloo whose rank 1 goes wrong in each round, in another way each time.

`python training.py CLIENT [DEED...]`. CLIENT says what is told of the training: "none" (the script is not
edited), "ftrun" or "nvrx", which also opens a section that has no limit. Each DEED is a function of this
module, for one round; the round after the last one ends well. Before a deed there are some steps, for
`$LEARN_S` seconds in the first round, and the file `$D/go`. The times that a test measures are printed,
CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

STARTED_AT = time.monotonic()

import torch  # noqa: E402 - the first thing to be known is when the script began
import torch.distributed as dist  # noqa: E402

STEP_S = 0.05
STEPS = 10
client, *deeds = sys.argv[1:]
rank = int(os.environ["RANK"])
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(*words: object) -> None:
    """One line on stdout with who says it, in a single write."""
    os.write(1, f"[r{rank} rc{restart_count}] {' '.join(map(str, words))}\n".encode())


def is_stopped() -> None:
    """As by a debugger."""
    os.kill(os.getpid(), signal.SIGSTOP)


def sleeps_for_ever() -> None:
    """Waits for what does not come."""
    time.sleep(1e6)


def skips_a_collective() -> None:
    """Waits for what the others do after it."""
    store.wait(["after the collective"])


def skips_to_another_collective() -> None:
    """Waits for the others, who do not come so far."""
    dist.barrier(second_group)


def holds_the_gil() -> None:
    """Waits in C for a lock that it has itself; no other thread of this process can run Python either."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    while True:
        libc.pthread_mutex_lock(mutex)


def matches_a_bad_pattern() -> None:
    """Backtracks for longer than anybody waits, holding the GIL."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def make_client() -> tuple[Callable[[], object], Callable[[], object]]:
    """What the script calls after each step, and at its end."""
    if client == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient, RankMonitorClientError

        monitor = RankMonitorClient()
        monitor.init_workload_monitoring()
        try:
            monitor.start_section("unknown")
        except RankMonitorClientError:
            say("section refused")
        return monitor.send_heartbeat, monitor.shutdown_workload_monitoring
    if client == "ftrun":
        from ftrun.monitor.client import heartbeat

        return heartbeat, lambda: None
    return lambda: None, lambda: None


def all_have(flag: bool) -> bool:
    """Whether it is so for all ranks."""
    lowest = torch.tensor(int(flag))
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return bool(lowest)


say("began", STARTED_AT)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
second_group = dist.new_group()
parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.01)
beat, shut_down = make_client()
deed = deeds[restart_count] if restart_count < len(deeds) else ""
steps = STEPS if restart_count else STEPS + int(float(os.environ["LEARN_S"]) / STEP_S)
step = 0
while deed or step < STEPS:
    parameter.sum().backward()
    if deed and all_have(step >= steps and Path(os.environ["D"], "go").exists()):
        say("last beat", time.monotonic())
        if rank == 1:
            globals()[deed]()
    dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    beat()
    step += 1
    time.sleep(STEP_S)
dist.destroy_process_group()
shut_down()
say("done")
os._exit(0)  # torch 2.13 aborts some processes at the end of the interpreter, on a busy machine

"""A program of `examples`, held back in its first rounds until something ends them.

`python held_example.py ROUNDS PROGRAM ARGUMENTS...`: in each of so many rounds it comes no further than to
the second checkpoint that it saves there, however slow the test is that waits for the first one.
"""

from __future__ import annotations

import os
import runpy
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

from ftrun.monitor.client import heartbeat

is_held = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1])
sys.argv = sys.argv[2:]
save = dcp.save
saved: list[object] = []


def save_and_wait(*arguments: object, **options: object) -> None:
    """Save; the second time in a round that is held, wait for its end."""
    saved.append(save(*arguments, **options))
    while is_held and len(saved) > 1:
        heartbeat()
        time.sleep(0.01)


dcp.save = save_and_wait
torch.set_num_threads(1)  # nodes of one rank each would take the same CPUs
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)  # torch now and then ends a busy process with SIGABRT, when all is done

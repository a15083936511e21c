"""A training job on gloo whose final weights tell whether each step was done exactly once.

`python node_training.py [report]` trains until there is a file `end` in the job's directory; all ranks end
after the same step. Rank 0 saves every few steps and, with `report`, tells ftrun; each round begins from what
is saved. What is saved is so small that it needs no `torch.distributed.checkpoint`, which takes a second to
import.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from rank_words import SAMPLES, directory, gradient, say

from ftrun.monitor.client import checkpoint_saved

STEP_S = 0.02
EVERY = 10
SAVED = directory() / "saved.json"

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
weights = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
optimizer = torch.optim.SGD([weights], lr=1.0)
loaded = torch.tensor(json.loads(SAVED.read_text()) if rank == 0 and SAVED.exists() else [0, 0])
dist.broadcast(loaded, 0)
step, weights.data[0] = int(loaded[0]), loaded[1]
print(f"training from step {step} as rank {rank} of {world_size}", flush=True)
say("began", step=step)
is_over = False
while not is_over:
    own = sum(gradient(step, sample) for sample in range(rank, SAMPLES, world_size))
    wants_end = rank == 0 and (directory() / "end").exists()
    total = torch.tensor([own, wants_end], dtype=torch.float64)
    dist.all_reduce(total)
    weights.grad, is_over = total[:1], bool(total[1])
    optimizer.step()
    step += 1
    if rank == 0:
        say("step", step=step)
        if step % EVERY == 0:
            new = SAVED.with_suffix(".new")
            new.write_text(json.dumps([step, int(weights)]))
            os.replace(new, SAVED)
            if sys.argv[1:] == ["report"]:
                checkpoint_saved(SAVED, step)
    time.sleep(STEP_S)
say("done", step=step, weights=int(weights))
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # torch now and then ends a busy process with SIGABRT, when all is done

# ruff: noqa: E402 (the time at which the script's first line runs is part of what is measured)
"""The job that the recovery benchmark runs under every launcher: a toy FSDP2 model that stamps what it does.

Each rank appends JSON lines to $BENCH_OUT/rank<n>.jsonl; times are CLOCK_MONOTONIC in seconds, comparable
with the benchmark's own because all is on one machine. It finds its newest checkpoint by itself, the same way
under all launchers, so that none gains from what it hands to its workers. It trains until it is told to stop.
"""

from __future__ import annotations

import time

SCRIPT_AT = time.monotonic()

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

IMPORTED_AT = time.monotonic()

WIDTH, LAYERS, BATCH = 256, 4, 8
CHECKPOINT_EVERY = 20
PAUSE_S = 0.03  # stands for the rest of a real step; leaves the CPU to the launcher, as a GPU job does


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def load_newest(out: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Loads the checkpoint that `latest` names; returns its step, 0 if there is none."""
    latest = out / "latest"
    if not latest.exists():
        return 0
    step = int(latest.read_text())
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=out / f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return step


def save(out: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    dcp.save(state_of(model, optimizer), checkpoint_id=out / f"step-{step}")
    if dist.get_rank() == 0:
        (out / "latest.new").write_text(str(step))
        (out / "latest.new").replace(out / "latest")


def main() -> None:
    out, rank = Path(os.environ["BENCH_OUT"]), os.environ["RANK"]
    with (out / f"rank{rank}.jsonl").open("a", buffering=1) as events:

        def note(event: str, **fields: float) -> None:
            events.write(json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n")

        note("begin", script_at=SCRIPT_AT, imported_at=IMPORTED_AT)
        dist.init_process_group("gloo")
        group_at = time.monotonic()
        model, optimizer = build()
        step = load_newest(out, model, optimizer)
        note("loaded", group_at=group_at, loaded_at=time.monotonic())
        while True:
            loss = model(torch.randn(BATCH, WIDTH)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            note("step", step=step, stepped_at=time.monotonic())
            time.sleep(PAUSE_S)
            if step % CHECKPOINT_EVERY == 0:
                save(out, step, model, optimizer)


if __name__ == "__main__":
    main()

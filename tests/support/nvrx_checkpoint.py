"""Writes checkpoints with nvidia-resiliency-ext itself: `nvrx_checkpoint.py local|async DIRECTORY`.

Its savers wait for a GPU before they copy tensors from it; without one there is nothing to wait for. "local"
is what LocalCheckpointManager leaves of two ranks, iteration 100; "async" is a DCP directory, step-100.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import torch  # noqa: E402 - warns of the machine it is on
import torch.distributed as dist  # noqa: E402


def save_local(directory: Path) -> None:
    """One file for each of two ranks, as `save` would call the saver once tensors are on the CPU."""
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

    for rank in (0, 1):
        manager = LocalCheckpointManager(directory, session_id="job")
        manager._rank = rank
        for iteration in (50, 100):
            manager._save({"weight": torch.ones(100)}, (iteration, rank, "job"))


def save_async(directory: Path) -> None:
    """The steps of an asynchronous save, one after the other."""
    from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
    from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
    from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
        save_state_dict_async_finalize,
        save_state_dict_async_plan,
    )
    from torch.distributed.checkpoint import DefaultSavePlanner

    torch.cuda.synchronize = lambda *_: None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    target = directory / "step-100"
    target.mkdir(parents=True)
    writer = FileSystemWriterAsync(str(target), thread_count=1)
    plan = save_state_dict_async_plan(
        {"weight": torch.ones(100)}, writer, None, 0, planner=DefaultSavePlanner()
    )
    write, preload, arguments = writer.get_save_function_and_args()
    finalize = [lambda: save_state_dict_async_finalize(*plan)]
    AsyncRequest(write, arguments, finalize, {}, preload).execute_sync()
    dist.destroy_process_group()


if __name__ == "__main__":
    {"local": save_local, "async": save_async}[sys.argv[1]](Path(sys.argv[2]))

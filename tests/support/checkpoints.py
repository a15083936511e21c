"""Checkpoints as trainers leave them, by torch itself where torch writes them, and ways to damage them."""

from __future__ import annotations

import json
import os
import struct
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def save_dcp(directory: Path) -> Path:
    """A small torch DCP directory."""
    state = {"model": {"weight": torch.ones(64, 16), "bias": torch.zeros(16)}, "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.save(state, checkpoint_id=directory, no_dist=True)
    return directory


def save_file(path: Path, step: int | None = None) -> Path:
    """A file by torch.save, with the keys of Lightning's if a step is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {} if step is None else {"epoch": 1, "global_step": step}
    torch.save({**head, "state_dict": {"weight": torch.ones(64, 16)}}, path)
    return path


def save_safetensors(path: Path) -> Path:
    """A file in the format that the safetensors library documents."""
    data = struct.pack("<4f", 1, 2, 3, 4)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def save_megatron(root: Path, *steps: int, tracked: int | None = None) -> None:
    """Megatron's directories in its older format, and the file that names the last."""
    for step in steps:
        save_file(root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt")
    if tracked is not None:
        (root / "latest_checkpointed_iteration.txt").write_text(str(tracked))


def save_hugging_face(root: Path, step: int) -> Path:
    """What transformers.Trainer leaves of a model in two files on two ranks."""
    directory = root / f"checkpoint-{step}"
    save_file(directory / "optimizer.pt")
    for rank in (0, 1):
        save_file(directory / f"rng_state_{rank}.pth")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        save_safetensors(directory / name)
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return directory


def shard_of(checkpoint: Path) -> Path:
    """A DCP checkpoint's first shard."""
    return min(checkpoint.glob("*.distcp"))


def flip(path: Path, offset: int = -1000) -> None:
    """Flips one bit in the file, and leaves its length as it is."""
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 1
    path.write_bytes(data)


def cut(path: Path, by: int = 1) -> None:
    """Takes the last bytes off the file."""
    os.truncate(path, path.stat().st_size - by)

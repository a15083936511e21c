"""Train a small byte-level transformer with FSDP2, and come back from any failure to the same weights.

Started by a launcher that sets torchrun's environment variables, for example

    ftrun --nproc-per-node 2 --ft-checkpoint-dir checkpoints train_fsdp.py --checkpoint-dir checkpoints
    torchrun --nproc-per-node 2 train_fsdp.py --checkpoint-dir checkpoints

Three things make a restart cheap and exact; copy these:

1. The batch of a step follows from (seed, step, rank) alone, so there is no data loader position to save.
2. Everything else that the next step depends on is in the checkpoint: weights, optimizer, step number.
3. The checkpoint to resume from is not guessed here: ftrun hands the newest whole one to all ranks in
   FTRUN_RESUME_FROM. Without it (plain torchrun, no checkpoint yet) training starts at --resume or step 0.

The data are the sources of Python's standard library: real text that is on every machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

CORPUS_BYTES = 2_000_000


class Block(nn.Module):
    """One pre-norm transformer layer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A decoder-only language model over bytes."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        # One row per byte: a three-dimensional result would be a view, which FSDP2 warns about.
        return self.logits(self.norm(x).flatten(0, 1))


class TrainingState:
    """What a checkpoint holds; `torch.distributed.checkpoint` calls these two methods."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.step = state["step"]


def read_corpus() -> Tensor:
    """The first bytes of the standard library's modules, in the same order on every rank."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text[:CORPUS_BYTES], dtype=torch.uint8)


def draw_batch(corpus: Tensor, args: argparse.Namespace, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one step of one rank; a pure function of (seed, step, rank)."""
    # Hashed, because neighbouring seeds of torch's generator give related numbers.
    digest = hashlib.sha256(f"{args.seed} {step} {rank}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    starts = torch.randint(len(corpus) - args.context - 1, (args.batch, 1), generator=generator)
    tokens = corpus[starts + torch.arange(args.context + 1)].long().to(args.device)
    return tokens[:, :-1], tokens[:, 1:]


def build(args: argparse.Namespace) -> TrainingState:
    """The sharded model and its optimizer, with the same initial weights on every rank."""
    torch.manual_seed(args.seed)
    model = Transformer(args.width, args.layers, args.heads, args.context).to(args.device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return TrainingState(model, torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True))


def train(state: TrainingState, corpus: Tensor, args: argparse.Namespace) -> None:
    """Steps from where the state is to --steps, with a checkpoint every --checkpoint-every steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    while state.step < args.steps:
        inputs, targets = draw_batch(corpus, args, state.step, rank)
        loss = F.cross_entropy(state.model(inputs), targets.flatten())
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.step += 1
        mean_loss = loss.detach()
        dist.all_reduce(mean_loss)
        if rank == 0:
            print(f"step {state.step} loss {mean_loss.item() / world_size:.4f}", flush=True)
        if args.checkpoint_dir and state.step % args.checkpoint_every == 0:
            # The name ends with the step: that is how the newest checkpoint is told from older ones.
            # Each rank writes its shard, then rank 0 writes .metadata, which makes the checkpoint whole.
            dcp.save({"training": state}, checkpoint_id=args.checkpoint_dir / f"step-{state.step}")


def write_hash(model: nn.Module, path: Path) -> None:
    """Rank 0 writes the SHA-256 of the full weights; all ranks must call this."""
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(bytes(weights[name].contiguous().flatten().view(torch.uint8).tolist()))
        path.write_text(digest.hexdigest() + "\n")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a byte-level transformer with FSDP2.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all, with resumed ones")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=64, help="bytes per sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-dir", type=Path, help="where step-<n> directories go; default: none")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--resume", type=Path, help="checkpoint to start from when the launcher names none")
    parser.add_argument("--final-hash", type=Path, help="write the SHA-256 of the final weights to this file")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    state = build(args)
    # The launcher's choice comes first: after a restart it is newer than what the command line says.
    resume_from = os.environ.get("FTRUN_RESUME_FROM") or args.resume
    if resume_from:
        dcp.load({"training": state}, checkpoint_id=resume_from)
        if dist.get_rank() == 0:
            print(f"resumed from {resume_from} at step {state.step}", flush=True)
    train(state, read_corpus(), args)
    if args.final_hash:
        write_hash(state.model, args.final_hash)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

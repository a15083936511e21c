"""Which of a node's slots its workers have, where the node goes on without some of its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ftrun.monitor.incident import RankExit


@dataclass(frozen=True, slots=True)
class Placement:
    """The workers of a node in a round.

    A slot is what a worker uses: the GPU whose number for CUDA is that of the slot. Local ranks have no gaps,
    so that with some slots left out the workers see only the GPUs of the others.
    """

    slots: tuple[int, ...]
    """By local rank."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that make the workers see just their GPUs; none if they see all that the agent does."""
    gpus: tuple[str, ...] = ()
    """UUID of each slot's GPU, by local rank; none if that is not known."""


def place(slot_count: int, left_out: frozenset[int], devices: tuple[str, ...]) -> Placement:
    """All slots but some.

    Args:
        slot_count: slots of the node.
        left_out: those without a worker.
        devices: UUIDs of the GPUs that CUDA numbers 0, 1, ..; more slots than GPUs share them.
    """
    slots = tuple(slot for slot in range(slot_count) if slot not in left_out)
    gpus = tuple(devices[slot % len(devices)] for slot in slots) if devices else ()
    if not left_out or not gpus:
        return Placement(slots, gpus=gpus)
    # By UUID: the numbers of the others change when the driver does not list a lost one any more.
    return Placement(slots, {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus))}, gpus)


def name_gpus(exits: Sequence[RankExit], placement: Placement) -> tuple[RankExit, ...]:
    """The exits of a round with that placement, each with its GPU."""
    if not placement.gpus:
        return tuple(exits)
    return tuple(replace(exit, gpu=placement.gpus[exit.local_rank]) for exit in exits)

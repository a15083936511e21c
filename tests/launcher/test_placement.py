"""What the workers of a node see when some of its GPUs are left out."""

from __future__ import annotations

import pytest

from ftrun.launcher.environment import virtual_local_rank
from ftrun.launcher.placement import Placement, name_gpus, place
from ftrun.monitor.incident import RankExit

FOUR = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


@pytest.mark.parametrize(
    ("slot_count", "left_out", "devices", "expected"),
    [
        (4, (), FOUR, Placement((0, 1, 2, 3), gpus=FOUR)),
        (2, (), (), Placement((0, 1))),
        (
            4,
            (1,),
            FOUR,
            Placement((0, 2, 3), {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c,GPU-d"}, ("GPU-a", "GPU-c", "GPU-d")),
        ),
        (2, (0,), FOUR, Placement((1,), {"CUDA_VISIBLE_DEVICES": "GPU-b"}, ("GPU-b",))),
        (4, (0, 2), FOUR[:2], Placement((1, 3), {"CUDA_VISIBLE_DEVICES": "GPU-b"}, ("GPU-b", "GPU-b"))),
    ],
    ids=["all", "GPUs not known", "one of four", "GPUs of no worker", "two workers on each"],
)
def test_workers_see_the_gpus_of_their_slots(
    slot_count: int, left_out: tuple[int, ...], devices: tuple[str, ...], expected: Placement
) -> None:
    """Local rank k uses the k-th GPU that it sees, as ever."""
    assert place(slot_count, frozenset(left_out), devices) == expected


def test_exits_are_named_by_the_gpu_and_not_by_the_place_in_the_round() -> None:
    """With one GPU left out, the same local rank has another; where none is known, none is named."""
    exits = [RankExit(7, rank, 1, 1, 0.0, is_stopped_by_agent=False) for rank in (0, 2)]
    named = name_gpus(exits, place(4, frozenset({1}), FOUR))
    assert [one.gpu for one in named] == ["GPU-a", "GPU-d"]
    assert name_gpus(exits, place(4, frozenset(), ())) == tuple(exits)


def test_virtual_local_rank_has_the_gpu_of_its_slot() -> None:
    """Each worker sees its own GPU only, whatever the job's list was."""
    placement = place(4, frozenset({1}), FOUR)
    seen = [virtual_local_rank({**placement.environment}, rank) for rank in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["GPU-a", "GPU-c", "GPU-d"]

"""What is remembered when agents meet that were cut off from each other."""

from __future__ import annotations

import pytest

from ftrun.launcher.memory import combine
from ftrun.launcher.messages import Memory, SeenCheckpoint
from ftrun.launcher.model import PastIncident
from ftrun.monitor.incident import IncidentKind

PAST = PastIncident(IncidentKind.KILLED, "f", True)
BASE = Memory(
    round_number=4,
    restart_count=2,
    history=(PAST, PAST),
    excluded=("x",),
    nodes=("a", "b"),
    slots=(1, 2),
    resume=SeenCheckpoint("/c/40", 40),
    quarantined=("/c/30",),
)


def test_memory_that_knows_nothing_more_changes_nothing():
    """The usual case, which costs no copy."""
    assert combine(BASE, Memory()) is BASE
    assert combine(BASE, BASE) is BASE


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Memory(round_number=9), {"round_number": 9}),
        (Memory(restart_count=7), {"restart_count": 7}),
        (Memory(history=(PAST,) * 3), {"history": (PAST,) * 3}),
        (Memory(excluded=("z",)), {"excluded": ("z", "x")}),
        (Memory(quarantined=("/c/20",)), {"quarantined": ("/c/20", "/c/30")}),
    ],
    ids=["round", "restarts", "history", "excluded", "quarantined"],
)
def test_what_only_grows_is_never_less_than_either_knew(other: Memory, expected: dict[str, object]):
    """Everything else stays as it was in the one that counts."""
    combined = combine(BASE, other)
    for name in Memory.__slots__:
        assert getattr(combined, name) == expected.get(name, getattr(BASE, name))


def test_nodes_and_checkpoint_are_those_of_the_memory_that_counts():
    """However much later the other one's round was."""
    later = Memory(round_number=9, nodes=("c",), slots=(8,), resume=SeenCheckpoint("/c/90", 90))
    combined = combine(BASE, later)
    assert (combined.nodes, combined.slots, combined.resume) == (BASE.nodes, BASE.slots, BASE.resume)

"""What is remembered when agents meet that were cut off from each other."""

from __future__ import annotations

import pytest

from ftrun.launcher.memory import combine, count_incidents, count_restarts, find_incident_at, remember
from ftrun.launcher.message_codec import encode
from ftrun.launcher.messages import Agent, ExcludedGpu, Join, Memory, SeenCheckpoint
from ftrun.launcher.model import PastIncident, Tally
from ftrun.launcher.restart_config import LONGEST_WINDOW
from ftrun.monitor.incident import IncidentKind

KILLED = IncidentKind.KILLED
PAST = PastIncident(KILLED, "f", True)
OTHER = PastIncident(KILLED, "g", True)
GPU = ExcludedGpu("a", "GPU-1")
SAVED = SeenCheckpoint("/c/50", 50)
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
        (Memory(excluded_gpus=(GPU,)), {"excluded_gpus": (GPU,)}),
        (
            Memory(history=(PAST,), forgotten=(Tally(KILLED, 2, 2),), best_step=9, best_saved=SAVED),
            {
                "history": (PAST,),
                "forgotten": (Tally(KILLED, 2, 2),),
                "best_step": 9,
                "best_saved": SAVED,
            },
        ),
    ],
    ids=["round", "restarts", "history", "excluded", "quarantined", "GPU", "what is forgotten counts"],
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


def test_history_has_a_bounded_size_and_forgets_no_number():
    """A job with a thousand failures sends joins that are no larger than after a hundred."""
    memory, sizes = Memory(), {}
    for number in range(1000):
        kind = KILLED if number % 10 else IncidentKind.PREEMPTED
        past = PastIncident(
            kind, "x" * 300, True, "node-12", "GPU-1", True, number, is_counted=kind is KILLED
        )
        memory = remember(memory, past)
        sizes[number] = len(encode(Join(Agent("a", "a.1"), 8, "a", 1, memory=memory)))
    assert (count_incidents(memory), count_restarts(memory)) == (1000, 900)
    assert (len(memory.history), memory.history[-1].step) == (LONGEST_WINDOW, 999)
    assert sum(tally.count for tally in memory.forgotten if tally.kind is KILLED) == (
        900 - sum(past.kind is KILLED for past in memory.history)
    )
    assert sizes[999] < sizes[100] * 1.02 < 50_000


@pytest.mark.parametrize(
    ("theirs", "since_s", "expected"),
    [
        pytest.param((PAST,) * 3, 5.0, 95.0, id="knows of a later one"),
        pytest.param((PAST,) * 2, 70.0, 30.0, id="heard of the same one earlier"),
        pytest.param((PAST,) * 2, 5.0, 60.0, id="says what was true long ago"),
        pytest.param((PAST,), 90.0, 60.0, id="does not know of the last one"),
        pytest.param((PAST, OTHER), 90.0, 60.0, id="knows of another one, which is not kept"),
    ],
)
def test_time_of_the_last_failure_is_known_by_ones_own_clock(
    theirs: tuple[PastIncident, ...], since_s: float, expected: float
):
    """Ages are told, never times: now is 100 here, and the last failure was heard of at 60."""
    told = Memory(history=theirs, since_incident_s=since_s)
    assert find_incident_at(combine(BASE, told), BASE, 60.0, told, 100.0) == expected


def test_time_of_the_last_failure_is_that_of_the_history_which_is_kept():
    """Two that were cut off from each other have both seen a second failure; the other's history is kept."""
    told = Memory(history=(PAST, OTHER), since_incident_s=5.0)
    assert find_incident_at(combine(told, BASE), BASE, 60.0, told, 100.0) == 95.0

"""Whose grace ends early: tables of what ranks show while a round is being stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from ftrun.launcher.grace import GraceWatch
from ftrun.monitor.culprits import Frame, Stack
from ftrun.monitor.rank_signs import Signs

LOOK_S = 0.1
IN_COLLECTIVE = Stack((Frame("/lib/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),))
IN_BACKWARD = Stack((Frame("/lib/torch/autograd/graph.py", 829, "_engine_run_backward"),))
IN_CHECKPOINT = Stack(
    (
        Frame("/lib/torch/distributed/checkpoint/filesystem.py", 461, "_write_files_from_queue"),
        Frame("/lib/torch/distributed/distributed_c10d.py", 85, "wrapper"),
        Frame("/job/train.py", 12, "save"),
    )
)
IN_HANDLER = Stack((Frame("/job/train.py", 12, "save"),))
STILL = Signs(at=100.0, started_at=0.0, sampler_at=99.8, io_bytes=1000, process_state="S")


def looks(
    changes: dict[str, float] | None = None, count: int = 30, sampled_s: float = 0.2
) -> Iterator[Signs]:
    """A rank at each look since it was asked, the sampler's last one being `sampled_s` ago then.

    The sampler looks twice a second; `changes` is growth per second.
    """
    for index in range(count):
        passed_s = index * LOOK_S
        grown = {name: getattr(STILL, name) + rate * passed_s for name, rate in (changes or {}).items()}
        sampler_at = 100.0 - sampled_s + 0.5 * ((passed_s + sampled_s + 1e-6) // 0.5)
        yield replace(STILL, at=100.0 + passed_s, sampler_at=sampler_at, **grown)


def ended_after_s(history: Iterable[Signs], *stacks: Stack | None) -> float | None:
    """When a rank is found hopeless whose stacks are these, the last one again and again; None if never.

    Each stack that is written counts as I/O.
    """
    watch, asked = GraceWatch(), 0
    for signs in history:
        signs = replace(signs, io_bytes=(signs.io_bytes or 0) + 700 * asked)
        if still := watch.look({0: signs}, signs.at):
            stack = stacks[min(asked, len(stacks) - 1)]
            asked += 1
            assert asked <= 2
            if watch.hopeless(still, {0: stack}):
                return round(signs.at - 100.0, 3)
    return None


@pytest.mark.parametrize("sampled_s", [0.0, 0.1, 0.25, 0.45])
def test_rank_that_sat_in_a_collective_when_it_was_asked_is_hopeless(sampled_s: float) -> None:
    """It is found in less than a second, whenever the sampler happens to look."""
    for stack in (IN_COLLECTIVE, IN_BACKWARD):
        found = ended_after_s(looks(sampled_s=sampled_s), stack)
        assert found is not None
        assert 0.5 <= found <= 0.8


@pytest.mark.parametrize(
    "changes",
    [
        {"bytecode_changes": 2.0},
        {"progress_count": 10.0},
        {"io_bytes": 20_000},
        {"children_cpu_s": 0.5},
        {"other_threads_cpu_s": 0.5},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rank_that_moves_is_left_alone(changes: dict[str, float]) -> None:
    """Whatever shows that it may be saving."""
    assert ended_after_s(looks(changes), IN_COLLECTIVE) is None


def test_helper_thread_that_polls_does_not_prolong_the_grace() -> None:
    """One that uses 3 % of a CPU saves nothing."""
    found = ended_after_s(looks({"other_threads_cpu_s": 0.03}), IN_COLLECTIVE)
    assert found is not None
    assert found <= 0.8


@pytest.mark.parametrize("at_look", [1, 3, 6, 7])
def test_rank_that_has_run_since_it_was_asked_keeps_its_grace(at_look: int) -> None:
    """Its handler may be what waits in the collective now, for a rank that is still writing."""
    history = [
        replace(signs, bytecode_changes=int(index >= at_look)) for index, signs in enumerate(looks(count=60))
    ]
    assert ended_after_s(history, IN_COLLECTIVE) is None


def test_look_of_the_sampler_after_the_asking_leaves_it_open_what_ran() -> None:
    """The agent reads the page a moment later: what the sampler found by then may have been the handler."""
    history = [replace(signs, sampler_at=(signs.sampler_at or 0.0) + 0.21) for signs in looks()]
    assert ended_after_s(history, IN_COLLECTIVE) is None


def test_sampler_that_does_not_look_tells_nothing() -> None:
    """C code holds the GIL, perhaps that of a handler that pickles what it is about to send."""
    assert (
        ended_after_s((replace(signs, sampler_at=99.8) for signs in looks(count=60)), IN_COLLECTIVE) is None
    )


def test_rank_that_begins_to_write_is_no_longer_still() -> None:
    """And is found again half a second after it has stopped."""
    history = [replace(s, io_bytes=1000 + 4096 * min(max(i - 3, 0), 12)) for i, s in enumerate(looks())]
    found = ended_after_s(history, IN_COLLECTIVE)
    assert found is not None
    assert 2.0 <= found <= 2.1


@pytest.mark.parametrize("stack", [IN_HANDLER, IN_CHECKPOINT, None], ids=["handler", "checkpoint", "none"])
def test_rank_outside_collectives_keeps_its_grace(stack: Stack | None) -> None:
    """It is not asked for its stack again; nor does one count that is elsewhere the second time."""
    assert ended_after_s(looks(), stack, IN_COLLECTIVE) is None
    assert ended_after_s(looks(), IN_COLLECTIVE, stack) is None


def test_each_rank_is_judged_by_itself() -> None:
    """Of four, those that sit in a collective; one that has ended is not asked for anything."""
    watch, found = GraceWatch(), set[int]()
    stacks = {0: IN_COLLECTIVE, 1: IN_HANDLER, 2: None, 3: IN_COLLECTIVE}
    for signs in looks():
        ranks = {**dict.fromkeys(range(4), signs), 4: replace(signs, is_alive=False)}
        still = watch.look(ranks, signs.at)
        assert 4 not in still
        found.update(watch.hopeless(still, stacks))
    assert found == {0, 3}


def test_next_look_is_soon_while_a_round_is_stopped() -> None:
    """And none is wanted otherwise; a new stop begins without memories."""
    watch = GraceWatch()
    assert watch.next_look_at is None
    assert watch.is_due(100.0)
    watch.look({0: STILL}, 100.0)
    assert watch.next_look_at == pytest.approx(100.1)
    assert not watch.is_due(100.05)
    assert watch.is_due(100.1)
    watch.rest()
    assert watch.next_look_at is None
    later = replace(STILL, at=200.0, sampler_at=199.9)
    assert watch.look({0: later}, 200.0) == ()

"""How far a job has come, as the host agent sees it when a round has failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.launcher.assessment import measure, step_of
from ftrun.launcher.messages import Agent, Join, Memory, SeenCheckpoint
from ftrun.monitor.incident import Incident, IncidentKind, RankExit


def exit_of(rank: int, steps: int, last_step: int | None = None, pid: int = 7) -> RankExit:
    """A rank that died after so many steps in the round."""
    return RankExit(rank, rank, pid, -9, 1.0, is_stopped_by_agent=False, steps=steps, last_step=last_step)


def incident(*exits: RankExit, progressed: bool = True) -> Incident:
    """The first of these ranks is the culprit."""
    kind, reasons = IncidentKind.KILLED, ("it died",)
    return Incident(kind, 3, "a", exits[0], reasons, "f", progressed, collateral=exits[1:])


def seen(*checkpoints: SeenCheckpoint, node: str = "a") -> Join:
    """A node that sees these, newest first."""
    return Join(Agent(node, f"{node}.1"), 1, node, 1, has_checkpoint_dir=True, checkpoints=checkpoints)


def at(step: int | None, saved_ns: int = 1, path: str = "") -> SeenCheckpoint:
    """A checkpoint of that step."""
    return SeenCheckpoint(path or f"/c/step-{step}", step, saved_ns)


def has_moved_on(
    memory: Memory, this: Incident, base: int | None = None, *joins: Join, least: int = 1
) -> bool:
    """Of a round that began from step `base`."""
    return measure(memory, this, base, joins, least).has_moved_on


@pytest.mark.parametrize(
    ("one", "base", "expected"),
    [
        pytest.param(exit_of(0, 5), 40, 45, id="before the round and in it"),
        pytest.param(exit_of(0, 5), None, None, id="began nobody knows where"),
        pytest.param(exit_of(0, 5, last_step=1005), None, 1005, id="the script says"),
        pytest.param(exit_of(0, 5, last_step=1005), 40, 1005, id="the script knows best"),
        pytest.param(exit_of(0, 0, pid=0), 40, None, id="stands for its node"),
        pytest.param(exit_of(0, 0), 40, 40, id="no step yet"),
    ],
)
def test_step_is_counted_over_the_whole_job(one: RankExit, base: int | None, expected: int | None) -> None:
    """Two rounds that die at the same step of training are told from others by it."""
    assert step_of(one, base) == expected


@pytest.mark.parametrize(
    ("best", "steps", "expected"),
    [(None, 3, True), (42, 3, True), (43, 3, False), (43, 4, True), (100, 9, False)],
)
def test_round_moves_on_with_a_step_that_was_not_done_before(
    best: int | None, steps: int, expected: bool
) -> None:
    """Steps that are done again are none; the step of another rank counts as well."""
    memory = Memory(best_step=best)
    assert has_moved_on(memory, incident(exit_of(1, steps)), 40) is expected
    assert has_moved_on(memory, incident(exit_of(1, 0), exit_of(0, steps)), 40) is expected


def test_best_step_is_remembered_and_never_goes_back() -> None:
    """Also by a round that did not come so far."""
    memory = measure(Memory(best_step=43), incident(exit_of(1, 9)), 40, (), 1).memory
    assert memory.best_step == 49
    assert measure(memory, incident(exit_of(1, 1)), 40, (), 1).memory.best_step == 49


def test_so_many_steps_can_be_asked_for() -> None:
    """One more than ever is not enough then."""
    memory = Memory(best_step=43)
    assert not has_moved_on(memory, incident(exit_of(1, 12)), 40, least=10)
    assert has_moved_on(memory, incident(exit_of(1, 13)), 40, least=10)


def test_where_steps_are_not_known_any_progress_counts() -> None:
    """A script that finds its checkpoints itself may have come far in each of its rounds."""
    memory = Memory(best_step=43)
    assert has_moved_on(memory, incident(exit_of(1, 3)))
    assert not has_moved_on(memory, incident(exit_of(1, 0), progressed=False))


def test_round_without_progress_has_not_moved_on() -> None:
    """Not even the first one, whose step is that of its checkpoint."""
    assert not has_moved_on(Memory(), incident(exit_of(1, 0), progressed=False), 40)


@pytest.mark.parametrize(
    ("began", "best", "newest", "expected"),
    [
        pytest.param(at(40), None, at(60), True, id="newer than what it began from"),
        pytest.param(at(40), None, at(40), False, id="the same"),
        pytest.param(at(40), at(60), at(60), False, id="known from the round before"),
        pytest.param(None, None, at(20), True, id="the first of all"),
        pytest.param(at(None, 5, "/c/a"), None, at(None, 9, "/c/b"), True, id="no steps: later"),
        pytest.param(at(None, 5, "/c/a"), None, at(None, 9, "/c/a"), True, id="no steps: saved anew"),
        pytest.param(at(None, 5, "/c/a"), None, at(None, 3, "/c/b"), False, id="no steps: an old one"),
        pytest.param(at(40), None, None, False, id="gone"),
    ],
)
def test_round_moves_on_with_a_checkpoint_that_was_not_there_before(
    began: SeenCheckpoint | None, best: SeenCheckpoint | None, newest: SeenCheckpoint | None, expected: bool
) -> None:
    """Though it did only steps that had been done: the next one begins further on."""
    memory = Memory(resume=began, best_saved=best, best_step=100)
    join = seen(newest) if newest else seen()
    assert has_moved_on(memory, incident(exit_of(1, 5)), 40, join) is expected


def test_checkpoint_counts_only_if_all_see_it_and_it_is_trusted() -> None:
    """What the next round cannot begin from is no gain."""
    memory = Memory(resume=at(40), best_step=100)
    this = incident(exit_of(1, 5))
    assert not has_moved_on(memory, this, 40, seen(at(60), at(40)), seen(at(40), node="b"))
    quarantined = replace(memory, quarantined=(at(60).identity,))
    assert not has_moved_on(quarantined, this, 40, seen(at(60), at(40)))

"""Which steps of each round counted, by what the journals tell of where it began."""

from __future__ import annotations

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.history import Work
from ftrun.monitor.merging import merge
from ftrun.monitor.timeline import group
from tests.support.simulated_journals import Simulation

Told = tuple[int | None, int, int | None]
"""Of a round: step with the first progress, steps done, step at the end."""


def work_of(*rounds: Told, is_resume_known: bool = False) -> tuple[Work, ...]:
    """A job of one rank on one node, each of whose rounds but the last fails."""
    job = Simulation(["a"], 1)
    job.begin()
    for number, (first, steps, last) in enumerate(rounds):
        closed = ev.RoundClosed(
            number, 1, number, "h", 20000 + number, None, None, ("a",), (), is_resume_known
        )
        is_last = number == len(rounds) - 1
        for event in (
            closed,
            ev.WorkerStarted(number, 0, 0, 100, True, "warm"),
            ev.WorkerProgressed(number, 0, first, 0.1),
            ev.ProgressObserved(number, steps, last, 0.1),
            ev.WorkerExited(number, 0, 0, 100, 0 if is_last else -9, None, False, steps),
            ev.RoundStopped(number, "success" if is_last else "failure", 0.1),
        ):
            job.say("a", event)
    [members] = group(job.journals.lives())
    return merge(members).work


def test_agent_that_hears_of_the_first_step_late_is_corrected() -> None:
    """What the script had come to, less the steps counted, is where the round began."""
    first, second = work_of((6, 79, 79), (63, 20, 80))
    assert (first.base, first.counted, first.lost) == (0, 60, 19)
    assert (second.base, second.counted) == (60, 20)


@pytest.mark.parametrize("last", [316, 3, None])
def test_step_numbers_that_count_something_else_are_not_used(last: int | None) -> None:
    """Parts of a batch, or epochs: the first report is what there is."""
    assert work_of((1, 79, last))[0].base == 0
    assert work_of((61, 79, last))[0].base == 60


def test_start_from_nothing_is_known_by_the_launcher() -> None:
    """Though the script reports no steps."""
    first, second = work_of((None, 50, None), (None, 30, None), is_resume_known=True)
    assert (first.lost, second.base, second.is_base_known) == (50, 0, True)
    assert work_of((None, 50, None), (None, 30, None))[1].is_base_known is False

"""How a node is at one moment, as data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.levels import Levels, RankLevel
from ftrun.monitor.plain import to_plain
from ftrun.monitor.status import NodeStatus, make_status
from tests.monitor.test_present import FAILED, RUNNING, present

LEVELS = Levels(
    200.0,
    (
        RankLevel(0, 0, 101, True, 41, None, 110.0, 150.0, 190.0, None, None, "", "save"),
        RankLevel(1, 1, 102, True, 0, None, 110.0, None, None, None, None, "", ""),
    ),
)
SAVED = ev.CheckpointSaved(0, 1, "/c/20", 20, 0.5)


def status(
    *events: ev.Event, levels: Levels | None = LEVELS, rates: dict[int, float] | None = None
) -> NodeStatus:
    """At 200 s by the node's clock, 90 s after its first event."""
    return make_status(present((*RUNNING, *events)), levels, 200.0, 1.7e9 + 90, rates)


def test_ranks_show_step_rate_and_age() -> None:
    """The step is counted from where the round began, if the launcher knows."""
    first, second = status(ev.WorkerProgressed(0, 0, None, 1.0)).ranks
    assert (first.state, first.step, first.steps, first.progress_age_s, first.section) == (
        "training", 41, 41, 10.0, "save",
    )  # fmt: skip
    assert first.steps_per_s == pytest.approx(1.0)
    assert (second.state, second.step, second.progress_age_s, second.steps_per_s) == (
        "starting",
        0,
        None,
        None,
    )


def test_recent_rate_wins_over_the_mean() -> None:
    """What a person wants to know is how fast it is now."""
    assert status(rates={0: 7.5}).ranks[0].steps_per_s == 7.5


def test_rank_that_has_ended_says_how() -> None:
    """By signal or code."""
    states = [one.state for one in status(*FAILED[:2], levels=None).ranks]
    assert states == ["training", "SIGKILL"]
    coded = status(ev.WorkerExited(0, 1, 1, 102, 3, None, False, 7)).ranks[1]
    assert coded.state == "exit 3"


def test_rollback_is_counted_from_the_newest_checkpoint() -> None:
    """Without one, from where the round began."""
    assert status().rollback_steps == 41
    saved = status(SAVED)
    assert saved.checkpoint is not None
    assert (saved.rollback_steps, saved.checkpoint.step, saved.checkpoint.age_s) == (21, 20, 84.0)


def test_checkpoint_on_a_page_is_newer_than_the_journal() -> None:
    """The journal tells of it a few seconds late."""
    [first, second] = LEVELS.ranks
    saved = Levels(
        200.0, (replace(first, checkpoint_at=195.0, checkpoint_step=40, checkpoint_path="/c/40"), second)
    )
    found = status(SAVED, levels=saved)
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.checkpoint.age_s, found.rollback_steps) == (40, 5.0, 1)


def test_without_pages_the_journal_is_told() -> None:
    """On another machine: the last account of progress, and no ages."""
    told = ev.ProgressObserved(0, 30, 30, 0.5, 2.0, None, None, True)
    far = status(told, levels=None)
    assert not far.is_live
    assert (far.ranks[0].step, far.ranks[0].steps_per_s, far.ranks[0].progress_age_s) == (30, 2.0, None)


def test_it_has_a_json_form() -> None:
    """For /status."""
    assert to_plain(status(SAVED))["checkpoint"]["path"] == "/c/20"  # type: ignore[index,call-overload]

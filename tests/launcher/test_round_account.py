"""What is told of a round while it runs, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.launcher.model import Plan
from ftrun.launcher.ranks import NodeRanks
from ftrun.launcher.round_account import DiskSave, Look, RoundAccount, observe
from ftrun.monitor.events import CheckpointSaved, Event, ProgressObserved
from ftrun.monitor.page import PageSnapshot


def plan_of(group_rank: int = 0) -> Plan:
    """Round 2, resumed from step 100, on a node with two workers."""
    ranks = NodeRanks(
        group_rank=group_rank, first_rank=0, local_world_size=2, world_size=4, group_world_size=2
    )
    return Plan(2, 1, ranks, "h", 1, "/c/step-100", 100, True, ("a", "b"))


class Round:
    """A round of two ranks, looked at when a test says so."""

    def __init__(self, group_rank: int = 0, interval_s: float | None = 60.0) -> None:
        self.account = RoundAccount(plan_of(group_rank), 0.0)
        self.pages = {0: PageSnapshot(), 1: PageSnapshot()}
        self._interval_s = interval_s

    def step(self, at: float, steps: int) -> None:
        """Both ranks have done so many steps."""
        for rank, page in self.pages.items():
            first = page.first_progress_at or at
            self.pages[rank] = replace(page, steps=steps, first_progress_at=first, last_progress_at=at)

    def save(
        self, rank: int, at: float, step: int | None, blocking_s: float = 1.0, path: str = "/c/x"
    ) -> None:
        """A rank reports a checkpoint."""
        page = self.pages[rank]
        self.pages[rank] = replace(
            page,
            checkpoints=page.checkpoints + 1,
            checkpoint_step=step,
            checkpoint_path=path,
            checkpoint_at=at,
            checkpoint_blocking_s=blocking_s,
            last_progress_at=at,
        )

    def look(self, at: float, is_over: bool = False, on_disk: DiskSave | None = None) -> tuple[Event, ...]:
        """What is journalled after a look."""
        self.account, events = observe(self.account, Look(at, self.pages, is_over, on_disk), self._interval_s)
        return events


def test_progress_is_told_once_an_interval_with_its_rate() -> None:
    """The first interval begins with the first progress; the step is counted from the checkpoint."""
    one = Round()
    assert one.look(5) == ()
    one.step(10, 1)
    assert one.look(10) == ()
    one.step(69, 60)
    assert one.look(69) == ()
    one.step(70, 61)
    [told] = one.look(70)
    assert told == ProgressObserved(2, 61, 161, 0.0, 1.0, 100, None, True)
    one.step(130, 181)
    [again] = one.look(130)
    assert isinstance(again, ProgressObserved)
    assert (again.step, again.steps_per_s) == (281, 2.0)


def test_standstill_is_told_once() -> None:
    """One event per change: that nothing moves, and then that it moves again."""
    one = Round()
    one.step(10, 5)
    one.look(10)
    [rest] = one.look(70)
    assert isinstance(rest, ProgressObserved)
    assert (rest.steps_per_s, rest.since_progress_s) == (0.0, 60.0)
    assert one.look(130) == one.look(190) == ()
    one.step(240, 6)
    [moves] = one.look(250)
    assert isinstance(moves, ProgressObserved)
    assert moves.steps_per_s == pytest.approx(1 / 60)


def test_end_of_a_round_is_told_once_and_not_to_the_terminal() -> None:
    """From it follows when training had stopped."""
    one = Round()
    one.step(10, 5)
    one.look(10)
    one.step(20, 9)
    assert one.look(22.5, is_over=True) == (ProgressObserved(2, 9, 109, 2.5, None, 100, None, False),)
    assert one.look(23, is_over=True) == ()


def test_round_without_progress_has_no_account_of_it() -> None:
    """It failed before its first step."""
    assert Round().look(22.5, is_over=True) == ()


def test_only_the_node_with_rank_0_tells_its_terminal() -> None:
    """A hundred nodes of a job must not tell the same a hundred times."""
    one = Round(group_rank=1)
    one.step(10, 5)
    one.look(10)
    one.step(70, 9)
    [told] = one.look(70)
    assert isinstance(told, ProgressObserved)
    assert not told.is_told


def test_interval_can_be_off() -> None:
    """The end of the round is told all the same."""
    one = Round(interval_s=None)
    one.step(10, 5)
    assert one.look(10) == one.look(1000) == ()
    assert len(one.look(1001, is_over=True)) == 1


def test_save_of_all_ranks_is_one_event() -> None:
    """It took as long as on the rank that was longest, and is as old as the last report."""
    one = Round()
    one.save(1, 20.0, 150, blocking_s=2.0)
    assert one.look(20.5) == ()
    one.save(0, 20.75, 150, blocking_s=2.5)
    assert one.look(21) == (CheckpointSaved(2, 1, "/c/x", 150, 2.5, 0.25, 1),)
    assert one.look(30) == ()


def test_rank_that_does_not_report_is_not_waited_for() -> None:
    """Scripts often save on rank 0 alone."""
    one = Round()
    one.save(0, 20.0, 150)
    assert one.look(20) == ()
    [saved] = one.look(22)
    assert isinstance(saved, CheckpointSaved)
    assert (saved.rank, saved.age_s) == (0, 2.0)


def test_frequent_saves_are_counted_not_told() -> None:
    """A save at each step is told every few seconds."""
    one = Round()
    counts, steps = [], []
    for number in range(1, 61):
        for rank in (0, 1):
            one.save(rank, float(number), number)
        for event in one.look(number + 0.1):
            assert isinstance(event, CheckpointSaved)
            counts.append(event.count)
            steps.append(event.step)
    assert len(counts) <= 60 / 5 + 1
    assert sum(counts) == steps[-1]


def test_last_save_is_told_when_the_round_ends() -> None:
    """The next round may begin from it, and then it says which steps counted."""
    one = Round()
    for number in (1, 2):
        for rank in (0, 1):
            one.save(rank, 20.0 + number, number)
        one.look(20.0 + number)
    [saved, _] = one.look(22.5, is_over=True)
    assert isinstance(saved, CheckpointSaved)
    assert (saved.step, saved.count) == (2, 1)


def test_files_of_their_own_are_one_save_by_their_step() -> None:
    """Without a step, the path is the name."""
    one = Round()
    one.save(0, 20.0, 150, path="/c/150-rank0")
    one.save(1, 20.0, 150, path="/c/150-rank1")
    assert len(one.look(20)) == 1
    other = Round()
    other.save(0, 20.0, None, path="/c/a")
    other.save(1, 20.0, None, path="/c/b")
    assert other.look(20) == ()
    assert len(other.look(22)) == 1


def test_checkpoint_that_appears_on_the_disk_is_told_of_a_script_that_reports_none() -> None:
    """Once; what was there before the round is what it began from."""
    one = Round()
    assert one.look(10, on_disk=DiskSave("/c/step-100", 100, 500.0, "100@1")) == ()
    found = DiskSave("/c/step-200", 200, 4.0, "200@2")
    assert one.look(50, on_disk=found) == (CheckpointSaved(2, None, "/c/step-200", 200, None, 4.0, 1),)
    assert one.look(60, on_disk=replace(found, age_s=14.0)) == ()
    one.step(60, 9)
    one.look(60)
    one.step(120, 99)
    [told] = one.look(120)
    assert isinstance(told, ProgressObserved)
    assert (told.checkpoint_step, told.checkpoint_age_s) == (200, 74.0)


def test_save_in_the_place_of_the_last_one_is_another() -> None:
    """`last.ckpt`, and torch's own tutorial's `snapshot.pt`."""
    one = Round()
    for number in range(3):
        saved = DiskSave("/c/last.ckpt", None, 1.0, f"/c/last.ckpt@{number}")
        assert len(one.look(100 + 10 * number, on_disk=saved)) == 1


def test_what_the_script_reports_is_not_told_again_from_the_disk() -> None:
    """One save, one event."""
    one = Round()
    for rank in (0, 1):
        one.save(rank, 20.0, 150)
    assert len(one.look(21)) == 1
    assert one.look(30, on_disk=DiskSave("/c/x", 150, 10.0, "x@3")) == ()

"""What is told of a round while it runs: how far training has come, and which checkpoints were saved. Pure.

Looks come often, several a second when much happens; what they come to is journalled at a bounded rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ftrun.launcher.model import Plan
from ftrun.launcher.recovery import last_step
from ftrun.monitor.events import CheckpointSaved, Event, ProgressObserved
from ftrun.monitor.page import PageSnapshot

SAVES_EVERY_S = 5.0
"""Least time between two records of saves: a script that saves at each step must not fill the disk."""
_OTHERS_WITHIN_S = 2.0
"""Ranks report one save within milliseconds of each other; one that reports none is not waited for."""


@dataclass(frozen=True, slots=True)
class DiskSave:
    """The newest whole checkpoint, as the launcher has found it below the checkpoint directory."""

    path: str
    step: int | None
    age_s: float
    identity: str
    """Another for each save into the same place."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of the round's workers at one moment."""

    now: float
    pages: Mapping[int, PageSnapshot]
    """By rank."""
    is_over: bool = False
    """All of them have ended."""
    on_disk: DiskSave | None = None


@dataclass(frozen=True, slots=True)
class RoundAccount:
    """What has been told of a round so far. Times are CLOCK_MONOTONIC seconds."""

    plan: Plan
    began_at: float
    told_at: float | None = None
    """When progress was last told, or looked at and found wanting; None before the first progress."""
    told_steps: int = 0
    has_told_rest: bool = False
    """That nothing moves has been told."""
    has_told_end: bool = False
    saves: int = 0
    """Saves told of, as the rank that has reported most of them counts."""
    saves_told_at: float = 0.0
    awaiting: tuple[int | str | None, float] | None = None
    """A save that not all ranks have reported yet, and when the first had."""
    disk_identity: str = ""
    """The checkpoint on the disk that was there before, or was told of."""
    saved: tuple[int | None, float] | None = field(default=None)
    """Step and time of the newest save in this round."""


def observe(
    account: RoundAccount, look: Look, interval_s: float | None
) -> tuple[RoundAccount, tuple[Event, ...]]:
    """Take a look in; returns what is to be journalled.

    `interval_s` is the time between two accounts of progress while training runs; None for none.
    """
    account, saves = _note_saves(account, look)
    account, progress = _note_progress(account, look, interval_s)
    return account, (*saves, *progress)


def _note_progress(
    account: RoundAccount, look: Look, interval_s: float | None
) -> tuple[RoundAccount, tuple[Event, ...]]:
    moved = [page.last_progress_at for page in look.pages.values() if page.last_progress_at is not None]
    if not moved or account.has_told_end:
        return account, ()
    steps = max(page.steps for page in look.pages.values())
    if look.is_over:
        event = _progress(account, look, steps, max(moved), None)
        return replace(account, has_told_end=True), (event,)
    if account.told_at is None:
        return replace(account, told_at=look.now, told_steps=steps), ()
    spent_s = look.now - account.told_at
    if interval_s is None or spent_s < interval_s:
        return account, ()
    has_moved = steps > account.told_steps or max(moved) > account.told_at
    after = replace(account, told_at=look.now, told_steps=steps, has_told_rest=not has_moved)
    if account.has_told_rest and not has_moved:
        return after, ()
    rate = (steps - account.told_steps) / spent_s
    return after, (_progress(account, look, steps, max(moved), rate),)


def _progress(
    account: RoundAccount, look: Look, steps: int, moved_at: float, rate: float | None
) -> ProgressObserved:
    saved_step, saved_at = account.saved or (account.plan.resume_step, None)
    return ProgressObserved(
        round=account.plan.round_number,
        steps=steps,
        step=last_step(account.plan, list(look.pages.values())),
        since_progress_s=max(0.0, look.now - moved_at),
        steps_per_s=rate,
        checkpoint_step=saved_step,
        checkpoint_age_s=None if saved_at is None else max(0.0, look.now - saved_at),
        is_told=rate is not None and account.plan.ranks.group_rank == 0,
    )


def _note_saves(account: RoundAccount, look: Look) -> tuple[RoundAccount, tuple[Event, ...]]:
    reported = {rank: page for rank, page in look.pages.items() if page.checkpoint_at is not None}
    if not reported:
        return _note_disk(account, look)
    total = max(page.checkpoints for page in reported.values())
    newest = max(reported.values(), key=lambda page: page.checkpoint_at or 0.0)
    account = replace(account, saved=(newest.checkpoint_step, newest.checkpoint_at or 0.0))
    if total <= account.saves:
        return account, ()
    name = _name_of(newest)
    of_it = {rank: page for rank, page in reported.items() if _name_of(page) == name}
    if account.awaiting is None or account.awaiting[0] != name:
        account = replace(account, awaiting=(name, look.now))
    assert account.awaiting is not None
    is_whole = len(of_it) == len(look.pages) or look.now - account.awaiting[1] >= _OTHERS_WITHIN_S
    is_time = look.now - account.saves_told_at >= SAVES_EVERY_S
    if not look.is_over and not (is_whole and is_time):
        return account, ()
    first = min(of_it, key=lambda rank: (of_it[rank].checkpoint_at or 0.0, rank))
    saved_at = max(page.checkpoint_at or 0.0 for page in of_it.values())
    blocking = [
        page.checkpoint_blocking_s for page in of_it.values() if page.checkpoint_blocking_s is not None
    ]
    event = CheckpointSaved(
        round=account.plan.round_number,
        rank=first,
        path=of_it[first].checkpoint_path or "",
        step=newest.checkpoint_step,
        blocking_s=max(blocking, default=None),
        age_s=max(0.0, look.now - saved_at),
        count=total - account.saves,
    )
    return replace(account, saves=total, saves_told_at=look.now, awaiting=None), (event,)


def _name_of(page: PageSnapshot) -> int | str | None:
    """Equal for the reports of one save: ranks may have files of their own for one step."""
    return page.checkpoint_path if page.checkpoint_step is None else page.checkpoint_step


def _note_disk(account: RoundAccount, look: Look) -> tuple[RoundAccount, tuple[Event, ...]]:
    """A script that reports no saves is seen to save by what becomes whole on the disk."""
    found = look.on_disk
    if found is None or found.identity == account.disk_identity:
        return account, ()
    account = replace(account, disk_identity=found.identity)
    saved_at = look.now - found.age_s
    if saved_at < account.began_at:  # it is what the round began from, or was seen late
        return account, ()
    event = CheckpointSaved(
        account.plan.round_number, None, found.path, found.step, None, max(0.0, found.age_s)
    )
    return replace(account, saved=(found.step, saved_at)), (event,)

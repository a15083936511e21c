"""What a recovery took and cost."""

from __future__ import annotations

import pytest

from ftrun.launcher.model import Plan
from ftrun.launcher.ranks import assign
from ftrun.launcher.recovery import Recovery, last_step, steps_redone
from ftrun.monitor.incident import ErrorRecord, Incident, IncidentKind, RankExit
from ftrun.monitor.page import PageSnapshot


def plan(resume_from: str | None = "/c/step-40", resume_step: int | None = 40) -> Plan:
    """A round of two ranks that begins at a checkpoint."""
    return Plan(1, 1, assign([2])[0], "127.0.0.1", 1, resume_from, resume_step, is_resume_known=True)


def incident(recorded_at: float | None = None) -> Incident:
    """Rank 1 failed; the time of its exception is known or not."""
    error = None if recorded_at is None else ErrorRecord("ValueError", "", "", recorded_at=recorded_at)
    culprit = RankExit(1, 1, 42, 1, 100.2, is_stopped_by_agent=False, error=error)
    return Incident(IncidentKind.EXCEPTION, 0, "n", culprit, ("r",), "f", True)


def test_account_waits_for_the_slowest_rank():
    """Training is back when every rank has stepped, not when the first has."""
    recovery = Recovery(incident(), "n", 100.2, 100.3, 47, closed_at=100.34)
    slow = PageSnapshot(main_started_at=100.4)
    quick = PageSnapshot(main_started_at=100.35, first_progress_at=100.5)
    assert recovery.completed(plan(), [quick, slow]) is None
    done = PageSnapshot(main_started_at=100.4, first_progress_at=100.6)
    account = recovery.completed(plan(), [quick, done])
    assert account is not None
    assert (account.stop_s, account.start_s) == pytest.approx((0.1, 0.1))
    assert (account.first_step_s, account.total_s) == pytest.approx((0.2, 0.4))
    assert account.rendezvous_s == pytest.approx(0.04)
    assert account.steps_redone == 7
    assert account.detect_s is None


def test_detection_time_is_known_when_the_exception_was_stamped():
    """From the exception to the moment that the agent saw the exit."""
    recovery = Recovery(incident(recorded_at=100.05), "n", 100.2, 100.3, None)
    page = PageSnapshot(main_started_at=100.4, first_progress_at=100.6)
    account = recovery.completed(plan(), [page])
    assert account is not None
    assert account.detect_s == pytest.approx(0.15)
    assert account.steps_redone is None


def test_detection_time_is_unknown_when_another_node_failed():
    """Its stamps are by a clock that has nothing to do with this node's."""
    recovery = Recovery(incident(recorded_at=100.05), "another", 100.2, 100.3, None)
    page = PageSnapshot(main_started_at=100.4, first_progress_at=100.6)
    account = recovery.completed(plan(), [page])
    assert account is not None
    assert account.detect_s is None


@pytest.mark.parametrize(
    ("where", "pages", "expected"),
    [
        (plan(), [PageSnapshot(steps=7), PageSnapshot(steps=6)], 47),
        (plan(None, None), [PageSnapshot(steps=7)], 7),
        (plan("/c/last", None), [PageSnapshot(steps=7)], None),
        (plan("/c/last", None), [PageSnapshot(steps=7, reported_step=90)], 90),
    ],
    ids=["counted from the checkpoint", "from the start", "name tells no step", "reported by the script"],
)
def test_last_step_is_what_was_reported_else_counted(
    where: Plan, pages: list[PageSnapshot], expected: int | None
):
    """The script's own number wins; without any the count starts at the checkpoint's step."""
    assert last_step(where, pages) == expected


def test_steps_redone_is_never_negative():
    """A checkpoint taken after the last counted step costs nothing."""
    assert steps_redone(39, plan()) == 0

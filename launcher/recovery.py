"""How long a recovery took and what it cost, from stamps of one node's CLOCK_MONOTONIC. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ftrun.launcher.model import Plan
from ftrun.monitor.events import RecoveryCompleted
from ftrun.monitor.incident import Incident
from ftrun.monitor.page import PageSnapshot


@dataclass(frozen=True, slots=True)
class Recovery:
    """A failure whose round has been stopped and whose successor has not made its first step yet."""

    incident: Incident
    node: str
    """This one."""
    seen_at: float
    gone_at: float
    last_step: int | None
    """Number of steps done when the round failed, counted over the whole job; None if unknown."""
    checkpoint_saved_at: float | None = None
    """When the checkpoint was saved from which the new round begins; None if unknown or there is none."""
    closed_at: float | None = None
    """When the new round was closed; None if unknown."""

    def completed(self, plan: Plan, pages: Collection[PageSnapshot]) -> RecoveryCompleted | None:
        """The account of it once every worker of the new round has made progress; None before."""
        started = [page.main_started_at for page in pages if page.main_started_at is not None]
        stepped = [page.first_progress_at for page in pages if page.first_progress_at is not None]
        if not pages or len(stepped) < len(pages) or len(started) < len(pages):
            return None
        record = self.incident.culprit.error
        # Another node's times are by another clock.
        is_known = record is not None and record.recorded_at is not None and self.incident.node == self.node
        return RecoveryCompleted(
            round=plan.round_number,
            cause=self.incident.kind.value,
            culprit_rank=self.incident.culprit.rank,
            detect_s=max(0.0, self.seen_at - self.incident.culprit.failed_at) if is_known else None,
            stop_s=self.gone_at - self.seen_at,
            start_s=max(started) - self.gone_at,
            first_step_s=max(stepped) - max(started),
            total_s=max(stepped) - self.seen_at,
            steps_redone=steps_redone(self.last_step, plan),
            checkpoint_age_s=self._checkpoint_age_s(),
            rendezvous_s=None if self.closed_at is None else max(0.0, self.closed_at - self.gone_at),
        )

    def _checkpoint_age_s(self) -> float | None:
        """By the file system's clock, which may be ahead of this node's."""
        saved_at = self.checkpoint_saved_at
        return None if saved_at is None else max(0.0, self.seen_at - saved_at)


def last_step(plan: Plan, pages: Collection[PageSnapshot]) -> int | None:
    """Steps of the whole job that were done at the end of a round.

    What the script reported, else the step of the checkpoint it began from plus the optimizer steps counted;
    None if the launcher does not know where the round began.
    """
    reported = [page.reported_step for page in pages if page.reported_step is not None]
    if reported:
        return max(reported)
    base = _base_step(plan)
    return None if base is None else base + max((page.steps for page in pages), default=0)


def steps_redone(done: int | None, plan: Plan) -> int | None:
    """Steps that the round of `plan` trains a second time."""
    base = _base_step(plan)
    return None if done is None or base is None else max(0, done - base)


def _base_step(plan: Plan) -> int | None:
    if plan.resume_from is not None:
        return plan.resume_step
    return 0 if plan.is_resume_known else None

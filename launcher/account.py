"""Looks at the workers' pages for the account of the run: progress and saves, journalled as they come.

What is told, and how often, `ftrun.launcher.round_account` decides.
"""

from __future__ import annotations

from ftrun.launcher.hangs import Record
from ftrun.launcher.node_state import Phase, State
from ftrun.launcher.round_account import Look, RoundAccount, observe
from ftrun.launcher.rounds import Rounds
from ftrun.launcher.workers import Worker
from ftrun.monitor.levels import NO_LEVELS, Levels, RankLevel, rank_level
from ftrun.monitor.page import PageSnapshot

_LOOK_EVERY_S = 0.5
"""Of the loop's turns, most are about something else."""


class Account:
    """The account of this node's rounds; for the agent's thread.

    Args:
        rounds: of the node.
        record: journals an event.
        interval_s: between two accounts of progress while training runs; None for none.
    """

    def __init__(self, rounds: Rounds, record: Record, interval_s: float | None) -> None:
        self._rounds = rounds
        self._record = record
        self._interval_s = interval_s
        self._account: RoundAccount | None = None
        self._looked_at = 0.0
        self.levels = NO_LEVELS
        """What the ranks showed at the last look; for any thread."""

    def look(self, state: State, now: float) -> None:
        """Journal what is due. To be called before the round of a worker that has ended is closed."""
        workers, plan = self._rounds.workers, self._rounds.plan
        if plan is None or not workers or state.phase is Phase.JOINING:
            self.levels = NO_LEVELS
            return
        if self._account is None or self._account.plan is not plan:
            self._account = RoundAccount(plan, now)
            self._looked_at = 0.0
        is_over = all(worker.exit_code is not None for worker in workers)
        if now - self._looked_at < _LOOK_EVERY_S and not is_over:
            return
        self._looked_at = now
        pages = {worker.rank: worker.page.read() for worker in workers}
        self.levels = Levels(now, tuple(_level_of(worker, pages[worker.rank]) for worker in workers))
        look = Look(now, pages, is_over, self._rounds.newest_on_disk())
        self._account, events = observe(self._account, look, self._interval_s)
        for event in events:
            self._record(event)


def _level_of(worker: Worker, page: PageSnapshot) -> RankLevel:
    return rank_level(worker.rank, worker.local_rank, worker.pid, worker.exit_code is None, page)

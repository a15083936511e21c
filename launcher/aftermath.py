"""What is kept of a round after its end: its evidence, and how long the recovery from it takes."""

from __future__ import annotations

from dataclasses import replace

from ftrun.launcher import recovery
from ftrun.launcher.messages import Judgement
from ftrun.launcher.model import Plan
from ftrun.launcher.node_state import State
from ftrun.launcher.placement import name_gpus
from ftrun.launcher.recovery import Recovery
from ftrun.launcher.rounds import Rounds
from ftrun.monitor.events import RecoveryCompleted
from ftrun.monitor.incident import Evidence
from ftrun.monitor.liveness import Verdict


class Aftermath:
    """Of the last round of this node, if there was one."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._plan: Plan | None = None
        self._is_open = False
        self._evidence: Evidence | None = None
        self._stop_began_at = 0.0
        self._gone_at = 0.0
        self._last_step: int | None = None
        self._recovery: Recovery | None = None

    def begin_round(self, plan: Plan, judgement: Judgement | None, now: float) -> None:
        """A round has been closed and is about to start; `judgement` says what it recovers from."""
        self._recovery = None
        if judgement is not None and self._evidence is not None:
            self._recovery = Recovery(
                judgement.incident,
                self._evidence.node,
                self._stop_began_at,
                self._gone_at,
                self._last_step,
                self._rounds.checkpoint_saved_at(plan),
                now,
            )
        self._plan, self._is_open, self._evidence = plan, True, None

    def close_round(self, state: State, hang: Verdict | None, now: float) -> Evidence | None:
        """How the last round ended here, taken down the first time; None if there was none."""
        if self._is_open and self._plan is not None:
            self._is_open = False
            self._stop_began_at, self._gone_at = state.stop_began_at, now
            self._last_step = recovery.last_step(self._plan, self._rounds.pages())
            evidence = self._rounds.close(state.stop_began_at, hang, state.start_failure, state.unreachable)
            exits = name_gpus(evidence.exits, self._rounds.placement)
            self._evidence = self._rounds.note(replace(evidence, exits=exits), state.report)
        return self._evidence

    def recovered(self) -> RecoveryCompleted | None:
        """The account of the recovery, once: when all workers of this node have made progress again."""
        if self._recovery is None or self._plan is None:
            return None
        account = self._recovery.completed(self._plan, self._rounds.pages())
        if account is not None:
            self._recovery = None
        return account

"""What the agent does about hangs: save stacks, name the ranks to blame, shorten a grace that is of no use.

Acts on verdicts; `ftrun.monitor.liveness` and `stall` make them, and `rendezvous` says what follows.
"""

from __future__ import annotations

import signal
from typing import Protocol

from ftrun.launcher.grace import GraceWatch
from ftrun.launcher.hang_records import calculated_event, hang_event
from ftrun.launcher.node_state import Cause, Hung, Phase, State
from ftrun.launcher.rounds import Rounds
from ftrun.launcher.watchdog import Watchdog
from ftrun.monitor import events
from ftrun.monitor.heartbeats import RankHeartbeats, Timeouts
from ftrun.monitor.liveness import Verdict, name_culprits

_FAILURES = (Cause.FAILURE, Cause.ORDER, Cause.STORE)


class Record(Protocol):
    """Journals an event; `durable` ones are on disk when it returns."""

    def __call__(self, event: events.Event, durable: bool = False) -> None:
        """Journal `event`."""


class Hangs:
    """The current round's hang, or none yet."""

    def __init__(self, watchdog: Watchdog, rounds: Rounds, record: Record) -> None:
        self._watchdog = watchdog
        self._rounds = rounds
        self._record = record
        self._grace = GraceWatch()
        self._calculated: dict[int, Timeouts] = {}
        self.verdict: Verdict | None = None
        """Why the round was stopped, if it was for a hang."""

    @property
    def wanted_at(self) -> tuple[float | None, float | None]:
        """When `look` and `shorten_grace` are wanted (CLOCK_MONOTONIC, seconds); None for not."""
        return self._watchdog.next_look_at, self._grace.next_look_at

    def watch_round(self, now: float) -> None:
        """A round's workers have been started."""
        self._watchdog.watch(self._rounds.workers, now)

    def forget(self) -> None:
        """A new round is about to start."""
        self.verdict = None

    def rest(self) -> None:
        """The round is being stopped: its silence is no hang."""
        self._watchdog.rest()

    def take(self, local_rank: int, heartbeats: RankHeartbeats, round_number: int) -> None:
        """A rank's client has said something by which a limit may now end earlier."""
        self._watchdog.wake()
        timeouts = heartbeats.timeouts
        if timeouts.calculated and self._calculated.get(local_rank) != timeouts:
            self._calculated[local_rank] = timeouts
            self._record(calculated_event(timeouts, round_number, heartbeats.global_rank))

    def look(self, state: State, now: float) -> Hung | None:
        """Look at the ranks if it is time; a hang is journalled with its stacks before anything is ended."""
        look_at = self._watchdog.next_look_at
        if state.phase is not Phase.RUNNING or look_at is None or now < look_at:
            return None
        verdict = self._watchdog.look(now)
        if verdict is None:
            return None
        return self._rule(verdict, state.round_number, now)

    @property
    def standstill(self) -> Verdict | None:
        """No rank of this node moves; whether the job stands still, the host agent says."""
        return self._watchdog.standstill

    def rule_standstill(self, reason: str, round_number: int, now: float) -> Hung:
        """The job stands still on all its nodes; journalled with this node's stacks before anything ends."""
        self._watchdog.rest()
        verdict = self._watchdog.standstill
        if verdict is None:  # its ranks are done, or it has moved since the host agent made up its mind
            return Hung((), reason)
        return self._rule(verdict, round_number, now)

    def _rule(self, verdict: Verdict, round_number: int, now: float) -> Hung:
        # What the ranks are doing tells who holds up the others.
        hang = name_culprits(verdict, self._watchdog.signs, self._rounds.save_stacks(), now)
        self.verdict = hang
        self._record(hang_event(hang, round_number), durable=True)
        blamed = hang.culprits or (() if hang.rank is None else (hang.rank,))
        local_ranks = tuple(one.local_rank for one in self._rounds.workers if one.rank in blamed)
        return Hung(local_ranks, hang.sentence)

    def shorten_grace(self, state: State, now: float) -> None:
        """After a failure anywhere: end survivors that were asked to end and can never act on it."""
        is_asked = state.phase is Phase.STOPPING and state.cause in _FAILURES
        if not is_asked or state.has_killed:
            self._grace.rest()
            return
        if not self._grace.is_due(now):
            return
        running = {worker.rank: worker for worker in self._rounds.workers if worker.exit_code is None}
        signs = self._watchdog.read_signs(now)
        still = self._grace.look({rank: signs[rank] for rank in running}, now)
        stacks = self._rounds.stacks_of([running[rank] for rank in still]) if still else {}
        for rank in self._grace.hopeless(still, stacks):
            self._record(events.GraceEnded(state.round_number, rank, now - state.stop_began_at))
            self._rounds.end(running[rank].local_rank, signal.SIGKILL)

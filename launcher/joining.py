"""When this node joins the next round: once it knows how healthy it is, and again if that changes."""

from __future__ import annotations

from dataclasses import replace

from ftrun.launcher.aftermath import Aftermath
from ftrun.launcher.fitness import describe_ailments
from ftrun.launcher.hangs import Record
from ftrun.launcher.health import NodeHealth
from ftrun.launcher.membership import Membership
from ftrun.launcher.node_state import Phase, State
from ftrun.launcher.rounds import Rounds
from ftrun.monitor import events
from ftrun.monitor.incident import Evidence
from ftrun.monitor.liveness import Verdict


class Joining:
    """One node's joins; decides nothing about the job."""

    def __init__(
        self,
        health: NodeHealth,
        rounds: Rounds,
        aftermath: Aftermath,
        membership: Membership,
        record: Record,
    ) -> None:
        self._health = health
        self._rounds = rounds
        self._aftermath = aftermath
        self._membership = membership
        self._record = record
        self._is_due = False
        self._evidence: Evidence | None = None

    def want(self, state: State, hang: Verdict | None, now: float) -> None:
        """Join the open round as soon as that can be; the last round is taken down at once."""
        self._evidence = self._aftermath.close_round(state, hang, now)
        self._is_due = True
        self.turn(state, now)

    def turn(self, state: State, now: float) -> None:
        """Join if it is due and nothing is waited for any more; time may have passed, or a check ended.

        Raises:
            PortBusyError: the port asked for with --master-port is taken.
        """
        if state.phase is not Phase.JOINING or not state.is_connected:
            self._is_due = False  # it will be said again when there is a round to join
        elif self._is_due and self._health.is_ready(now):
            self._is_due = False
            self._join(state)
        elif not self._is_due:
            standing = self._health.standing
            has_fewer = standing.placement.slots != self._health.placement.slots
            # A round may have been closed meanwhile with the slots that were offered.
            self._membership.update_health(self._health.fatal if has_fewer else standing.unhealthy)

    def _join(self, state: State) -> None:
        if (delayed := self._health.delay()) is not None:
            self._record(delayed)
        evidence = self._evidence
        if evidence is not None:
            ailments = self._health.ailments(state.stop_began_at)
            evidence = replace(evidence, unhealthy=state.unhealthy, health=ailments)
            if evidence.file and ailments:
                evidence = self._rounds.keep(evidence)
        self._health.excluded_gpus = self._membership.excluded_gpus
        standing = self._health.standing
        placement, slots = standing.placement, len(standing.placement.slots)
        if slots < len(self._health.placement.slots):
            self._record(events.SlotsReduced(slots, self._why_fewer()))
        self._health.placement = self._rounds.placement = placement
        self._membership.join(state, evidence, standing.unhealthy, slots, standing.gpus)

    def _why_fewer(self) -> str:
        """What takes slots from the workers of this node."""
        excluded = ", ".join(sorted(self._health.excluded_gpus))
        return describe_ailments(self._health.fatal) if self._health.fatal else f"excluded: {excluded}"

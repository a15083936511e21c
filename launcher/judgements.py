"""What the journal says of an incident and of what was decided about it. Pure."""

from __future__ import annotations

from ftrun.launcher.messages import Judgement
from ftrun.launcher.model import Action
from ftrun.launcher.policy import is_counted
from ftrun.monitor import events


def judgement_events(
    judgement: Judgement, restart_count: int, max_restarts: int
) -> tuple[events.IncidentDiagnosed, events.RestartDecided]:
    """Both, in the order in which they are journalled; `restart_count` is the one before the decision."""
    incident, decision = judgement.incident, judgement.decision
    culprit = incident.culprit
    is_restart = decision.action is Action.RESTART
    return (
        events.IncidentDiagnosed(
            incident.round_number,
            incident.kind.value,
            culprit.rank,
            culprit.local_rank,
            culprit.pid,
            culprit.exit_code,
            incident.reasons,
            incident.fingerprint,
            incident.has_progressed,
            tuple(one.rank for one in incident.collateral),
        ),
        events.RestartDecided(
            incident.round_number,
            decision.action.value,
            decision.reason,
            decision.delay_s,
            restart_count + (is_restart and is_counted(incident.kind)),
            max_restarts,
        ),
    )

"""What the journal says of an incident and of what was decided about it. Pure."""

from __future__ import annotations

from ftrun.launcher import exit_codes
from ftrun.launcher.messages import Judgement, Verdict
from ftrun.launcher.model import Action
from ftrun.monitor import events


def own_exit_code(verdict: Verdict, node: str) -> int:
    """With what the agent of a node ends: the job's code, unless this node's hardware has ended the job."""
    judgement = verdict.judgement
    if judgement is None or verdict.exit_code == exit_codes.OK:
        return verdict.exit_code
    incident = judgement.incident
    is_to_blame = incident.kind.is_of_hardware and incident.node == node
    return exit_codes.NODE_UNHEALTHY if is_to_blame else verdict.exit_code


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
            incident.confidence,
        ),
        events.RestartDecided(
            incident.round_number,
            decision.action.value,
            decision.reason,
            decision.delay_s,
            restart_count + (is_restart and decision.is_counted),
            max_restarts,
        ),
    )

"""What to do about an incident: the one function that decides restarts. Pure.

Rules before the first progress of a round (an optimizer step, a heartbeat, a reported checkpoint): a name or
import that does not exist is never retried; any other exception is retried once, the same one twice in a row
ends the job; deaths by signal, exit codes and errors of communication are faults, retried within the budget
with a growing pause. Everything after progress is retried within the budget at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.launcher import exit_codes
from ftrun.launcher.config import RestartConfig
from ftrun.launcher.model import Action, Decision, PastIncident
from ftrun.monitor.incident import Incident, IncidentKind


def decide(
    incident: Incident, history: Sequence[PastIncident], max_restarts: int, config: RestartConfig
) -> Decision:
    """Restart or stop after `incident`.

    `history` holds the job's earlier incidents, oldest first; each of them led to a restart, so its length is
    the job's restart count.
    """
    what = incident.reasons[0]
    if max_restarts == 0:
        return _stop(f"{what}; restarts are off (max_restarts 0)", _own_code(incident))
    if not incident.has_progressed:
        if incident.kind is IncidentKind.IMPORT_OR_SYNTAX_ERROR:
            return _stop(
                f"{what}; before any progress, so a restart would fail the same way", exit_codes.FUTILE
            )
        if incident.kind is IncidentKind.EXCEPTION and _is_repeated(incident, history):
            return _stop(
                f"{what}; the same exception twice in a row without progress: restarting does not help",
                exit_codes.FUTILE,
            )
    if len(history) >= max_restarts:
        return _stop(f"{what}; all {max_restarts} restarts are used up", _own_code(incident))
    delay_s = _pause_s(incident, history, config)
    pause = f", after a pause of {delay_s:g} s because nothing has progressed" if delay_s else ""
    return Decision(Action.RESTART, f"restart {len(history) + 1} of {max_restarts}: {what}{pause}", delay_s)


def _stop(reason: str, exit_code: int) -> Decision:
    return Decision(Action.STOP, reason, exit_code=exit_code)


def _own_code(incident: Incident) -> int:
    return exit_codes.of_failure(incident.culprit.exit_code)


def _is_repeated(incident: Incident, history: Sequence[PastIncident]) -> bool:
    return (
        bool(history) and not history[-1].has_progressed and history[-1].fingerprint == incident.fingerprint
    )


def _pause_s(incident: Incident, history: Sequence[PastIncident], config: RestartConfig) -> float:
    """0 for the first failure without progress in a row, then doubling from `backoff_initial`."""
    if incident.has_progressed:
        return 0.0
    in_a_row = 0
    for past in reversed(history):
        if past.has_progressed:
            break
        in_a_row += 1
    if in_a_row == 0:
        return 0.0
    # The exponent is capped only to keep a job with thousands of restarts out of float overflow.
    return min(config.backoff_max, config.backoff_initial * 2.0 ** min(in_a_row - 1, 60))

"""What to do about an incident: the one function that decides restarts. Pure.

Rules before the first progress of a round (an optimizer step, a heartbeat, a reported checkpoint): a name or
import that does not exist is never retried; any other exception is retried once, the same one twice in a row
ends the job; deaths by signal, exit codes and errors of communication are faults, retried within the budget
with a growing pause. Everything after progress is retried within the budget at once. Workers that could not
be started, for want of something of the system's, or could not find each other, for want of a way between two
nodes, are started again a few times, whatever the budget: either often passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.launcher import exit_codes
from ftrun.launcher.config import RestartConfig
from ftrun.launcher.model import Action, Decision, PastIncident
from ftrun.monitor.incident import Incident, IncidentKind

_MAX_STARTS = 5
"""With pauses of 1, 2, 4 and 8 s between them."""
_NOT_BEGUN = {
    IncidentKind.START_FAILED: ("could not be started", exit_codes.NODE_UNHEALTHY),
    IncidentKind.UNREACHABLE: ("could not find each other", exit_codes.NO_RENDEZVOUS),
}
"""Incidents before which no worker has done anything: what is said of them, and the job's exit code."""


def decide(
    incident: Incident, history: Sequence[PastIncident], max_restarts: int, config: RestartConfig
) -> Decision:
    """Restart or stop after `incident`.

    `history` holds the job's earlier incidents, oldest first; each of them led to another round.
    """
    if incident.kind in _NOT_BEGUN:
        return _after_failed_start(incident, history)
    counted = [past for past in history if is_counted(past.kind)]
    what = incident.reasons[0]
    if max_restarts == 0:
        return _stop(f"{what}; restarts are off (max_restarts 0)", _own_code(incident))
    if not incident.has_progressed:
        if incident.kind is IncidentKind.IMPORT_OR_SYNTAX_ERROR:
            return _stop(
                f"{what}; before any progress, so a restart would fail the same way", exit_codes.FUTILE
            )
        if incident.kind is IncidentKind.EXCEPTION and _is_repeated(incident, counted):
            return _stop(
                f"{what}; the same exception twice in a row without progress: restarting does not help",
                exit_codes.FUTILE,
            )
    if len(counted) >= max_restarts:
        return _stop(f"{what}; all {max_restarts} restarts are used up", _own_code(incident))
    delay_s = _pause_s(incident, counted, config)
    pause = f", after a pause of {delay_s:g} s because nothing has progressed" if delay_s else ""
    return Decision(Action.RESTART, f"restart {len(counted) + 1} of {max_restarts}: {what}{pause}", delay_s)


def is_counted(kind: IncidentKind) -> bool:
    """Whether a restart after such an incident is one of `max_restarts`: not if no worker has run."""
    return kind not in _NOT_BEGUN


def _after_failed_start(incident: Incident, history: Sequence[PastIncident]) -> Decision:
    tries = 1
    for past in reversed(history):
        if past.kind is not incident.kind:
            break
        tries += 1
    if tries >= _MAX_STARTS:
        error = incident.culprit.error
        why = incident.reasons[0] if error is None else error.message
        what, exit_code = _NOT_BEGUN[incident.kind]
        return _stop(f"the workers {what} {tries} times in a row: {why}", exit_code)
    delay_s = 2.0 ** (tries - 1)
    reason = f"start {tries + 1} of {_MAX_STARTS}: {incident.reasons[0]}, after a pause of {delay_s:g} s"
    return Decision(Action.RESTART, reason, delay_s)


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

"""Failures as the policy sees them."""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.launcher.blame import gpu_of, is_blamed
from ftrun.launcher.model import Case, PastIncident
from ftrun.monitor.incident import Incident


def case_of(incident: Incident, history: Sequence[PastIncident] = (), **of_now: object) -> Case:
    """A failure of which nothing is known beyond the incident, unless said otherwise."""
    values = {
        "kind": incident.kind,
        "fingerprint": incident.fingerprint,
        "has_progressed": incident.has_progressed,
        "node": incident.node,
        "gpu": gpu_of(incident),
        "is_blamed": is_blamed(incident),
    }
    return Case(incident, PastIncident(**{**values, **of_now}), tuple(history))

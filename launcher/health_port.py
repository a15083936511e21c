"""A liveness endpoint for schedulers' probes, on the port that TORCHELASTIC_HEALTH_CHECK_PORT names.

Answers one question, whether the agent's loop still turns; it knows nothing of the workers' health.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftrun.launcher.ports import PortBusyError, listen
from ftrun.monitor.http_port import Answer, HttpPort, Request

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
STALE_AFTER_S = 60.0
"""Age of the loop's last turn from which the agent counts as stuck. The loop turns every few seconds even if
nothing happens; a minute keeps a probe from shooting the agent of a machine that swaps."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the endpoint shows of the agent."""

    state: str
    """E.g. "joining", "running", "stopping"."""
    round_number: int
    restart_count: int


def start(
    environ: Mapping[str, str],
    state: Callable[[], AgentState],
    last_tick: Callable[[], float],
    clock: Callable[[], float],
    on_warning: Callable[[str], None],
) -> HttpPort | None:
    """Serve on all addresses if the environment asks for it; None if it does not, or if it cannot be done.

    `state` and `last_tick` (the time of the loop's last turn by `clock`, CLOCK_MONOTONIC seconds) are called
    in the server's threads. A bad or busy port is told to `on_warning` once and is never fatal.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        on_warning(f"{VARIABLE}={text} is no port (expected 0 to 65535); there is no health endpoint")
        return None
    try:
        listener = listen("", int(text))
    except (PortBusyError, OSError) as error:
        on_warning(f"there is no health endpoint: {VARIABLE}={text}: {error}")
        return None
    return HttpPort(listener, _answerer(state, last_tick, clock), "ftrun-health")


def _answerer(
    state: Callable[[], AgentState], last_tick: Callable[[], float], clock: Callable[[], float]
) -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        now_state, age_s = state(), clock() - last_tick()
        body = {
            "state": now_state.state,
            "round": now_state.round_number,
            "restart_count": now_state.restart_count,
            "tick_age_s": round(age_s, 3),
        }
        status = 200 if age_s < STALE_AFTER_S else 503
        return Answer(status, "application/json", json.dumps(body).encode() + b"\n")

    return answer

"""The liveness endpoint."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from ftrun.launcher import health_port
from ftrun.launcher.health_port import STALE_AFTER_S, VARIABLE, AgentState
from ftrun.launcher.ports import listen
from ftrun.monitor.http_port import HttpPort


@dataclass
class FakeAgent:
    """What the endpoint asks of the agent, with a clock that stands still."""

    now: float = 1000.0
    ticked_at: float = 1000.0
    warnings: list[str] = field(default_factory=list)

    def start(self, environ: dict[str, str]) -> HttpPort | None:
        state = AgentState("running", 2, 1)
        return health_port.start(
            environ, lambda: state, lambda: self.ticked_at, lambda: self.now, self.warnings.append
        )


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def port(agent: FakeAgent) -> Iterator[int]:
    server = agent.start({VARIABLE: "0"})
    assert server is not None
    yield server.port
    server.stop()


def get(port: int, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_live_agent_answers_with_its_state(agent: FakeAgent, port: int) -> None:
    """200 and a JSON object, on any path, while the loop turns."""
    agent.now += STALE_AFTER_S - 1
    status, body = get(port)
    assert status == 200
    assert json.loads(body) == {"state": "running", "round": 2, "restart_count": 1, "tick_age_s": 59.0}


def test_stuck_agent_answers_503(agent: FakeAgent, port: int) -> None:
    """A loop that has not turned for a minute is not alive, and is again when it turns."""
    agent.now += STALE_AFTER_S
    assert get(port)[0] == 503
    agent.ticked_at = agent.now
    assert get(port)[0] == 200


def test_head_request_has_no_body(port: int) -> None:
    """Probes that send HEAD get the status alone."""
    assert get(port, "HEAD") == (200, b"")


def test_silent_client_does_not_block_the_next(port: int) -> None:
    """A connection that sends nothing, or leaves at once, costs others nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        assert get(port)[0] == 200


def test_no_endpoint_unless_asked_for(agent: FakeAgent) -> None:
    """Without the variable nothing listens and nobody is warned."""
    assert agent.start({}) is None
    assert agent.start({VARIABLE: ""}) is None
    assert agent.warnings == []


@pytest.mark.parametrize("text", ["http", "-1", "65536", "80 81"])
def test_bad_port_is_one_warning(agent: FakeAgent, text: str) -> None:
    """A value that is no port is named and not fatal."""
    assert agent.start({VARIABLE: text}) is None
    assert len(agent.warnings) == 1
    assert text in agent.warnings[0]


def test_busy_port_is_one_warning(agent: FakeAgent) -> None:
    """A taken port is named with its holder and not fatal."""
    with listen("", 0) as taken:
        assert agent.start({VARIABLE: str(taken.getsockname()[1])}) is None
    assert len(agent.warnings) == 1
    assert "is taken by pid" in agent.warnings[0]


def test_stop_is_quick_and_leaves_nothing(agent: FakeAgent) -> None:
    """The port is free again and the thread gone, even while a prober hangs."""
    server = agent.start({VARIABLE: "0"})
    assert server is not None
    with socket.create_connection(("127.0.0.1", server.port), timeout=5):
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 3.0
    assert "ftrun-health" not in {thread.name for thread in threading.enumerate()}
    listen("", server.port).close()

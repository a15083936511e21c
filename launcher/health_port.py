"""A liveness endpoint for schedulers' probes, on the port that TORCHELASTIC_HEALTH_CHECK_PORT names.

Answers one question, whether the agent's loop still turns; it knows nothing of the workers' health.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftrun.launcher.ports import PortBusyError, listen

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
STALE_AFTER_S = 60.0
"""Age of the loop's last turn from which the agent counts as stuck. The loop turns every few seconds even if
nothing happens; a minute keeps a probe from shooting the agent of a machine that swaps."""

_REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the endpoint shows of the agent."""

    state: str
    """E.g. "joining", "running", "stopping"."""
    round_number: int
    restart_count: int


class HealthPort:
    """The endpoint's server; a daemon thread that lives until `stop`."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._waker, self._wakened = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="ftrun-health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def stop(self) -> None:
        """Close the port; returns at once, whatever a prober is doing."""
        self._waker.close()
        self._thread.join()
        self._wakened.close()
        self._server.server_close()

    def _serve(self) -> None:
        # serve_forever() looks for its end once per poll interval only, and the agent's exit would wait.
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wakened, selectors.EVENT_READ)
            while not any(key.fileobj is self._wakened for key, _ in selector.select()):
                self._server.handle_request()


def start(
    environ: Mapping[str, str],
    state: Callable[[], AgentState],
    last_tick: Callable[[], float],
    clock: Callable[[], float],
    on_warning: Callable[[str], None],
) -> HealthPort | None:
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
        server = _bind(int(text), _answerer(state, last_tick, clock))
    except (PortBusyError, OSError) as error:
        on_warning(f"there is no health endpoint: {VARIABLE}={text}: {error}")
        return None
    return HealthPort(server)


def _answerer(
    state: Callable[[], AgentState], last_tick: Callable[[], float], clock: Callable[[], float]
) -> Callable[[], tuple[int, bytes]]:
    def answer() -> tuple[int, bytes]:
        now_state, age_s = state(), clock() - last_tick()
        body = {
            "state": now_state.state,
            "round": now_state.round_number,
            "restart_count": now_state.restart_count,
            "tick_age_s": round(age_s, 3),
        }
        return (200 if age_s < STALE_AFTER_S else 503), json.dumps(body).encode() + b"\n"

    return answer


def _bind(port: int, answer: Callable[[], tuple[int, bytes]]) -> ThreadingHTTPServer:
    # 13 ms that only those who asked for the endpoint pay.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            status, body = answer()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds; they are not worth a line each."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        timeout = 0.0

        def handle_error(self, request: object, client_address: object) -> None:
            """A prober that hangs up early is no event."""

    listener = listen("", port)
    # A prober may be gone between select and accept, which must not wait for the next one then.
    listener.setblocking(False)
    server = Server(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_address = listener.getsockname()
    server.server_name, server.server_port = "", listener.getsockname()[1]
    return server

"""A small HTTP server on a thread of its own: GET and HEAD, whatever is asked for answered by one function.

For what is looked at from outside while the agent works; nothing that a client does reaches the agent.
"""

from __future__ import annotations

import selectors
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

_REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    path: str
    """Without what follows a question mark."""
    accept: str
    """The forms that it understands (its Accept header); "" for any."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What it gets."""

    status: int
    content_type: str
    body: bytes


class HttpPort:
    """A server; a daemon thread that lives until `stop`.

    Args:
        listener: a listening TCP socket; it is the server's from now on.
        answer: called in the server's threads, one for each request.
        name: of the thread.
        on_error: hears of what went wrong in `answer`; the client's connection is closed then.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[Request], Answer],
        name: str,
        on_error: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._server = _make_server(listener, answer, on_error)
        self._waker, self._wakened = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def stop(self) -> None:
        """Close the port; returns at once, whatever a client is doing."""
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


def _make_server(
    listener: socket.socket, answer: Callable[[Request], Answer], on_error: Callable[[BaseException], None]
) -> ThreadingHTTPServer:
    # 13 ms that only those who asked for a port pay.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            got = answer(Request(self.path.partition("?")[0], self.headers.get("Accept", "")))
            self.send_response(got.status)
            self.send_header("Content-Type", got.content_type)
            self.send_header("Content-Length", str(len(got.body)))
            self.end_headers()
            if with_body:
                self.wfile.write(got.body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds; they are not worth a line each."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        timeout = 0.0

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up early is no event."""
            error = sys.exc_info()[1]
            if error is not None and not isinstance(error, OSError):
                on_error(error)

    # A client may be gone between select and accept, which must not wait for the next one then.
    listener.setblocking(False)
    server = Server(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_address = listener.getsockname()
    server.server_name, server.server_port = "", listener.getsockname()[1]
    return server

"""The control socket between the agent and a worker: messages, their framing, and descriptor passing.

A frame is a 4-byte big-endian length and a UTF-8 JSON object whose "type" names the message. Both sides use
this module; what is done about a message is decided by the agent and by `worker_main`.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Far above any environment that exec would accept; a longer length means that the stream is not ours."""
SEND_TIMEOUT_S = 10.0
_SEND_BUFFER_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">I")

Kind = Literal["script", "module", "executable"]


class ControlError(Exception):
    """The peer sent something that is not a message, or does not read what is sent to it."""


@dataclass(frozen=True, slots=True)
class Preload:
    """Agent to worker, always first: import these modules, in this order (may be empty)."""

    modules: tuple[str, ...] = ()
    is_for_later: bool = False
    """No rank waits for this worker: it may do what takes time, such as `store.rehearse`."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Agent to worker: be this rank now. Carries two descriptors, the new stdout and stderr."""

    environment: dict[str, str | None]
    """Changes to the environment that the worker was spawned with; None removes a variable."""
    argv: tuple[str, ...]
    """The script's path, the module's name or the executable, then its arguments."""
    kind: Kind = "script"


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to agent: preloading is over."""

    preload_s: float = 0.0
    failed: tuple[tuple[str, str], ...] = ()
    """Modules that could not be imported, each with its error ("ImportError: no module ...")."""
    cuda_initialized_by: str | None = None
    """The module whose import initialised CUDA: this worker must not be used."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Worker to agent, once: the script has made its first progress."""

    modules: tuple[str, ...] = ()
    """What it had imported by then from the standard library and site-packages, dependencies first."""


Message = Preload | Activate | Ready | Progress


def encode(message: Message) -> bytes:
    """One whole frame. Bytes of the environment that are not UTF-8 survive (surrogate escapes)."""
    body: dict[str, object]
    match message:
        case Preload(modules, is_for_later):
            body = {"type": "preload", "modules": modules, "is_for_later": is_for_later}
        case Activate(environment, argv, kind):
            body = {"type": "activate", "environment": environment, "argv": argv, "kind": kind}
        case Ready(preload_s, failed, cuda_initialized_by):
            body = {
                "type": "ready",
                "preload_s": preload_s,
                "failed": failed,
                "cuda_initialized_by": cuda_initialized_by,
            }
        case Progress(modules):
            body = {"type": "progress", "modules": modules}
    payload = json.dumps(body, separators=(",", ":")).encode("ascii")
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes) -> Message:
    """The message in a frame's payload (without the length).

    Raises:
        ControlError: not JSON, not a known message, or a field of another type than the message has.
    """
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"control frame is not JSON: {error}") from error
    match body:
        case {
            "type": "preload",
            "modules": list(modules),
            "is_for_later": bool(is_for_later),
        } if _are_texts(modules):
            return Preload(tuple(modules), is_for_later)
        case {"type": "progress", "modules": list(modules)} if _are_texts(modules):
            return Progress(tuple(modules))
        case {
            "type": "activate",
            "environment": dict(environment),
            "argv": [str(), *_] as argv,
            "kind": "script" | "module" | "executable" as kind,
        } if _are_texts(argv) and _are_texts([v for v in environment.values() if v is not None]):
            return Activate(dict(environment), tuple(argv), kind)
        case {
            "type": "ready",
            "preload_s": int() | float() as preload_s,
            "failed": list(failed),
            "cuda_initialized_by": str() | None as culprit,
        } if all(isinstance(pair, list) and len(pair) == 2 and _are_texts(pair) for pair in failed):
            return Ready(float(preload_s), tuple((name, error) for name, error in failed), culprit)
    raise ControlError(f"control frame is not a message of ftrun: {payload[:200]!r}")


def _are_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) for value in values)


class FrameReader:
    """Turns the bytes that arrive, in pieces of any size, into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes, oldest first.

        Raises:
            ControlError: the stream is not one of messages; nothing more can be read from it.
        """
        self._pending += data
        messages: list[Message] = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise ControlError(f"control frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                break
            payload = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            messages.append(decode(payload))
        return messages


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair: the agent's end and the worker's. Both close on exec until made inheritable."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # A worker that preloads does not read: an activation must fit into the buffer meanwhile.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return ours, theirs


def send(
    sock: socket.socket, message: Message, fds: Sequence[int] = (), timeout_s: float = SEND_TIMEOUT_S
) -> None:
    """Sends one message and, with its first byte, copies of `fds`; blocking and non-blocking sockets alike.

    Raises:
        ControlError: the peer has not read enough for `timeout_s` seconds.
        OSError: the peer is gone.
    """
    view = memoryview(encode(message))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    deadline = time.monotonic() + timeout_s
    while view:
        try:
            sent = sock.sendmsg([view], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not _is_writable(sock, left_s):
                raise ControlError(f"the peer has read nothing for {timeout_s:.0f} s") from None
            continue
        view = view[sent:]
        ancillary = []


def _is_writable(sock: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000))


class WorkerChannel:
    """The worker's blocking side: one message at a time, with the descriptors that came along."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._messages: list[Message] = []
        self._fds: list[int] = []

    def receive(self) -> Message | None:
        """The next message; None once the agent has closed its end.

        Raises:
            ControlError: what arrived is not a message.
        """
        while not self._messages:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, 65536, 16)
            except ConnectionError:
                return None
            for fd in fds:
                os.set_inheritable(fd, False)
            self._fds += fds
            if not data:
                return None
            self._messages += self._reader.feed(data)
        return self._messages.pop(0)

    def take_fds(self) -> tuple[int, ...]:
        """Descriptors received so far and not taken yet, close-on-exec; the caller owns them."""
        fds, self._fds = tuple(self._fds), []
        return fds

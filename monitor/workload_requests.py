"""Sends a workload control request to the launcher, as nvidia-resiliency-ext's client would.

What the launcher does about it is decided there. The exchange: a frame with the pickled pair of rank and
request, and a frame with the pickled bytes "ok" for an answer.
"""

from __future__ import annotations

import pickle
import socket
import time

from ftrun.monitor import wire

_MODULE = "nvidia_resiliency_ext.fault_tolerance.data"
_MEMBERS = {
    wire.WorkloadAction.CONTINUE: 0,
    wire.WorkloadAction.EXCLUDE_THIS_NODE: 1,
    wire.WorkloadAction.SHUTDOWN_WORKLOAD: 2,
    wire.WorkloadAction.REPORT_FAULT: 100,
}
"""Values of that package's enum WorkloadAction, and of the one that is ftrun's own."""


def send(path: str, request: wire.ControlRequest, timeout_s: float) -> bool:
    """Whether the launcher that listens at `path` has taken `request` within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            sock.sendall(encode(request))
            answer = b""
            while len(answer) < len(wire.CONTROL_TAKEN):
                sock.settimeout(max(0.001, deadline - time.monotonic()))
                received = sock.recv(4096)
                if not received:
                    return False
                answer += received
    except OSError:
        return False
    return b"ok" in answer


def encode(request: wire.ControlRequest) -> bytes:
    """The frame of a request; the classes in it are named, not imported."""
    action = _named("WorkloadAction") + pickle.BININT1 + bytes([_MEMBERS[request.action]])
    state = [
        _text("action") + action + pickle.TUPLE1 + pickle.REDUCE + pickle.SETITEM,
        _text("description") + _text(request.description) + pickle.SETITEM,
    ]
    rank = request.global_rank
    rank_part = pickle.NONE if rank is None else pickle.BININT + rank.to_bytes(4, "little")
    instance = _named("WorkloadControlRequest") + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT
    pair = rank_part + instance + b"".join(state) + pickle.BUILD + pickle.TUPLE2
    return wire.frame(pickle.PROTO + bytes([4]) + pair + pickle.STOP)


def _named(name: str) -> bytes:
    return _text(_MODULE) + _text(name) + pickle.STACK_GLOBAL


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded

"""What clients of nvidia-resiliency-ext send, put together by hand, and their view of what comes back."""

from __future__ import annotations

import io
import pickle
import socket
import struct
from types import SimpleNamespace

DATA = "nvidia_resiliency_ext.fault_tolerance.data"
DEADLINE_S = 10.0


class Object:
    """An object of one of NVRx's classes, to be pickled."""

    def __init__(self, class_name: str, module: str = DATA, **state: object) -> None:
        self.class_name = class_name
        self.module = module
        self.state = state


class Member:
    """A member of one of NVRx's enums, pickled by value, or by name as some CPython 3.11 do."""

    def __init__(self, enum: str, key: int | str) -> None:
        self.enum = enum
        self.key = key


def pickled(value: object) -> bytes:
    """`value` in the opcodes that CPython's C pickler uses by default (protocol 4)."""
    return b"\x80\x04" + _body(value) + b"."


def framed(content: bytes) -> bytes:
    """With the length before it."""
    return len(content).to_bytes(4, "big") + content


def _body(value: object) -> bytes:
    match value:
        case Object():
            return _named(value.module, value.class_name) + b")\x81" + _body(value.state) + b"b"
        case Member(key=str()):
            found = _named(DATA, value.enum)
            return _named("builtins", "getattr") + found + _body(value.key) + b"\x86R"
        case Member():
            return _named(DATA, value.enum) + _body(value.key) + b"\x85R"
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"J" + struct.pack("<i", value)
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case bytes():
            return b"B" + struct.pack("<I", len(value)) + value
        case tuple():
            return b"(" + b"".join(map(_body, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_body, value)) + b"e"
        case set():
            return b"\x8f(" + b"".join(map(_body, value)) + b"\x90"
        case dict():
            items = b"".join(_body(key) + _body(item) for key, item in value.items())
            return b"}(" + items + b"u"
    raise TypeError(type(value).__name__)


def _named(module: str, name: str) -> bytes:
    return _body(module) + _body(name) + b"\x93"


AUTHKEY = Object("AuthkeyMsg", authkey=b"k" * 32)
HEARTBEAT = Object("HeartbeatMsg", rank=0, state={})


def init(is_new: bool = False, pid: int = 1, **more: object) -> Object:
    """InitMsg of 0.4.1 or 0.5, or a new one (0.6 and later)."""
    rank = Object("RankInfo", global_rank=0, local_rank=0, host="h", pid=pid)
    message = Object("InitMsg", rank_info=rank)
    message.state |= {"iteration": None, "num_warmup_iters": None} if is_new else {}
    message.state |= more
    return message


def section(name: str | None, action: str, iteration: int | None = None) -> Object:
    """SectionMsg; `action` is OPEN, CLOSE or CLOSE_ALL."""
    code = {"OPEN": 1, "CLOSE": 2, "CLOSE_ALL": 3}[action]
    member = Member("SectionAction", code)
    return Object("SectionMsg", rank=0, section=name, action=member, iteration=iteration)


def update(
    heartbeat: tuple[object, object] | None = None,
    sections: dict[str, object] | None = None,
    out_of_section: object = None,
) -> Object:
    """UpdateConfigMsg with calculated limits."""
    beats = None
    if heartbeat is not None:
        initial, steady = heartbeat
        beats = Object("HeartbeatTimeouts", initial=initial, subsequent=steady, were_calculated=True)
    stays = None
    if sections is not None:
        stays = Object(
            "SectionTimeouts",
            section=sections,
            out_of_section=out_of_section,
            calculated_sections=set(sections),
            is_out_of_section_calculated=out_of_section is not None,
        )
    return Object("UpdateConfigMsg", hb_timeouts=beats, section_timeouts=stays)


class _Answers(pickle.Unpickler):
    """Reads answers without NVRx: an object becomes a namespace that knows its class."""

    def find_class(self, module: str, name: str) -> object:
        if module == "signal":
            return super().find_class(module, name)
        return type(name, (SimpleNamespace,), {"__module__": module})


def answer_in(content: bytes) -> SimpleNamespace:
    """The object in an answer's frame."""
    found: SimpleNamespace = _Answers(io.BytesIO(content)).load()
    return found


class Peer:
    """A client on the wire."""

    def __init__(self, path: str | None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_S)
        if path is not None:
            self.socket.connect(path)

    def send(self, message: object) -> None:
        """Send a message and wait for nothing."""
        self.socket.sendall(framed(pickled(message)))

    def ask(self, message: object) -> SimpleNamespace:
        """Send a message; returns the answer."""
        self.send(message)
        return answer_in(self.receive())

    def receive(self) -> bytes:
        """Content of the next frame."""
        length = int.from_bytes(self._read(4), "big")
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("closed by the server")
            data += more
        return data

    def is_closed_by_server(self) -> bool:
        """Waits for the server to end the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

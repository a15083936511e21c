"""The protocol of nvidia-resiliency-ext's RankMonitorClient, 0.4.1 to 0.7: frames and its message classes.

Pure: bytes in, messages of `heartbeats` out, and back. Nothing of nvidia_resiliency_ext is imported.
A frame is a length of 4 bytes, big-endian, and that many bytes of pickle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from signal import Signals
from types import MappingProxyType

from ftrun.monitor import heartbeats as hb
from ftrun.monitor.pickles import Global, Instance, PickleError, read, write

MAX_FRAME_BYTES = 1 << 20
"""Real messages have a few hundred bytes; a job with a thousand named sections has some 100 KB."""

_LENGTH_BYTES = 4
_MAX_NAME_CHARACTERS = 256
_REPEATED_BYTES = 512
_DATA = "nvidia_resiliency_ext.fault_tolerance.data"
_MESSAGES = ("AuthkeyMsg", "InitMsg", "HeartbeatMsg", "SectionMsg", "UpdateConfigMsg")
_PARTS = ("RankInfo", "HeartbeatTimeouts", "SectionTimeouts", "SectionAction")
# Some releases of CPython 3.11 pickle the member of an enum as a call of getattr(class, name).
_GETATTR = Global("builtins", "getattr")
_RANK_CLASSES = frozenset({Global(_DATA, name) for name in (*_MESSAGES, *_PARTS)} | {_GETATTR})
_CONTROL_CLASSES = frozenset(
    {Global(_DATA, name) for name in ("WorkloadControlRequest", "WorkloadAction")} | {_GETATTR}
)
_OK = Global(_DATA, "OkMsg")
_ERROR = Global(_DATA, "ErrorMsg")
_CONFIG = Global("nvidia_resiliency_ext.fault_tolerance.config", "FaultToleranceConfig")


class WireError(Exception):
    """A frame that cannot be taken. `message_class` is the class that it seems to hold, "" if unknown."""

    def __init__(self, message: str, message_class: str = "") -> None:
        super().__init__(message)
        self.message_class = message_class

    @property
    def may_be_unanswered(self) -> bool:
        """It is of a kind that a fire-and-forget client sends without waiting for an answer."""
        return self.message_class in ("HeartbeatMsg", "SectionMsg")


class FrameTooLongError(WireError):
    """A length that no message has; what follows on the connection cannot be told apart any more."""


class WorkloadAction(Enum):
    """What a rank asks of the whole job."""

    CONTINUE = 0
    EXCLUDE_THIS_NODE = 1
    SHUTDOWN_WORKLOAD = 2
    REPORT_FAULT = 100
    """ftrun's own, far from the numbers that nvidia-resiliency-ext may yet use: the round is to end for a
    fault that the description names, and training is to go on."""


_ACTIONS = {
    "Continue": WorkloadAction.CONTINUE,
    "ExcludeThisNode": WorkloadAction.EXCLUDE_THIS_NODE,
    "ShutdownWorkload": WorkloadAction.SHUTDOWN_WORKLOAD,
    "ReportFault": WorkloadAction.REPORT_FAULT,
}
"""By the names of nvidia-resiliency-ext's members."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A rank's workload control request."""

    global_rank: int | None
    action: WorkloadAction
    description: str


@dataclass(frozen=True, slots=True)
class Authkey:
    """The first message on a connection; its key serves to share tensors, which no version does."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client is told besides its limits (nvidia-resiliency-ext's fields of the same names)."""

    safety_factor: float = 5.0
    skip_section_response: bool = True
    workload_check_interval: float = 5.0
    """Seconds."""
    rank_termination_signal: Signals = Signals.SIGKILL


def split_frames(buffer: bytearray) -> Iterator[bytes]:
    """Take each whole frame's content out of `buffer`; what is left is the beginning of the next.

    Raises:
        FrameTooLongError: the next length is beyond `MAX_FRAME_BYTES`.
    """
    while len(buffer) >= _LENGTH_BYTES:
        length = int.from_bytes(buffer[:_LENGTH_BYTES], "big")
        if length > MAX_FRAME_BYTES:
            raise FrameTooLongError(f"a frame of {length} bytes is announced; at most {MAX_FRAME_BYTES}")
        if len(buffer) < _LENGTH_BYTES + length:
            return
        content = bytes(buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])
        del buffer[: _LENGTH_BYTES + length]
        yield content


def frame(content: bytes) -> bytes:
    """`content` with its length before it."""
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def decode(content: bytes) -> hb.Message | Authkey:
    """The message of a rank in a frame.

    Raises:
        WireError: it is none, or its values make no sense.
    """
    return _decode_repeated(content) if len(content) <= _REPEATED_BYTES else _decode(content)


@lru_cache(maxsize=256)
def _decode_repeated(content: bytes) -> hb.Message | Authkey:
    """A rank's heartbeats are all the same bytes, and its sections nearly so."""
    return _decode(content)


def _decode(content: bytes) -> hb.Message | Authkey:
    message = _as_instance(_read(content, _RANK_CLASSES))
    name = message.of.name
    try:
        return _message(name, message.state)
    except WireError as error:
        raise WireError(f"{name}: {error}", name) from error


def decode_control(content: bytes) -> ControlRequest:
    """The control request in a frame on the launcher's socket: a pair of rank and request.

    Raises:
        WireError: it is none.
    """
    pair = _read(content, _CONTROL_CLASSES)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise WireError("a control request is a pair of rank and WorkloadControlRequest")
    request = _as_instance(pair[1])
    if request.of.name != "WorkloadControlRequest":
        raise WireError(f"{request.of.name} is not a WorkloadControlRequest")
    action = request.state.get("action")
    for name, meaning in _ACTIONS.items():
        if _is_member(action, "WorkloadAction", name, meaning.value):
            description = request.state.get("description")
            return ControlRequest(
                _rank(pair[0]), meaning, description if isinstance(description, str) else ""
            )
    raise WireError("the action of a WorkloadControlRequest is not known")


CONTROL_TAKEN = frame(write(b"ok"))
"""The answer to a control request."""
OK = frame(write(Instance(_OK)))


def encode(reply: hb.Reply, settings: ClientSettings) -> bytes:
    """The frame that answers a rank."""
    match reply:
        case hb.Ok():
            return OK
        case hb.Refused(cause):
            return frame(write(Instance(_ERROR, state={"cause": cause})))
        case hb.Welcome():
            return frame(write(Instance(_OK, state={"cfg": _config(reply, settings)})))


def _config(welcome: hb.Welcome, settings: ClientSettings) -> Instance:
    # Attributes that are left out have nvidia-resiliency-ext's own defaults at the client, and those differ
    # by version: all that a client reads is here.
    timeouts = welcome.timeouts
    state: dict[object, object] = {
        "initial_rank_heartbeat_timeout": timeouts.initial,
        "rank_heartbeat_timeout": timeouts.steady,
        "rank_section_timeouts": dict(timeouts.sections),
        "rank_out_of_section_timeout": timeouts.out_of_section,
        "num_warmup_iterations": timeouts.warmup_iterations,
        "safety_factor": settings.safety_factor,
        "workload_check_interval": settings.workload_check_interval,
        "rank_termination_signal": settings.rank_termination_signal,
        "skip_section_response": welcome.is_fire_and_forget,
        "install_exception_hook": False,  # it would end the worker before its exception is recorded
    }
    return Instance(_CONFIG, state=state)


def _read(content: bytes, allowed: frozenset[Global]) -> object:
    try:
        return read(content, allowed)
    except PickleError as error:
        raise WireError(str(error), error.first_class) from error


def _message(name: str, state: dict[object, object]) -> hb.Message | Authkey:
    match name:
        case "AuthkeyMsg":
            return Authkey()
        case "InitMsg":
            return _init(state)
        case "HeartbeatMsg":
            return hb.Heartbeat()
        case "SectionMsg":
            return _section(state)
        case "UpdateConfigMsg":
            heartbeat, section = state.get("hb_timeouts"), state.get("section_timeouts")
            return hb.UpdateConfig(
                None if heartbeat is None else _heartbeat_update(_as_instance(heartbeat).state),
                None if section is None else _section_update(_as_instance(section).state),
            )
    raise WireError("not a message")


def _init(state: dict[object, object]) -> hb.Init:
    info = state.get("rank_info")
    rank = info.state if isinstance(info, Instance) else {}
    return hb.Init(
        global_rank=_rank(rank.get("global_rank")),
        pid=_integer(rank.get("pid")),
        warmup_iterations=_integer(state.get("num_warmup_iters")),
        # Clients before 0.6 have no such attribute; of them, only 0.5 can do without answers, and need not.
        is_fire_and_forget="iteration" in state,
    )


def _section(state: dict[object, object]) -> hb.Section:
    for action in hb.SectionAction:
        if _is_member(state.get("action"), "SectionAction", action.name, action.value):
            break
    else:
        raise WireError("its action is not known")
    if action is hb.SectionAction.CLOSE_ALL:
        return hb.Section("", action)
    return hb.Section(_name(state.get("section")), action, _integer(state.get("iteration")))


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_NAME_CHARACTERS:
        raise WireError(f"the name of a section is a text of at most {_MAX_NAME_CHARACTERS} characters")
    return value


def _heartbeat_update(state: dict[object, object]) -> hb.HeartbeatUpdate:
    return hb.HeartbeatUpdate(
        initial=_seconds(state.get("initial"), "initial"),
        steady=_seconds(state.get("subsequent"), "subsequent"),
        is_calculated=bool(state.get("were_calculated")),
    )


def _section_update(state: dict[object, object]) -> hb.SectionUpdate:
    found, calculated = state.get("section"), state.get("calculated_sections")
    if not isinstance(found, dict):
        raise WireError("SectionTimeouts.section is not a dict")
    sections = {_name(name): _seconds(value, name) for name, value in found.items()}
    return hb.SectionUpdate(
        sections=MappingProxyType(sections),
        out_of_section=_seconds(state.get("out_of_section"), "out_of_section"),
        calculated_sections=frozenset(map(_name, calculated if isinstance(calculated, (set, list)) else ())),
        is_out_of_section_calculated=bool(state.get("is_out_of_section_calculated")),
    )


def _seconds(value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WireError(f"timeout {what!r} is a {type(value).__name__}, not a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not seconds > 0:
        raise WireError(f"timeout {what!r} is {seconds}, not a number of seconds above 0")
    return None if seconds == math.inf else seconds


def _is_member(value: object, of: str, name: str, code: int) -> bool:
    if not isinstance(value, Instance):
        return False
    enum = Global(_DATA, of)
    return (value.of, value.args) in ((enum, (code,)), (_GETATTR, (enum, name)))


def _as_instance(value: object) -> Instance:
    if not isinstance(value, Instance):
        raise WireError(f"an object is expected, not {type(value).__name__}")
    return value


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank(value: object) -> int | None:
    """The clients of 0.4.1 and 0.5 send it as a text if torch.distributed was not initialised."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:10])
    return _integer(value)

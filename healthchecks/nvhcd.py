"""The child that asks NVRx's node health check daemon: one call of gRPC over a Unix socket. Judges nothing.

    python -m ftrun.healthchecks.nvhcd TARGET TIMEOUT_S [ARGUMENT...]

Prints the answer as one line of JSON, or `{"unreachable": why}`. gRPC is imported here only, so the launcher
never loads it, and its threads and its hangs are this process's. The two messages are small enough to be
encoded by hand (protobuf's wire format): no generated code has to match the installed protobuf.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
"""Package nvhcd: RunHealthCheck(HealthCheckRequest) returns (HealthCheckResponse), with
HealthCheckRequest {repeated string args = 1} and
HealthCheckResponse {bool success = 1; int32 exit_code = 2; string output = 3; string error = 4}."""
_PR_SET_PDEATHSIG = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What the daemon's script gave."""

    success: bool = False
    exit_code: int = 0
    output: str = ""
    error: str = ""


def encode_request(arguments: Iterable[str]) -> bytes:
    """HealthCheckRequest: each argument as field 1."""
    encoded = (argument.encode() for argument in arguments)
    return b"".join(b"\x0a" + _varint(len(text)) + text for text in encoded)


def decode_answer(data: bytes) -> NodeAnswer:
    """HealthCheckResponse; fields that it lacks have their default, others are passed over.

    Raises:
        ValueError: it is no message.
    """
    numbers: dict[int, int] = {}
    texts: dict[int, str] = {}
    for field, value in _fields(data):
        if isinstance(value, int):
            numbers[field] = value
        else:
            texts[field] = value.decode(errors="replace")
    # An int32 below 0 is written as 64 bits of two's complement.
    exit_code = numbers.get(2, 0) & 0xFFFFFFFF
    return NodeAnswer(
        success=bool(numbers.get(1, 0)),
        exit_code=exit_code - (1 << 32) if exit_code >> 31 else exit_code,
        output=texts.get(3, ""),
        error=texts.get(4, ""),
    )


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The number at `start`, and where what follows it begins."""
    value = 0
    for index, byte in enumerate(data[start : start + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise ValueError("a number does not end")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            number, position = _read_varint(data, position)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, position = _read_varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of unknown kind {kind}")
        if position + size > len(data):
            raise ValueError("a field is cut off")
        yield tag >> 3, data[position : position + size]
        position += size


def ask(target: str, timeout_s: float, arguments: Iterable[str]) -> dict[str, object]:
    """The daemon's answer, or why there is none.

    Args:
        target: as gRPC names it: "unix:///run/nvhcd.sock".
        timeout_s: of the whole call.
        arguments: for the daemon's script.
    """
    try:
        import grpc  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        return {"unreachable": f"grpc cannot be imported: {error} (install grpcio)"}
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(
            METHOD, request_serializer=encode_request, response_deserializer=decode_answer
        )
        try:
            return asdict(call(arguments, timeout=timeout_s))
        except grpc.RpcError as error:
            return {"unreachable": f"{error.code().name}: {error.details()}"}


def main() -> int:
    """Ask and print; the exit code is always 0, what came out of it is in the output."""
    # Once the launcher is gone nobody wants the answer (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    print(json.dumps(ask(sys.argv[1], float(sys.argv[2]), sys.argv[3:])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

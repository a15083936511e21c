"""Reads error files, in which a worker has recorded the exception that ended it."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path

from ftrun.monitor.incident import ErrorRecord

MAX_ERROR_FILE_BYTES = 4 << 20
"""Larger error files are not read: a message of such a size is a dumped tensor, not an explanation."""

_TYPED_TEXT = re.compile(r"(?:\w+\.)*(?P<type>[A-Za-z_]\w*)(?:: ?|$)(?P<message>.*)", re.DOTALL)
_LOOKS_LIKE_EXCEPTION = re.compile(r"(Error|Exception|Interrupt|Warning|Exit)$")


def read_error_file(path: str | Path) -> ErrorRecord | None:
    """The exception in an error file of torch elastic's format; None if there is none or it is not whole.

    Both forms are understood: `{"message": {"message": "Type: text", "extraInfo": {"py_callstack": ...}}}` as
    `torch.distributed.elastic.multiprocessing.errors` writes it, with ftrun's `frame`, `bases` and
    `recorded_at` in extraInfo if they are there, and `{"message": "text", "timestamp": ...}` of other error
    handlers.
    """
    text = _read_bounded(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    body = data.get("message") if isinstance(data, dict) else None
    if isinstance(body, str):
        return _plain_record(body)
    return _nested_record(body) if isinstance(body, dict) else None


def _read_bounded(path: str | Path) -> bytes:
    """The file's bytes; none if it is missing, too large or no regular file (reading a pipe would block)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_ERROR_FILE_BYTES:
            return b""
        return os.read(fd, MAX_ERROR_FILE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _plain_record(text: str) -> ErrorRecord:
    match = _TYPED_TEXT.match(text)
    # "Note: ..." is a text, "ValueError: ..." names a type; only the nested form promises one.
    if match is None or not _LOOKS_LIKE_EXCEPTION.search(match["type"]):
        return ErrorRecord("", text, "")
    return ErrorRecord(match["type"], match["message"], "")


def _nested_record(body: dict[str, object]) -> ErrorRecord | None:
    text, extra = body.get("message"), body.get("extraInfo")
    if not isinstance(text, str):
        return None
    details = extra if isinstance(extra, dict) else {}
    match = _TYPED_TEXT.match(text)
    bases = details.get("bases")
    return ErrorRecord(
        type_name=match["type"] if match else "",
        message=match["message"] if match else text,
        traceback=_text(details.get("py_callstack")),
        frame=_text(details.get("frame")),
        bases=tuple(name for name in bases if isinstance(name, str)) if isinstance(bases, list) else (),
        recorded_at=_time(details.get("recorded_at")),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None

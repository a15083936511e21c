"""Lines about workers, recognised in rows and read without decoding each. Pure.

Of ten lines of a large job eight are of three kinds: a worker was started, made its first progress, exited.
The agent writes them in rows, one line for each worker of its node, of which few numbers count. An expression
finds them in a fraction of the time that JSON takes. What is written in any other way than that of
`ftrun.monitor.records`, or has an escape in a string, is not recognised, and left to be decoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

STARTED, PROGRESSED, EXITED = b"started", b"progressed", b"exited"

_HEAD = rb'\n\{"v":1,"ts":\d{1,11}\.\d+,"at":\d{1,11}\.\d+,"node":"[^"\\\n]*","event":"worker\.'
_REST = rb",[^{}\\\n]*\}"

WORKER_LINES = re.compile(
    _HEAD + rb'(started|progressed|exited)","round":(\d{1,11})' + _REST
    + rb"(?:" + _HEAD + rb'\1","round":\2' + _REST + rb")*(?=\n)"
)  # fmt: skip
"""Lines of one kind and round that follow each other; it begins with the newline before the first, for which
there is a fast search. Groups: kind, digits of the round."""

_TIMES = re.compile(rb'\{"v":1,"ts":([^,]*),"at":([^,]*),')
_RANK = re.compile(rb',"rank":(\d{1,11}),')
_REASON = re.compile(rb'"is_warm":false,"reason":"([^"]*)"')
_STEPS = re.compile(rb'"steps":(\d{1,11})[,}]')
_STEP = re.compile(rb'"step":(\d{1,11}),')
_PROGRESS = re.compile(rb'"at":([\d.]+),[^{}\n]*"since_start_s":(\d{1,11}\.\d+)\}')


@dataclass(frozen=True, slots=True)
class Progress:
    """A row of `worker.progressed`."""

    at: float
    """Of the last of them."""
    script_at: float
    """When the last of the workers ran the script."""
    first_step: int | None
    """The lowest; None if none reports one."""


def times(row: bytes) -> tuple[float, float]:
    """`ts` and `at` of the last line."""
    match = _TIMES.match(row, row.rindex(b"\n") + 1)
    assert match is not None
    return float(match[1]), float(match[2])


def started(row: bytes) -> tuple[Sequence[int], str] | None:
    """Ranks, and why one of them was cold ("" if none was); None if it is not written so."""
    ranks = _RANK.findall(row)
    if len(ranks) != row.count(b"\n"):
        return None
    cold = _REASON.search(row)
    if (cold is None) != (b'"is_warm":false' not in row):
        return None
    return [int(rank) for rank in ranks], "" if cold is None else cold[1].decode("ascii", "replace")


def progressed(row: bytes) -> Progress | None:
    """What counts of it; None if it is not written so."""
    found = _PROGRESS.findall(row)
    if len(found) != row.count(b"\n"):
        return None
    pairs = [(float(at), float(since_s)) for at, since_s in found]
    steps = [int(step) for step in _STEP.findall(row)]
    return Progress(pairs[-1][0], max(ran_at(*pair) for pair in pairs), min(steps, default=None))


def ran_at(at: float, since_start_s: float) -> float:
    """When a worker ran the script whose first progress came so long after; damaged numbers do not count."""
    return at - since_start_s if 0 < since_start_s <= at else at


def exited(row: bytes) -> int | None:
    """The most steps of a worker; None if it is not written so."""
    steps = _STEPS.findall(row)
    return max(map(int, steps)) if len(steps) == row.count(b"\n") else None

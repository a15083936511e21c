"""Shortens what a rank left behind, so that it is still judged as before. Pure.

Of each text the end or the beginning is kept, and in any case what `ftrun.monitor.failures` looks for in it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import replace

from ftrun.monitor import signatures
from ftrun.monitor.failures import RANK_PREFIX, TRACEBACK_HEAD
from ftrun.monitor.incident import ErrorRecord, RankExit

_NAME_LENGTH = 200
"""Characters of a class's name or of a frame: longer ones are no names."""
_TELLING_LENGTH = 500
"""Characters that are left of a line that must stay, whatever the limit is; a path may be as long."""

_TELLING = tuple(
    row.pattern
    for table in (
        signatures.EXCEPTIONS,
        signatures.COMMUNICATION_MESSAGES,
        signatures.COMMUNICATION_ABORTS,
        signatures.LOCAL_ABORTS,
    )
    for row in table
)


def shorten_exit(exit: RankExit, limit: int) -> RankExit:
    """The exit with about `limit` characters at most of each of its texts; what was cut is marked."""
    error = None if exit.error is None else _shorten_error(exit.error, limit)
    return replace(exit, error=error, stderr_tail=_shorten_tail(exit, limit))


def shorten_text(text: str, limit: int) -> str:
    """The beginning, and what tells a kind of failure."""
    cut = len(text) - limit
    if cut <= 0:
        return text
    head = text[:limit]
    found = (pattern.search(text) for pattern in _TELLING)
    telling = [
        match[0]
        for match in found
        if match is not None and match.end() > limit and len(match[0]) <= _TELLING_LENGTH
    ]
    return f"{head}{''.join(f'... {words} ' for words in telling)}... [{cut} characters cut]"


def _shorten_error(error: ErrorRecord, limit: int) -> ErrorRecord:
    return replace(
        error,
        type_name=error.type_name[:_NAME_LENGTH],
        message=shorten_text(error.message, limit),
        traceback=_shorten_traceback(error.traceback, limit),
        frame=error.frame[-_NAME_LENGTH:],
    )


def _shorten_traceback(text: str, limit: int) -> str:
    """The end, and the innermost frame that is not the standard library's."""
    if len(text) <= limit:
        return text
    kept_from = len(text) - limit
    line_begins = text.find("\n", kept_from - 1) + 1 if kept_from > 0 else 0
    kept_from = line_begins or kept_from
    frame = _innermost_frame(text)
    telling = f"{frame[0]}\n" if frame is not None and frame.start() < kept_from else ""
    return f"[{kept_from} characters cut]\n{telling}{text[kept_from:]}"


def _innermost_frame(text: str) -> re.Match[str] | None:
    frames = [
        match
        for match in signatures.TRACEBACK_FRAME.finditer(text)
        if not signatures.STANDARD_LIBRARY.search(match["path"])
    ]
    return frames[-1] if frames else None


def _shorten_tail(exit: RankExit, limit: int) -> tuple[str, ...]:
    """The last lines, and those by which the exit is judged."""
    lines = exit.stderr_tail
    if sum(map(len, lines)) <= limit:
        return lines
    kept = _telling_lines(exit)
    room = limit
    for place in range(len(lines) - 1, -1, -1):
        room -= len(lines[place])
        if room < 0:
            break
        kept.add(place)
    cut = len(lines) - len(kept)
    longest = max(limit, _TELLING_LENGTH)
    shown = tuple(shorten_text(lines[place], longest) for place in sorted(kept))
    return (f"[{cut} lines cut]", *shown) if cut else shown


def _telling_lines(exit: RankExit) -> set[int]:
    """Places of the lines that must stay; only an exit without an error record is judged by its stderr."""
    if exit.error is not None:
        return set()
    lines = [RANK_PREFIX.sub("", line) for line in exit.stderr_tail]
    places: tuple[int | None, ...] = ()
    if exit.exit_code == 1:
        places = (
            _first(place for place, line in enumerate(lines) if line.startswith(TRACEBACK_HEAD)),
            _last(place for place, line in enumerate(lines) if line.strip()),
            _last(place for place, line in enumerate(lines) if _innermost_frame(line) is not None),
        )
    elif exit.exit_code == -signal.SIGABRT:
        places = tuple(
            _first(place for place, line in enumerate(lines) if pattern.search(line)) for pattern in _TELLING
        )
    return {place for place in places if place is not None}


def _first(places: Iterable[int]) -> int | None:
    return next(iter(places), None)


def _last(places: Iterable[int]) -> int | None:
    return max(places, default=None)

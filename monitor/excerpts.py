"""Shortens what a rank left behind, so that it is still judged as before. Pure.

Of each text the end or the beginning is kept, and in any case what `ftrun.monitor.failures` looks for in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ftrun.monitor import failure_texts, signatures
from ftrun.monitor.case import RANK_PREFIX, TRACEBACK_HEAD
from ftrun.monitor.incident import ErrorRecord, RankExit

_NAME_LENGTH = 200
"""Characters of a class's name or of a frame: longer ones are no names."""
_TELLING_LENGTH = 500
"""Characters that are left of a line that must stay, whatever the limit is; a path may be as long."""

_TELLING = tuple(
    dict.fromkeys(
        [
            *(pattern for row in signatures.ALL for pattern in row.patterns),
            failure_texts.DAMAGE,
            failure_texts.MISFIT,
            failure_texts.NOT_ALLOWED,
            failure_texts.DCP_LOADER,
            failure_texts.LOADER,
            failure_texts.RANKS_THAT_FAILED,
        ]
    )
)

_FRAMES = (failure_texts.DCP_LOADER, failure_texts.LOADER, failure_texts.SAVER)
_LINES = tuple(row.line for row in signatures.SIGNALS if row.line is not None)

_Patterns = Sequence[re.Pattern[str]]


def shorten_exit(exit: RankExit, limit: int, resume_from: str = "") -> RankExit:
    """The exit with about `limit` characters at most of each of its texts; what was cut is marked.

    Where a text names `resume_from`, what the round began from, it still does so.
    """
    telling = (*_TELLING, re.compile(re.escape(resume_from))) if resume_from else _TELLING
    error = None if exit.error is None else _shorten_error(exit.error, limit, telling)
    return replace(exit, error=error, stderr_tail=_shorten_tail(exit, limit, telling[len(_TELLING) :]))


def shorten_text(text: str, limit: int, telling: _Patterns = _TELLING) -> str:
    """The beginning, and what tells a kind of failure."""
    cut = len(text) - limit
    if cut <= 0:
        return text
    head = text[:limit]
    found = (pattern.search(text) for pattern in telling)
    kept = [
        match[0]
        for match in found
        if match is not None and match.end() > limit and len(match[0]) <= _TELLING_LENGTH
    ]
    return f"{head}{''.join(f'... {words} ' for words in dict.fromkeys(kept))}... [{cut} characters cut]"


def _shorten_error(error: ErrorRecord, limit: int, telling: _Patterns) -> ErrorRecord:
    return replace(
        error,
        type_name=error.type_name[:_NAME_LENGTH],
        message=shorten_text(error.message, limit, telling),
        traceback=_shorten_traceback(error.traceback, limit, telling),
        frame=error.frame[-_NAME_LENGTH:],
    )


def _shorten_traceback(text: str, limit: int, telling: _Patterns) -> str:
    """The end, the innermost frame that is not the standard library's, and lines that tell a kind of failure.

    The frame comes last of what is put before the end, since it must stay the innermost.
    """
    if len(text) <= limit:
        return text
    kept_from = len(text) - limit
    line_begins = text.find("\n", kept_from - 1) + 1 if kept_from > 0 else 0
    kept_from = line_begins or kept_from
    matches = (pattern.search(text) for pattern in telling)
    found = [_line_at(text, match.start()) for match in matches if match is not None]
    lines = {start: line for start, line in found if start < kept_from}
    frame = _innermost_frame(text)
    if frame is not None and frame.start() < kept_from:
        lines[frame.start()] = frame[0]
    kept = "".join(f"{line[:_TELLING_LENGTH]}\n" for _, line in sorted(lines.items()))
    return f"[{kept_from} characters cut]\n{kept}{text[kept_from:]}"


def _line_at(text: str, place: int) -> tuple[int, str]:
    """The line around a place, and where it begins."""
    begin = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    return begin, text[begin : end if end >= 0 else len(text)]


def _innermost_frame(text: str) -> re.Match[str] | None:
    frames = [
        match
        for match in failure_texts.TRACEBACK_FRAME.finditer(text)
        if not failure_texts.STANDARD_LIBRARY.search(match["path"])
    ]
    return frames[-1] if frames else None


def _shorten_tail(exit: RankExit, limit: int, also: _Patterns) -> tuple[str, ...]:
    """The last lines, and those by which the exit is judged."""
    lines = exit.stderr_tail
    if sum(map(len, lines)) <= limit:
        return lines
    kept = _telling_lines(exit, also)
    room = limit
    for place in range(len(lines) - 1, -1, -1):
        room -= len(lines[place])
        if room < 0:
            break
        kept.add(place)
    cut = len(lines) - len(kept)
    longest = max(limit, _TELLING_LENGTH)
    telling = (*_TELLING, *also)
    shown = tuple(shorten_text(lines[place], longest, telling) for place in sorted(kept))
    return (f"[{cut} lines cut]", *shown) if cut else shown


def _telling_lines(exit: RankExit, also: _Patterns) -> set[int]:
    """Places of the lines that must stay; only an exit without an error record is judged by its stderr."""
    lines = [RANK_PREFIX.sub("", line) for line in exit.stderr_tail]

    def first_with(pattern: re.Pattern[str]) -> int | None:
        return _first(place for place, line in enumerate(lines) if pattern.search(line))

    places: list[int | None] = []
    if exit.error is not None:
        return set()
    if exit.exit_code < 0:
        places = [first_with(pattern) for pattern in _LINES]
    elif exit.exit_code == 1:
        places = [
            *(first_with(pattern) for pattern in (*_FRAMES, *also)),
            _first(place for place, line in enumerate(lines) if line.startswith(TRACEBACK_HEAD)),
            _last(place for place, line in enumerate(lines) if line.strip()),
            _last(place for place, line in enumerate(lines) if _innermost_frame(line) is not None),
        ]
    return {place for place in places if place is not None}


def _first(places: Iterable[int]) -> int | None:
    return next(iter(places), None)


def _last(places: Iterable[int]) -> int | None:
    return max(places, default=None)

"""The pure side of the workers' output: what is wanted of a stream, and how its bytes become lines.

Knows no file descriptors; `ftrun.launcher.output` does the reading and writing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ftrun.launcher.streams import Std

MAX_LINE_BYTES = 64 * 1024
"""A line longer than this is passed on in parts: a pipe's default capacity, so no reader waits for more."""
TAIL_LINES = 64
TAIL_BYTES = 8 * 1024
"""A Python traceback through torch is 20 to 50 lines of about 100 bytes."""


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Where one stream of one worker goes in one round."""

    local_rank: int
    stream: Std
    """Std.OUT or Std.ERR."""
    file: str | None = None
    """Gets the exact bytes."""
    to_console: bool = True
    prefix: str | None = None
    """Put before each line on the console; None passes the bytes on unchanged."""
    keep_tail: bool = False
    filters: tuple[str, ...] = ()
    """Lines of the console that contain one of these are copied to `filtered_file`."""
    filtered_file: str | None = None
    """May be shared by the streams of several ranks."""
    filtered_prefix: str = ""

    @property
    def has_filter(self) -> bool:
        """Lines may have to be copied; as in torch, filters see only what the console sees."""
        return self.to_console and self.filtered_file is not None and bool(self.filters)


class Route(Enum):
    """What a worker gets as its stdout or stderr."""

    INHERIT = "the agent's own stream"
    FILE = "the log file itself"
    DISCARD = "/dev/null"
    PUMP = "a pipe or terminal that the agent reads"


def choose_route(target: StreamTarget) -> Route:
    """Choose the most direct way that still does all that the target asks for.

    A stream that only goes to a file needs no pipe for its tail either: that is read from the file.
    """
    if target.to_console:
        is_plain = target.file is None and target.prefix is None
        return Route.INHERIT if is_plain and not target.keep_tail and not target.has_filter else Route.PUMP
    if target.file is not None:
        return Route.FILE
    return Route.PUMP if target.keep_tail else Route.DISCARD


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its terminator."""

    text: bytes
    is_overwritten: bool = False
    """It ended with a carriage return: on a terminal the next line takes its place (progress bars)."""


class LineAssembler:
    r"""Turns the chunks of one stream into lines, ended by `\n`, `\r\n` or, as progress bars do, by `\r`."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial = b""

    @property
    def has_partial(self) -> bool:
        """Text without a terminator is being held back."""
        return bool(self._partial)

    def feed(self, data: bytes) -> list[Line]:
        """Add a chunk and take the lines that it completes; a line that grows too long is taken in parts."""
        pieces = (self._partial + data).splitlines(keepends=True)
        self._partial = b""
        if pieces and not pieces[-1].endswith(b"\n"):
            # A lone "\r" at the end stays as well: "\n" may follow in the next chunk.
            self._partial = pieces.pop()
        lines = _to_lines(pieces)
        while len(self._partial) > self._max_line_bytes:
            cut = _character_boundary(self._partial, self._max_line_bytes)
            lines.append(Line(self._partial[:cut]))
            self._partial = self._partial[cut:]
        return lines

    def flush(self) -> list[Line]:
        """Take what is held back as a line of its own, at the end of the stream or when it has paused."""
        rest, self._partial = self._partial, b""
        return _to_lines([rest]) if rest else []


def _to_lines(pieces: Iterable[bytes]) -> list[Line]:
    lines = []
    for piece in pieces:
        text = piece.rstrip(b"\r\n")
        is_overwritten = piece.endswith(b"\r")
        # Progress bars begin with "\r" and are wiped with blanks: such pieces show nothing.
        if text.strip() or not is_overwritten:
            lines.append(Line(text, is_overwritten))
    return lines


def _character_boundary(data: bytes, limit: int) -> int:
    """Largest cut up to `limit` that leaves UTF-8 characters whole; `limit` itself for other encodings."""
    cut = limit
    while cut > limit - 4 and cut > 1 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return limit if data[cut] & 0xC0 == 0x80 else cut


def prefix_lines(lines: Iterable[Line], prefix: bytes) -> bytes:
    """Give each line its prefix and a newline."""
    return b"".join(b"%s%s\n" % (prefix, line.text) for line in lines)


class Tail:
    """The last lines of a stream, bounded in number and bytes, as they would stand on a terminal."""

    def __init__(self, max_lines: int = TAIL_LINES, max_bytes: int = TAIL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lines: deque[Line] = deque(maxlen=max_lines)

    def add(self, lines: Iterable[Line]) -> None:
        """Append lines; states of a progress bar replace one another instead of pushing out what matters."""
        for line in lines:
            if self._lines and self._lines[-1].is_overwritten:
                self._lines.pop()
            self._lines.append(Line(line.text[-self._max_bytes :], line.is_overwritten))
        while sum(len(line.text) for line in self._lines) > self._max_bytes:
            self._lines.popleft()

    def lines(self) -> tuple[str, ...]:
        """Return the lines, oldest first."""
        return tuple(line.text.decode(errors="replace") for line in self._lines)

"""Reads journals fast, as decoded lines: for folds over a million events of a thousand nodes.

`ftrun.monitor.journal` reads them as typed events, which takes ten times as long; what a line holds is
`ftrun.monitor.lines`'. Damaged lines are counted and skipped, as there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ftrun.monitor.journal import MAX_LINE_BYTES
from ftrun.monitor.life_fold import LifeFold
from ftrun.monitor.lines import Line
from ftrun.monitor.worker_lines import WORKER_LINES

_BLOCK_BYTES = 1 << 18
"""Decoded at once: a list of lines costs a third of what each by itself does."""


class Lines:
    """The lines of a journal in the order written; `skipped` counts those that could not be read.

    Iteration raises OSError when the file cannot be opened. A line that has no newline yet is one that is
    still being written, or was torn: it counts as skipped if it is no record.
    """

    def __init__(self, path: Path) -> None:
        self.skipped = 0
        self._path = path

    def __iter__(self) -> Iterator[Line]:
        self.skipped = 0
        for block in _blocks(self._path):
            lines, skipped = _decode(block)
            self.skipped += skipped
            yield from lines


def node_of(path: Path) -> str:
    """The node whose journal it is, as its first line has it that is not damaged; "" if none has.

    Raises:
        OSError: the file cannot be opened.
    """
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
            first = _decode_one(line)
            if isinstance(first, dict) and isinstance(first.get("node"), str):
                return str(first["node"])
    return ""


def lines_about(path: Path, rounds: Collection[int]) -> Iterator[Line]:
    """The lines of a journal, but for those that only say how workers of other rounds came and went.

    They are most of a long journal, and are passed over without decoding them.

    Raises:
        OSError: the file cannot be opened.
    """
    wanted = {b"%d" % one for one in rounds}
    for block in _blocks(path):
        end = 0
        for match in WORKER_LINES.finditer(block):
            if match[2] not in wanted:
                yield from _decode(block[end : match.start()])[0]
                end = match.end()
        yield from _decode(block[end:])[0]


def feed(path: Path, fold: LifeFold) -> int:
    """Give the fold all lines of a journal; returns how many could not be read.

    Raises:
        OSError: the file cannot be opened.
    """
    skipped = 0
    for block in _blocks(path):
        end = 0
        for match in WORKER_LINES.finditer(block):
            if match.start() > end:
                skipped += _feed_decoded(block[end : match.start()], fold)
            if not fold.take_workers(match[1], match[2], match[0]):
                skipped += _feed_decoded(match[0], fold)
            end = match.end()
        skipped += _feed_decoded(block[end:], fold)
    return skipped


def _feed_decoded(block: bytes, fold: LifeFold) -> int:
    lines, skipped = _decode(block)
    fold.take(lines)
    return skipped


def _decode(block: bytes) -> tuple[Sequence[Line], int]:
    """The lines of a block, and how many were none."""
    texts = [text for text in block.split(b"\n") if text and not text.isspace()]
    try:
        found = json.loads(b"[" + b",".join(texts) + b"]")
    except (ValueError, RecursionError):
        found = []
    if len(found) != len(texts):  # some line is damaged: two halves can even make a whole
        found = [_decode_one(text) for text in texts]
    lines = [line for line in found if type(line) is dict]
    return lines, len(texts) - len(lines)


def _decode_one(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _blocks(path: Path) -> Iterator[bytes]:
    """Whole lines, a newline before and after each; of one that is too long, what is no record."""
    rest = b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            rest += block
            end = rest.rfind(b"\n")
            if end > 0:
                yield rest[: end + 1]
                rest = rest[end:]
            if len(rest) > MAX_LINE_BYTES:
                rest = b"\n?"
    yield rest

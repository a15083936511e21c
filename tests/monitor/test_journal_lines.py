"""The fast reader of journals: every whole line, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.monitor import events as ev
from ftrun.monitor.events import Event
from ftrun.monitor.journal import MAX_LINE_BYTES
from ftrun.monitor.journal_lines import Lines, feed
from ftrun.monitor.life_fold import LifeFold, fold
from ftrun.monitor.lives import Life
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.worker_lines import WORKER_LINES
from tests.support.journals import JOURNALS

NOT_LINES = st.sampled_from(
    [
        b"{",
        b"}",
        b'"x"',
        b"7",
        b"null",
        b"[]",
        b'{"a":1',
        b'"b":2}',
        b"\xff\xfe",
        b'{"a":1},{"b":2}',
        b"]",
        b"[",
    ]
)


def read(path: Path, content: bytes) -> tuple[list[object], int]:
    """What is read of a file with this content, and how many lines were skipped."""
    path.write_bytes(content)
    lines = Lines(path)
    return list(lines), lines.skipped


@settings(max_examples=150)
@given(st.lists(st.one_of(st.integers(), NOT_LINES), max_size=30), st.booleans())
def test_damaged_lines_cost_only_themselves(
    tmp_path_factory: pytest.TempPathFactory, parts: list[int | bytes], is_torn: bool
) -> None:
    """Whatever stands between whole lines, they are all read, in order, and the others are counted."""
    path = tmp_path_factory.mktemp("journal") / "n.jsonl"
    written = [json.dumps({"n": part}).encode() if isinstance(part, int) else part for part in parts]
    content = b"\n".join(written) + (b'\n{"n":' if is_torn else b"\n")
    found, skipped = read(path, content)
    wanted = [part for part in parts if isinstance(part, int)]
    assert found == [{"n": number} for number in wanted]
    assert skipped == len(parts) - len(wanted) + is_torn


def test_two_halves_that_make_a_whole_are_two_damaged_lines(tmp_path: Path) -> None:
    """Lines are decoded together for speed, but never read as one."""
    assert read(tmp_path / "n.jsonl", b'{"a":1\n"b":2}\n{"c":3}\n') == ([{"c": 3}], 2)


def test_line_that_is_too_long_for_a_record_is_skipped(tmp_path: Path) -> None:
    """A foreign file does not fill the reader's memory; what follows is read."""
    content = b'{"a":1}\n' + b"x" * (3 * MAX_LINE_BYTES) + b'\n{"b":2}\n'
    found, skipped = read(tmp_path / "n.jsonl", content)
    assert found == [{"a": 1}, {"b": 2}]
    assert skipped > 0


def test_journal_may_grow_while_it_is_read_again(tmp_path: Path) -> None:
    """Each iteration reads anew; a last line without its newline counts if it is whole."""
    path = tmp_path / "n.jsonl"
    path.write_bytes(b'{"a":1}\n{"b"')
    lines = Lines(path)
    assert (list(lines), lines.skipped) == ([{"a": 1}], 1)
    path.write_bytes(b'{"a":1}\n{"b":2}')
    assert (list(lines), lines.skipped) == ([{"a": 1}, {"b": 2}], 0)


def test_more_lines_than_are_decoded_at_once(tmp_path: Path) -> None:
    """A journal of many chunks, one of them damaged."""
    count = 40_000
    content = b"".join(b'{"n":%d,"text":"some words of a line"}\n' % number for number in range(count))
    found, skipped = read(tmp_path / "n.jsonl", content + b"{\n")
    assert [line["n"] for line in found if isinstance(line, dict)] == list(range(count))
    assert skipped == 1


def test_missing_journal_is_an_error(tmp_path: Path) -> None:
    """It is raised when the reading begins."""
    with pytest.raises(FileNotFoundError):
        list(Lines(tmp_path / "none.jsonl"))


ROUNDS, NUMBERS, SECONDS = st.integers(0, 3), st.integers(-1, 9), st.one_of(st.floats(0, 90), st.just(1e-07))
WORKER_EVENTS = st.one_of(
    st.builds(ev.WorkerStarted, ROUNDS, NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.text(max_size=9)),
    st.builds(ev.WorkerProgressed, ROUNDS, NUMBERS, st.one_of(st.none(), NUMBERS), SECONDS),
    st.builds(
        ev.WorkerExited,
        ROUNDS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.integers(-9, 9),
        st.none(),
        st.booleans(),
        NUMBERS,
        st.one_of(st.none(), SECONDS),
        st.one_of(st.none(), NUMBERS),
        st.one_of(st.none(), SECONDS),
        st.lists(st.text(max_size=4), max_size=2).map(tuple),
    ),
)
OTHER_EVENTS = st.one_of(
    st.builds(ev.RoundStopped, ROUNDS, st.text(max_size=3), SECONDS),
    st.builds(
        ev.RunStarted, st.text(max_size=3), *[st.just(value) for value in ("s", 1, 1, "r", 7, "0", "3")]
    ),
    st.builds(lambda n: ev.RoundClosed(n, 4, n, "h", 9000 + n, None, None, ("n", "m"), ()), ROUNDS),
)
ROWS = st.one_of(
    st.lists(WORKER_EVENTS, max_size=4),
    st.builds(lambda event, count: [event] * count, WORKER_EVENTS, st.integers(1, 5)),
    OTHER_EVENTS.map(lambda event: [event]),
)


def both_ways(path: Path, content: bytes) -> tuple[tuple[Life, ...], tuple[Life, ...]]:
    """The lives in a journal, read in rows and decoded line by line."""
    path.write_bytes(content)
    fast = LifeFold()
    feed(path, fast)
    return fast.lives(), fold(Lines(path)).lives()


@settings(max_examples=200)
@given(
    st.lists(st.one_of(ROWS, NOT_LINES.map(lambda text: [text])), max_size=20),
    st.sampled_from(["n", 'n"', "n\\", "\u00e9"]),
)
def test_rows_of_workers_are_read_as_if_each_line_was_decoded(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[Event | bytes]], node: str
) -> None:
    """Whatever is in them, between them, or damaged."""
    parts = [part for row in rows for part in row]
    lines = [
        part if isinstance(part, bytes) else to_json(Record(1e9 + n, 5.5 + n / 7, node, part)).encode()
        for n, part in enumerate(parts)
    ]
    fast, slow = both_ways(tmp_path_factory.mktemp("journal") / "n.jsonl", b"\n".join(lines) + b"\n")
    assert fast == slow


@pytest.mark.parametrize(
    "path", sorted(JOURNALS.rglob("*.jsonl")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_recorded_journals_read_the_same_both_ways(path: Path, tmp_path: Path) -> None:
    """And most lines about workers are indeed found in rows."""
    fast, slow = both_ways(tmp_path / "n.jsonl", path.read_bytes())
    assert fast == slow
    content = b"\n" + path.read_bytes()
    found = sum(match[0].count(b"\n") for match in WORKER_LINES.finditer(content))
    assert found == content.count(b'"event":"worker.')

"""Lines, tails and routes of the workers' output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.output_lines import (
    Line,
    LineAssembler,
    Route,
    StreamTarget,
    Tail,
    choose_route,
    prefix_lines,
)
from ftrun.launcher.streams import Std


def texts(lines: list[Line]) -> list[bytes]:
    return [line.text for line in lines]


def test_a_line_is_taken_only_when_it_is_whole() -> None:
    """Text without a newline is held back, also over several chunks."""
    assembler = LineAssembler()
    assert assembler.feed(b"pro") == []
    assert assembler.feed(b"g0 ") == []
    assert assembler.has_partial
    assert texts(assembler.feed(b"done\nnext")) == [b"prog0 done"]
    assert texts(assembler.flush()) == [b"next"]
    assert not assembler.has_partial
    assert assembler.flush() == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\r10%\r20%\r30%\n", [b"10%", b"20%", b"30%"]),
        (b"10%\r   \rdone\n", [b"10%", b"done"]),
        (b"form\x0cfeed\x1cand\xc2\x85nel\n", [b"form\x0cfeed\x1cand\xc2\x85nel"]),
    ],
)
def test_terminators(data: bytes, expected: list[bytes]) -> None:
    """Newline, both together and carriage return end a line; a wiped progress bar shows nothing."""
    assert texts(LineAssembler().feed(data)) == expected


def test_a_carriage_return_and_a_newline_in_two_chunks_end_one_line() -> None:
    """A carriage return at the end of a chunk waits for the newline that may follow."""
    assembler = LineAssembler()
    assert assembler.feed(b"abc\r") == []
    assert texts(assembler.feed(b"\nx\n")) == [b"abc", b"x"]


def test_an_endless_line_is_taken_in_parts_between_characters() -> None:
    """A line beyond the limit is not held back for ever, and a UTF-8 character is not cut."""
    assembler = LineAssembler(max_line_bytes=8)
    parts = texts(assembler.feed("ääääääääää".encode() + b"x"))
    parts += texts(assembler.feed("€€€€€€".encode()))
    assert all(len(part) <= 8 for part in parts)
    assert b"".join(parts + texts(assembler.flush())).decode() == "ääääääääääx€€€€€€"
    assert all(part.decode() for part in parts)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_no_chunking_loses_a_byte_of_text(chunks: list[bytes]) -> None:
    """However the bytes arrive, the lines carry all of them but the terminators, in order."""
    data = b"".join(chunks).replace(b"\r", b"")
    assembler = LineAssembler(max_line_bytes=16)
    lines = [line for chunk in chunks for line in assembler.feed(chunk.replace(b"\r", b""))]
    joined = b"".join(line.text for line in lines + assembler.flush())
    assert joined == data.replace(b"\n", b"")
    assert all(b"\n" not in line.text for line in lines)


def test_each_line_gets_one_prefix_and_a_newline() -> None:
    """The prefix stands directly before the text, as in torchrun."""
    assert prefix_lines([Line(b"a"), Line(b"")], b"[default0]:") == b"[default0]:a\n[default0]:\n"


def test_tail_keeps_the_last_lines_within_its_bounds() -> None:
    """Both the number of lines and their bytes are bounded; the newest stay."""
    tail = Tail(max_lines=3, max_bytes=10)
    tail.add([Line(b"%d" % i) for i in range(9)])
    assert tail.lines() == ("6", "7", "8")
    tail.add([Line(b"12345"), Line(b"abcdef")])
    assert tail.lines() == ("abcdef",)
    tail.add([Line(b"x" * 30 + b"0123456789")])
    assert tail.lines() == ("0123456789",)


def test_a_progress_bar_does_not_push_the_traceback_out_of_the_tail() -> None:
    """States of a progress bar replace one another, as on a terminal."""
    assembler, tail = LineAssembler(), Tail(max_lines=4)
    tail.add(
        assembler.feed(b"Traceback\n" + b"".join(b"\r%d%%" % i for i in range(100)) + b"\nValueError: \xff\n")
    )
    assert tail.lines() == ("Traceback", "99%", "ValueError: \ufffd")


def target(**changes: object) -> StreamTarget:
    fields: dict[str, object] = {"local_rank": 0, "stream": Std.ERR, **changes}
    return StreamTarget(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "route"),
    [
        (target(), Route.INHERIT),
        (target(keep_tail=True), Route.PUMP),
        (target(file="f", to_console=False), Route.FILE),
        (target(file="f", to_console=False, keep_tail=True), Route.FILE),
        (target(file="f"), Route.PUMP),
        (target(prefix="[x]:"), Route.PUMP),
        (target(to_console=False), Route.DISCARD),
        (target(to_console=False, keep_tail=True), Route.PUMP),
        (target(filters=("a",), filtered_file="f"), Route.PUMP),
        (target(filters=("a",)), Route.INHERIT),
        (target(filtered_file="f"), Route.INHERIT),
        (target(filters=("a",), filtered_file="f", to_console=False), Route.DISCARD),
    ],
)
def test_the_most_direct_route_is_chosen(wanted: StreamTarget, route: Route) -> None:
    """A pipe is used only for what cannot be had without one."""
    assert choose_route(wanted) is route

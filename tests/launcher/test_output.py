"""The output pump on unusual consoles."""

from __future__ import annotations

import os
from pathlib import Path

from ftrun.launcher.output import OutputPump
from ftrun.launcher.output_lines import StreamTarget
from ftrun.launcher.streams import Std

DEADLINE_S = 20.0
PLAIN = StreamTarget(local_rank=0, stream=Std.OUT)
STDERR = StreamTarget(local_rank=0, stream=Std.ERR, keep_tail=True)


def teed(log: Path) -> StreamTarget:
    return StreamTarget(local_rank=1, stream=Std.OUT, file=str(log), prefix="[default1]:")


def test_a_console_closed_from_the_start_is_no_problem(tmp_path: Path) -> None:
    """`ftrun >&- 2>&-`: output goes to the files, plain streams to /dev/null."""
    closed = os.dup(0)
    os.close(closed)
    pump = OutputPump([].append, closed, closed)
    fds = [pump.open(PLAIN), pump.open(teed(tmp_path / "log")), pump.open(STDERR)]
    for fd in fds:
        os.write(fd, b"text\n")
        os.close(fd)
    assert pump.drain(DEADLINE_S)
    assert (tmp_path / "log").read_text() == "text\n"
    assert pump.tail(0) == ("text",)
    pump.close()


def test_a_console_may_be_a_regular_file_for_both_streams(tmp_path: Path) -> None:
    """`ftrun > log 2>&1` works; both streams may even be one descriptor."""
    with open(tmp_path / "console", "ab") as console:
        pump = OutputPump([].append, console.fileno(), console.fileno())
        for target in (teed(tmp_path / "log"), STDERR):
            fd = pump.open(target)
            os.write(fd, b"text\n")
            os.close(fd)
        assert pump.drain(DEADLINE_S)
        pump.close()
    assert sorted((tmp_path / "console").read_bytes().splitlines()) == [b"[default1]:text", b"text"]

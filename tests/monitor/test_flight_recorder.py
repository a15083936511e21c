"""Asking PyTorch's flight recorder for a dump, with a pipe made as ProcessGroupNCCL makes it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from ftrun.monitor.flight_recorder import PIPE_VARIABLES, ask_flight_recorder


@pytest.mark.parametrize("name", PIPE_VARIABLES)
def test_a_rank_that_listens_gets_a_wish(name: str, tmp_path: Path) -> None:
    """On the pipe of its own global rank."""
    prefix = f"{tmp_path}/fr_"
    for rank in (3, 4):
        os.mkfifo(f"{prefix}{rank}.pipe")
    readers = [os.open(f"{prefix}{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK) for rank in (3, 4)]
    assert ask_flight_recorder({name: prefix}, 4)
    assert os.read(readers[1], 128) == b"1\n"
    assert os.read(readers[0], 128) == b""
    for reader in readers:
        os.close(reader)


def test_without_a_pipe_that_is_read_nothing_is_asked(tmp_path: Path) -> None:
    """No variable, no pipe, a pipe left over from an ended job, a plain file, a link: false at once."""
    environ = {PIPE_VARIABLES[0]: f"{tmp_path}/fr_"}
    assert not ask_flight_recorder({}, 0)
    assert not ask_flight_recorder({PIPE_VARIABLES[0]: ""}, 0)
    assert not ask_flight_recorder(environ, 0)
    os.mkfifo(tmp_path / "fr_1.pipe")
    assert not ask_flight_recorder(environ, 1)
    (tmp_path / "fr_2.pipe").write_text("mine")
    assert not ask_flight_recorder(environ, 2)
    assert (tmp_path / "fr_2.pipe").read_text() == "mine"
    (tmp_path / "fr_3.pipe").symlink_to(tmp_path / "fr_2.pipe")
    assert not ask_flight_recorder(environ, 3)


def test_a_rank_that_takes_no_wishes_blocks_nobody(tmp_path: Path) -> None:
    """Its pipe is full; the wish is there."""
    path = tmp_path / "fr_0.pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    for piece in (bytes(65536), b"1"):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, piece)
    assert ask_flight_recorder({PIPE_VARIABLES[0]: f"{tmp_path}/fr_"}, 0)
    os.close(reader)
    os.close(writer)

"""Descriptors that the loop waits on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ftrun.launcher.watcher import Watcher

LONG_S = 30.0


@pytest.fixture
def watcher() -> Iterator[Watcher[str]]:
    watcher: Watcher[str] = Watcher()
    yield watcher
    watcher.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        os.close(fd)


def test_readable_source_is_reported_until_it_is_read(watcher: Watcher[str], pipe: tuple[int, int]) -> None:
    """Level-triggered: whoever does not read all is told again."""
    watcher.add(pipe[0], "pipe")
    assert watcher.wait(0) == []
    os.write(pipe[1], b"x")
    assert watcher.wait(LONG_S) == ["pipe"]
    assert watcher.wait(LONG_S) == ["pipe"]
    os.read(pipe[0], 1)
    assert watcher.wait(0) == []


def test_deadline_in_the_past_does_not_wait_for_ever(watcher: Watcher[str], pipe: tuple[int, int]) -> None:
    """A negative timeout means "now"; epoll itself would take it for "no limit"."""
    watcher.add(pipe[0], "pipe")
    assert watcher.wait(-5.0) == []


def test_removed_descriptor_is_not_reported(watcher: Watcher[str], pipe: tuple[int, int]) -> None:
    """Removing twice, or what was never added, or a closed socket's -1, is no error."""
    watcher.add(pipe[0], "pipe")
    os.write(pipe[1], b"x")
    watcher.remove(pipe[0])
    watcher.remove(pipe[0])
    watcher.remove(pipe[1])
    watcher.remove(-1)
    assert watcher.wait(0) == []


def test_number_that_is_given_away_again_belongs_to_the_new_source(watcher: Watcher[str]) -> None:
    """A descriptor that was removed before it was closed leaves nothing behind under its number."""
    first, first_end = os.pipe()
    watcher.add(first, "first")
    watcher.remove(first)
    os.close(first)
    second, second_end = os.pipe()
    assert second == first
    watcher.add(second, "second")
    os.write(second_end, b"x")
    assert watcher.wait(LONG_S) == ["second"]
    watcher.remove(second)
    for fd in (first_end, second, second_end):
        os.close(fd)


def test_end_of_a_process_is_reported_through_its_pidfd(watcher: Watcher[str]) -> None:
    """This is how a crash is seen: no interval is involved."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    pidfd = os.pidfd_open(child)
    watcher.add(pidfd, "child")
    assert watcher.wait(0) == []
    os.close(writing)
    assert watcher.wait(LONG_S) == ["child"]
    os.waitpid(child, 0)
    watcher.remove(pidfd)
    for fd in (pidfd, reading):
        os.close(fd)


def test_close_leaves_the_descriptors_open(pipe: tuple[int, int]) -> None:
    """They belong to their sources."""
    watcher: Watcher[str] = Watcher()
    watcher.add(pipe[0], "pipe")
    watcher.close()
    os.fstat(pipe[0])

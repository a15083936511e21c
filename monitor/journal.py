"""The journal of a node: an append-only file of JSON lines, written by the agent, read by everyone else.

Knows files, not meanings: the vocabulary is `ftrun.monitor.events`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ftrun.monitor.events import Event
from ftrun.monitor.records import Record, from_json, to_json

MAX_LINE_BYTES = 1 << 20
"""Longer lines are no records; keeps a foreign file from filling the reader's memory."""


class JournalError(Exception):
    """The journal cannot be kept where it was asked for."""


class Journal:
    """Appends events to one file, each with a single write().

    `clock` is CLOCK_MONOTONIC and `wall_clock` UTC epoch, both in seconds. Once it is open, nothing about the
    disk reaches the agent as an exception: a record that cannot be written is counted in `lost`, and
    `on_error` hears of the first one.

    Raises:
        JournalError: The directory or the file is a symbolic link, belongs to another user, can be written by
            others, or cannot be made.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        on_error: Callable[[str], None],
    ) -> None:
        self.path = path
        self.lost = 0
        self._node = node
        self._clock = clock
        self._wall_clock = wall_clock
        self._on_error = on_error
        make_private_directory(path.parent)
        self._fd = _open_private_file(path)
        self._is_torn = _lacks_newline(self._fd)

    def stamp(self, event: Event) -> Record:
        """The event as it would be written now."""
        return Record(ts=self._wall_clock(), at=self._clock(), node=self._node, event=event)

    def append(self, event: Event, *, durable: bool = False) -> Record:
        """Write the event and return its record; `durable` waits until it is on the disk (decisions)."""
        record = self.stamp(event)
        line = to_json(record).encode("ascii") + b"\n"
        try:
            self._write(line)
            if durable:
                os.fsync(self._fd)
        except OSError as error:
            self._report(error.strerror or str(error))
        return record

    def close(self) -> None:
        """Close the file; later events are lost."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: bytes) -> None:
        # A torn line is ended first, so that it costs one record and not two.
        data = b"\n" + line if self._is_torn else line
        written = os.write(self._fd, data)
        if written < len(data):
            self._is_torn = True
            self._report(f"only {written} of {len(data)} bytes could be written")
        else:
            self._is_torn = False

    def _report(self, problem: str) -> None:
        self.lost += 1
        if self.lost == 1:
            self._on_error(
                f"journal {self.path}: {problem}; the job goes on, but its record has gaps. "
                "Free some space or choose another directory with --ft-run-dir."
            )


class Reading:
    """The records of a journal in the order written; `skipped` counts the lines that were none."""

    def __init__(self, path: Path) -> None:
        self.skipped = 0
        self._path = path

    def __iter__(self) -> Iterator[Record]:
        self.skipped = 0
        with self._path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if not line.strip():
                    continue
                try:
                    record = from_json(line.decode())
                except (ValueError, RecursionError):
                    self.skipped += 1
                    continue
                yield record


def read(path: Path) -> Reading:
    """Iterate over a journal that may be growing, torn at its end or damaged; bad lines are skipped.

    Raises:
        OSError: on iteration, when the file cannot be opened.
    """
    return Reading(path)


def make_private_directory(path: Path) -> None:
    """Make sure that only this user can change what is in the directory (0700 if it is made here).

    An existing directory keeps its mode, since it may hold other things of the user's.

    Raises:
        JournalError: as for `Journal`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError as error:
        raise JournalError(
            f"run directory {path} cannot be made: {error.strerror or error}; "
            "choose another one with --ft-run-dir"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise JournalError(f"run directory {path} is {_what_is(status.st_mode)}; expected a directory itself")
    _check_owner(status, f"run directory {path}")


def _open_private_file(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        what = "is a symbolic link" if path.is_symlink() else f"cannot be opened: {error.strerror or error}"
        raise JournalError(f"journal {path} {what}; choose another directory with --ft-run-dir") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise JournalError(f"journal {path} is {_what_is(status.st_mode)}; expected a regular file")
        _check_owner(status, f"journal {path}")
    except JournalError:
        os.close(fd)
        raise
    return fd


def _check_owner(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise JournalError(
            f"{what} belongs to user {status.st_uid}, expected {os.geteuid()} (the user that runs ftrun); "
            "choose another directory with --ft-run-dir"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JournalError(
            f"{what} has mode {stat.S_IMODE(status.st_mode):04o}: others can write to it, so its contents "
            "cannot be trusted; run chmod go-w on it or choose another directory with --ft-run-dir"
        )


def _what_is(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a regular file" if stat.S_ISREG(mode) else f"a special file (mode {mode:o})"


def _lacks_newline(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"

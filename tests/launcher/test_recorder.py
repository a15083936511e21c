"""One event reaches the journal, the terminal and a third reader."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.launcher.recorder import Recorder
from ftrun.monitor import journal as journal_file
from ftrun.monitor.events import Event, RoundStopped, StoreFailed
from ftrun.monitor.journal import Journal
from ftrun.monitor.log import WARNING, configure
from ftrun.monitor.records import Record

NEWS = RoundStopped(0, "success", 0.5)


class Readers:
    """A recorder on a journal of its own, and all that was told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.text = io.StringIO()
        self.heard: list[Record] = []
        self.journal = Journal(path, "n0", lambda: 5.0, lambda: 1000.0, lambda error: None)
        self.record = Recorder(self.journal, configure("human", self.text, WARNING), self.heard.append)

    def journalled(self) -> list[Event]:
        return [record.event for record in journal_file.read(self._path)]


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    readers = Readers(tmp_path / "run" / "n0.jsonl")
    yield readers
    readers.journal.close()


def test_event_reaches_every_reader(readers: Readers) -> None:
    """Journal and third reader get the same record; the terminal shows what matters to a person."""
    trouble = StoreFailed("no torch")
    readers.record(NEWS, durable=True)
    readers.record(trouble)
    assert readers.journalled() == [NEWS, trouble]
    assert [record.event for record in readers.heard] == [NEWS, trouble]
    assert "no torch" in readers.text.getvalue()

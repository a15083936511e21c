"""One event reaches the journal, the terminal and a third reader, in order, from any thread."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.launcher.recorder import Recorder
from ftrun.monitor import journal as journal_file
from ftrun.monitor.events import Event, OutputDegraded, RoundStopped, StoreFailed
from ftrun.monitor.journal import Journal
from ftrun.monitor.log import WARNING, configure
from ftrun.monitor.records import Record

NEWS = RoundStopped(0, "success", 0.5)
DEADLINE_S = 10.0


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


def test_queued_event_is_written_before_the_next_one(readers: Readers) -> None:
    """Threads only queue: the agent's thread writes, in the order in which things became known."""
    queued = [OutputDegraded("console is gone"), StoreFailed("no torch")]
    for event in queued:
        readers.record.queue(event)
    assert readers.journalled() == []
    readers.record(NEWS)
    assert readers.journalled() == [*queued, NEWS]


def test_events_queued_by_many_threads_are_all_written_once(readers: Readers) -> None:
    """Nothing is lost or doubled while the agent writes at the same time."""
    threads = [
        threading.Thread(
            target=lambda n=n: [readers.record.queue(StoreFailed(f"{n}.{i}")) for i in range(50)]
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        readers.record(NEWS)
    for thread in threads:
        thread.join(DEADLINE_S)
    readers.record(NEWS)
    reasons = [event.reason for event in readers.journalled() if isinstance(event, StoreFailed)]
    assert sorted(reasons) == sorted(f"{n}.{i}" for n in range(4) for i in range(50))


def test_recorder_does_without_a_third_reader(tmp_path: Path) -> None:
    """torch elastic's event log is optional."""
    path = tmp_path / "n0.jsonl"
    journal = Journal(path, "n0", lambda: 5.0, lambda: 1000.0, lambda error: None)
    Recorder(journal, configure("human", io.StringIO(), WARNING), None)(NEWS)
    journal.close()
    assert [record.event for record in journal_file.read(path)] == [NEWS]

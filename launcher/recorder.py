"""One event, every reader: the journal, the terminal, torch elastic's event log. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from ftrun.monitor import events
from ftrun.monitor.journal import Journal
from ftrun.monitor.log import DETAIL, Terminal
from ftrun.monitor.records import Record


class Recorder:
    """Journals events and shows them."""

    def __init__(self, journal: Journal, terminal: Terminal, also: Callable[[Record], None] | None) -> None:
        self._journal = journal
        self._terminal = terminal
        self._observers = [] if also is None else [also]
        self._is_reduced = False

    def add(self, observer: Callable[[Record], None]) -> None:
        """Let `observer` see every record from now on."""
        self._observers.append(observer)

    def __call__(self, event: events.Event, durable: bool = False) -> None:
        """Journal `event`; a `durable` one is on the disk when this returns. The agent's thread only."""
        if self._is_reduced and isinstance(event, DETAIL):
            record = self._journal.stamp(event)
        else:
            record = self._journal.append(event, durable=durable)
        self._is_reduced |= isinstance(event, events.JournalReduced)
        self._terminal.show(record)
        for observer in self._observers:
            observer(record)

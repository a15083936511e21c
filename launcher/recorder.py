"""One event, every reader: the journal, the terminal, torch elastic's event log. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from ftrun.monitor import events
from ftrun.monitor.journal import Journal
from ftrun.monitor.log import Terminal
from ftrun.monitor.records import Record


class Recorder:
    """Journals events and shows them."""

    def __init__(self, journal: Journal, terminal: Terminal, also: Callable[[Record], None] | None) -> None:
        self._journal = journal
        self._terminal = terminal
        self._also = also

    def __call__(self, event: events.Event, durable: bool = False) -> None:
        """Journal `event`; a `durable` one is on the disk when this returns. The agent's thread only."""
        record = self._journal.append(event, durable=durable)
        self._terminal.show(record)
        if self._also is not None:
            self._also(record)

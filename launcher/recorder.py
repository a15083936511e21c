"""One event, every reader: the journal, the terminal, torch elastic's event log. Decides nothing.

Safe to call from helper threads (output pump, store): they only queue; the agent's loop writes.
"""

from __future__ import annotations

from collections import deque
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
        self._queued: deque[events.Event] = deque()

    def __call__(self, event: events.Event, durable: bool = False) -> None:
        """Journal `event`; a `durable` one is on the disk when this returns. The agent's thread only."""
        while self._queued:
            self._write(self._queued.popleft(), False)
        self._write(event, durable)

    def queue(self, event: events.Event) -> None:
        """Journal `event` with the next one; any thread."""
        self._queued.append(event)

    def _write(self, event: events.Event, durable: bool) -> None:
        record = self._journal.append(event, durable=durable)
        self._terminal.show(record)
        if self._also is not None:
            self._also(record)

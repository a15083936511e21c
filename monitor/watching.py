"""Looks at a run while it goes on, without its agents knowing: journals as they grow, and the ranks' pages.

A look costs the run nothing: journals are files, and a page is memory that is only read. Pages are those of
this machine; of nodes elsewhere there is what their journals say.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ftrun.monitor.departures import Witness, is_gone, take_on
from ftrun.monitor.history import Pulse
from ftrun.monitor.journal import MAX_LINE_BYTES
from ftrun.monitor.levels import Levels, RankLevel, rank_level
from ftrun.monitor.page import PageView
from ftrun.monitor.page_writer import PageError
from ftrun.monitor.present import PresentFold
from ftrun.monitor.records import from_json
from ftrun.monitor.run_directories import journals_in
from ftrun.monitor.runs import pulse_of_agent
from ftrun.monitor.status import NodeStatus, View, make_status

_RATE_OVER_S = 15.0
"""Long enough for slow steps, short enough to see a change."""
_MOST_AT_FIRST_BYTES = 8 << 20
"""Of a longer journal only the end is read whole, which takes a second to decode. Nearly all that holds now
is said there; of what comes before, lines with `_KEPT` are taken."""
_BLOCK_BYTES = 1 << 20
_KEPT = re.compile(
    rb'"event": ?"(?:(?:run|log|round|node|worker|standby|signal|hang|health)\.|restart\.decided")'
)
"""In lines whose word holds until another of the kind: of life, round, workers and findings. What grows with
the time that a job runs, as saves and progress do, is none of them."""
_PAGE_PATH = re.compile(r"/proc/(\d+)/fd/\d+")


class RunWatch:
    """A run that is looked at again and again.

    Args:
        name: of the run, for people.
        directory: its run directory.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._nodes: dict[Path, _NodeWatch] = {}

    def look(self) -> View:
        """How the run is now.

        Raises:
            OSError: a journal cannot be read.
        """
        for path in journals_in(self._directory):
            self._nodes.setdefault(path, _NodeWatch(path)).read_on()
        now_ts = time.time()
        newest = max(self._nodes.values(), key=lambda one: (bool(one.run_id), one.last_ts), default=None)
        witnesses = [one.witness for one in self._nodes.values()]
        shown = [one.status(now_ts, witnesses) for one in self._nodes.values() if one.has_begun]
        nodes = tuple(
            one
            for one in sorted(shown, key=lambda one: one.node)
            # The directory may hold earlier runs of nodes that have no part in this one.
            if newest is not None and (one.run_id in ("", newest.run_id) or not one.is_over)
        )
        return View(1, self._name, str(self._directory), now_ts, nodes)

    def close(self) -> None:
        """Let go of the pages."""
        for one in self._nodes.values():
            one.close()


class _NodeWatch:
    """One node's journal, and the pages of its ranks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fold = PresentFold()
        self.witness = Witness()
        self._offset = 0
        self._rest = b""
        self._pages: dict[tuple[int, str], PageView | None] = {}
        """By pid and path; None for one that cannot be read."""
        self._past: dict[int, deque[tuple[float, int]]] = {}
        """Time and steps of each pid's looks."""

    @property
    def run_id(self) -> str:
        return self._fold.now.run_id

    @property
    def last_ts(self) -> float:
        return self._fold.now.last_ts

    @property
    def has_begun(self) -> bool:
        """A line of it could be read, if not its first: that one may be damaged, and with it the run's id."""
        return bool(self._fold.now.node)

    def read_on(self) -> None:
        """Take the lines that have come since; one that is not whole yet waits for its end."""
        with self._path.open("rb") as file:
            if self._offset == 0:
                self._offset = self._skim(file, file.seek(0, 2) - _MOST_AT_FIRST_BYTES)
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self._take(line)

    def _skim(self, file: BinaryIO, end: int) -> int:
        """Take the lines up to `end` that still matter; returns where the first that it left begins."""
        at, rest = 0, b""
        file.seek(0)
        while at < end:
            data = file.read(min(_BLOCK_BYTES, end - at))
            at += len(data)
            whole, _, rest = (rest + data).rpartition(b"\n")
            for line in whole.split(b"\n") if _KEPT.search(whole) else ():
                if _KEPT.search(line):
                    self._take(line)
            if not data:
                break
            # No record is as long as that: its beginning can be let go.
            rest = rest[-MAX_LINE_BYTES:]
        return max(0, at - len(rest))

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):  # damaged, or the half of one
            record = from_json(line.decode())
            self._fold.take(record)
            self.witness = take_on(self.witness, record)

    def status(self, now_ts: float, witnesses: Sequence[Witness]) -> NodeStatus:
        """How it is now; of an agent elsewhere, all journals together say whether it is still there."""
        now, present = time.monotonic(), self._fold.now
        pulse = Pulse.GONE
        if present.exit_code is None:
            pulse = pulse_of_agent(present.node, present.agent_pid, self._path)
        if pulse is Pulse.UNKNOWN and is_gone(present.node, present.round, self.witness, witnesses, now_ts):
            pulse = Pulse.GONE
        levels = self._read_pages(now) if pulse is Pulse.ALIVE else None
        rates = (
            {}
            if levels is None
            else {one.rank: rate for one in levels.ranks if (rate := self._rate(one, now))}
        )
        return make_status(present, levels, now, now_ts, rates, is_gone=pulse is Pulse.GONE)

    def _read_pages(self, now: float) -> Levels | None:
        """None if none of the ranks' pages can be read here."""
        workers = self._fold.now.workers.values()
        wanted = {(one.pid, one.page) for one in workers}
        for key in [key for key in self._pages if key not in wanted]:
            self._close_page(key)
        ranks = []
        for one in workers:
            key = (one.pid, one.page)
            if key not in self._pages:
                self._pages[key] = _open_page(one.page, self._fold.now.agent_pid)
            page = self._pages[key]
            if page is not None:
                is_running = one.exit_code is None
                ranks.append(rank_level(one.rank, one.local_rank, one.pid, is_running, page.read()))
        return Levels(now, tuple(ranks)) if ranks or not workers else None

    def _rate(self, level: RankLevel, now: float) -> float | None:
        """Steps per second lately; None at the first look, and of a rank without a step in that time."""
        past = self._past.setdefault(level.pid, deque())
        past.append((now, level.steps))
        while now - past[0][0] > _RATE_OVER_S:
            past.popleft()
        spent_s, steps = now - past[0][0], level.steps - past[0][1]
        return steps / spent_s if spent_s > 0 and steps > 0 else None

    def _close_page(self, key: tuple[int, str]) -> None:
        page = self._pages.pop(key)
        self._past.pop(key[0], None)
        if page is not None:
            page.close()

    def close(self) -> None:
        for key in list(self._pages):
            self._close_page(key)


def _open_page(path: str, agent_pid: int) -> PageView | None:
    """None where it cannot be read, or is none: a journal is only text, and may name any path."""
    match = _PAGE_PATH.fullmatch(path)
    if match is None or int(match[1]) != agent_pid:
        return None
    try:
        return PageView.open(path)
    except (OSError, PageError):
        return None

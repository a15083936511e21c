"""The threads of an agent that is connected: one sends, one waits for plans and stops, the host's reads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from ftrun.launcher.exchange import Beats, Connected, Degraded, Published, Received, StoodStill, Stopped
from ftrun.launcher.message_codec import (
    MessageError,
    decode_awaited,
    decode_message,
    decode_publication,
    decode_stop,
)
from ftrun.launcher.messages import Agent, Awaited, JobPlan, Publication, Verdict
from ftrun.launcher.store_board import KEPT_ROUNDS, Board, unpack
from ftrun.launcher.store_inbox import Inbox
from ftrun.launcher.store_link import Link
from ftrun.launcher.store_session import Session

_WAIT_S = 30.0
"""One blocking wait; in between, firewalls that forget idle connections after minutes see some traffic."""
_AWAITED_AFTER_S = 3.0
_AWAITED_EVERY_S = 10.0
"""A round that takes longer to form is worth a look at what it waits for, and then one from time to time."""
_ON_ITS_WAY_S = 2.0
"""From when a host agent opens a round to when it says what closed the one before: one request."""

Request = Callable[[Board], None]


class Talk:
    """What one session says and hears. `put` and `watch` are for the agent's thread."""

    def __init__(self, session: Session, agent: Agent, interval_s: float) -> None:
        self._session = session
        self._agent = agent
        self._interval_s = interval_s
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._is_drained = threading.Event()
        self._watched: Sequence[str] = ()
        self._outlives_host = False
        self._is_host = False
        self._awaited: Awaited | None = None

    def put(self, request: Request) -> None:
        """Have the sender make this request, after those that were put before."""
        self._queue.put(request)

    def watch(self, incarnations: Sequence[str]) -> None:
        """Whose keep-alives to read."""
        self._watched = incarnations

    def begin(self, link: Link) -> None:
        """Announce this agent and start the threads.

        Raises:
            StoreError: the store failed.
        """
        board, session = link.board, self._session
        board.beat(self._agent.incarnation)
        self._outlives_host, self._is_host = link.outlives_host, link.is_host
        sequence = board.open_sequence()
        waiter = Board(link.open_client(), board.prefix)
        reader = Board(link.open_client(), board.prefix) if link.is_host else None
        last = self._read_publication(board, sequence - 1) if sequence > 0 else None
        plan = last if isinstance(last, JobPlan) else None
        session.is_established, session.is_over = True, isinstance(last, Verdict)
        session.post(Connected(link.hello, sequence, link.is_host, board.client.source, plan))
        if isinstance(last, Verdict):  # it was published while this agent was away: nothing follows it
            session.post(Published(sequence - 1, last))
        session.start("store-send", lambda: self._send(board, link.find_loss))
        session.start("store-wait", lambda: self._follow(waiter, sequence))
        if reader is not None:
            session.start("store-read", lambda: self._read(reader))

    def _read_publication(self, board: Board, sequence: int) -> Publication | None:
        # The next round is opened first; what closed this one is then on its way, or never comes.
        packed = board.wait_plan(sequence, _ON_ITS_WAY_S)
        try:
            return None if packed is None else decode_publication(unpack(packed))
        except MessageError as error:
            self._session.refuse(f"the host agent at {self._session.where} cannot be understood: {error}")
            return None

    def drain(self, timeout_s: float) -> None:
        """Wait until what was put has been sent; ends the epoch of a host agent whose store outlives it."""
        if self._session.is_established and not self._session.ended.is_set():
            if self._is_host and self._outlives_host:
                self.put(lambda board: board.client.set(board.key("ended"), "1"))
            self._queue.put(None)
            self._is_drained.wait(timeout_s)

    def _send(self, board: Board, find_loss: Callable[[Board], str]) -> None:
        clock = self._session.clock
        beat_at = clock() + self._interval_s
        try:
            while not self._session.ended.is_set():
                request = self._next_request(beat_at - clock())
                if clock() >= beat_at:
                    is_late = clock() > beat_at + self._interval_s
                    beat_at = clock() + self._interval_s
                    board.beat(self._agent.incarnation)
                    if is_late:
                        self._session.post(StoodStill())
                    reason = find_loss(board)
                    if reason:
                        self._session.lose(reason)
                if request is None:
                    board.beat(self._agent.incarnation)  # once it is answered, all before it was taken in
                    return
                request(board)
        finally:
            self._is_drained.set()

    def _next_request(self, timeout_s: float) -> Request | None:
        """What to ask next; after the time is over nothing, which is a request too."""
        try:
            return self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return _ask_nothing

    def _follow(self, board: Board, sequence: int) -> None:
        """Report each round's plan and end, until there is a verdict."""
        while (packed := self._wait_for_plan(board, sequence)) is not None:
            try:
                publication = decode_publication(unpack(packed))
                self._session.is_over = isinstance(publication, Verdict)
                self._session.post(Published(sequence, publication))
                if self._session.is_over:
                    return
                text = self._wait_for(board, board.wait_stop, sequence)
                if text is None:
                    return
                self._session.post(Stopped(sequence, decode_stop(text)))
            except MessageError as error:
                self._session.refuse(f"the host agent at {self._session.where} cannot be understood: {error}")
            sequence += 1

    def _wait_for_plan(self, board: Board, sequence: int) -> bytes | None:
        packed = board.wait_plan(sequence, _AWAITED_AFTER_S)
        if packed is not None:
            return packed

        def wait(sequence: int, timeout_s: float) -> bytes | None:
            self._look_at_awaited(board, sequence)
            return board.wait_plan(sequence, min(timeout_s, _AWAITED_EVERY_S))

        return self._wait_for(board, wait, sequence)

    def _look_at_awaited(self, board: Board, sequence: int) -> None:
        """Tell what the round waits for, when it is news; the host agent itself knows."""
        text = None if self._is_host else board.read_awaited(sequence)
        awaited = None if text is None else decode_awaited(text)
        if awaited is not None and (self._awaited is None or awaited.sentence != self._awaited.sentence):
            self._session.post(awaited)
        self._awaited = awaited

    def _wait_for(
        self, board: Board, wait: Callable[[int, float], bytes | None], sequence: int
    ) -> bytes | None:
        """Value of a key of that round; None if the session has ended."""
        while not self._session.ended.is_set():
            text = wait(sequence, _WAIT_S)
            if text is not None:
                return text
            if board.open_sequence() > sequence + KEPT_ROUNDS:  # its keys are gone
                self._session.lose(f"this agent has missed what came after round {sequence} of the store")
        return None

    def _read(self, board: Board) -> None:
        """Report what comes into the inbox, and each interval the keep-alives."""
        inbox, clock = Inbox(board, self._session.clock), self._session.clock
        beats_at = clock() + self._interval_s
        while not self._session.ended.is_set():
            # All are read before the first is told: the agent then takes a thousand joins at once.
            self._session.post(*map(_understand, inbox.read(max(0.0, beats_at - clock()))))
            if clock() >= beats_at:
                beats_at = clock() + self._interval_s
                if self._watched:
                    self._session.post(Beats(board.read_beats(self._watched)))


def _understand(text: bytes) -> Received | Degraded:
    try:
        return Received(decode_message(text))
    except MessageError as error:
        return Degraded(f"a message to the host agent cannot be understood: {error}")


def _ask_nothing(_: Board) -> None:
    pass

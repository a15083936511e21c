"""One connection of an agent to its job's store: its threads, and how all of it ends at once.

A session is lost as a whole: what one thread finds out ends the others, and no note follows the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ftrun.launcher.exchange import Lost, Mismatch, Note, Post, Waiting
from ftrun.launcher.store_client import Clock, StoreClient, StoreError

if TYPE_CHECKING:
    from torch.distributed import Store

_SECOND_LOOK_S = 0.3
"""After this process itself stood still, an answer may lie unread for a moment."""


class Session:
    """Everything that ends together. Made and ended on the agent's thread; the rest is for all threads."""

    def __init__(self, where: str, silence_s: float, post: Post, clock: Clock) -> None:
        self.where = where
        """The endpoint, for people."""
        self.clock = clock
        self.ended = threading.Event()
        self.is_established = False
        self.is_over = False
        """The verdict is known: the store may go."""
        self.server: Store | None = None
        """The store, if it is served here."""
        self._silence_s = silence_s
        self._post = post
        self._lock = threading.Lock()
        self._clients: list[StoreClient] = []
        self._threads: list[threading.Thread] = []
        self._reason = ""
        self._suspected_at: float | None = None

    def post(self, *notes: Note) -> None:
        """Tell the agent, unless the session has ended."""
        with self._lock:
            for note in notes:
                if not self.ended.is_set():
                    self._post(note)

    def tell_waiting(self, reason: str) -> None:
        """Why there is no store yet; told when it changes."""
        if reason != self._reason:
            self._reason = reason
            self.post(Waiting(reason))

    def lose(self, reason: str) -> None:
        """The store is gone."""
        self._end_with(Lost(reason))

    def refuse(self, reason: str) -> None:
        """This agent cannot take part."""
        self._end_with(Mismatch(reason))

    def _end_with(self, note: Note) -> None:
        with self._lock:
            if self.ended.is_set():
                return
            if not (self.is_over and isinstance(note, Lost)):
                self._post(note)
            self.ended.set()
        self._cut()

    def end(self) -> None:
        """No note follows; whatever is under way fails."""
        with self._lock:
            self.ended.set()
        self._cut()

    def _cut(self) -> None:
        for client in list(self._clients):
            client.cut()

    def adopt(self, client: StoreClient) -> StoreClient:
        """Make the connection end with the session."""
        with self._lock:
            self._clients.append(client)
        if self.ended.is_set():
            client.cut()
        return client

    def drop(self, client: StoreClient) -> None:
        """The connection is not needed any more."""
        client.cut()
        with self._lock:
            self._clients.remove(client)

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Run something in a thread; a store that fails in it is lost."""

        def guarded() -> None:
            try:
                run()
            except StoreError as error:
                self.lose(f"the store at {self.where} is gone: {error}")

        thread = threading.Thread(target=guarded, name=f"ftrun-{name}", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    @property
    def wanted_at(self) -> float | None:
        """When `check` is wanted; None while there is no connection."""
        if self.ended.is_set() or not self._clients:
            return None
        if self._suspected_at is not None:
            return self._suspected_at + _SECOND_LOOK_S
        return self._oldest_due_at(self.clock()) + self._silence_s

    def _oldest_due_at(self, now: float) -> float:
        due = [client.due_at for client in list(self._clients)]
        return min((at for at in due if at is not None), default=now)

    def check(self, now: float) -> None:
        """End the session if a request has been waiting for its answer for too long, at two looks."""
        silent_s = now - self._oldest_due_at(now)
        if self.ended.is_set() or silent_s < self._silence_s:
            self._suspected_at = None
        elif self._suspected_at is None:
            self._suspected_at = now
        elif now - self._suspected_at >= _SECOND_LOOK_S:
            self._suspected_at = None
            if self.is_established:
                self.lose(f"the store at {self.where} has not answered for {silent_s:.1f} s")
            else:
                self._cut()  # the thread that is about to connect tries again

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, so that none comes out of C++ while the interpreter ends.

        Python ends such a thread by unwinding it, at which C++ calls std::terminate: the process aborts.
        """
        give_up_at = self.clock() + timeout_s
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, give_up_at - self.clock()))

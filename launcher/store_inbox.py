"""Reads the host agent's inbox: everything that is there with few requests, and never waiting for a hole.

An agent first takes a number (one `add`) and then stores its message under it. If it dies in between, that
number stays empty: it is looked at again for a while, and then forgotten.
"""

from __future__ import annotations

from collections import deque

from ftrun.launcher.store_board import Board, find_present
from ftrun.launcher.store_client import Clock

_YOUNG_S = 2.0
"""A number that was taken so recently is probably being written just now."""
_YOUNG_WAIT_S = 0.02
_FORGET_S = 60.0
_DELETES = 256
"""At most per turn: each is a request, and the next message should not wait for many."""


class Inbox:
    """The inbox of one store, from its first message on."""

    def __init__(self, board: Board, clock: Clock) -> None:
        self._board = board
        self._clock = clock
        self._next = 0
        """First number that nobody had taken at the last look."""
        self._missing: dict[int, float] = {}
        """Numbers that were taken and have no message yet -> when that was first seen."""
        self._read: deque[str] = deque()
        """Keys of messages that were read and not deleted yet."""

    def read(self, timeout_s: float) -> list[bytes]:
        """Wait up to `timeout_s` for something new; what is there now, each sender's messages in order.

        Raises:
            StoreError: the store failed.
        """
        self._sweep()
        client = self._board.client
        if not self._read:  # otherwise there is something to do
            self._wait(timeout_s)
        count = client.add(self._board.key("inbox/count"), 0)
        now = self._clock()
        self._missing |= dict.fromkeys(range(self._next, count), now)
        self._next = count
        keys = {self._key(index): index for index in sorted(self._missing)}
        found = find_present(client, list(keys))
        texts = client.fetch(found) if found else []
        for key in found:
            del self._missing[keys[key]]
        self._read += found
        self._missing = {index: since for index, since in self._missing.items() if now - since < _FORGET_S}
        return texts

    def _key(self, index: int) -> str:
        return self._board.key(f"inbox/{index}")

    def _wait(self, timeout_s: float) -> None:
        now = self._clock()
        young = [index for index, since in self._missing.items() if now - since < _YOUNG_S]
        if young:  # the last one is probably written last
            self._board.client.wait(self._key(max(young)), min(timeout_s, _YOUNG_WAIT_S))
        else:
            self._board.client.wait(self._key(self._next), timeout_s)

    def _sweep(self) -> None:
        for _ in range(min(len(self._read), _DELETES)):
            self._board.client.delete(self._read.popleft())

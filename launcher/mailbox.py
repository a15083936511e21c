"""Messages from helper threads to the agent's loop: a queue that makes a descriptor readable."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """`post` from any thread, `take` on the agent's."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable when `take` has something."""
        return self._fd

    def post(self, item: Item) -> None:
        """Leave `item` for the agent; never waits."""
        self._items.append(item)
        with contextlib.suppress(BlockingIOError):  # full: it is readable then
            os.eventfd_write(self._fd, 1)

    def take(self) -> list[Item]:
        """All items left since the last call, oldest first."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Give the descriptor back; nobody posts any more."""
        os.close(self._fd)

"""What the agent's loop waits on: descriptors with the object each belongs to."""

from __future__ import annotations

import contextlib
import selectors
from typing import Generic, TypeVar

Source = TypeVar("Source")


class Watcher(Generic[Source]):
    """Level-triggered readiness (epoll) of descriptors, each known by its source."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, fd: int, source: Source) -> None:
        """Report `source` from `wait` whenever `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, source)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`, before it is closed; one that is not watched is no error."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def wait(self, timeout_s: float) -> list[Source]:
        """Sources that are readable, after at most `timeout_s`."""
        return [key.data for key, _ in self._selector.select(max(0.0, timeout_s))]

    def close(self) -> None:
        """Forget all descriptors; they stay open."""
        self._selector.close()

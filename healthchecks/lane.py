"""A thread that does one kind of reading, so that one that hangs holds that thread and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Lane(Generic[Request, Answer]):
    """Asks one source, one reading after the other, on a daemon thread that lives until `close`.

    The methods are for one thread at a time. What `read` does, children that it starts included, is of the
    lane's own thread, which lives as long as they are to.

    Args:
        name: of the thread.
        read: makes a reading, on the lane's thread.
        finish: called on the lane's thread when it ends by `close`.
    """

    def __init__(
        self, name: str, read: Callable[[Request], Answer], finish: Callable[[], None] | None = None
    ) -> None:
        self._read = read
        self._finish = finish
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Answer | None, str]] = SimpleQueue()
        self._asked_at: float | None = None
        self.failure = ""
        """Why `answer` gave None."""
        self._thread = threading.Thread(target=self._run, name=f"ftrun-health-{name}", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """A reading is under way, or nobody has asked for its answer."""
        return self._asked_at is not None

    def ask(self, request: Request) -> None:
        """Begin a reading, unless one before is still under way; an answer that has come too late is lost."""
        if self.is_busy:
            self.answer(0.0)
        if not self.is_busy:
            self._asked_at = monotonic()
            self._requests.put(request)

    def answer(self, timeout_s: float) -> Answer | None:
        """What the reading gave; None if it has failed, or has not ended within `timeout_s` seconds."""
        try:
            answer, self.failure = self._answers.get(timeout=max(timeout_s, 0.0))
        except Empty:
            asked_s = 0.0 if self._asked_at is None else monotonic() - self._asked_at
            self.failure = f"no answer after {asked_s:.1f} s"
            return None
        self._asked_at = None
        return answer

    def close(self) -> None:
        """End the thread after the reading under way; does not wait for it."""
        self._requests.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end after `close`, `timeout_s` seconds at most."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                self._answers.put((self._read(request), ""))
            except Exception as error:
                self._answers.put((None, f"the reading failed: {type(error).__name__}: {error}"))
        if self._finish is not None:
            self._finish()

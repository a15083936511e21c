"""Waiting for a condition that nothing announces."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 20.0


def until(
    is_reached: Callable[[], object], what: Callable[[], object], timeout_s: float = DEADLINE_S
) -> None:
    """Returns once it is reached; if it is not in time, the error says what `what` returns then."""
    deadline = time.monotonic() + timeout_s
    while not is_reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.002)

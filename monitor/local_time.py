"""Moments as people write them, in local time."""

from __future__ import annotations

import time
from collections.abc import Callable


def teller(reference_ts: float) -> Callable[[float], str]:
    """What tells UTC epoch as "17:04:12" if that is on the day of `reference_ts`, else as "11-30 17:04"."""
    day = time.localtime(reference_ts)[:3]

    def tell(ts: float) -> str:
        moment = time.localtime(ts)
        return time.strftime("%H:%M:%S" if moment[:3] == day else "%m-%d %H:%M", moment)

    return tell


def minute(ts: float) -> str:
    """ "2026-11-30 17:04"."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(ts))

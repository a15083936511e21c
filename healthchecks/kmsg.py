"""Reads the GPU driver's errors from the kernel log as they come. Judges nothing.

Format and behaviour: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import contextlib
import errno
import os

from ftrun.healthchecks.kernel_log import parse_xid
from ftrun.healthchecks.snapshots import XidEvent

_RECORD_BYTES = 8192
"""A read that is too short for a record fails."""
_MOST_AT_ONCE = 10_000
"""Records of one reading: a log that is written faster than it is read must not hold its reader."""


class KernelLog:
    """The kernel log from the moment on when this was made; containers and plain users mostly have none.

    Never waits. Methods are for one thread.

    Args:
        path: the log.
        from_start: read what it already holds, too.
    """

    def __init__(self, path: str = "/dev/kmsg", from_start: bool = False) -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not from_start:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    @property
    def is_readable(self) -> bool:
        """Whether there is a log that this user may read."""
        return self._fd >= 0

    def read(self, now: float) -> tuple[XidEvent, ...]:
        """Xids since the last call, oldest first.

        Args:
            now: CLOCK_MONOTONIC, seconds, for records without a time.
        """
        events: list[XidEvent] = []
        for _ in range(_MOST_AT_ONCE if self.is_readable else 0):
            record = self._next()
            if record is None:
                break
            lines = record.decode(errors="replace").splitlines()
            events += (event for line in lines if (event := parse_xid(line, now)) is not None)
        return tuple(events)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _next(self) -> bytes | None:
        """The next record; b"" where some were overwritten before they were read; None at the end."""
        try:
            return os.read(self._fd, _RECORD_BYTES) or None
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:
                return b""
            self.close()
            return None

"""The readings of one source that judges look back on: bounded, and not too close together. Pure."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """A reading."""

    @property
    def taken_at(self) -> float:
        """CLOCK_MONOTONIC, seconds."""


T = TypeVar("T", bound=Timed)


class History(Generic[T]):
    """Readings, oldest first; the newest one is always there.

    Judges take several bad readings in a row for a proof. Two that are a moment apart, as before two rounds
    that fail at once, are one look: a reading replaces the one before it if that came less than `spacing_s`
    after its own predecessor.

    Args:
        window_s: how far back readings are kept, seconds.
        spacing_s: least distance of readings but the newest, seconds.
    """

    def __init__(self, window_s: float, spacing_s: float = 2.0) -> None:
        self._window_s = window_s
        self._spacing_s = spacing_s
        self.recent: tuple[T, ...] = ()
        """Oldest first."""
        self.baseline: T | None = None
        """The first reading, however old."""

    def add(self, reading: T) -> None:
        """Take in a newer reading."""
        self.baseline = self.baseline or reading
        kept = self.recent
        if len(kept) > 1 and kept[-1].taken_at - kept[-2].taken_at < self._spacing_s:
            kept = kept[:-1]
        start = reading.taken_at - self._window_s
        # The last one before the window shows what a counter had when the window began.
        first = max((index for index, old in enumerate(kept) if old.taken_at <= start), default=0)
        self.recent = (*kept[first:], reading)

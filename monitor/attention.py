"""When the observer itself was looking: silence that nobody could have heard does not count.

Pure. An agent that was stopped, swapped out or moved with its machine must not condemn ranks on waking up.
Times are CLOCK_MONOTONIC seconds of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_MOST_GAPS = 16
"""Older gaps are joined, the time between them included: that can only make silences shorter."""


@dataclass(frozen=True, slots=True)
class Attention:
    """At which times an observer has not looked."""

    looked_at: float | None = None
    """Its last look; None before the first."""
    gaps: tuple[tuple[float, float], ...] = ()
    """Begin and end of each time without looks, in order."""

    def look(self, now: float, interval_s: float) -> Attention:
        """After a look at `now`, by an observer that means to look each `interval_s`.

        A look that comes more than an interval and a second late leaves a gap. From a clock that has gone
        back it goes on at the earlier time.
        """
        last = self.looked_at
        if last is None or now < last:
            return Attention(now, tuple((begin, min(end, now)) for begin, end in self.gaps if begin < now))
        if now - last <= 2.0 * interval_s + 1.0:
            return replace(self, looked_at=now)
        gaps = (*self.gaps, (last + interval_s, now))
        if len(gaps) > _MOST_GAPS:
            gaps = ((gaps[0][0], gaps[1][1]), *gaps[2:])
        return Attention(now, gaps)

    def silent_s(self, since: float, now: float) -> float:
        """Seconds from `since` to `now` without the gaps; never negative."""
        missed = sum(max(0.0, min(end, now) - max(begin, since)) for begin, end in self.gaps)
        return max(0.0, now - since - missed)

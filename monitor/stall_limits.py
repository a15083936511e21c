"""How long may the whole job be quiet? Fixed by the user, or learned from how quiet it was when it was well.

Pure. The quiet times come from `stall`.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_FLOOR_S = 60.0
OUTSIDE_S = 1800.0
"""While a rank waits for storage or for a child process. What they do is not seen: an upload, a queue for
other machines or an fsync over the network may take many minutes at any time, and what the job has done
before tells nothing of it. Half an hour is what PyTorch gives a collective of gloo by default."""
ENOUGH_GAPS = 3
"""Times that the job has gone from one progress to the next: what a step looks like is known then."""
ENOUGH_ACTIVE_S = 180.0
"""Or one such time and this long at work: steps may be slow."""


@dataclass(frozen=True, slots=True)
class StallLimits:
    """What the user wants. `fixed_s` wins over learning; with neither, there is no stall detection."""

    is_learning: bool = True
    fixed_s: float | None = None
    floor_s: float = STALL_FLOOR_S
    """No learned limit is below it, seconds."""
    safety_factor: float = 5.0
    initial_s: float | None = None
    """Until the job has made progress, or too little for learning; None for no limit until then."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a job has shown of itself since its first progress, over all its rounds."""

    longest_quiet_s: float = 0.0
    """Longest time without any sign after which the job made progress again."""
    gap_count: int = 0
    """How often progress was followed by progress."""
    active_s: float = 0.0
    """Seconds of that time with signs."""

    @property
    def is_enough(self) -> bool:
        """A limit may be built on it."""
        return self.gap_count >= ENOUGH_GAPS or (self.gap_count >= 1 and self.active_s >= ENOUGH_ACTIVE_S)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and where it comes from."""

    seconds: float
    origin: str


def limit_now(
    limits: StallLimits, learned: Learned, open_s: float, has_progressed: bool, is_outside: bool = False
) -> Limit | None:
    """The limit that holds now; None for none.

    `open_s` is the longest quiet time since the last progress: it lengthens the limit at once, although it is
    learned for good only when progress follows. `is_outside`: a rank waits for storage or a child process.
    """
    if limits.fixed_s is None and not limits.is_learning:
        return None
    if not has_progressed:
        return _initial(limits, "no rank has made progress yet")
    if limits.fixed_s is not None:
        return Limit(limits.fixed_s, "ftrun.timeouts.stall")
    if not learned.is_enough:
        return _initial(limits, "too little progress to learn from yet")
    limit = _learned(limits, max(learned.longest_quiet_s, open_s))
    if is_outside and limit.seconds < OUTSIDE_S:
        return Limit(OUTSIDE_S, "a rank waits for storage or a child process")
    return limit


def _initial(limits: StallLimits, why: str) -> Limit | None:
    if limits.initial_s is None:
        return None
    return Limit(limits.initial_s, f"fault_tolerance.initial_rank_heartbeat_timeout: {why}")


def _learned(limits: StallLimits, longest_s: float) -> Limit:
    scaled_s = limits.safety_factor * longest_s
    if scaled_s <= limits.floor_s:
        return Limit(
            limits.floor_s, f"the least that is learned; longest quiet time so far {longest_s:.1f} s"
        )
    return Limit(
        scaled_s,
        f"learned: safety factor {limits.safety_factor:g} x longest quiet time so far {longest_s:.1f} s",
    )

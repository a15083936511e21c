"""Does the whole job stand still? No rank shows any sign of progress for longer than this job ever has.

Pure. Looks at the signs of all ranks and learns from them how long this job is quiet when it is well. Limits
that are set for single ranks are `liveness`'s. Times are CLOCK_MONOTONIC seconds of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ftrun.monitor.attention import Attention
from ftrun.monitor.culprits import find_culprits
from ftrun.monitor.liveness import Rule, Verdict
from ftrun.monitor.rank_lists import name_ranks
from ftrun.monitor.rank_signs import Signs
from ftrun.monitor.stall_limits import Learned, Limit, StallLimits, limit_now

WINDOW_S = 5.0
"""How long CPU time and I/O are added up before they are compared with what an idle process uses."""
OUTSIDE_HOLDS_S = 5.0
"""How long a wait for storage or a child counts after it was last seen: fsync is awake now and then."""
WORKING_CPU_S = 0.25
"""5 % of a CPU over a window: above what threads that wait for the GIL, poll or report use (up to 2 %)."""
WORKING_IO_BYTES = 256 * 1024
"""Per window: above what a process reads and writes that reports its use of the system now and then."""


@dataclass(frozen=True, slots=True)
class StallState:
    """What the detector knows. Make a new one with `StallState()`; `begin_round` keeps what was learned."""

    attention: Attention = field(default_factory=Attention)
    ranks: Mapping[int, Signs] = field(default_factory=lambda: MappingProxyType({}))
    """The signs that each rank was last seen with."""
    windows: Mapping[int, Signs] = field(default_factory=lambda: MappingProxyType({}))
    """The signs with which each rank's window of CPU and I/O began."""
    quiet_since: float | None = None
    """When a rank last showed a sign; None before the first look of the round."""
    outside_at: float | None = None
    """When a rank was last seen to wait, at two looks in a row, for storage or a child process."""
    has_progressed: bool = False
    """Some rank has made progress in this round."""
    longest_open_s: float = 0.0
    """Longest quiet time since the job last made progress: not yet sure that the job was well."""
    learned: Learned = field(default_factory=Learned)

    def quiet_s(self, now: float) -> float:
        """Seconds for which no rank has shown a sign, as far as anybody looked."""
        return 0.0 if self.quiet_since is None else self.attention.silent_s(self.quiet_since, now)

    @property
    def is_outside(self) -> bool:
        """A rank waits for storage or a child process, as of the last look or a few seconds before it."""
        if self.outside_at is None or self.attention.looked_at is None:
            return False
        return self.attention.silent_s(self.outside_at, self.attention.looked_at) <= OUTSIDE_HOLDS_S


def begin_round(state: StallState) -> StallState:
    """The state for new workers: what was learned stays, unless the quiet time was the hang's own."""
    return StallState(learned=state.learned)


def observe(state: StallState, signs: Mapping[int, Signs], now: float, interval_s: float) -> StallState:
    """The state after a look at all ranks (by rank) at `now`, by an observer that looks each `interval_s`.

    Without any signs nothing was seen, and the time does not count.
    """
    if not signs:
        return state
    attention = state.attention.look(now, interval_s)
    windows = {rank: _window(state.windows.get(rank), one) for rank, one in signs.items()}
    ranks = {**state.ranks, **signs}
    has_sign = any(
        one.is_alive and _has_moved(state.ranks.get(rank), state.windows.get(rank), one)
        for rank, one in signs.items()
    )
    is_outside = any(_is_outside(state.ranks.get(rank), one) for rank, one in signs.items())
    outside_at = now if is_outside else state.outside_at
    quiet_since = now if state.quiet_since is None else min(state.quiet_since, now)
    # What is outside teaches nothing: it has a limit of its own, each time.
    teaches = has_sign and (outside_at is None or outside_at < quiet_since)
    quiet_s = attention.silent_s(quiet_since, now)
    observed = replace(
        state,
        attention=attention,
        ranks=MappingProxyType(ranks),
        windows=MappingProxyType({**state.windows, **windows}),
        quiet_since=now if has_sign else quiet_since,
        outside_at=outside_at,
        has_progressed=state.has_progressed or _progress_of(ranks) > 0,
        longest_open_s=max(state.longest_open_s, quiet_s) if teaches else state.longest_open_s,
    )
    return _learn(state, observed, now, has_sign)


def _is_outside(before: Signs | None, after: Signs) -> bool:
    """Whether a rank waits outside at two looks in a row: a single page that is read does not count."""
    is_outside = before is not None and before.is_waiting_outside and after.is_waiting_outside
    return after.is_alive and is_outside


def _learn(before: StallState, after: StallState, now: float, has_sign: bool) -> StallState:
    """What the look has taught: nothing before the round's first progress, which is like no later time."""
    if not before.has_progressed:
        return replace(after, longest_open_s=0.0)
    learned = before.learned
    looked_at = before.attention.looked_at
    if has_sign and looked_at is not None:
        learned = replace(learned, active_s=learned.active_s + after.attention.silent_s(looked_at, now))
    if _progress_of(after.ranks) <= _progress_of(before.ranks):
        return replace(after, learned=learned)
    longest = max(learned.longest_quiet_s, after.longest_open_s)
    learned = replace(learned, longest_quiet_s=longest, gap_count=learned.gap_count + 1)
    return replace(after, learned=learned, longest_open_s=0.0)


def _progress_of(ranks: Mapping[int, Signs]) -> int:
    """The job's progress: that of the rank which has most."""
    return max((one.progress_count for one in ranks.values()), default=0)


def _has_moved(before: Signs | None, window: Signs | None, after: Signs) -> bool:
    """Whether a rank has shown a sign since it was last seen; one that is seen for the first time has."""
    if before is None or window is None:
        return True
    return (
        after.progress_count > before.progress_count
        or after.bytecode_changes > before.bytecode_changes
        or _is_working(window, after)
    )


def _is_working(window: Signs, after: Signs) -> bool:
    """Whether CPU time or I/O since the window began is more than an idle process's."""
    io_bytes = (after.io_bytes or 0) - (window.io_bytes or 0)
    cpu_s = after.background_cpu_s - window.background_cpu_s
    is_comparable = after.tells_all == window.tells_all
    return is_comparable and (io_bytes >= WORKING_IO_BYTES or cpu_s >= WORKING_CPU_S)


def _window(window: Signs | None, after: Signs) -> Signs:
    """The window that goes on: a new one when it is over, when it has given its sign, or a counter fell."""
    if window is None or _is_working(window, after) or not 0 <= after.at - window.at < WINDOW_S:
        return after
    has_fallen = (after.io_bytes or 0) < (window.io_bytes or 0)
    has_fallen = has_fallen or after.background_cpu_s < window.background_cpu_s
    return after if has_fallen or after.tells_all != window.tells_all else window


def _limit_of(state: StallState, limits: StallLimits) -> Limit | None:
    return limit_now(limits, state.learned, state.longest_open_s, state.has_progressed, state.is_outside)


def judge(state: StallState, now: float, limits: StallLimits) -> Verdict | None:
    """Whether the job was hung at the last look; None if not, or if there is no limit to judge by."""
    limit = _limit_of(state, limits)
    if limit is None or not any(one.is_alive for one in state.ranks.values()):
        return None
    looked_at = state.attention.looked_at
    quiet_s = state.quiet_s(now if looked_at is None else min(now, looked_at))
    if quiet_s <= limit.seconds:
        return None
    suspicion = find_culprits(state.ranks, {}, now)
    sentence = (
        f"no rank has shown any sign of progress for {quiet_s:.1f} s "
        f"(steps, bytecode, file I/O, CPU time of children and helper threads); "
        f"the limit is {limit.seconds:g} s ({limit.origin})"
    )
    if ended := [rank for rank, one in state.ranks.items() if not one.is_alive]:
        sentence = f"{sentence}; {name_ranks(ended)} had ended before, with exit code 0"
    if suspicion.reason:
        sentence = f"{sentence}; {suspicion.reason}"
    return Verdict(Rule.STALL, None, suspicion.ranks, quiet_s, limit.seconds, limit.origin, sentence)


def next_judgement_at(state: StallState, limits: StallLimits) -> float | None:
    """When the limit passes if no sign comes before (CLOCK_MONOTONIC, seconds); None without a limit."""
    limit = _limit_of(state, limits)
    looked_at = state.attention.looked_at
    if limit is None or looked_at is None:
        return None
    return looked_at + max(0.0, limit.seconds - state.quiet_s(looked_at))

"""Is a rank still alive? The limits for single ranks: heartbeats, sections, time outside all sections.

Pure. That the whole job stands still is `stall`'s question, who is to blame is `culprits`'. Semantics of the
limits: nvidia-resiliency-ext's rank monitor, 0.4.1 to 0.7, with every open section counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ftrun.monitor.attention import Attention
from ftrun.monitor.culprits import Stack, find_culprits
from ftrun.monitor.heartbeats import STEP_SECTION, WARMUP_SECTION, RankHeartbeats, Timeouts
from ftrun.monitor.rank_signs import Signs

_ALWAYS = Attention()


class Rule(Enum):
    """Which limit was passed."""

    INITIAL = "initial"
    STEADY = "steady"
    SECTION = "section"
    OUT_OF_SECTION = "out_of_section"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A hang, and why it is one."""

    rule: Rule
    rank: int | None
    """The rank whose limit passed; None when it is the whole job's."""
    culprits: tuple[int, ...]
    """Ranks that the others probably wait for; none if nothing tells them apart."""
    silent_s: float
    limit_s: float
    limit_origin: str
    """The configuration key that set the limit, or how it was learned."""
    sentence: str
    """All of it for a person to read."""


@dataclass(frozen=True, slots=True)
class RunningLimit:
    """A limit that holds for a rank now, and since when it runs."""

    rule: Rule
    since: float
    limit_s: float
    origin: str
    what: str
    """What the rank has or has not done; begins a sentence that goes on with how long."""

    @property
    def ends_at(self) -> float:
        """When it passes if nothing comes before (CLOCK_MONOTONIC, seconds)."""
        return self.since + self.limit_s


def running_limits(
    heartbeats: RankHeartbeats, signs: Signs, job_moved_at: float | None = None
) -> tuple[RunningLimit, ...]:
    """All limits that hold for a rank now; none for one that has ended.

    `job_moved_at` is when any rank of the node last showed a sign of `stall`'s; None if that is not known.
    """
    if not signs.is_alive:
        return ()
    return (*_beat_limits(heartbeats, signs, job_moved_at), *_section_limits(heartbeats, signs))


def _beat_limits(
    heartbeats: RankHeartbeats, signs: Signs, job_moved_at: float | None
) -> Iterator[RunningLimit]:
    """Without a client of nvidia-resiliency-ext, progress is what counts; once one has left, no limit holds.

    A script that never said that it sends heartbeats makes optimizer steps only while it trains. In the rest
    of its time, such as an evaluation that the other ranks wait for, all that shows life counts.

    While it is there, progress prolongs the wait for its next heartbeat, but only its own first one ends the
    initial limit.
    """
    timeouts, begun, last_beat_at = heartbeats.timeouts, signs.started_at, signs.last_progress_at
    since, what = begun, "has shown no progress since it started"
    silence = "has sent no heartbeat and shown no progress"
    if heartbeats.initialized_at is not None:
        if not heartbeats.is_connected:
            return
        begun, last_beat_at = heartbeats.initialized_at, heartbeats.last_heartbeat_at
        since = max(begun, signs.last_progress_at or begun)
        what = "has sent no heartbeat since it initialized"
    elif last_beat_at is not None and job_moved_at is not None and not signs.has_client:
        last_beat_at = max(last_beat_at, job_moved_at)
        silence = "has made no step, and no rank has shown any sign of life,"
    if last_beat_at is not None:
        if timeouts.steady is not None:
            origin = _origin(timeouts, "steady", "rank_heartbeat_timeout")
            yield RunningLimit(Rule.STEADY, max(since, last_beat_at), timeouts.steady, origin, silence)
    elif timeouts.initial is not None:
        origin = _origin(timeouts, "initial", "initial_rank_heartbeat_timeout")
        yield RunningLimit(Rule.INITIAL, since, timeouts.initial, origin, what)


def _section_limits(heartbeats: RankHeartbeats, signs: Signs) -> Iterator[RunningLimit]:
    timeouts = heartbeats.timeouts
    sections = [(heartbeats.limit_name(section.name), section) for section in heartbeats.open_sections]
    sections += [(section.name, section) for section in signs.open_sections]
    for name, section in sections:
        limit_s = timeouts.sections.get(name)
        if limit_s is not None:
            origin = _origin(timeouts, f"section:{name}", f"rank_section_timeouts[{name}]")
            what = f"has been in section {section.name!r}"
            yield RunningLimit(Rule.SECTION, section.opened_at, limit_s, origin, what)
    since = None if sections else _outside_since(heartbeats, signs)
    if since is not None and timeouts.out_of_section is not None:
        origin = _origin(timeouts, "out_of_section", "rank_out_of_section_timeout")
        what = "has been outside all sections"
        yield RunningLimit(Rule.OUT_OF_SECTION, since, timeouts.out_of_section, origin, what)


def _outside_since(heartbeats: RankHeartbeats, signs: Signs) -> float | None:
    """When the rank left its last section, whichever client told; None if that is not judged."""
    of_session = heartbeats.last_section_closed_at
    if not heartbeats.is_connected or _is_before_first_step(heartbeats):
        of_session = None
    known = [closed_at for closed_at in (of_session, signs.section_closed_at) if closed_at is not None]
    return max(known, default=None)


def _is_before_first_step(heartbeats: RankHeartbeats) -> bool:
    """Warm-up that no section covers yet (nvidia-resiliency-ext 0.6 and later).

    Only where "step" can be opened: a script with other section names would never be watched otherwise.
    """
    names = heartbeats.timeouts.sections
    return STEP_SECTION in names and WARMUP_SECTION not in names and not heartbeats.has_seen_step_section


def _origin(timeouts: Timeouts, name: str, key: str) -> str:
    if name in timeouts.calculated:
        return f"calculated from this job's own intervals, for fault_tolerance.{key}"
    return f"fault_tolerance.{key}"


def judge_heartbeats(
    rank: int,
    heartbeats: RankHeartbeats,
    signs: Signs,
    now: float,
    attention: Attention = _ALWAYS,
    job_moved_at: float | None = None,
) -> Verdict | None:
    """Whether a limit of this rank has passed; if several have, the one that is exceeded by most.

    `attention`, which has looked at `now` too, says when nobody was looking; that time does not count.
    """
    worst: Verdict | None = None
    for limit in running_limits(heartbeats, signs, job_moved_at):
        silent_s = attention.silent_s(limit.since, now)
        excess_s = silent_s - limit.limit_s
        if excess_s > 0 and (worst is None or excess_s > worst.silent_s - worst.limit_s):
            sentence = (
                f"rank {rank} {limit.what} for {silent_s:.1f} s; "
                f"the limit is {limit.limit_s:g} s ({limit.origin})"
            )
            worst = Verdict(limit.rule, rank, (rank,), silent_s, limit.limit_s, limit.origin, sentence)
    return worst


def judge_ranks(
    heartbeats: Mapping[int, RankHeartbeats],
    signs: Mapping[int, Signs],
    now: float,
    attention: Attention = _ALWAYS,
    job_moved_at: float | None = None,
) -> Verdict | None:
    """Whether a limit of some rank has passed; of several ranks, the one that has been silent longest.

    The ranks that wait for a hung one are silent as well, a moment later or earlier, so the culprits are
    those that `find_culprits` tells from the others, and the rank itself only if it tells none.
    """
    found = [
        verdict
        for rank, state in heartbeats.items()
        if rank in signs
        and (verdict := judge_heartbeats(rank, state, signs[rank], now, attention, job_moved_at))
    ]
    if not found:
        return None
    return name_culprits(max(found, key=lambda verdict: verdict.silent_s), signs, {}, now)


def name_culprits(
    verdict: Verdict, signs: Mapping[int, Signs], stacks: Mapping[int, Stack], now: float
) -> Verdict:
    """The verdict with the ranks to blame, as far as signs and stacks (by rank) tell them apart."""
    suspicion = find_culprits(signs, stacks, now)
    if not suspicion.ranks:
        return verdict
    said = verdict.sentence.endswith(suspicion.reason)
    sentence = verdict.sentence if said else f"{verdict.sentence}; {suspicion.reason}"
    return replace(verdict, culprits=suspicion.ranks, sentence=sentence)


def next_check_at(
    heartbeats: Mapping[int, RankHeartbeats], signs: Mapping[int, Signs], job_moved_at: float | None = None
) -> float | None:
    """When the first limit of all passes if nothing comes before (CLOCK_MONOTONIC, s); None without any."""
    limits = (
        limit.ends_at
        for rank, state in heartbeats.items()
        if rank in signs
        for limit in running_limits(state, signs[rank], job_moved_at)
    )
    return min(limits, default=None)

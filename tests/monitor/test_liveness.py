"""When a single rank is taken for hung: heartbeats, sections, time outside sections; and when not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from ftrun.monitor.attention import Attention
from ftrun.monitor.heartbeats import (
    Heartbeat,
    HeartbeatUpdate,
    Init,
    Message,
    OpenSection,
    RankHeartbeats,
    Section,
    SectionAction,
    SectionUpdate,
    Timeouts,
    UpdateConfig,
    disconnect,
    receive,
)
from ftrun.monitor.liveness import Rule, Verdict, judge_heartbeats, judge_ranks, next_check_at
from ftrun.monitor.rank_signs import Signs

History: TypeAlias = Sequence[tuple[float, "Message | None"]]
"""Messages with the time of each; None for the end of the connection."""

BEAT, BYE = Heartbeat(), None
BEATS = Timeouts.from_config(60.0, 10.0, {}, None)
SECTIONS = Timeouts.from_config(None, None, {"outer": 30.0, "inner": 5.0, "free": None}, 8.0)
STEPS = Timeouts.from_config(None, None, {"step": 5.0, "setup": 50.0}, 8.0)
WARMUP = Timeouts.from_config(None, None, {"step": 5.0, "warmup": 40.0}, 8.0, warmup_iterations=2)


def opened(name: str, iteration: int | None = None) -> Section:
    return Section(name, SectionAction.OPEN, iteration)


def closed(name: str, iteration: int | None = None) -> Section:
    return Section(name, SectionAction.CLOSE, iteration)


ALL_CLOSED = Section("", SectionAction.CLOSE_ALL)


def after(timeouts: Timeouts, history: History) -> RankHeartbeats:
    state = RankHeartbeats(timeouts=timeouts)
    for at, message in history:
        state = disconnect(state) if message is None else receive(state, message, at)[0]
    return state


def signs(started_at: float = 0.0, progress_at: float | None = None, alive: bool = True) -> Signs:
    return Signs(
        at=0.0,
        started_at=started_at,
        progress_count=0 if progress_at is None else 1,
        last_progress_at=progress_at,
        is_alive=alive,
    )


def in_sections(closed_at: float | None, **opened_at: float) -> Signs:
    sections = tuple(OpenSection(name, at) for name, at in opened_at.items())
    return Signs(at=0.0, started_at=0.0, open_sections=sections, section_closed_at=closed_at)


CASES: dict[str, tuple[Timeouts, History, Signs, float, Rule | None]] = {
    # Nothing to judge by.
    "no limits, no client": (Timeouts(), [], signs(), 1e6, None),
    "no limits, silent client": (Timeouts(), [(0, Init())], signs(), 1e6, None),
    "ended rank": (BEATS, [(0, Init())], signs(alive=False), 1e6, None),
    "ended rank without client": (BEATS, [], signs(alive=False), 1e6, None),
    "ended rank in a section": (SECTIONS, [(0, Init()), (0, opened("inner"))], signs(alive=False), 1e6, None),
    # Initial, with a client.
    "first beat, just in time": (BEATS, [(5, Init())], signs(), 65.0, None),
    "first beat, late": (BEATS, [(5, Init())], signs(), 65.1, Rule.INITIAL),
    "first beat counts from Init, not from the start": (BEATS, [(500, Init())], signs(), 559.0, None),
    "initial off": (Timeouts.from_config(None, 10, {}, None), [(0, Init())], signs(), 1e6, None),
    "steady off, no beat": (
        Timeouts.from_config(60, None, {}, None), [(0, Init())], signs(), 61, Rule.INITIAL
    ),
    "a step prolongs the wait": (BEATS, [(0, Init())], signs(progress_at=50), 110.0, None),
    "a step does not end it": (BEATS, [(0, Init())], signs(progress_at=50), 61.0, None),
    "after a step silent for the initial limit": (
        BEATS, [(0, Init())], signs(progress_at=50), 110.1, Rule.INITIAL
    ),
    "a step before Init is the past": (BEATS, [(100, Init())], signs(progress_at=50), 160.1, Rule.INITIAL),
    "beat before Init is refused": (BEATS, [(0, BEAT), (5, Init())], signs(), 65.1, Rule.INITIAL),
    # Initial, without any client.
    "no client, in time": (BEATS, [], signs(started_at=3), 63.0, None),
    "no client, never moved": (BEATS, [], signs(started_at=3), 63.1, Rule.INITIAL),
    "no client, beat without Init": (BEATS, [(1, BEAT)], signs(started_at=3), 63.1, Rule.INITIAL),
    "no client, zero initial limit": (
        Timeouts.from_config(0.0, 0.0, {}, None), [], signs(started_at=3), 3.1, Rule.INITIAL
    ),
    # Steady, with a client.
    "second beat, just in time": (BEATS, [(0, Init()), (7, BEAT)], signs(), 17.0, None),
    "second beat, late": (BEATS, [(0, Init()), (7, BEAT)], signs(), 17.1, Rule.STEADY),
    "the latest beat counts": (BEATS, [(0, Init()), (7, BEAT), (16, BEAT)], signs(), 26.0, None),
    "steady off": (Timeouts.from_config(60, None, {}, None), [(0, Init()), (7, BEAT)], signs(), 1e6, None),
    "steady above initial": (
        Timeouts.from_config(5, 10, {}, None), [(0, Init()), (1, BEAT)], signs(), 10.9, None
    ),
    "a step is a beat": (BEATS, [(0, Init()), (7, BEAT)], signs(progress_at=12), 22.0, None),
    "a step is no eternal beat": (BEATS, [(0, Init()), (7, BEAT)], signs(progress_at=12), 22.1, Rule.STEADY),
    "an older step takes nothing away": (BEATS, [(0, Init()), (7, BEAT)], signs(progress_at=2), 17.0, None),
    # Steady, without any client.
    "no client, moves": (BEATS, [], signs(progress_at=100), 110.0, None),
    "no client, stopped moving": (BEATS, [], signs(progress_at=100), 110.1, Rule.STEADY),
    "no client, steady off": (Timeouts.from_config(60, None, {}, None), [], signs(progress_at=9), 1e6, None),
    "no client, sections mean nothing": (SECTIONS, [], signs(), 1e6, None),
    # Sessions.
    "client took its leave": (BEATS, [(0, Init()), (7, BEAT), (8, BYE)], signs(), 1e6, None),
    "client left before its first beat": (BEATS, [(0, Init()), (1, BYE)], signs(), 1e6, None),
    "client left, steps go on": (BEATS, [(0, Init()), (1, BYE)], signs(progress_at=5), 1e6, None),
    "client left inside a section": (
        SECTIONS, [(0, Init()), (1, opened("inner")), (2, BYE)], signs(), 1e6, None
    ),
    "client came back": (BEATS, [(0, Init()), (1, BEAT), (2, BYE), (50, Init())], signs(), 110.0, None),
    "client came back and hangs": (
        BEATS, [(0, Init()), (1, BEAT), (2, BYE), (50, Init())], signs(), 110.1, Rule.INITIAL
    ),
    "client came back, beats, hangs": (
        BEATS, [(0, Init()), (2, BYE), (50, Init()), (51, BEAT)], signs(), 61.1, Rule.STEADY
    ),
    "a second Init starts anew": (BEATS, [(0, Init()), (7, BEAT), (16, Init())], signs(), 76.0, None),
    "sections of the session before are gone": (
        SECTIONS, [(0, Init()), (1, opened("inner")), (2, BYE), (3, Init())], signs(), 10.9, None
    ),
    # One section.
    "in a section, in time": (SECTIONS, [(0, Init()), (2, opened("inner"))], signs(), 7.0, None),
    "in a section too long": (SECTIONS, [(0, Init()), (2, opened("inner"))], signs(), 7.1, Rule.SECTION),
    "section without a limit": (SECTIONS, [(0, Init()), (2, opened("free"))], signs(), 1e6, None),
    "beats do not excuse a section": (
        SECTIONS, [(0, Init()), (2, opened("inner")), (7, BEAT)], signs(), 7.1, Rule.SECTION
    ),
    "steps do not excuse a section": (
        SECTIONS, [(0, Init()), (2, opened("inner"))], signs(progress_at=7), 7.1, Rule.SECTION
    ),
    "section closed in time": (
        SECTIONS, [(0, Init()), (2, opened("inner")), (6, closed("inner"))], signs(), 14.0, None
    ),
    "unknown section opens nothing": (SECTIONS, [(0, Init()), (2, opened("typo"))], signs(), 8.0, None),
    "unknown section leaves the rest watched": (
        SECTIONS, [(0, Init()), (2, opened("typo"))], signs(), 8.1, Rule.OUT_OF_SECTION
    ),
    "opening twice does not restart it": (
        SECTIONS, [(0, Init()), (2, opened("inner")), (6, opened("inner"))], signs(), 7.1, Rule.SECTION
    ),
    "opened again after a close": (
        SECTIONS, [(0, Init()), (1, opened("inner")), (3, closed("inner")), (4, opened("inner"))],
        signs(), 9.0, None
    ),
    # Nested sections.
    "inner fresh, outer overdue": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (30, opened("inner"))], signs(), 31.1, Rule.SECTION
    ),
    "inner overdue, outer fresh": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (2, opened("inner"))], signs(), 7.1, Rule.SECTION
    ),
    "both in time": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (26, opened("inner"))], signs(), 31.0, None
    ),
    "inner closed, outer goes on": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (2, opened("inner")), (3, closed("inner"))],
        signs(), 31.0, None
    ),
    "inner closed, outer overdue": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (2, opened("inner")), (3, closed("inner"))],
        signs(), 31.1, Rule.SECTION
    ),
    "outer closed first, inner overdue": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (2, opened("inner")), (3, closed("outer"))],
        signs(), 7.1, Rule.SECTION
    ),
    "an unlimited section hides nothing": (
        SECTIONS, [(0, Init()), (1, opened("inner")), (2, opened("free"))], signs(), 6.1, Rule.SECTION
    ),
    "all closed at once": (
        SECTIONS, [(0, Init()), (1, opened("outer")), (2, opened("inner")), (3, ALL_CLOSED)],
        signs(), 11.0, None
    ),
    # Outside all sections.
    "outside since Init, in time": (SECTIONS, [(4, Init())], signs(), 12.0, None),
    "outside since Init, too long": (SECTIONS, [(4, Init())], signs(), 12.1, Rule.OUT_OF_SECTION),
    "outside since the last close": (
        SECTIONS, [(0, Init()), (2, opened("inner")), (6, closed("inner"))], signs(), 14.1,
        Rule.OUT_OF_SECTION
    ),
    "inside a section is not outside": (SECTIONS, [(0, Init()), (1, opened("outer"))], signs(), 30.0, None),
    "outside off": (
        Timeouts.from_config(None, None, {"a": 1.0}, None), [(0, Init())], signs(), 1e6, None
    ),
    "outside, although no sections are configured": (
        Timeouts.from_config(None, None, {}, 8.0), [(0, Init())], signs(), 8.1, Rule.OUT_OF_SECTION
    ),
    "wrong close leaves the time running": (
        SECTIONS, [(0, Init()), (7, closed("inner"))], signs(), 8.1, Rule.OUT_OF_SECTION
    ),
    # The names with a meaning: step and warmup.
    "before the first step, outside is not judged": (STEPS, [(0, Init())], signs(), 1e6, None),
    "other sections do not begin it": (
        STEPS, [(0, Init()), (1, opened("setup")), (2, closed("setup"))], signs(), 1e6, None
    ),
    "after the first step it is": (
        STEPS, [(0, Init()), (1, opened("step")), (2, closed("step"))], signs(), 10.1, Rule.OUT_OF_SECTION
    ),
    "a new session waits for its own first step": (
        STEPS, [(0, Init()), (1, opened("step")), (2, BYE), (3, Init())], signs(), 1e6, None
    ),
    "setup has its limit before the first step": (
        STEPS, [(0, Init()), (1, opened("setup"))], signs(), 51.1, Rule.SECTION
    ),
    "with warmup configured, outside is judged at once": (
        WARMUP, [(0, Init())], signs(), 8.1, Rule.OUT_OF_SECTION
    ),
    "first step has the limit of warmup": (
        WARMUP, [(0, Init()), (1, opened("step", 100))], signs(), 41, None
    ),
    "first step has no more than that": (
        WARMUP, [(0, Init()), (1, opened("step", 100))], signs(), 41.1, Rule.SECTION
    ),
    "a later step has its own limit": (
        WARMUP, [(0, Init()), (1, opened("step", 100)), (2, closed("step", 100)), (3, opened("step", 102))],
        signs(), 8.1, Rule.SECTION
    ),
    "a client that sends no iteration has no warmup": (
        WARMUP, [(0, Init()), (1, opened("step"))], signs(), 6.1, Rule.SECTION
    ),
    "the client says how long warmup is": (
        WARMUP, [(0, Init(warmup_iterations=0)), (1, opened("step", 100))], signs(), 6.1, Rule.SECTION
    ),
    # Sections of ftrun's own client, which come by the page.
    "own section, in time": (SECTIONS, [], in_sections(2.0, inner=2.0), 7.0, None),
    "own section too long": (SECTIONS, [], in_sections(None, inner=2.0), 7.1, Rule.SECTION),
    "own outer section overdue, inner fresh": (
        SECTIONS, [], in_sections(None, outer=1.0, inner=30.0), 31.1, Rule.SECTION
    ),
    "own section without a limit": (SECTIONS, [], in_sections(None, free=2.0), 1e6, None),
    "own section of an unknown name": (SECTIONS, [], in_sections(2.0, typo=2.0), 1e6, None),
    "outside own sections, none used so far": (SECTIONS, [], in_sections(None), 1e6, None),
    "outside own sections, in time": (SECTIONS, [], in_sections(4.0), 12.0, None),
    "outside own sections too long": (SECTIONS, [], in_sections(4.0), 12.1, Rule.OUT_OF_SECTION),
    "outside for one client, inside for the other": (
        SECTIONS, [(0, Init())], in_sections(None, outer=1.0), 9.0, None
    ),
    "outside counts from the last close of any client": (
        SECTIONS, [(0, Init())], in_sections(4.0), 12.0, None
    ),
    # Limits that the client calculated.
    "calculated limits replace the configured ones": (
        BEATS, [(0, Init()), (1, UpdateConfig(HeartbeatUpdate(9, 3, True))), (2, BEAT)], signs(), 5.1,
        Rule.STEADY
    ),
    "and may be longer": (
        BEATS, [(0, Init()), (1, UpdateConfig(HeartbeatUpdate(90, 30, True))), (2, BEAT)], signs(), 32.0, None
    ),
    "a calculated section limit": (
        SECTIONS,
        [
            (0, Init()),
            (1, UpdateConfig(None, SectionUpdate({"inner": 2.0}, 8.0, frozenset({"inner"}), False))),
            (2, opened("inner")),
        ],
        signs(), 4.1, Rule.SECTION
    ),
    # Clocks.
    "now before the last beat": (BEATS, [(0, Init()), (100, BEAT)], signs(), 50.0, None),
    "now before the start": (BEATS, [], signs(started_at=100), 0.0, None),
    "now before the section opened": (SECTIONS, [(50, Init()), (60, opened("inner"))], signs(), 1.0, None),
    "progress in the future": (BEATS, [(0, Init())], signs(progress_at=1e3), 500.0, None),
}  # fmt: skip


@pytest.mark.parametrize(("timeouts", "history", "sign", "now", "rule"), CASES.values(), ids=CASES.keys())
def test_rank_is_judged(
    timeouts: Timeouts, history: History, sign: Signs, now: float, rule: Rule | None
) -> None:
    """Each limit condemns right after it has passed and never before."""
    verdict = judge_heartbeats(3, after(timeouts, history), sign, now)
    assert (verdict.rule if verdict else None) is rule


def judged(timeouts: Timeouts, history: History, now: float, attention: Attention | None = None) -> Verdict:
    verdict = judge_heartbeats(3, after(timeouts, history), signs(), now, attention or Attention())
    assert verdict is not None
    return verdict


def test_verdict_says_why() -> None:
    """The sentence has the rank, what it did not do, how long, the limit, and the key that set it."""
    verdict = judged(BEATS, [(0, Init()), (7, BEAT)], 20.5)
    assert (verdict.rank, verdict.culprits, verdict.silent_s, verdict.limit_s) == (3, (3,), 13.5, 10.0)
    assert verdict.limit_origin == "fault_tolerance.rank_heartbeat_timeout"
    assert verdict.sentence == (
        "rank 3 has sent no heartbeat and shown no progress for 13.5 s; "
        "the limit is 10 s (fault_tolerance.rank_heartbeat_timeout)"
    )


def test_verdict_names_the_section() -> None:
    """Of nested sections the one that is over its limit is named, not the one opened last."""
    verdict = judged(SECTIONS, [(0, Init()), (1, opened("outer")), (30, opened("inner"))], 32)
    assert "in section 'outer'" in verdict.sentence
    assert verdict.limit_origin == "fault_tolerance.rank_section_timeouts[outer]"


def test_warming_up_step_names_the_warmup_limit() -> None:
    """The origin is the key whose value held, also where that is another section's."""
    verdict = judged(WARMUP, [(0, Init()), (1, opened("step", 1))], 50)
    assert "in section 'step'" in verdict.sentence
    assert verdict.limit_origin == "fault_tolerance.rank_section_timeouts[warmup]"


def test_calculated_limit_says_so() -> None:
    """A limit that the client calculated is not blamed on the configuration."""
    history: History = [(0, Init()), (1, UpdateConfig(HeartbeatUpdate(9, 3, True))), (2, BEAT)]
    assert judged(BEATS, history, 6).limit_origin.startswith("calculated from this job's own intervals")


def test_limit_exceeded_by_most_is_named() -> None:
    """When several limits have passed, the verdict is about the worst."""
    both = Timeouts.from_config(None, None, {"outer": 30.0, "inner": 5.0}, None)
    verdict = judged(both, [(0, Init()), (0, opened("outer")), (10, opened("inner"))], 31)
    assert "'inner'" in verdict.sentence


def test_time_without_observer_does_not_count() -> None:
    """An agent that was stopped for a minute does not condemn ranks on waking up, nor ever after."""
    attention = Attention().look(8, 1).look(70, 1)
    state = after(BEATS, [(0, Init()), (7, BEAT)])
    assert judge_heartbeats(3, state, signs(), 70, attention) is None
    assert judge_heartbeats(3, state, signs(), 77.9, attention) is None
    verdict = judge_heartbeats(3, state, signs(), 78.1, attention)
    assert verdict is not None
    assert verdict.silent_s == pytest.approx(10.1)


@pytest.mark.parametrize(
    ("moved_at", "has_client", "now", "rule"),
    [
        (120.0, False, 130.0, None),
        (120.0, False, 130.1, Rule.STEADY),
        (90.0, False, 110.0, None),
        (90.0, False, 110.1, Rule.STEADY),
        (120.0, True, 110.1, Rule.STEADY),
    ],
)
def test_rank_that_never_sent_heartbeats_is_judged_by_all_signs(
    moved_at: float, has_client: bool, now: float, rule: Rule | None
) -> None:
    """Between two steps at 100 s and none after, some rank evaluated; a client of either kind is strict."""
    one = replace(signs(progress_at=100.0), has_client=has_client)
    verdict = judge_ranks({0: after(BEATS, [])}, {0: one}, now, job_moved_at=moved_at)
    assert (verdict.rule if verdict else None) is rule
    beaten = after(BEATS, [(0, Init()), (100, BEAT)])
    assert judge_heartbeats(0, beaten, one, 110.1, job_moved_at=moved_at) is not None
    ends_at = max(100.0, 0.0 if has_client else moved_at) + 10.0
    assert next_check_at({0: after(BEATS, [])}, {0: one}, moved_at) == ends_at


def test_first_step_has_its_limit_whatever_moves() -> None:
    """A start that imports for ever is what the initial limit is for."""
    verdict = judge_heartbeats(0, after(BEATS, []), signs(), 60.1, job_moved_at=60.0)
    assert verdict is not None
    assert verdict.rule is Rule.INITIAL


def stopped(one: Signs) -> Signs:
    return Signs(at=one.at, started_at=0.0, last_progress_at=one.last_progress_at, process_state="T")


def test_rank_that_others_wait_for_is_the_culprit() -> None:
    """The rank that beats last is overdue last, and still is named if it is the one that was stopped."""
    state = {0: after(BEATS, [(0, Init()), (7, BEAT)]), 1: after(BEATS, [(0, Init()), (8, BEAT)])}
    verdict = judge_ranks(state, {0: signs(), 1: stopped(signs())}, 17.5)
    assert verdict is not None
    assert (verdict.rank, verdict.culprits) == (0, (1,))
    assert verdict.sentence.endswith("rank 1 is stopped by a signal or a debugger (state T)")


def test_longest_silent_rank_is_judged() -> None:
    """Without a telling difference the rank that has been silent longest stands for all."""
    state = {0: after(BEATS, [(0, Init()), (7, BEAT)]), 1: after(BEATS, [(0, Init()), (6, BEAT)])}
    verdict = judge_ranks(state, {0: signs(), 1: signs()}, 30)
    assert verdict is not None
    assert (verdict.rank, verdict.culprits) == (1, (1,))


def test_rank_without_signs_is_not_judged() -> None:
    """What could not be read is no hang."""
    assert judge_ranks({0: after(BEATS, [])}, {}, 1e6) is None
    assert judge_ranks({}, {}, 1e6) is None


def test_next_check_is_the_first_limit() -> None:
    """The time to look again is when the first of all limits passes, and none when there is none."""
    state = {0: after(BEATS, [(0, Init()), (7, BEAT)]), 1: after(SECTIONS, [(3, Init())])}
    assert next_check_at(state, {0: signs(), 1: signs()}) == 11.0
    assert next_check_at(state, {0: signs()}) == 17.0
    assert next_check_at({0: after(Timeouts(), [])}, {0: signs()}) is None

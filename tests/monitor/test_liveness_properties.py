"""Whatever a client sends, in whatever order: no live rank is condemned early, no dead one lives for ever."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.heartbeats import (
    Heartbeat,
    Init,
    Message,
    RankHeartbeats,
    Section,
    SectionAction,
    Timeouts,
    disconnect,
    receive,
)
from ftrun.monitor.liveness import judge_heartbeats
from ftrun.monitor.rank_signs import Signs

BEAT = Heartbeat()
ALL_CLOSED = Section("", SectionAction.CLOSE_ALL)
NAMES = ("step", "outer", "inner", "free", "unknown")
MESSAGES = st.one_of(
    st.just(Init()),
    st.just(BEAT),
    st.none(),
    st.builds(Section, st.sampled_from(NAMES), st.sampled_from(SectionAction), st.none() | st.integers(0, 9)),
)
HISTORIES = st.lists(st.tuples(st.floats(0.0, 4.0), MESSAGES), max_size=25)
LIMITS = Timeouts.from_config(60.0, 10.0, {"step": 20.0, "outer": 30.0, "inner": 5.0, "free": None}, 8.0)
SHORTEST_S, LONGEST_S = 5.0, 60.0


def after(timeouts: Timeouts, history: Sequence[tuple[float, Message | None]]) -> RankHeartbeats:
    state = RankHeartbeats(timeouts=timeouts)
    for at, message in history:
        state = disconnect(state) if message is None else receive(state, message, at)[0]
    return state


def signs(progress_at: float | None = None) -> Signs:
    return Signs(at=0.0, started_at=0.0, progress_count=progress_at is not None, last_progress_at=progress_at)


def timed(steps: Sequence[tuple[float, Message | None]]) -> list[tuple[float, Message | None]]:
    now, history = 0.0, []
    for pause, message in steps:
        now += pause
        history.append((now, message))
    return history


@given(HISTORIES, st.floats(0.0, 1.0))
def test_no_order_of_messages_condemns_before_a_limit(
    steps: list[tuple[float, Message | None]], share: float
) -> None:
    """A verdict always has a silence beyond its limit, and no rank is condemned sooner than it may be."""
    history = timed(steps)
    now = (history[-1][0] if history else 0.0) + share * 100.0
    verdict = judge_heartbeats(0, after(LIMITS, history), signs(), now)
    if verdict is not None:
        assert verdict.silent_s > verdict.limit_s >= SHORTEST_S
    begun = [at for at, message in history if isinstance(message, Init)]
    if now <= (begun[-1] if begun else 0.0) + SHORTEST_S:
        assert verdict is None


@given(HISTORIES, st.floats(0.0, 4.9))
def test_fresh_beat_and_fresh_sections_are_alive(
    steps: list[tuple[float, Message | None]], pause: float
) -> None:
    """After leaving all sections with a beat, no history before it can make the rank look dead."""
    history = timed(steps)
    end = history[-1][0] if history else 0.0
    state = after(LIMITS, [*history, (end, ALL_CLOSED), (end, Init()), (end, BEAT)])
    assert judge_heartbeats(0, state, signs(), end + pause) is None


@given(HISTORIES, st.booleans(), st.floats(0.001, 1e6))
def test_no_order_of_messages_hides_a_dead_rank(
    steps: list[tuple[float, Message | None]], has_progress: bool, beyond: float
) -> None:
    """A rank that falls silent is condemned once the longest limit is over, unless its client has left."""
    history = timed(steps)
    end = history[-1][0] if history else 0.0
    state = after(LIMITS, history)
    sign = signs(progress_at=end if has_progress else None)
    verdict = judge_heartbeats(0, state, sign, end + LONGEST_S + beyond)
    has_left = state.initialized_at is not None and not state.is_connected
    assert (verdict is None) == has_left


@given(HISTORIES, st.lists(st.floats(0.0, 30.0), max_size=30))
def test_judgement_is_no_state(steps: list[tuple[float, Message | None]], looks: list[float]) -> None:
    """Judging often or seldom makes no difference, and time only ever turns alive into dead."""
    state = after(LIMITS, timed(steps))
    end = max((at for at, _ in timed(steps)), default=0.0)
    verdicts = [judge_heartbeats(0, state, signs(), end + look) is not None for look in sorted(looks)]
    assert verdicts == sorted(verdicts)

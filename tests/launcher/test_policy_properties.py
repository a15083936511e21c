"""What holds of the policy's decisions in every history."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ftrun.launcher.budgets import MAX_STARTS, NOT_BEGUN, is_counted
from ftrun.launcher.memory import count_restarts, remember
from ftrun.launcher.messages import Memory
from ftrun.launcher.model import Action, Case, Decision, Leeway, PastIncident
from ftrun.launcher.policy import decide
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor.incident import Incident, IncidentKind, RankExit

LEEWAYS = st.builds(
    Leeway, node=st.sampled_from(["", "no spare"]), gpu=st.sampled_from(["", "no"]), is_alone=st.booleans()
)
FAILURES = st.builds(
    PastIncident,
    kind=st.sampled_from(list(IncidentKind)),
    fingerprint=st.sampled_from(["f", "g"]),
    has_progressed=st.booleans(),
    node=st.sampled_from(["a", "b"]),
    gpu=st.sampled_from(["", "GPU-1", "GPU-2"]),
    is_blamed=st.booleans(),
    step=st.one_of(st.none(), st.integers(0, 4)),
    has_moved_on=st.booleans(),
    after_s=st.sampled_from([0.1, 30.0, 3600.0, 86400.0]),
)
LIMITS = st.integers(0, 4)
RULES = st.dictionaries(
    st.sampled_from(["killed", "preempted", "cuda_oom", "start_failed"]),
    st.fixed_dictionaries({}, optional={"max": st.integers(0, 3), "counts": st.booleans()}),
    max_size=3,
)


@st.composite
def configurations(draw: st.DrawFn) -> RestartConfig:
    """Any limits, overrides included."""
    return RestartConfig(
        max_in_window=draw(LIMITS),
        window=draw(st.sampled_from([60.0, 600.0])),
        max_no_progress=draw(LIMITS),
        progress=draw(st.sampled_from(["new", "any"])),
        max_same_failure=draw(LIMITS),
        exclude_after=draw(LIMITS),
        kinds=tuple((kind, tuple(rule.items())) for kind, rule in draw(RULES).items()),
    )


def case_of(now: PastIncident, memory: Memory, leeway: Leeway) -> Case:
    """The failure after what is remembered."""
    culprit = RankExit(1, 0, 4242, -9, 10.0, is_stopped_by_agent=False, gpu=now.gpu)
    this = Incident(now.kind, 3, now.node, culprit, ("it died",), now.fingerprint, now.has_progressed)
    return Case(this, now, memory.history, memory.forgotten, leeway)


def play(
    failures: list[PastIncident], most: int, config: RestartConfig, leeway: Leeway
) -> tuple[Memory, list[Decision]]:
    """The failures one after the other, until the job ends."""
    memory, decisions = Memory(), []
    for now in failures:
        decisions.append(decide(case_of(now, memory, leeway), most, config))
        if decisions[-1].action is Action.STOP:
            break
        memory = remember(memory, replace(now, is_counted=decisions[-1].is_counted))
    return memory, decisions


@settings(max_examples=300)
@given(st.lists(FAILURES, max_size=40), st.integers(0, 30), configurations(), LEEWAYS)
def test_limits_are_never_exceeded(
    failures: list[PastIncident], most: int, config: RestartConfig, leeway: Leeway
) -> None:
    """Of all restarts, of those of a kind, within a window, and in a row without anything new."""
    memory, decisions = play(failures, most, config, leeway)
    past = memory.history
    assert count_restarts(memory) <= most
    for kind in IncidentKind:
        limit = config.rule_of(kind.value).max
        assert limit is None or sum(one.kind is kind for one in past) <= limit
    at, times = 0.0, []
    for one in past:
        at += one.after_s
        times += [at] if one.is_counted else []
    if config.max_in_window:
        for first in times:
            assert sum(first <= other <= first + config.window for other in times) <= config.max_in_window + 1
    for decision in decisions:
        assert decision.reason
        assert (decision.exit_code == 0) == (decision.action is Action.RESTART)
        assert decision.delay_s >= 0.0


@settings(max_examples=200)
@given(st.lists(FAILURES, min_size=1, max_size=6), st.integers(0, 30), configurations(), LEEWAYS)
def test_every_history_ends(
    failures: list[PastIncident], most: int, config: RestartConfig, leeway: Leeway
) -> None:
    """Whatever fails, over and over, in whatever order, if it is not declared to be free."""
    limited = [one for one in failures if is_counted(one.kind, config) or one.kind in NOT_BEGUN]
    assume(limited)
    _, decisions = play(limited * (most + 2 * MAX_STARTS), most, config, leeway)
    assert decisions[-1].action is Action.STOP


@settings(max_examples=200)
@given(st.lists(FAILURES, max_size=20), FAILURES, st.integers(0, 9), configurations(), LEEWAYS)
def test_same_evidence_gives_the_same_decision(
    failures: list[PastIncident], now: PastIncident, most: int, config: RestartConfig, leeway: Leeway
) -> None:
    """Also another host agent, which has read the history from a message, decides so."""
    memory, _ = play(failures, most, config, leeway)
    first = decide(case_of(now, memory, leeway), most, config)
    again = replace(memory, history=tuple(replace(past) for past in memory.history))
    assert decide(case_of(replace(now), again, leeway), most, config) == first


@settings(max_examples=200)
@given(st.lists(FAILURES, max_size=20), FAILURES, configurations(), LEEWAYS)
def test_more_restarts_allowed_never_end_a_job_sooner(
    failures: list[PastIncident], now: PastIncident, config: RestartConfig, leeway: Leeway
) -> None:
    """A limit that is raised does not make another one stricter."""
    memory, _ = play(failures, 30, config, leeway)
    case = case_of(now, memory, leeway)
    for most in range(1, 30):
        if decide(case, most, config).action is Action.RESTART:
            assert decide(case, most + 1, config).action is Action.RESTART

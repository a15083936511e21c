"""Whole jobs in simulated time: what must hold in every history, and histories that once broke a launcher.

What is checked at every turn of every agent is in `tests.support.simulated_job`: one publication per round, ranks
without gaps, no node twice, counters that never go back, a budget that is kept, never two complete worlds, no
illegal event, no busy waiting, and an end for everyone in bounded time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.launcher.messages import JobPlan
from ftrun.launcher.node_state import Phase
from ftrun.monitor.incident import IncidentKind
from tests.support.simulated_job import Fault, Kind, Setting, SimulatedJob

GAPS_S = st.sampled_from([0.0, 0.003, 0.1, 1.0, 4.0, 9.0])
DURATIONS_S = st.sampled_from([0.2, 2.0, 6.0, 15.0])
PLACES = st.integers(0, 4)
SURVIVABLE = (
    Kind.FAIL,
    Kind.RESTART,
    Kind.FREEZE,
    Kind.PAUSE,
    Kind.CUT,
    Kind.SLOW,
    Kind.APART,
    Kind.STUBBORN,
    Kind.ADD,
    Kind.MOVE,
)
"""What a job must outlive if it has the budget and enough nodes come back."""


def faults(kinds: Sequence[Kind], durations: st.SearchStrategy[float] = DURATIONS_S, most: int = 7):
    """Histories of such faults."""
    return st.lists(st.builds(Fault, GAPS_S, st.sampled_from(kinds), PLACES, durations), max_size=most)


@st.composite
def settings_of_jobs(draw: st.DrawFn, **fixed: object) -> Setting:
    """Jobs of one to five nodes, some of them too small for what they ask."""
    min_nodes = draw(st.integers(1, 3))
    echo_s = draw(st.sampled_from([1.0, None]))
    values = {
        "nodes": draw(st.integers(1, 5)),
        "slots": draw(st.sampled_from([(1,), (2,), (1, 2)])),
        "min_nodes": min_nodes,
        "max_nodes": draw(st.integers(min_nodes, 4)),
        "min_ranks": draw(st.sampled_from([0, 2, 3])),
        "spares": draw(st.integers(0, 2)),
        "grow": draw(st.sampled_from(["never", "at_checkpoint", "immediately"])),
        "max_restarts": draw(st.sampled_from([3, 100, 0, 1])),
        "echo_s": echo_s,
        "stall_s": draw(st.sampled_from([20.0, None])),
        "has_progress": draw(st.booleans()),
        "seed": draw(st.integers(0, 10**6)),
    }
    return Setting(**{**values, **fixed})


def quietly(max_examples: int):
    """Settings for tests that take a moment per example."""
    return settings(
        max_examples=max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )


def check_any_history(setting: Setting, history: list[Fault]) -> None:
    """Plays it; the simulated job checks itself."""
    SimulatedJob(setting).play(history)


def check_survivable_history(setting: Setting, history: list[Fault]) -> None:
    """The job succeeds, and whoever hears of that ends with 0; who comes back after its end finds nobody."""
    job = SimulatedJob(setting).play(history)
    codes = [code for code in job.exits().values() if code is not None]
    assert job.verdicts[0].exit_code == 0, job.account()
    assert 0 in codes, job.account()
    assert set(codes) <= {0, 95}, job.account()
    for one in job.agents:
        if one.membership.verdict is not None:
            assert one.state.exit_code == one.membership.verdict.exit_code


@quietly(700)
@given(settings_of_jobs(), faults(list(Kind)))
def test_no_history_breaks_a_job(setting: Setting, history: list[Fault]):
    """Whatever happens and when: the invariants hold and nobody waits for ever."""
    check_any_history(setting, history)


@quietly(400)
@given(
    settings_of_jobs(min_nodes=1, min_ranks=0, max_restarts=1000, stall_s=20.0), faults(SURVIVABLE, most=5)
)
def test_job_with_enough_nodes_and_budget_succeeds(setting: Setting, history: list[Fault]):
    """Crashes, frozen and cut-off nodes, a lost store host: training is finished all the same."""
    check_survivable_history(setting, history)


@quietly(60)
@given(settings_of_jobs(grow="never", min_ranks=0, max_restarts=0), faults([Kind.ADD], most=6))
def test_joiners_never_disturb_a_job(setting: Setting, history: list[Fault]):
    """However many nodes come, whenever: one round, and everyone ends with it."""
    setting = Setting(**{**as_values(setting), "min_nodes": 1, "nodes": max(setting.nodes, 1)})
    job = SimulatedJob(setting).play(history)
    first = job.endpoint.stores[0]
    assert [isinstance(one, JobPlan) for one in first.plans.values()] == [True, False]
    assert set(job.exits().values()) <= {0, 95}


def as_values(setting: Setting) -> dict[str, object]:
    """Its fields."""
    return {name: getattr(setting, name) for name in Setting.__slots__}


@pytest.mark.slow
@quietly(12_000)
@given(settings_of_jobs(), faults(list(Kind), most=12))
def test_no_long_history_breaks_a_job(setting: Setting, history: list[Fault]):
    """The same with many more and longer histories."""
    check_any_history(setting, history)


@pytest.mark.slow
@quietly(6_000)
@given(
    settings_of_jobs(min_nodes=1, min_ranks=0, max_restarts=1000, stall_s=20.0), faults(SURVIVABLE, most=10)
)
def test_job_with_enough_nodes_and_budget_succeeds_after_long_histories(
    setting: Setting, history: list[Fault]
):
    """The same with many more and longer histories."""
    check_survivable_history(setting, history)

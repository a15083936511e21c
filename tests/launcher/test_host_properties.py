"""Whole jobs in simulated time: what must hold in every history, and histories that once broke a launcher.

What is checked at every turn of every agent is in `tests.support.simulated_job`: one publication per round,
ranks without gaps, no node twice, counters that never go back, a budget that is kept, never two complete
worlds, no illegal event, no busy waiting, and an end for everyone in bounded time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.launcher.messages import Exclusion, JobPlan
from ftrun.launcher.node_state import Disconnected, Phase
from tests.support.simulated_job import GRACES, Fault, Kind, Setting, SimulatedJob
from tests.support.simulated_store import LOST_AFTER_S

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


def check_any_history(setting: Setting, history: list[Fault]) -> None:
    """Plays it; the simulated job checks itself."""
    SimulatedJob(setting).play(history)


def check_survivable_history(setting: Setting, history: list[Fault]) -> None:
    """The job succeeds, and whoever hears of that ends with 0; who comes back after its end finds nobody."""
    job = SimulatedJob(setting).play(history)
    codes = [code for code in job.exits().values() if code is not None]
    assert job.verdicts[0].exit_code == 0, job.account()
    assert 0 in codes, job.account()
    excluded = {node for plan in job.plans for node in plan.memory.excluded}
    exclusions = [one for one in job.publications if isinstance(one, Exclusion)]
    excluded |= {unfit.agent.node for one in exclusions for unfit in one.unfit if unfit.is_excluded}
    for one in job.agents:
        code = job.exits()[one.agent.incarnation]
        # A node that is lost again and again is not taken back.
        assert code in (None, 0, 95) or (code == 94 and one.agent.node in excluded), job.account()
        if one.membership.verdict is not None:
            assert one.state.exit_code == one.membership.verdict.exit_code


@settings(max_examples=700)
@given(settings_of_jobs(), faults(list(Kind)))
def test_no_history_breaks_a_job(setting: Setting, history: list[Fault]):
    """Whatever happens and when: the invariants hold and nobody waits for ever."""
    check_any_history(setting, history)


@settings(max_examples=400)
@given(
    settings_of_jobs(min_nodes=1, min_ranks=0, max_restarts=1000, stall_s=20.0), faults(SURVIVABLE, most=5)
)
def test_job_with_enough_nodes_and_budget_succeeds(setting: Setting, history: list[Fault]):
    """Crashes, frozen and cut-off nodes, a lost store host: training is finished all the same."""
    check_survivable_history(setting, history)


@settings(max_examples=60)
@given(settings_of_jobs(grow="never", min_ranks=0, max_restarts=0), faults([Kind.ADD], most=6))
def test_joiners_never_disturb_a_job(setting: Setting, history: list[Fault]):
    """However many nodes come, whenever: one round, and everyone ends with it."""
    job = SimulatedJob(replace(setting, min_nodes=1)).play(history)
    first = job.endpoint.stores[0]
    assert [isinstance(one, JobPlan) for one in first.plans.values()] == [True, False]
    assert set(job.exits().values()) <= {0, 95}


PAIR = Setting(nodes=2, max_nodes=2)
SEEDS = range(8)


def play(setting: Setting, *history: Fault, seed: int = 0) -> SimulatedJob:
    """One history, with this luck."""
    return SimulatedJob(replace(setting, seed=seed)).play(history)


def worlds(job: SimulatedJob) -> list[list[str]]:
    """Nodes of each round."""
    return [[seat.agent.node for seat in plan.seats] for plan in job.plans]


def codes(job: SimulatedJob) -> set[int | None]:
    """Exit codes of all agents; None for killed ones."""
    return set(job.exits().values())


def time_of(job: SimulatedJob, node: str, phase: Phase, since: float) -> float:
    """When the node's agent first came into that phase after `since`."""
    return next(at for at, what in job.agent_of(node).phases if at >= since and what is phase)


def verdict_at(job: SimulatedJob) -> float:
    """When the job was over, as the only host agent had it."""
    [store] = job.endpoint.stores
    assert store.over_at is not None
    return store.over_at


def lost_at(job: SimulatedJob, node: str) -> float:
    """When the node's agent lost its connection."""
    mine = job.agent_of(node).agent.incarnation
    return next(at for at, what in job.story if what[0] == mine and isinstance(what[1], Disconnected))


@pytest.mark.parametrize("seed", SEEDS)
def test_surplus_agents_that_come_during_a_restart_do_not_end_the_job(seed: int):
    """They are parked, the survivors keep their places, and all end with 0."""
    ends = Fault(5.0, Kind.FAIL), Fault(0.003, Kind.ADD), Fault(0.0, Kind.ADD)
    job = play(PAIR, *ends, seed=seed)
    assert worlds(job) == [["n0", "n1"], ["n0", "n1"]]
    assert codes(job) == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_whole_job_that_is_started_again_on_the_same_hosts_has_no_ghosts(seed: int):
    """All agents are killed in a running round and others come on their nodes: one seat each, and success."""
    job = play(PAIR, Fault(5.0, Kind.RESTART, 0, 1.0), Fault(0.0, Kind.RESTART, 1, 0.5), seed=seed)
    assert worlds(job) == [["n0", "n1"], ["n0", "n1"]]
    assert codes(job) == {None, 0}


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_message_of_a_round_does_not_reach_into_the_next(seed: int):
    """What a slow node says comes seconds late, some of it when its sender is dead."""
    history = [
        Fault(5.0, Kind.SLOW, 1, 20.0),
        Fault(0.1, Kind.FAIL, 1),
        Fault(0.5, Kind.RESTART, 1, 0.2),
        Fault(0.2, Kind.FAIL, 0),
    ]
    job = play(PAIR, *history, seed=seed)
    assert codes(job) == {None, 0}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gap_s", [0.0, 0.002, 0.004, 0.008, 0.016])
def test_replacement_that_comes_while_a_round_is_published_has_its_place_in_it_or_in_the_next(
    gap_s: float, seed: int
):
    """Whatever it reads in that moment."""
    history = [Fault(4.0, Kind.KILL, 2), Fault(5.0, Kind.RESTART, 2, gap_s)]
    setting = Setting(nodes=3, max_nodes=3, min_nodes=3, max_restarts=9)
    job = play(setting, *history, seed=seed)
    assert worlds(job)[-1] == ["n0", "n1", "n2"]
    assert codes(job) == {None, 0}


@pytest.mark.parametrize("seed", SEEDS)
def test_node_that_dies_while_a_round_is_being_stopped_is_not_part_of_the_next(seed: int):
    """That it was there in the last one does not make it present."""
    history = [Fault(5.0, Kind.STUBBORN, 2, 9.0), Fault(0.1, Kind.FAIL, 1), Fault(0.5, Kind.KILL, 2)]
    setting = Setting(nodes=3, max_nodes=3, min_nodes=2, echo_s=None)
    job = play(setting, *history, seed=seed)
    assert worlds(job) == [["n0", "n1", "n2"], ["n0", "n1"]]


@pytest.mark.parametrize("after_s", [1.5, 3.0, 5.0])
def test_node_that_is_told_to_stop_after_it_has_joined_is_not_waited_for(after_s: float):
    """It says that it leaves; the others begin without it."""
    setting = Setting(nodes=4, max_nodes=5, min_nodes=2)
    job = play(setting, Fault(after_s, Kind.SIGNAL, 1))
    assert codes(job) == {0, 143}
    assert worlds(job) == [["n0", "n2", "n3"]]


def test_spare_ends_with_0_as_soon_as_the_job_has_finished():
    """Nobody has to cancel it."""
    job = play(Setting(nodes=3, max_nodes=2, spares=1))
    assert codes(job) == {0}
    ends = [one.phases[-1][0] for one in job.agents]
    assert max(ends) - min(ends) < 0.1


def test_failure_without_restarts_has_the_same_exit_code_everywhere():
    """No node reports success because it was only told to stop."""
    job = play(Setting(nodes=3, max_restarts=0), Fault(5.0, Kind.FAIL, 1))
    assert codes(job) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_die_one_after_another_break_at_most_the_rounds_that_they_were_in(seed: int):
    """The last survivors finish: each loss costs one restart at most."""
    setting = Setting(nodes=5, max_nodes=5, max_restarts=3)
    history = [Fault(5.0, Kind.KILL, 4), Fault(0.3, Kind.KILL, 3), Fault(0.3, Kind.KILL, 2)]
    job = play(setting, *history, seed=seed)
    assert worlds(job)[-1] == ["n0", "n1"]
    assert codes(job) == {None, 0}


@pytest.mark.parametrize("seed", SEEDS)
def test_spares_that_are_ready_first_do_not_displace_survivors_that_are_still_stopping(seed: int):
    """Two nodes wait with nothing to do; the round's own nodes take seconds to end their workers."""
    setting = Setting(nodes=2, max_nodes=2, spares=2)
    history = [
        *(Fault(3.0, Kind.ADD), Fault(0.0, Kind.ADD)),
        *(Fault(1.0, Kind.STUBBORN, 0, 9.0), Fault(0.0, Kind.STUBBORN, 1, 9.0)),
        Fault(1.0, Kind.FAIL, 1),
    ]
    job = play(setting, *history, seed=seed)
    assert worlds(job) == [["n0", "n1"], ["n0", "n1"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_nodes_stop_at_once_when_one_has_failed_however_slowly_that_one_stops(seed: int):
    """They learn of the failure by the order, not by the failing node's next join."""
    setting = Setting(nodes=3, slots=(2,), echo_s=None)
    history = [Fault(4.0, Kind.STUBBORN, 1, 9.0), Fault(4.0, Kind.FAIL, 1)]
    job = play(setting, *history, seed=seed)
    assert all(time_of(job, node, Phase.STOPPING, 8.0) < 8.1 for node in ("n0", "n1", "n2"))


@pytest.mark.parametrize("seed", SEEDS)
def test_node_that_is_lost_three_times_is_not_taken_back(seed: int):
    """Its third agent ends with 94; the world is smaller, and the host agents that follow know of it."""
    setting = Setting(nodes=4, max_nodes=4, max_restarts=9, work_s=60.0, echo_s=None)
    lost = [Fault(6.0, Kind.RESTART, 3, 1.0) for _ in range(3)]
    job = play(setting, *lost, Fault(6.0, Kind.RESTART, 0, 1.0), seed=seed)
    assert worlds(job)[0] == ["n0", "n1", "n2", "n3"]
    assert worlds(job)[-1] == ["n0", "n1", "n2"]
    assert job.plans[-1].memory.excluded == ("n3",)
    assert codes(job) == {None, 94, 0}


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.MOVE])
def test_budget_is_kept_by_a_replacement_of_the_host_agent(kind: Kind):
    """Two restarts are used; the loss of the host agent is one failure too many."""
    setting = Setting(nodes=3, max_restarts=2, work_s=30.0)
    history = [Fault(5.0, Kind.FAIL, 1), Fault(4.0, Kind.FAIL, 2), Fault(4.0, kind, 0, 1.0)]
    job = play(setting, *history)
    assert [plan.memory.restart_count for plan in job.plans] == [0, 1, 2]
    assert codes(job) == {None, 1}


def test_budget_is_the_jobs_and_not_each_nodes():
    """Three nodes fail once each: that is three of two restarts."""
    setting = Setting(nodes=3, max_restarts=2, work_s=30.0)
    job = play(setting, *(Fault(4.0, Kind.FAIL, place) for place in (0, 1, 2)))
    assert [plan.memory.restart_count for plan in job.plans] == [0, 1, 2]
    assert codes(job) == {1}


def test_node_that_is_lost_again_and_again_uses_up_the_budget():
    """Its agent is started anew each time, and each loss is one restart: there is no endless circle."""
    setting = Setting(nodes=2, min_nodes=2, max_nodes=2, max_restarts=2, work_s=60.0)
    job = play(setting, *(Fault(6.0, Kind.RESTART, 1, 0.5) for _ in range(5)))
    assert [plan.memory.restart_count for plan in job.plans] == [0, 1, 2]
    assert job.verdicts[0].exit_code == 1


@pytest.mark.parametrize("after_s", [0.3, 1.1, 5.0, 30.0])
def test_sigterm_while_nodes_are_waited_for_ends_the_agent_at_once(after_s: float):
    """Nothing of it has to run out."""
    setting = Setting(nodes=1, min_nodes=2, max_nodes=2)
    job = play(setting, Fault(after_s + 1.0, Kind.SIGNAL))
    assert codes(job) == {143}
    assert job.timeline.now < after_s + 1.1


def test_spare_that_takes_over_has_all_its_ranks():
    """Two per node, as everyone else."""
    setting = Setting(nodes=2, slots=(2,), max_nodes=2, min_nodes=2, spares=1)
    job = play(setting, Fault(3.0, Kind.ADD), Fault(5.0, Kind.KILL, 1))
    assert worlds(job) == [["n0", "n1"], ["n0", "n2"]]
    assert [seat.slots for seat in job.plans[-1].seats] == [2, 2]
    assert codes(job) == {None, 0}


def test_start_waits_for_late_nodes_and_a_restart_waits_for_nobody():
    """The last call is for the first round; later the living nodes are known."""
    setting = Setting(nodes=2, min_nodes=1, max_nodes=3)
    late = play(setting, Fault(4.0, Kind.ADD))
    assert worlds(late) == [["n0", "n1", "n2"]]
    job = play(setting, Fault(9.0, Kind.FAIL, 1))
    again = time_of(job, "n0", Phase.RUNNING, 9.0)
    assert worlds(job) == [["n0", "n1"], ["n0", "n1"]]
    assert again < 9.0 + 1.1  # the workers take up to a second to end


@pytest.mark.parametrize("seed", SEEDS)
def test_every_round_has_an_end_that_all_can_read(seed: int):
    """By an order or by the next publication, also when an agent of it was killed."""
    history = [Fault(4.0, Kind.FAIL, 1), Fault(4.0, Kind.KILL, 2), Fault(4.0, Kind.SIGNAL, 1)]
    job = play(Setting(nodes=4, max_nodes=4), *history, seed=seed)
    for store in job.endpoint.stores:
        rounds = [number for number, one in store.plans.items() if isinstance(one, JobPlan)]
        assert set(rounds) <= store.stops.keys()


def test_node_that_stood_still_while_others_were_waited_for_is_counted_again():
    """The host agent has given it up meanwhile: it must say again that it is there."""
    setting = Setting(nodes=2, min_nodes=3, max_nodes=3)
    job = play(setting, Fault(2.0, Kind.FREEZE, 1, 6.0), Fault(13.0, Kind.ADD))
    assert worlds(job) == [["n0", "n1", "n2"]]
    assert codes(job) == {0}


def test_spare_that_comes_back_when_the_job_is_over_still_hears_how():
    """The host agent waits for another one just then, and the verdict can be read as long as it does."""
    setting = Setting(nodes=2, max_nodes=2, spares=2)
    spares = Fault(2.0, Kind.ADD), Fault(0.5, Kind.ADD)
    job = play(setting, *spares, Fault(2.5, Kind.CUT, 3, 8.0), Fault(5.0, Kind.FREEZE, 2, 4.8))
    assert worlds(job) == [["n0", "n1"]]
    assert codes(job) == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_node_that_was_away_at_the_end_of_the_job_hears_how_it_ended(seed: int):
    """Its connection breaks before the verdict and is there again while the host agent waits for another."""
    setting = Setting(nodes=3, max_nodes=1, spares=2)
    ends_at = verdict_at(play(setting, seed=seed))
    history = Fault(ends_at - 5.0, Kind.CUT, 2, 7.0), Fault(4.5, Kind.FREEZE, 1, 8.0)
    job = play(setting, *history, seed=seed)
    assert lost_at(job, "n2") < verdict_at(job)
    assert job.agent_of("n2").phases == [(pytest.approx(ends_at + 2.0, abs=0.6), Phase.ENDED)]
    assert job.exits()[job.agent_of("n2").agent.incarnation] == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gap_s", [0.0, 0.003, 1.0, 3.0])
def test_node_that_comes_when_the_job_is_over_ends_as_the_others_do(gap_s: float, seed: int):
    """The host agent waits for one that takes long to answer: who comes now finds the verdict."""
    setting = Setting(nodes=2, max_nodes=1, spares=1)
    ends_at = verdict_at(play(setting, seed=seed))
    history = Fault(ends_at - 0.5, Kind.FREEZE, 1, 4.0), Fault(0.5 + gap_s, Kind.ADD)
    job = play(setting, *history, seed=seed)
    assert job.agent_of("n2").phases == [(pytest.approx(ends_at + gap_s, abs=0.1), Phase.ENDED)]
    assert codes(job) == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_node_that_serves_on_after_it_was_left_out_shows_its_own_end(seed: int):
    """The job fails later for another reason; this node has ended because it is not healthy."""
    sick = Fault(5.0, Kind.SICK, 0, 2.0)
    job = play(Setting(nodes=3, max_restarts=1, work_s=60.0), sick, Fault(5.0, Kind.FAIL, 1), seed=seed)
    host = job.agent_of("n0")
    assert (host.state.exit_code, host.membership.verdict.exit_code) == (94, 94)
    assert {one.state.exit_code for one in job.agents if one is not host} == {1}
    assert worlds(job) == [["n0", "n1", "n2"], ["n1", "n2"]]


# What the properties found


def test_new_host_agent_starts_the_next_round_in_the_turn_in_which_it_judged_the_last():
    """It once waited for the next keep-alive, a second later."""
    job = play(Setting(nodes=4, max_nodes=4, max_restarts=9), Fault(4.0, Kind.RESTART, 0, 6.0))
    assert time_of(job, "n1", Phase.RUNNING, 10.0) < 10.1 + 0.5


def test_new_host_agent_gives_one_last_call_and_not_another_after_its_judgement():
    """Of two missing nodes nobody comes back: five seconds, once."""
    history = [Fault(8.0, Kind.KILL, 2), Fault(0.0, Kind.RESTART, 0, 1.0)]
    job = play(Setting(nodes=3, max_nodes=3, max_restarts=9), *history)
    assert time_of(job, "n1", Phase.RUNNING, 9.0) < 9.0 + 0.6 + 5.0 + 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_new_host_agent_gives_no_last_call_to_the_one_before_it(seed: int):
    """Its node is gone, which all others have seen; there is a place for it, and nobody waits for it."""
    setting = Setting(nodes=3, min_nodes=2, max_nodes=9, work_s=30.0)
    job = play(setting, Fault(9.0, Kind.MOVE, 0, 1.0), seed=seed)
    assert "n0" not in worlds(job)[1]
    assert time_of(job, "n1", Phase.RUNNING, 9.0) < 9.0 + 1.0 + 0.5 + 0.1


def test_node_that_slept_through_rounds_acts_on_them_one_by_one():
    """It was once started with the plan of a round that it had no part in."""
    history = [Fault(4.0, Kind.PAUSE, 1, 15.0), Fault(9.0, Kind.PAUSE, 1, 6.0), Fault(0.003, Kind.KILL, 0)]
    job = play(Setting(nodes=3, max_nodes=4), *history, seed=344791)
    assert codes(job) == {None, 95}


def test_what_a_node_remembers_outlives_a_host_agent_that_knows_less():
    """A new host agent began at round 0 without it; the round number of who knew more never goes back."""
    history = [
        Fault(9.0, Kind.FAIL, 0),
        Fault(1.0, Kind.MOVE, 0, 0.2),
        Fault(0.1, Kind.PAUSE, 0, 6.0),
        Fault(9.0, Kind.FAIL, 0),
    ]
    job = play(Setting(nodes=2, max_nodes=3), *history)
    assert [plan.memory.round_number for plan in job.plans] == [0, 1, 0, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_excluded_node_that_comes_back_as_the_host_agent_serves_the_others(seed: int):
    """It may not train, learns that from their joins, and once took its store along as it left."""
    setting = Setting(nodes=2, max_nodes=2, max_restarts=9, work_s=30.0, has_progress=False)
    fails = [Fault(4.0, Kind.FAIL, 0)] * 3
    job = play(setting, *fails, Fault(2.0, Kind.RESTART, 0, 0.2), seed=seed)
    assert job.plans[-1].memory.excluded == ("n0",)
    assert worlds(job)[-1] == ["n1"]
    judgement = job.plans[-1].judgement
    assert judgement is not None
    assert judgement.incident.reasons[0] == "the host agent was lost with its store, or was started again"
    assert [verdict.exit_code for verdict in job.verdicts] == [0]
    assert (job.agent_of("n0").state.exit_code, job.agent_of("n1").state.exit_code) == (94, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_excluded_host_agent_that_is_cut_off_serves_the_others_again(seed: int):
    """It has lost them all, and once went: they came back to nothing."""
    setting = Setting(nodes=3, max_nodes=2, spares=1, max_restarts=9, work_s=30.0)
    fails = [Fault(4.0, Kind.FAIL, 0)] * 3
    job = play(setting, *fails, Fault(2.0, Kind.CUT, 0, 6.0), seed=seed)
    assert [verdict.exit_code for verdict in job.verdicts] == [0]
    assert [job.agent_of(node).state.exit_code for node in ("n0", "n1", "n2")] == [94, 0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_host_agent_that_its_script_excludes_serves_the_others(seed: int):
    """Its node may not train any more; its store is the job's."""
    job = play(Setting(max_restarts=9, work_s=30.0), Fault(6.0, Kind.EXCLUDE, 0), seed=seed)
    assert worlds(job)[-1] == ["n1", "n2"]
    assert [job.agent_of(node).state.exit_code for node in ("n0", "n1", "n2")] == [94, 0, 0]


@pytest.mark.parametrize(
    ("end", "waits_s"),
    [
        ((Fault(2.0, Kind.SIGNAL, 1),), 0.0),
        ((Fault(2.0, Kind.FREEZE, 1, 8.0), Fault(0.1, Kind.SIGNAL, 1)), 8.0),  # lost, and then it leaves
        ((Fault(2.0, Kind.KILL, 1),), LOST_AFTER_S + GRACES.reconnect_s),
    ],
    ids=["left", "lost, then left", "lost"],
)
def test_excluded_host_agent_goes_when_nobody_can_come_back(end: tuple[Fault, ...], waits_s: float):
    """Its scheduler replaces the node once it has ended."""
    setting = Setting(nodes=2, max_nodes=2, max_restarts=9, work_s=60.0)
    job = play(setting, *[Fault(4.0, Kind.FAIL, 0)] * 3, *end)
    assert job.agent_of("n0").state.exit_code == 94
    assert 14.0 + waits_s <= job.timeline.now < 14.0 + waits_s + 4.0


@pytest.mark.slow
@settings(max_examples=6_000)
@given(settings_of_jobs(), faults(list(Kind), most=12))
def test_no_long_history_breaks_a_job(setting: Setting, history: list[Fault]):
    """The same with many more and longer histories."""
    check_any_history(setting, history)


@pytest.mark.slow
@settings(max_examples=3_000)
@given(
    settings_of_jobs(min_nodes=1, min_ranks=0, max_restarts=1000, stall_s=20.0), faults(SURVIVABLE, most=10)
)
def test_job_with_enough_nodes_and_budget_succeeds_after_long_histories(
    setting: Setting, history: list[Fault]
):
    """The same with many more and longer histories."""
    check_survivable_history(setting, history)


FAILING = (*[Kind.FAIL] * 4, *[Kind.RESTART] * 2, Kind.MOVE, Kind.PAUSE, Kind.CUT, Kind.ADD)
"""The same two nodes, mostly: they are excluded, the first with its store."""
FAILURES = st.builds(
    Fault, st.sampled_from([0.1, 1.0, 4.0]), st.sampled_from(FAILING), st.integers(0, 1), DURATIONS_S
)


@pytest.mark.slow
@settings(max_examples=1_500)
@given(
    settings_of_jobs(
        min_nodes=1, min_ranks=0, max_restarts=1000, stall_s=20.0, work_s=30.0, has_progress=True
    ),
    st.lists(FAILURES, min_size=4, max_size=12),
)
def test_job_goes_on_without_the_nodes_that_fail_again_and_again(setting: Setting, history: list[Fault]):
    """As long as there are others."""
    check_survivable_history(setting, history)

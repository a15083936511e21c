"""The host agent and the policy: what it remembers of failures, and whom it takes out of a job."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from ftrun.launcher import policy
from ftrun.launcher.host_state import Stage
from ftrun.launcher.message_codec import decode_message, decode_publication, encode
from ftrun.launcher.messages import (
    Agent,
    ExcludedGpu,
    Exclusion,
    Join,
    Leave,
    Memory,
    Outcome,
    SeenCheckpoint,
    Verdict,
)
from ftrun.launcher.model import PastIncident
from ftrun.launcher.quorum import Rules
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor import events
from ftrun.monitor.incident import Evidence, IncidentKind, RankExit
from tests.launcher.test_host import RULES, STOPPED, Job, nodes_of, published, told

RULES_9 = replace(RULES, max_restarts=99)
DEFAULTS = RestartConfig()
KILLED_ON_B = PastIncident(IncidentKind.KILLED, "killed|SIGKILL", True, "b", is_blamed=True, after_s=60.0)


def job_of(*nodes: str, rules: Rules = RULES_9, config: RestartConfig = DEFAULTS) -> Job:
    """A job whose first round runs on these nodes."""
    job = Job(rules, max_restarts=99)
    job.decide = partial(policy.decide, max_restarts=99, config=config)
    return job.form(*nodes)


def end_of(
    job: Job, node: str, code: int, was_stopped: bool, steps: int = 1, gpu: str = "", **fields: object
) -> Join:
    """A join of a node with one rank, which ended so."""
    number = job.state.memory.round_number
    end = RankExit(0, 0, 7, code, 1.0, is_stopped_by_agent=was_stopped, steps=steps, gpu=gpu)
    saw = Evidence(node, number, (end,), has_progressed=steps > 0)
    return job.join(node, STOPPED, evidence=saw, **fields)


def fail(job: Job, node: str, at: float, code: int = -9, **fields: object) -> None:
    """A rank of the node ends so; all nodes come back from the round, each with these fields."""
    rest = [one for one in nodes_of(job.plan) if one != node]
    joins = [
        end_of(job, node, code, False, **fields),
        *(end_of(job, one, -15, True, **fields) for one in rest),
    ]
    job.get(*joins, at=at)


def rejoin(job: Job, *nodes: str, at: float, **fields: object) -> None:
    """They were asked to."""
    job.get(*(job.join(node, Outcome.STOPPED, **fields) for node in nodes), at=at)


def exclusions(job: Job) -> list[Exclusion]:
    """All that were published."""
    return [one for one in published(job.log) if isinstance(one, Exclusion)]


def test_node_that_is_named_three_times_is_replaced_by_the_spare() -> None:
    """It learns why and may not come back; the spare has its place, and the world its size."""
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2, spares=1))
    job.get(job.join("s"))
    for at in (10.0, 20.0):
        fail(job, "b", at)
        assert (nodes_of(job.plan), exclusions(job)) == (["a", "b"], [])
        job.get(job.join("s"))
    fail(job, "b", 30.0)
    [exclusion] = exclusions(job)
    [gone] = exclusion.unfit
    assert (gone.agent.node, gone.is_excluded) == ("b", True)
    assert gone.reason.startswith("node b fails again and again (restart.exclude_after): rank ")
    [*_, last] = told(job.log, events.RestartDecided)
    assert last.reason.endswith("3rd time on node b, which is excluded from now on")
    assert told(job.log, events.NodeExcluded) == [events.NodeExcluded("b", gone.reason)]
    rejoin(job, "a", "s", at=30.1)
    assert (nodes_of(job.plan), job.plan.memory.excluded) == (["a", "s"], ("b",))
    assert job.plan.memory.restart_count == 3
    assert decode_publication(encode(exclusion)) == exclusion


def test_world_shrinks_where_it_may() -> None:
    """MIN:MAX allows two of three nodes; the newcomer on the same host is refused."""
    job = job_of("a", "b", "c")
    for at in (10.0, 20.0, 30.0):
        fail(job, "b", at)
    rejoin(job, "a", "c", at=30.1)
    assert nodes_of(job.plan) == ["a", "c"]
    job.get(job.join("b", incarnation="2"), at=31.0)
    fail(job, "a", 40.0)
    assert nodes_of(job.plan) == ["a", "c"]


def test_node_stays_where_the_world_may_not_shrink() -> None:
    """Two of two nodes, and no spare: the restarts go on, and it is said why."""
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2))
    for at in (10.0, 20.0, 30.0):
        fail(job, "b", at)
    assert (nodes_of(job.plan), exclusions(job)) == (["a", "b"], [])
    [*_, last] = told(job.log, events.RestartDecided)
    assert last.reason.endswith("which stays, since there is no spare, and the world may not be smaller")


def test_no_more_nodes_are_taken_out_than_the_fraction_allows() -> None:
    """A fifth of five nodes is one: whatever makes the second one fail, is not that node's."""
    job = job_of("a", "b", "c", "d", "e", rules=replace(RULES_9, max_nodes=5))
    for at in (10.0, 20.0, 30.0):
        fail(job, "b", at)
    rejoin(job, "a", "c", "d", "e", at=30.1)
    for at in (40.0, 50.0, 60.0):
        fail(job, "c", at)
    assert nodes_of(job.plan) == ["a", "c", "d", "e"]
    [*_, last] = told(job.log, events.RestartDecided)
    assert last.reason.endswith("no more than 1 of 5 nodes may be left out (health.max_excluded_fraction)")


def test_node_that_is_lost_again_and_again_is_not_taken_back() -> None:
    """Its agent is started again each time, by a scheduler that knows nothing of its machine."""
    job = job_of("a", "b", "c")
    for number in (2, 3, 4):
        assert exclusions(job) == []
        job.get(job.join("b", incarnation=str(number)), at=job.now + 60.0)
        job.get(*(end_of(job, node, -15, True) for node in "ac"))
    [exclusion] = exclusions(job)
    assert [one.agent.incarnation for one in exclusion.unfit] == ["b.4"]
    rejoin(job, "a", "c", at=job.now + 0.1)
    assert nodes_of(job.plan) == ["a", "c"]


def test_node_that_leaves_as_it_was_told_to_is_not_to_blame() -> None:
    """A scheduler takes it away, and may give it back."""
    job = job_of("a", "b", "c")
    for number in (1, 2, 3):
        job.get(Leave(Agent("b", f"b.{number}"), "SIGTERM"), at=job.now + 60.0)
        job.get(job.join("b", incarnation=str(number + 1)))
        job.get(*(end_of(job, node, -15, True) for node in "ac"))
    kinds = [past.kind for past in job.plan.memory.history]
    assert (kinds, exclusions(job)) == ([IncidentKind.PREEMPTED] * 3, [])
    assert nodes_of(job.plan) == ["a", "b", "c"]


def test_gpu_is_left_out_alone_and_its_node_goes_on() -> None:
    """The node joins again with a slot less; what is left out survives the host agent."""
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2))
    slots = {"slots": 2, "gpus": ("GPU-0", "GPU-1"), "gpu": "GPU-1"}
    for at in (10.0, 20.0, 30.0):
        fail(job, "b", at, code=-6, **slots)
    [exclusion] = exclusions(job)
    assert (exclusion.unfit, exclusion.gpus) == ((), (ExcludedGpu("b", "GPU-1"),))
    job.get(
        job.join("a", STOPPED, slots=2, gpus=("GPU-0", "GPU-1")),
        job.join("b", STOPPED, slots=1),
        at=30.1,
    )
    assert [seat.slots for seat in job.plan.seats] == [2, 1]
    assert job.plan.memory.excluded_gpus == (ExcludedGpu("b", "GPU-1"),)
    fail(job, "b", 40.0)
    [*_, last] = told(job.log, events.RestartDecided)
    assert "time on node b" not in last.reason, "what its lost GPU did is not held against the node"


def test_gpu_is_not_left_out_where_there_would_be_too_few_ranks() -> None:
    """`world.min_size` holds for GPUs as well; with all its GPUs the node is no help either."""
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2, min_ranks=2))
    slots = {"gpus": ("GPU-1",), "gpu": "GPU-1"}
    for at in (10.0, 20.0, 30.0):
        fail(job, "b", at, code=-6, **slots)
    assert (exclusions(job), nodes_of(job.plan)) == ([], ["a", "b"])


def survivors(past: tuple[PastIncident, ...], since_s: float) -> tuple[Job, list[Join]]:
    """A job under a new host agent, and the joins of two nodes whose host h was lost in round 4."""
    job = Job(RULES_9, max_restarts=99)
    memory = Memory(
        4, len(past), past, nodes=("a", "b", "h"), slots=(1, 1, 1), since_incident_s=since_s, best_step=50
    )
    joins = []
    for node, code, was_stopped in (("a", -15, True), ("b", -9, False)):
        end = RankExit(0, 0, 7, code, 1.0, is_stopped_by_agent=was_stopped)
        joins.append(
            job.join(node, STOPPED, memory=memory, evidence=Evidence(node, 4, (end,), has_progressed=True))
        )
    return job, [decode(one) for one in joins]


def decode(join: Join) -> Join:
    """As it arrives."""
    message = decode_message(encode(join))
    assert isinstance(message, Join)
    return message


def test_new_host_agent_knows_what_was_held_against_a_node() -> None:
    """Its third time is the third, whoever has counted the first two."""
    job, joins = survivors((KILLED_ON_B, KILLED_ON_B), 100.0)
    back = replace(job.join("h", incarnation="2"), outcome=STOPPED, memory=joins[0].memory)
    saw = Evidence("h", 4, (RankExit(2, 0, 7, -15, 1.0, is_stopped_by_agent=True),), has_progressed=True)
    job.get(*joins, replace(back, evidence=saw), at=5.0)
    [exclusion] = exclusions(job)
    assert [one.agent.node for one in exclusion.unfit] == ["b"]
    assert exclusion.judgement is not None
    assert exclusion.judgement.incident.node == "b"


@pytest.mark.parametrize(("since_s", "in_window"), [(500.0, True), (700.0, False)])
def test_window_of_restarts_goes_on_under_a_new_host_agent(since_s: float, in_window: bool) -> None:
    """Its own clock began a moment ago: how long ago the failures were, the joins say."""
    quick = replace(KILLED_ON_B, node="a", is_blamed=False, after_s=1.0)
    job, joins = survivors((quick,) * 10, since_s)
    back = replace(job.join("h", incarnation="2"), outcome=STOPPED, memory=joins[0].memory)
    saw = Evidence("h", 4, (RankExit(2, 0, 7, -15, 1.0, is_stopped_by_agent=True),), has_progressed=True)
    job.decide = partial(policy.decide, max_restarts=99, config=RestartConfig(max_in_window=10))
    job.get(*joins, replace(back, evidence=saw), at=5.0)
    assert (job.verdict is not None) == in_window
    if in_window:
        assert job.verdict is not None
        assert "10 restarts in the last 600 s (restart.max_in_window 10)" in job.verdict.reason


def test_plan_says_how_long_ago_the_last_failure_was() -> None:
    """And from the next failure on, how far apart the two were."""
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2))
    fail(job, "b", 100.0)
    assert (job.plan.memory.since_incident_s, job.plan.memory.history[0].after_s) == (0.0, 100.0)
    fail(job, "a", 160.0)
    assert [past.after_s for past in job.plan.memory.history] == [100.0, 60.0]


def test_rounds_that_bring_nothing_new_end_the_job_with_93() -> None:
    """Steps are counted from the checkpoint, and none comes beyond the best."""
    config = RestartConfig(max_no_progress=2, max_same_failure=0)
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2), config=config)
    seen = {"has_checkpoint_dir": True, "checkpoints": (SeenCheckpoint("/c/40", 40, 5),)}
    for at, steps in ((10.0, 9), (20.0, 9), (30.0, 9), (40.0, 8)):
        fail(job, "b", at, steps=steps, **seen)
    verdict = job.verdict
    assert isinstance(verdict, Verdict)
    assert verdict.exit_code == 93
    assert "2 restarts in a row brought no new step and no new checkpoint" in verdict.reason


@pytest.mark.parametrize("is_empty", [True, False])
def test_script_that_finds_its_own_checkpoints_is_not_said_to_bring_nothing_new(is_empty: bool) -> None:
    """Where anything is in the directory, it may be what the script began from, in a form unknown here."""
    config = RestartConfig(max_no_progress=2, max_same_failure=0)
    fields = {"has_checkpoint_dir": True, "is_checkpoint_dir_empty": is_empty}
    job = Job(replace(RULES_9, max_nodes=2), max_restarts=99)
    job.decide = partial(policy.decide, max_restarts=99, config=config)
    job.get(*(job.join(node, **fields) for node in "ab"), at=1.0)
    for at, steps in ((10.0, 90), (20.0, 50), (30.0, 40), (40.0, 30)):
        if job.verdict is None:
            fail(job, "b", at, steps=steps, **fields)
    assert (job.verdict is not None) is is_empty


def test_new_checkpoint_is_progress_for_the_host_agent() -> None:
    """Each round saves one more, though none comes as far as the first."""
    config = RestartConfig(max_no_progress=1, max_same_failure=0)
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2), config=config)
    for at, steps, step in ((10.0, 90, 40), (20.0, 15, 50), (30.0, 15, 60), (40.0, 15, 70)):
        seen = (SeenCheckpoint(f"/c/{step}", step, step),)
        fail(job, "b", at, steps=steps, has_checkpoint_dir=True, checkpoints=seen)
    assert job.verdict is None
    assert [past.has_moved_on for past in job.plan.memory.history] == [True] * 4


def test_restart_that_does_not_count_leaves_the_count_as_it_is() -> None:
    """The workers see the same restart count, as with torchrun when the nodes of a job change."""
    config = RestartConfig(kinds=(("killed", (("counts", False),)),))
    job = job_of("a", "b", rules=replace(RULES_9, max_nodes=2), config=config)
    fail(job, "b", 10.0)
    assert (job.plan.memory.round_number, job.plan.memory.restart_count) == (1, 0)
    [decided] = told(job.log, events.RestartDecided)
    assert decided.restart_count == 0
    assert decided.reason.startswith("restart that does not count (restart.kinds): rank 0 on node b")
    assert job.state.stage is Stage.RUNNING

"""The host agent's part where nodes are not healthy: who is left out, how they learn it, and who is not."""

from __future__ import annotations

from dataclasses import replace

from ftrun.launcher.fitness import describe_ailments
from ftrun.launcher.host_state import Beats, Order, Publish, Stage, Tell
from ftrun.launcher.messages import Agent, Exclusion, Memory, StopKind
from ftrun.launcher.quorum import Rules
from ftrun.monitor import events
from ftrun.monitor.incident import Ailment, ErrorRecord, Evidence, RankExit
from tests.launcher.test_host import RULES, STOPPED, Job, nodes_of

LOST = (Ailment("gpu.lost", "gpu 1 (GPU-b)", "GPU is lost", "reboot the node", (1,), is_fatal=True),)
ALONE = Rules(min_nodes=1, max_nodes=1)
LAST_CALL_S = RULES.last_call_s


def exclusions(job: Job) -> list[Exclusion]:
    """All that were published."""
    found = [done.publication for done in job.log if isinstance(done, Publish)]
    return [one for one in found if isinstance(one, Exclusion)]


def left_out(job: Job) -> list[str]:
    """Names of the nodes, in that order."""
    return [one.agent.node for exclusion in exclusions(job) for one in exclusion.unfit]


def told(job: Job, kind: type[events.Event]) -> list[events.Event]:
    """Events of one kind."""
    return [done.event for done in job.log if isinstance(done, Tell) and isinstance(done.event, kind)]


def test_node_alone_that_is_not_healthy_is_told_before_any_round() -> None:
    """It learns the reason, and there is no plan."""
    job = Job(ALONE)
    job.get(job.join("a", unhealthy=LOST), at=1.0)
    [exclusion] = exclusions(job)
    assert exclusion.unfit[0].reason == f"node a is not healthy: {describe_ailments(LOST)}"
    assert job.state.present == {}
    assert told(job, events.NodeExcluded) == [events.NodeExcluded("a", exclusion.unfit[0].reason)]


def test_sick_node_gets_no_seat_and_the_others_join_again() -> None:
    """The round has those that are well, each with the port of its second join."""
    job = Job()
    job.get(job.join("a", port=1), job.join("b", port=1), job.join("c", port=1, unhealthy=LOST), at=1.0)
    assert left_out(job) == ["c"]
    assert job.state.stage is Stage.FORMING
    job.get(job.join("a", port=2), at=1.1)
    assert job.state.stage is Stage.FORMING, "b is about to join again"
    job.get(job.join("b", port=2), at=1.2)
    job.wake(1.2 + LAST_CALL_S)
    assert nodes_of(job.plan) == ["a", "b"]
    assert (job.plan.master_port, job.plan.memory.round_number) == (2, 0)


def test_node_that_does_not_join_again_is_waited_for_only_so_long() -> None:
    """Until the last call is over, or it is lost."""
    job = Job(replace(RULES, max_nodes=4))
    job.get(*(job.join(node) for node in "abc"), job.join("d", unhealthy=LOST), at=1.0)
    job.get(job.join("a"), job.join("b"), at=2.0)
    assert job.state.stage is Stage.FORMING
    job.hear(Beats({"a.1": 1, "b.1": 1, "c.1": 1}), at=3.0)
    job.hear(Beats({"a.1": 2, "b.1": 2, "c.1": 2}), at=4.0)
    for number in range(3, 10):
        job.hear(Beats({"a.1": number, "b.1": number, "c.1": 2}), at=2.0 + number)
    job.wake(2.0 + LAST_CALL_S)
    assert nodes_of(job.plan) == ["a", "b"]


def test_restart_without_the_sick_node_keeps_its_judgement_and_count() -> None:
    """What failed is told to the node that leaves, and the next round is the restart that was decided."""
    job = Job().form("a", "b", "c")
    job.stop(StopKind.FAILURE, "b")
    b = replace(job.failed("b"), unhealthy=LOST)
    job.back(job.join("a", STOPPED), b, job.join("c", STOPPED))
    [exclusion] = exclusions(job)
    assert exclusion.unfit[0].agent == Agent("b", "b.1")
    assert exclusion.judgement is not None
    assert job.state.stage is Stage.FORMING
    job.get(job.join("a", STOPPED), job.join("c", STOPPED))
    assert nodes_of(job.plan) == ["a", "c"]
    assert (job.plan.memory.round_number, job.plan.memory.restart_count) == (1, 1)
    assert job.plan.judgement == exclusion.judgement


def test_spare_takes_the_place_of_a_sick_node() -> None:
    """The world keeps its size."""
    job = Job(replace(RULES, min_nodes=2, max_nodes=2, spares=1))
    job.get(job.join("a"), job.join("b", unhealthy=LOST), job.join("s"), at=1.0)
    job.get(job.join("a"), job.join("s"), at=1.1)
    assert nodes_of(job.plan) == ["a", "s"]
    assert job.plan.spares == ()


def test_too_few_healthy_nodes_wait_for_another() -> None:
    """The sick one is let go at once, so that its scheduler can replace it in time."""
    job = Job(replace(RULES, min_nodes=2, max_nodes=2))
    job.get(job.join("a"), job.join("b", unhealthy=LOST), at=1.0)
    assert left_out(job) == ["b"]
    job.get(job.join("a"), at=1.1)
    job.wake(100.0)
    assert job.verdict is None
    job.get(job.join("b", incarnation="2"), at=101.0)
    assert nodes_of(job.plan) == ["a", "b"], "its name is not to blame: a replaced pod has the same"


def test_check_that_many_nodes_fail_at_once_excludes_nobody() -> None:
    """It is told once, with the nodes, however often rounds are formed."""
    job = Job(replace(RULES, min_nodes=3, max_nodes=3))
    job.get(job.join("a", unhealthy=LOST), job.join("b", unhealthy=LOST), job.join("c"), at=1.0)
    assert exclusions(job) == []
    assert told(job, events.ExclusionSuspended) == [events.ExclusionSuspended("gpu.lost", ("a", "b"))]
    job.stop(StopKind.FAILURE, "c")
    sick = [job.join(node, STOPPED, unhealthy=LOST) for node in "ab"]
    job.back(*sick, job.failed("c"))
    assert len(told(job, events.ExclusionSuspended)) == 1
    assert job.plan.memory.round_number == 1


def test_running_round_is_not_stopped_for_a_node_that_is_not_healthy() -> None:
    """It would get no seat; a healthy one does."""
    job = Job(replace(RULES, min_nodes=1, max_nodes=3, grow="immediately")).form("a")
    assert not any(isinstance(done, Order) for done in job.get(job.join("b", unhealthy=LOST), at=40.0))
    assert any(isinstance(done, Order) for done in job.get(job.join("c"), at=41.0))


def test_spare_that_has_become_sick_is_let_go_when_a_round_is_formed() -> None:
    """It had joined while the round was running."""
    job = Job(replace(RULES, min_nodes=1, max_nodes=1, spares=1)).form("a")
    job.get(job.join("s", unhealthy=LOST), at=40.0)
    job.stop(StopKind.FAILURE, "a")
    job.get(job.failed("a"), at=41.0)
    assert left_out(job) == ["s"]
    job.get(job.join("a", STOPPED), at=41.1)
    assert nodes_of(job.plan) == ["a"]


def test_round_of_another_host_agent_is_judged_before_anybody_is_left_out() -> None:
    """The evidence of the sick node counts."""
    job = Job(replace(RULES, min_nodes=1, max_nodes=2))
    memory = Memory(round_number=4, restart_count=2, nodes=("a", "b"), slots=(1, 1))
    job.state = replace(job.state, memory=memory)
    joins = (job.join("a", STOPPED), replace(job.failed("b"), unhealthy=LOST))
    job.state = replace(job.state, memory=Memory())
    job.get(*joins, at=1.0)
    [exclusion] = exclusions(job)
    assert exclusion.judgement is not None
    assert exclusion.judgement.incident.node == "b"


def test_failure_on_the_only_node_is_not_followed_by_a_restart_if_it_is_sick() -> None:
    """The decision itself says so, with the exit code that asks for another node."""
    job = Job(replace(ALONE, max_restarts=3)).form("a")
    job.get(replace(job.failed("a"), unhealthy=LOST), at=2.0)
    assert job.verdict is not None
    assert job.verdict.exit_code == 94
    assert "no restart here, since node a is not healthy: gpu 1 (GPU-b): GPU is lost" in job.verdict.reason
    assert exclusions(job) == []


def test_bug_on_a_sick_node_stays_a_bug() -> None:
    """Another node would not help."""
    job = Job(replace(ALONE, max_restarts=3)).form("a")
    error = ErrorRecord("ModuleNotFoundError", "No module named 'x'", "", bases=("ImportError",))
    end = RankExit(0, 0, 7, 1, 1.0, is_stopped_by_agent=False, error=error)
    told = Evidence("a", 0, (end,), has_progressed=False)
    job.get(job.join("a", STOPPED, evidence=told, unhealthy=LOST), at=2.0)
    assert job.verdict is not None
    assert job.verdict.exit_code == 93

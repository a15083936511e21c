"""The host agent's part as a state machine: who is waited for, what ends a round, what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from ftrun.launcher import host, policy
from ftrun.launcher.config import RestartConfig
from ftrun.launcher.host_state import (
    Beats,
    Do,
    Event,
    HostState,
    Order,
    Publish,
    Received,
    Stage,
    Stopped,
    Tell,
    Watch,
    Woke,
)
from ftrun.launcher.messages import (
    Agent,
    Bye,
    JobPlan,
    Join,
    Leave,
    Memory,
    Message,
    Moving,
    Outcome,
    Quiet,
    Refused,
    Saved,
    SeenCheckpoint,
    StopKind,
    StopOrder,
    Verdict,
)
from ftrun.launcher.model import PastIncident
from ftrun.launcher.quorum import Rules
from ftrun.monitor import events
from ftrun.monitor.incident import Evidence, IncidentKind, RankExit

T = TypeVar("T")
RULES = Rules(min_nodes=2, max_nodes=3, last_call_s=30.0, join_timeout_s=600.0, grow="never", max_restarts=3)
STOPPED, SUCCEEDED, NEW = Outcome.STOPPED, Outcome.SUCCEEDED, Outcome.NEW


def evidence(node: str, round_number: int, exit_code: int, was_stopped: bool) -> Evidence:
    """One rank of a node ended so."""
    end = RankExit(0, 0, 7, exit_code, 1.0, is_stopped_by_agent=was_stopped)
    return Evidence(node, round_number, (end,), has_progressed=True)


class Job:
    """A host agent's machine, with short words for what agents say; checks what must hold after each turn."""

    def __init__(self, rules: Rules = RULES, max_restarts: int | None = None) -> None:
        limit = rules.max_restarts if max_restarts is None else max_restarts
        self.decide = partial(policy.decide, max_restarts=limit, config=RestartConfig())
        self.state = HostState(rules, opened_at=0.0)
        self.now = 0.0
        self.log: list[Do] = []

    def hear(self, *happened: Event, at: float | None = None) -> list[Do]:
        """What the machine does about it; nothing is left to be done by another turn at the same time."""
        self.now = self.now if at is None else at
        self.state, actions = host.advance(self.state, happened, self.now, self.decide)
        again, nothing = host.advance(self.state, (), self.now, self.decide)
        assert (again, nothing) == (self.state, ())
        wanted_at = host.deadline(self.state)
        assert wanted_at is None or wanted_at > self.now
        self.log += actions
        return list(actions)

    def get(self, *messages: Message, at: float | None = None) -> list[Do]:
        """Messages come in one batch."""
        return self.hear(*(Received(message) for message in messages), at=at)

    def wake(self, at: float) -> list[Do]:
        """Time passes."""
        return self.hear(Woke(), at=at)

    def join(self, node: str, outcome: Outcome = NEW, incarnation: str = "1", **fields: object) -> Join:
        """A join for the open round, of an agent that knows the last plan, with fitting evidence."""
        agent = Agent(node, f"{node}.{incarnation}")
        memory = self.state.memory if outcome is not NEW else Memory()
        number = memory.round_number
        told = {STOPPED: evidence(node, number, -15, True), SUCCEEDED: evidence(node, number, 0, False)}
        values = {
            "agent": agent,
            "slots": 1,
            "address": node,
            "port": 1000,
            "outcome": outcome,
            "evidence": told.get(outcome),
            "memory": memory,
            "sequence": self.state.sequence,
        }
        return Join(**{**values, **fields})

    def failed(self, node: str, exit_code: int = -9) -> Join:
        """A join of a node on which a rank failed by itself."""
        number = self.state.memory.round_number
        return self.join(node, STOPPED, evidence=evidence(node, number, exit_code, False))

    def form(self, *nodes: str, at: float = 1.0) -> Job:
        """The first round, closed with these nodes at once."""
        self.get(*(self.join(node) for node in nodes), at=at)
        if self.state.stage is Stage.FORMING:
            self.wake(at + self.state.rules.last_call_s)
        assert nodes_of(self.plan) == list(nodes)
        return self

    def stop(self, kind: StopKind, node: str, **fields: object) -> list[Do]:
        """The running round's stop order is out."""
        return self.hear(Stopped(self.state.sequence - 1, StopOrder(kind, node, "why", **fields)))

    def back(self, *joins: Join, spares: Sequence[str] = ()) -> list[Do]:
        """Joins of the next round, as they come one after another."""
        done = []
        for one in (*(self.join(node) for node in spares), *joins):
            done += self.get(one)
        return done

    @property
    def plan(self) -> JobPlan:
        """The last that was published."""
        return [one for one in published(self.log) if isinstance(one, JobPlan)][-1]

    @property
    def verdict(self) -> Verdict | None:
        """The job's, if it was published."""
        return next((one for one in published(self.log) if isinstance(one, Verdict)), None)


def published(actions: Sequence[Do]) -> list[JobPlan | Verdict]:
    """What all agents are told."""
    return [action.publication for action in actions if isinstance(action, Publish)]


def orders(actions: Sequence[Do]) -> list[StopOrder]:
    """Stops that the host agent orders."""
    return [action.order for action in actions if isinstance(action, Order)]


def told(actions: Sequence[Do], kind: type[T]) -> list[T]:
    """Events of that kind that are journalled."""
    return [action.event for action in actions if isinstance(action, Tell) and isinstance(action.event, kind)]


def nodes_of(plan: JobPlan) -> list[str]:
    """In group-rank order."""
    return [seat.agent.node for seat in plan.seats]


# How a round closes


def test_first_round_closes_when_the_most_nodes_have_joined():
    """Nobody else could come, so nothing is waited for."""
    job = Job()
    assert published(job.get(job.join("b"), at=1.0)) == []
    assert published(job.get(job.join("a"), at=2.0)) == []
    (plan,) = published(job.get(job.join("c"), at=3.0))
    assert isinstance(plan, JobPlan)
    assert nodes_of(plan) == ["a", "b", "c"]
    assert (plan.memory.round_number, plan.memory.restart_count, plan.judgement) == (0, 0, None)


def test_first_round_with_enough_nodes_closes_after_the_last_call():
    """The call begins with the node that makes them enough, not with the first one."""
    job = Job()
    job.get(job.join("a"), at=1.0)
    job.get(job.join("b"), at=100.0)
    assert host.deadline(job.state) is not None
    assert published(job.wake(129.9)) == []
    (plan,) = published(job.wake(130.0))
    assert isinstance(plan, JobPlan)
    assert nodes_of(plan) == ["a", "b"]


def test_last_call_begins_anew_when_a_node_goes_and_another_comes():
    """Enough nodes that are gone again are not enough."""
    job = Job()
    job.get(job.join("a"), job.join("b"), at=1.0)
    job.get(Leave(Agent("b", "b.1"), "SIGTERM"), at=2.0)
    assert published(job.wake(100.0)) == []
    job.get(job.join("c"), at=101.0)
    assert published(job.wake(130.9)) == []
    assert len(published(job.wake(131.0))) == 1


def test_too_few_nodes_end_the_job_with_95_after_the_join_timeout():
    """The verdict names who was there and how many were missing."""
    job = Job()
    job.get(job.join("a"), at=1.0)
    assert job.wake(599.9) == [] or job.verdict is None
    job.wake(600.0)
    assert job.verdict is not None
    assert job.verdict.exit_code == 95
    assert "1 of 2 nodes; have a" in job.verdict.reason


def test_too_few_ranks_end_the_job_with_95_after_the_join_timeout():
    """Enough nodes with too few ranks are not enough; the verdict says how many are missing."""
    job = Job(replace(RULES, min_ranks=4))
    job.get(job.join("a"), job.join("b"), at=1.0)
    assert published(job.wake(500.0)) == []
    job.wake(600.0)
    assert job.verdict is not None
    assert "2 more ranks" in job.verdict.reason


def test_round_that_lacked_ranks_closes_when_a_node_brings_them():
    """The world's least size is in ranks."""
    job = Job(replace(RULES, min_ranks=4))
    job.get(job.join("a"), job.join("b"), at=1.0)
    job.get(job.join("c", slots=2), at=200.0)
    assert nodes_of(job.plan) == ["a", "b", "c"]


def test_world_that_may_not_shrink_waits_for_a_replacement():
    """It would do with two nodes at first; once it has had three, it never goes on with fewer."""
    job = Job(replace(RULES, may_shrink=False)).form("a", "b", "c")
    job.get(Leave(Agent("c", "c.1"), "SIGTERM"), at=5.0)
    assert published(job.back(job.join("a", STOPPED), job.join("b", STOPPED))) == []
    assert published(job.wake(200.0)) == []
    job.get(job.join("d"), at=201.0)
    assert nodes_of(job.plan) == ["a", "b", "d"]


def test_new_host_agent_knows_the_size_that_the_world_had():
    """It is the job's, and comes with the joins of those who took part."""
    memory = Memory(3, 2, nodes=("a", "b", "c"), slots=(1, 1, 1))
    job = Job(replace(RULES, may_shrink=False))
    back = [job.join(node, memory=memory, lost_host="c") for node in ("a", "b")]
    assert published(job.get(*back, at=1.0)) == []
    assert published(job.wake(500.0)) == []
    job.wake(600.0)
    assert job.verdict is not None
    assert (job.verdict.exit_code, "1 of 3 nodes" in job.verdict.reason) == (95, True)


def test_one_node_alone_starts_at_once():
    """It is the same machine with one member."""
    job = Job(Rules(1, 1))
    (plan,) = published(job.get(job.join("a")))
    assert isinstance(plan, JobPlan)
    assert nodes_of(plan) == ["a"]


def test_it_is_said_who_is_waited_for_and_only_when_that_changes():
    """A visible wait with its deadline; not in the first second, not the same twice."""
    job = Job()
    job.get(job.join("a"), at=0.1)
    assert told(job.wake(0.9), events.RendezvousAwaited) == []
    (event,) = told(job.wake(1.0), events.RendezvousAwaited)
    assert (event.awaited, event.remaining_s) == ("1 of 2 nodes; have a", 599.0)
    assert told(job.wake(6.0), events.RendezvousAwaited) == []
    job.get(job.join("b"), at=7.0)
    (event,) = told(job.wake(11.0), events.RendezvousAwaited)
    assert event.awaited == "1 of 3 nodes; have a, b"


def test_late_join_for_a_round_that_has_closed_waits_for_the_next_one():
    """It is known as a node that is there, and has no part until it answers to the open round."""
    job = Job().form("a", "b", "c")
    job.get(job.join("d", sequence=0))
    assert "d.1" in job.state.present
    assert job.state.present["d.1"].join is None


def test_second_join_of_an_agent_replaces_the_first():
    """An agent that lost its connection says again what it has; it still has one seat."""
    job = Job()
    job.get(job.join("a", port=1), job.join("a", port=2), job.join("b"), job.join("c"))
    assert nodes_of(job.plan) == ["a", "b", "c"]
    assert job.plan.master_port == 2


def test_thousand_joins_of_one_batch_close_one_round():
    """They come together, and are answered once."""
    job = Job(Rules(1000, 1000))
    actions = job.get(*(job.join(f"n{place}") for place in range(1000)))
    assert len(published(actions)) == 1
    assert nodes_of(job.plan) == [f"n{place}" for place in range(1000)]


# How a round ends, and what follows


def test_restart_with_nobody_lost_waits_for_nothing():
    """The last node that is back closes the next round in the same turn."""
    job = Job().form("a", "b")
    job.stop(StopKind.FAILURE, "a")
    assert published(job.back(job.failed("a"))) == []
    (plan,) = published(job.back(job.join("b", STOPPED)))
    assert isinstance(plan, JobPlan)
    assert (plan.memory.round_number, plan.memory.restart_count, nodes_of(plan)) == (1, 1, ["a", "b"])
    assert plan.judgement is not None
    assert (plan.judgement.incident.kind, plan.judgement.incident.node) == (IncidentKind.KILLED, "a")


def test_node_that_is_still_stopping_is_waited_for():
    """A living node of the last round has its place, however long its workers take."""
    job = Job().form("a", "b")
    job.stop(StopKind.FAILURE, "a")
    job.back(job.failed("a"))
    assert published(job.wake(job.now + 100.0)) == []


def test_spares_do_not_make_a_restart_begin_before_the_nodes_of_the_round_are_back():
    """A node that waits is there first; it must not take the place of one whose workers are still ending."""
    job = Job(replace(RULES, max_nodes=2)).form("m", "n")
    job.stop(StopKind.FAILURE, "m")
    assert published(job.back(job.failed("m"), spares=("a", "b", "c"))) == []
    job.back(job.join("n", STOPPED))
    assert (nodes_of(job.plan), list(job.plan.spares)) == (["m", "n"], ["a", "b", "c"])


def test_join_for_one_round_does_not_count_for_the_next():
    """A node that had joined and got no seat is a candidate again when it says so, with a fresh port."""
    job = Job(replace(RULES, max_nodes=2))
    job.get(job.join("a"), job.join("b"), job.join("s"))
    assert list(job.plan.spares) == ["s"]
    job.stop(StopKind.FAILURE, "a")
    job.back(job.failed("a"), job.join("b", STOPPED))
    assert (nodes_of(job.plan), list(job.plan.spares)) == (["a", "b"], [])


def test_success_of_all_nodes_is_the_jobs():
    """Each node says that its ranks are done; the last one makes the verdict."""
    job = Job().form("a", "b")
    assert published(job.back(job.join("a", SUCCEEDED))) == []
    job.back(job.join("b", SUCCEEDED))
    assert job.verdict is not None
    assert (job.verdict.exit_code, job.verdict.reason) == (0, "all ranks finished")


def test_node_that_is_done_while_another_runs_stops_nobody():
    """Ranks may end one after another."""
    job = Job().form("a", "b")
    job.back(job.join("a", SUCCEEDED))
    assert orders(job.log) == []


def test_done_node_trains_again_with_the_others_when_one_of_them_is_lost():
    """The world had not finished: the loss is judged, and the next round has the node that was done."""
    job = Job(replace(RULES, min_nodes=1)).form("a", "b")
    job.back(job.join("a", SUCCEEDED))
    lose(job, "b.1")
    assert [order.kind for order in orders(job.log)] == [StopKind.NODE_LOST]
    assert (nodes_of(job.plan), job.plan.memory.restart_count) == (["a"], 1)


def test_failure_on_a_node_that_dies_before_the_round_has_ended_is_no_success():
    """What it had said of its failure counts, though the other node's ranks had ended well."""
    job = Job().form("a", "b")
    job.back(job.failed("a"))
    job.get(Leave(Agent("a", "a.1"), "SIGTERM"))
    job.back(job.join("b", SUCCEEDED))
    assert job.verdict is None
    (event,) = told(job.log, events.IncidentDiagnosed)
    assert event.incident_kind == "killed"


def test_success_of_an_agent_that_has_left_since_counts():
    """It was done, and it is said so; nobody waits for it."""
    job = Job().form("a", "b")
    job.back(job.join("a", SUCCEEDED))
    job.get(Leave(Agent("a", "a.1"), "SIGTERM"))
    job.back(job.join("b", SUCCEEDED))
    assert job.verdict is not None
    assert job.verdict.exit_code == 0


def test_verdict_of_the_policy_ends_the_job_with_its_code():
    """No restarts are left: everyone ends with the worker's own code."""
    job = Job(max_restarts=0).form("a", "b")
    job.stop(StopKind.FAILURE, "a")
    job.back(job.failed("a", exit_code=42), job.join("b", STOPPED))
    assert job.verdict is not None
    assert (job.verdict.exit_code, job.verdict.restart_count) == (42, 0)
    assert job.verdict.judgement is not None


def test_budget_is_the_jobs_whichever_nodes_fail():
    """Three failures on three nodes use up three restarts."""
    job = Job(max_restarts=2).form("a", "b", "c")
    for node in ("a", "b", "c"):
        job.stop(StopKind.FAILURE, node)
        others = [other for other in ("a", "b", "c") if other != node]
        job.back(job.failed(node), *(job.join(other, STOPPED) for other in others))
    assert job.verdict is not None
    assert (job.plan.memory.restart_count, len(job.plan.memory.history)) == (2, 2)


def test_pause_of_the_policy_is_kept_and_ends_by_itself():
    """A round that could not be started is tried again a second later."""
    job = Job().form("a", "b")
    cannot = replace(evidence("a", 0, 0, True), exits=(), start_failure="no more processes")
    job.stop(StopKind.FAILURE, "a")
    job.now = 50.0
    job.back(job.join("a", STOPPED, evidence=cannot), job.join("b", STOPPED))
    assert host.deadline(job.state) == 51.0
    assert published(job.wake(50.9)) == []
    assert len(published(job.wake(51.0))) == 1
    assert job.plan.memory.restart_count == 0


def test_node_lost_in_the_pause_before_a_restart_is_replaced_or_waited_for():
    """The pause is over, and nobody turns in circles until enough nodes are there."""
    job = Job().form("a", "b")
    cannot = replace(evidence("a", 0, 0, True), exits=(), start_failure="no more processes")
    job.stop(StopKind.FAILURE, "a")
    job.now = 50.0
    job.back(job.join("a", STOPPED, evidence=cannot), job.join("b", STOPPED))
    job.get(Leave(Agent("b", "b.1"), "SIGTERM"), at=50.5)
    assert published(job.wake(55.0)) == []
    job.get(job.join("c"), at=60.0)
    assert nodes_of(job.plan) == ["a", "c"]


def test_what_the_script_asked_for_is_the_verdict():
    """A request ends the job with its code and reason when all workers are gone."""
    job = Job().form("a", "b")
    job.stop(StopKind.REQUEST, "a", exit_code=93)
    job.back(job.join("a", STOPPED), job.join("b", STOPPED))
    assert job.verdict is not None
    assert (job.verdict.exit_code, job.verdict.reason) == (93, "why")


def test_request_counts_when_the_round_was_being_stopped_for_another_reason():
    """The join carries it; no restart follows."""
    wish = StopOrder(StopKind.REQUEST, "", "loss is NaN", 93)
    job = Job().form("a", "b")
    job.stop(StopKind.FAILURE, "b")
    job.back(job.failed("b"), job.join("a", STOPPED, request=wish))
    assert job.verdict is not None
    assert (job.verdict.exit_code, job.verdict.reason) == (93, "loss is NaN")


def test_request_in_a_pause_ends_the_job_at_once():
    """A node that waits may say it too."""
    wish = StopOrder(StopKind.REQUEST, "", "loss is NaN", 93)
    job = Job()
    job.get(job.join("a", request=wish))
    assert job.verdict is not None
    assert job.verdict.exit_code == 93


def test_order_that_all_nodes_have_is_the_one_that_counts():
    """The host agent's own may come second: what was asked for is not forgotten for a loss."""
    job = Job(replace(RULES, min_nodes=1)).form("a", "b")
    lose(job, "b.1")
    assert [order.kind for order in orders(job.log)] == [StopKind.NODE_LOST]
    job.stop(StopKind.REQUEST, "b", exit_code=93)
    job.back(job.join("a", STOPPED))
    assert job.verdict is not None
    assert job.verdict.exit_code == 93


def test_stop_order_of_an_earlier_round_changes_nothing():
    """A slow writer cannot stop the round that follows."""
    job = Job().form("a", "b")
    job.stop(StopKind.FAILURE, "a")
    job.back(job.failed("a"), job.join("b", STOPPED))
    job.hear(Stopped(0, StopOrder(StopKind.REQUEST, "a", "late", 93)))
    assert job.state.order is None


def test_node_that_is_back_without_having_finished_stops_the_round_if_nobody_has():
    """It lost its connection and could not say so; the others would wait for its ranks for ever."""
    job = Job().form("a", "b")
    (order,) = orders(job.get(job.join("a", STOPPED)))
    assert (order.kind, order.node) == (StopKind.FAILURE, "a")


@pytest.mark.parametrize("saw", [None, evidence("a", -1, 0, False)], ids=["new", "of an earlier round"])
def test_agent_that_did_not_start_the_round_is_no_part_of_its_success(saw: Evidence | None):
    """Its connection broke while the round was published: what it says is of an earlier one."""
    job = Job(replace(RULES, min_nodes=1)).form("a", "b")
    (order,) = orders(job.get(job.join("a", SUCCEEDED, evidence=saw)))
    assert (order.kind, order.node) == (StopKind.NODE_LOST, "a")
    job.back(job.join("b", SUCCEEDED))
    assert job.verdict is None
    assert (nodes_of(job.plan), job.plan.memory.round_number) == (["a", "b"], 1)


def test_evidence_of_an_earlier_round_is_not_taken_for_that_of_the_last():
    """A node without a seat sends again what it saw when it had one."""
    job = Job().form("a", "b")
    job.stop(StopKind.FAILURE, "b")
    stale = evidence("a", -1, -11, False)
    job.back(job.join("a", STOPPED, evidence=stale), job.failed("b"))
    (event,) = told(job.log, events.IncidentDiagnosed)
    assert (event.incident_kind, event.round) == ("killed", 0)


def test_all_nodes_begin_from_the_newest_checkpoint_that_each_of_them_sees():
    """The plan carries it, and the journal says who was blind to a newer one."""
    old, new = SeenCheckpoint("/c/step-10", 10), SeenCheckpoint("/c/step-20", 20)
    job = Job(replace(RULES, max_nodes=2))
    job.get(job.join("a", has_checkpoint_dir=True, checkpoints=(new, old)))
    actions = job.get(job.join("b", has_checkpoint_dir=True, checkpoints=(old,)))
    assert (job.plan.memory.resume, job.plan.is_resume_known) == (old, True)
    (event,) = told(actions, events.CheckpointSkipped)
    assert "not seen by b" in event.reason


# Nodes that are lost, and nodes that only seem so


def lose(job: Job, incarnation: str) -> None:
    """Keep-alives of all others go on until this one is lost."""
    beat = 1
    while incarnation in job.state.present:
        beat += 1
        seen = {key: beat for key in job.state.present if key != incarnation}
        job.hear(Beats({**seen, incarnation: 1}), at=job.now + 1.0)


def test_agents_that_are_there_are_watched():
    """Told when they change, and not at each join again."""
    job = Job()
    first = job.get(job.join("a"))
    assert first[0] == Watch((Agent("a", "a.1"),))
    assert not any(isinstance(one, Watch) for one in job.get(job.join("a")))
    (watch,) = [one for one in job.get(job.join("b")) if isinstance(one, Watch)]
    assert {agent.node for agent in watch.agents} == {"a", "b"}


def test_silent_node_of_a_round_is_lost_after_its_time_and_the_round_is_stopped():
    """The order and the journal name it; it is not waited for."""
    job = Job().form("a", "b", "c")
    job.hear(Beats({"a.1": 1, "b.1": 1, "c.1": 1}), at=2.0)
    for at in (3.0, 4.0, 5.0, 6.0, 7.0):
        assert orders(job.hear(Beats({"a.1": int(at), "b.1": int(at), "c.1": 1}), at=at)) == []
    actions = job.hear(Beats({"a.1": 8, "b.1": 8, "c.1": 1}), at=8.0)
    (order,) = orders(actions)
    assert (order.kind, order.node) == (StopKind.NODE_LOST, "c")
    assert "no keep-alive for 6.0 s" in order.reason
    assert [event.name for event in told(actions, events.NodeLost)] == ["c"]
    job.back(job.join("a", STOPPED), job.join("b", STOPPED))
    assert nodes_of(job.plan) == ["a", "b"]
    assert job.plan.judgement is not None
    assert job.plan.judgement.incident.kind is IncidentKind.NODE_LOST


def test_pause_of_the_host_agent_itself_condemns_nobody():
    """A minute in which it read no keep-alives says nothing about those who sent them."""
    job = Job().form("a", "b", "c")
    job.hear(Beats({"a.1": 1, "b.1": 1, "c.1": 1}), at=2.0)
    actions = job.hear(Beats({"a.1": 1, "b.1": 1, "c.1": 1}), at=62.0)
    assert told(actions, events.NodeLost) == []
    actions = job.hear(Beats({"a.1": 2, "b.1": 2, "c.1": 1}), at=63.0)
    assert told(actions, events.NodeLost) == []


def test_node_that_died_in_a_pause_of_the_host_agent_is_found_out_afterwards():
    """Its silence is counted on from where it was."""
    job = Job().form("a", "b", "c")
    job.hear(Beats({"a.1": 1, "b.1": 1, "c.1": 1}), at=2.0)
    job.now = 62.0
    lose(job, "c.1")
    assert job.now <= 62.0 + 7.0
    assert set(job.state.present) == {"a.1", "b.1"}


def test_other_agents_clocks_and_counters_are_never_compared():
    """Only that a counter has changed counts, whatever its value."""
    job = Job().form("a", "b", "c")
    job.hear(Beats({"a.1": 900, "b.1": 1, "c.1": 5}), at=2.0)
    for at, beat in ((5.0, 3), (8.0, 2), (11.0, 7)):
        assert told(job.hear(Beats({"a.1": beat, "b.1": beat, "c.1": beat}), at=at), events.NodeLost) == []


def test_node_lost_while_it_waits_is_not_waited_for():
    """It has no part in the round that forms any more."""
    job = Job()
    job.get(job.join("a"), job.join("b"))
    lose(job, "b.1")
    job.wake(100.0)
    assert published(job.log) == []
    job.get(job.join("c"))
    job.wake(130.0)
    assert nodes_of(job.plan) == ["a", "c"]


def test_lost_node_that_was_only_frozen_joins_as_any_other():
    """It comes back with the same incarnation, and has a place in the next round."""
    job = Job(replace(RULES, min_nodes=1)).form("a", "b")
    lose(job, "b.1")
    job.back(job.join("a", STOPPED))
    assert nodes_of(job.plan) == ["a"]
    job.get(job.join("b", STOPPED))
    job.stop(StopKind.FAILURE, "a")
    job.back(job.failed("a"))
    assert nodes_of(job.plan) == ["a", "b"]


def test_too_few_nodes_after_a_loss_are_waited_for_and_then_end_the_job_with_95():
    """All that are there end with it."""
    job = Job(replace(RULES, max_nodes=2)).form("a", "b")
    lose(job, "b.1")
    job.back(job.join("a", STOPPED))
    opened_at = job.now
    assert published(job.wake(opened_at + 599.0)) == [] or job.verdict is None
    job.wake(opened_at + 600.0)
    assert job.verdict is not None
    assert job.verdict.exit_code == 95


def test_replacement_that_comes_in_time_lets_the_job_go_on():
    """It takes the lost node's place without a last call."""
    job = Job(replace(RULES, max_nodes=2)).form("a", "b")
    lose(job, "b.1")
    job.back(job.join("a", STOPPED))
    job.get(job.join("c"), at=job.now + 300.0)
    assert (nodes_of(job.plan), job.plan.memory.restart_count) == (["a", "c"], 1)


def test_node_that_leaves_stops_the_round_and_is_not_waited_for():
    """It was told to stop: the others go on without it, and it counts as preempted."""
    job = Job().form("a", "b", "c")
    job.stop(StopKind.LEAVE, "c")
    actions = job.get(Leave(Agent("c", "c.1"), "SIGTERM"))
    assert [event.name for event in told(actions, events.NodeLeft)] == ["c"]
    job.back(job.join("a", STOPPED), job.join("b", STOPPED))
    assert nodes_of(job.plan) == ["a", "b"]
    assert job.plan.judgement is not None
    assert job.plan.judgement.incident.kind is IncidentKind.PREEMPTED


def test_leave_of_a_node_without_a_seat_disturbs_nobody():
    """A spare may go when it likes."""
    job = Job(replace(RULES, max_nodes=2)).form("a", "b")
    job.get(job.join("s"))
    assert orders(job.get(Leave(Agent("s", "s.1"), "SIGTERM"))) == []


def test_agent_that_is_started_again_on_its_node_fences_the_old_one_at_once():
    """No keep-alive has to run out: the round is stopped, and the new agent takes part in the next one."""
    job = Job().form("a", "b")
    (order,) = orders(job.get(job.join("b", incarnation="2")))
    assert order.kind is StopKind.NODE_LOST
    assert "started again" in order.reason
    job.back(job.join("a", STOPPED))
    assert nodes_of(job.plan) == ["a", "b"]
    assert job.plan.seats[1].agent.incarnation == "b.2"


def test_two_machines_with_one_name_are_told_of():
    """Each takes the other for its last agent; that one lives on, which no dead one does."""
    job = Job(Rules(2, 2, join_timeout_s=60.0, lost_after_s=5.0))
    job.get(job.join("ubuntu"), at=1.0)
    job.get(job.join("ubuntu", incarnation="2"), at=2.0)
    for second in range(3, 30):
        job.hear(Beats({"ubuntu.1": second, "ubuntu.2": second}), at=float(second))
    [refused] = told(job.log, events.NodeRefused)
    assert "two machines have the host name ubuntu" in refused.reason
    assert "give each a name of its own" in told(job.log, events.RendezvousAwaited)[-1].awaited
    job.wake(61.0)
    assert job.verdict is not None
    assert "two machines have the host name ubuntu" in job.verdict.reason


def test_dead_agent_whose_last_keep_alives_come_late_is_no_namesake():
    """A slow network brings them when its successor is there already."""
    job = Job(Rules(2, 2, lost_after_s=5.0))
    job.get(job.join("a"), at=1.0)
    job.get(job.join("a", incarnation="2"), at=2.0)
    for second in range(3, 30):
        job.hear(Beats({"a.1": min(second, 6), "a.2": second}), at=float(second))
    assert told(job.log, events.NodeRefused) == []
    assert job.state.replaced == {}


def test_restarted_agents_of_all_nodes_are_no_duplicates():
    """A whole job that is started again on the same hosts has one seat for each of them."""
    job = Job()
    job.get(job.join("a"), job.join("b"))
    job.get(job.join("a", incarnation="2"), job.join("b", incarnation="2"))
    job.wake(31.0)
    assert [seat.agent.incarnation for seat in job.plan.seats] == ["a.2", "b.2"]


def test_late_message_of_a_replaced_agent_changes_nothing():
    """A join that was on its way when its sender was killed must not drive out the new one."""
    job = Job()
    job.get(job.join("a"), job.join("b"), job.join("b", incarnation="2"))
    job.get(job.join("b"), Leave(Agent("b", "b.1"), "late"))
    job.wake(31.0)
    assert [seat.agent.incarnation for seat in job.plan.seats] == ["a.1", "b.2"]


def test_excluded_node_has_no_part_in_any_later_round():
    """Not even when it is started again; the plan says so, and a spare takes its place."""
    job = Job(replace(RULES, max_nodes=2)).form("a", "b")
    job.get(job.join("s"))
    job.stop(StopKind.LEAVE, "b")
    job.get(Leave(Agent("b", "b.1"), "bad GPU", is_excluded=True))
    job.get(job.join("b", incarnation="2"))
    job.back(job.join("a", STOPPED))
    assert (nodes_of(job.plan), job.plan.memory.excluded) == (["a", "s"], ("b",))


def test_foreign_agent_is_journalled():
    """It was refused by its own side already."""
    job = Job()
    (event,) = told(job.get(Refused(Agent("x", "x.1"), "another job")), events.NodeRefused)
    assert (event.name, event.reason) == ("x", "another job")
    assert job.state.present == {}


# Spares and growth


def test_spares_are_kept_out_and_one_takes_over_for_a_lost_node():
    """They have joined and are ready: the next round closes as soon as the survivors are back."""
    job = Job(Rules(2, 2, spares=1, max_restarts=3))
    job.get(job.join("a"), job.join("b"))
    job.get(job.join("s"))
    lose(job, "b.1")
    job.back(job.join("a", STOPPED))
    assert (nodes_of(job.plan), list(job.plan.spares)) == (["a", "s"], [])


def test_spare_is_kept_back_even_if_the_world_could_be_larger():
    """Of three nodes of a job of 2 to 4, one is the spare."""
    job = Job(Rules(2, 4, spares=1))
    job.get(job.join("a"), job.join("b"), job.join("c"))
    job.wake(30.0)
    assert (nodes_of(job.plan), list(job.plan.spares)) == (["a", "b"], ["c"])


def test_joiners_beyond_the_places_neither_stop_the_round_nor_end_the_job():
    """Whatever growth is set to: nobody is disturbed by nodes that would have no ranks."""
    job = Job(replace(RULES, max_nodes=2, grow="immediately")).form("a", "b")
    actions = job.get(*(job.join(node) for node in ("c", "d", "e")))
    assert (orders(actions), published(actions)) == ([], [])


@pytest.mark.parametrize(
    ("grow", "is_saved", "is_stopped"),
    [
        ("immediately", False, True),
        ("at_checkpoint", False, False),
        ("at_checkpoint", True, True),
        ("never", True, False),
    ],
)
def test_new_node_ends_the_round_as_growth_is_set(grow: str, is_saved: bool, is_stopped: bool):
    """At once, at the next checkpoint, or not at all."""
    job = Job(replace(RULES, grow=grow)).form("a", "b")
    job.get(job.join("c"))
    if is_saved:
        job.get(Saved(Agent("a", "a.1"), 0))
    assert [order.kind for order in orders(job.log)] == ([StopKind.GROW] if is_stopped else [])


def test_larger_world_after_growth_costs_nothing_of_the_budget():
    """It is a new round without an incident."""
    job = Job(replace(RULES, grow="immediately"), max_restarts=1).form("a", "b")
    job.get(job.join("c"))
    job.back(job.join("a", STOPPED), job.join("b", STOPPED))
    assert (nodes_of(job.plan), job.plan.memory.history, job.plan.judgement) == (["a", "b", "c"], (), None)


def test_checkpoint_before_anyone_waited_is_no_reason_to_grow():
    """The round goes on to the next one, so that nothing is trained twice."""
    job = Job(replace(RULES, grow="at_checkpoint")).form("a", "b")
    job.get(Saved(Agent("a", "a.1"), 0))
    assert orders(job.get(job.join("c"))) == []


def test_round_that_is_about_to_end_is_not_stopped_for_growth():
    """A node is done already: the others will be in a moment."""
    job = Job(replace(RULES, grow="immediately")).form("a", "b")
    job.back(job.join("a", SUCCEEDED))
    assert orders(job.get(job.join("c"))) == []


def test_failure_while_the_round_is_stopped_for_growth_is_judged():
    """It is an incident like any other."""
    job = Job(replace(RULES, grow="immediately")).form("a", "b")
    job.get(job.join("c"))
    job.back(job.failed("a"), job.join("b", STOPPED))
    assert len(job.plan.memory.history) == 1


# Standstill


def quiet(node: str, round_number: int = 0, limit_s: float = 60.0) -> Quiet:
    """No rank of this node moves."""
    return Quiet(Agent(node, f"{node}.1"), round_number, limit_s, limit_s, f"nothing moves on {node}")


def test_standstill_is_the_jobs_only_when_all_nodes_are_quiet():
    """A node whose ranks wait for those of another is no hang while the other moves."""
    job = Job().form("a", "b")
    assert orders(job.get(quiet("a"))) == []
    (order,) = orders(job.get(quiet("b", limit_s=90.0)))
    assert (order.kind, order.reason) == (StopKind.STALL, "nothing moves on b")


def test_node_that_moves_again_is_not_quiet():
    """What it said before is taken back."""
    job = Job().form("a", "b")
    job.get(quiet("a"), Moving(Agent("a", "a.1"), 0))
    assert orders(job.get(quiet("b"))) == []


def test_node_that_is_done_does_not_keep_a_standstill_from_being_seen():
    """A rank that left with 0 while the others wait for it: bounded, and ended with a reason."""
    job = Job().form("a", "b")
    job.back(job.join("a", SUCCEEDED))
    (order,) = orders(job.get(quiet("b")))
    assert order.kind is StopKind.STALL
    assert order.reason == "nothing moves on b; all ranks of node a had ended before, with exit code 0"


@pytest.mark.parametrize("message", [quiet("b", round_number=7), quiet("s")])
def test_quiet_of_another_round_or_of_a_node_without_ranks_says_nothing(message: Quiet):
    """Only the nodes of the round that runs are asked."""
    job = Job().form("a", "b")
    job.get(job.join("s"))
    assert orders(job.get(quiet("a"), message)) == []


# The host agent is another one


def remembered(round_number: int = 4, restart_count: int = 2, **fields: object) -> Memory:
    """What agents of a job know that another host agent led."""
    past = (PastIncident(IncidentKind.KILLED, "f", True),) * restart_count
    values = {"nodes": ("a", "b", "h"), "slots": (1, 1, 1), "history": past}
    return Memory(round_number, restart_count, **{**values, **fields})


def survivor(job: Job, node: str, outcome: Outcome = STOPPED, **fields: object) -> Join:
    """A node of that job, which lost the store."""
    memory = remembered(**fields)
    code, was_stopped = (0, False) if outcome is SUCCEEDED else (-15, True)
    saw = evidence(node, memory.round_number, code, was_stopped)
    return job.join(node, outcome, memory=memory, evidence=saw)


def test_new_host_agent_goes_on_with_what_the_joins_remember():
    """Round number, restart count, budget and excluded nodes are the job's; its loss is an incident."""
    job = Job()
    job.get(survivor(job, "a", excluded=("x",)), survivor(job, "b", excluded=("x",)))
    (plan,) = published(job.get(job.join("h", incarnation="2")))
    assert isinstance(plan, JobPlan)
    memory = plan.memory
    assert (memory.round_number, memory.restart_count, len(memory.history)) == (5, 3, 3)
    assert (memory.excluded, nodes_of(plan)) == (("x",), ["a", "b", "h"])
    assert plan.judgement is not None
    assert plan.judgement.incident.kind is IncidentKind.NODE_LOST
    assert (plan.judgement.incident.node, plan.judgement.incident.round_number) == ("h", 4)


def test_new_host_agent_closes_at_once_when_all_nodes_of_the_last_round_are_back():
    """It waits for a last call only while one of them is missing."""
    job = Job(replace(RULES, max_nodes=9))
    job.get(survivor(job, "a"), survivor(job, "b"))
    assert published(job.wake(29.0)) == []
    assert len(published(job.get(job.join("h", incarnation="2"), at=29.5))) == 1


def test_new_host_agent_goes_on_without_a_node_that_does_not_come_back():
    """After the last call the others are enough."""
    job = Job(replace(RULES, max_nodes=9))
    job.get(survivor(job, "a"), survivor(job, "b"), at=1.0)
    job.wake(31.0)
    assert (nodes_of(job.plan), job.plan.memory.round_number) == (["a", "b"], 5)


@pytest.mark.parametrize(
    "knows", [{"lost_host": "h"}, {"order": StopOrder(StopKind.LEAVE, "h", "told to stop")}]
)
def test_new_host_agent_waits_for_no_node_that_is_known_to_be_gone(knows: dict[str, Any]):
    """The others have seen the last one go, or have heard that it leaves: no last call for it."""
    job = Job(replace(RULES, max_nodes=9))
    assert published(job.get(survivor(job, "b"), at=1.0)) == []
    job.get(replace(survivor(job, "a"), **knows), at=1.5)
    assert nodes_of(job.plan) == ["a", "b"]


def test_node_that_goes_in_a_pause_under_a_new_host_agent_makes_nobody_turn_in_circles():
    """The pause is over before the last call is: it is that what is waited for then."""
    job = Job(replace(RULES, max_nodes=9, max_restarts=9))
    past = (PastIncident(IncidentKind.NODE_LOST, "f", False),) * 2
    joins = [survivor(job, node, history=past) for node in ("a", "b")]
    still = [
        replace(one, evidence=replace(one.evidence, has_progressed=False)) for one in joins if one.evidence
    ]
    job.get(*still, job.join("h", incarnation="2"), at=1.0)
    assert host.deadline(job.state) == 1.5
    job.get(Leave(Agent("h", "h.2"), "SIGTERM"), at=1.2)
    assert published(job.wake(1.5)) == []
    job.wake(31.0)
    assert nodes_of(job.plan) == ["a", "b"]


def test_spares_do_not_displace_the_nodes_of_a_round_that_another_host_agent_had_closed():
    """They have lost the store too, but no workers to end; for some seconds the survivors are waited for."""
    job = Job(replace(RULES, max_nodes=2))
    spares = [job.join(node, memory=remembered(nodes=("m", "n"), slots=(1, 1))) for node in ("a", "b")]
    assert published(job.get(*spares, at=1.0)) == []
    survivors = [survivor(job, node, nodes=("m", "n"), slots=(1, 1)) for node in ("m", "n")]
    job.get(*survivors, at=4.0)
    assert (nodes_of(job.plan), list(job.plan.spares)) == (["m", "n"], ["a", "b"])


def test_survivors_that_do_not_come_are_replaced_as_soon_as_they_would_have_seen_the_loss():
    """Enough others are there: the last call need not run out."""
    job = Job(replace(RULES, max_nodes=2))
    job.get(*(job.join(node, memory=remembered(nodes=("m", "n"), slots=(1, 1))) for node in ("a", "b")))
    job.hear(Beats({}), at=4.9)
    assert published(job.log) == []
    job.hear(Beats({"a.1": 1, "b.1": 1}), at=5.0)
    assert nodes_of(job.plan) == ["a", "b"]


def test_used_up_budget_stays_used_up_under_a_new_host_agent():
    """A replacement does not begin to count again."""
    job = Job(max_restarts=2)
    job.get(survivor(job, "a"), survivor(job, "b"), job.join("h", incarnation="2"))
    assert job.verdict is not None
    assert "all 2 restarts are used up" in job.verdict.reason


def test_success_of_all_nodes_counts_though_the_host_agent_is_another():
    """The old one was lost before it could say so: nothing is trained again."""
    job = Job()
    job.get(*(survivor(job, node, SUCCEEDED) for node in ("a", "b", "h")))
    assert job.verdict is not None
    assert job.verdict.exit_code == 0


def test_evidence_of_a_node_without_a_seat_is_not_the_last_rounds():
    """A spare sends what it saw long ago; the lost host is what ended the round."""
    job = Job(Rules(2, 3, max_restarts=3))
    stale = job.join("s", STOPPED, memory=remembered(), evidence=evidence("s", 1, -11, False))
    job.get(survivor(job, "a"), survivor(job, "b"), stale)
    job.wake(100.0)
    assert job.plan.judgement is not None
    assert job.plan.judgement.incident.kind is IncidentKind.NODE_LOST


def test_counters_do_not_go_back_when_a_node_comes_that_knows_more():
    """It was cut off from the others while they began anew: the larger numbers hold from then on."""
    job = Job(replace(RULES, min_nodes=1)).form("x", "y")
    assert job.plan.memory.round_number == 0
    job.get(survivor(job, "a", round_number=7, restart_count=3))
    job.stop(StopKind.FAILURE, "x")
    number = job.plan.memory.round_number
    job.back(
        job.join("x", STOPPED, evidence=evidence("x", number, -9, False), memory=job.plan.memory),
        job.join("y", STOPPED, evidence=evidence("y", number, -15, True), memory=job.plan.memory),
    )
    assert job.verdict is not None or job.plan.memory.round_number == 8


def test_what_was_counted_on_either_side_of_a_loss_stays_counted():
    """The later round's memory holds, but never with fewer restarts or without an excluded node."""
    job = Job(Rules(2, 2, max_restarts=9))
    where = {"nodes": ("a", "b"), "slots": (1, 1)}
    late = remembered(round_number=9, restart_count=1, excluded=("x",), **where)
    early = remembered(round_number=5, restart_count=3, excluded=("z",), **where)
    job.get(job.join("a", STOPPED, memory=early), job.join("b", STOPPED, memory=late))
    memory = job.plan.memory
    assert (memory.round_number, memory.restart_count, len(memory.history)) == (10, 4, 4)
    assert set(memory.excluded) == {"x", "z"}


# The end


def test_host_agent_stays_until_everyone_has_taken_note_of_the_verdict():
    """The store goes with it: no fixed sleep, and no node that never hears."""
    job = Job(Rules(2, 2)).form("a", "b")
    job.back(job.join("a", SUCCEEDED), job.join("b", SUCCEEDED))
    assert job.state.stage is Stage.CLOSING
    job.get(Bye(Agent("a", "a.1")))
    assert job.state.stage is Stage.CLOSING
    job.get(Bye(Agent("b", "b.1")))
    assert job.state.stage is Stage.DONE


def test_host_agent_waits_for_a_spare_too():
    """It ends with the same code as the others."""
    job = Job(Rules(2, 2)).form("a", "b")
    job.get(job.join("s"))
    job.back(job.join("a", SUCCEEDED), job.join("b", SUCCEEDED))
    job.get(Bye(Agent("a", "a.1")), Bye(Agent("b", "b.1")))
    assert job.state.stage is Stage.CLOSING
    job.get(Bye(Agent("s", "s.1")))
    assert job.state.stage is Stage.DONE


def test_wait_for_those_who_do_not_answer_is_bounded():
    """A node that died just then does not keep the others."""
    job = Job(Rules(2, 2, close_timeout_s=30.0)).form("a", "b")
    job.now = 50.0
    job.back(job.join("a", SUCCEEDED), job.join("b", SUCCEEDED))
    assert host.deadline(job.state) == 80.0
    job.wake(79.9)
    assert job.state.stage is Stage.CLOSING
    job.wake(80.0)
    assert job.state.stage is Stage.DONE


def test_node_that_is_lost_after_the_verdict_is_not_waited_for():
    """Silence is as good as an answer."""
    job = Job(Rules(2, 2)).form("a", "b")
    job.back(job.join("a", SUCCEEDED), job.join("b", SUCCEEDED))
    job.get(Bye(Agent("a", "a.1")))
    lose(job, "b.1")
    assert job.state.stage is Stage.DONE


def test_agent_that_comes_after_the_verdict_is_waited_for_and_changes_nothing():
    """It reads what the others read; a second publication never comes."""
    job = Job(Rules(2, 2)).form("a", "b")
    job.back(job.join("a", SUCCEEDED), job.join("b", SUCCEEDED))
    assert published(job.get(job.join("c", sequence=job.state.sequence))) == []
    job.get(Bye(Agent("a", "a.1")), Bye(Agent("b", "b.1")))
    assert job.state.stage is Stage.CLOSING
    job.get(Bye(Agent("c", "c.1")))
    assert job.state.stage is Stage.DONE


def test_nothing_follows_the_end():
    """Whatever still comes."""
    job = Job(Rules(1, 1)).form("a")
    job.back(job.join("a", SUCCEEDED))
    job.get(Bye(Agent("a", "a.1")))
    before = job.state
    assert job.get(job.join("b"), Leave(Agent("a", "a.1"), "")) == []
    assert (job.state, host.deadline(job.state)) == (before, None)

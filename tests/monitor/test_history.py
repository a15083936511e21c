"""A run made of its journals: rounds, steps, incidents and what became of them, how it ended."""

from __future__ import annotations

import dataclasses

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.goodput import Bucket, make_ledger
from ftrun.monitor.history import Outcome, Pulse, Run, State
from ftrun.monitor.merging import merge
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.timeline import group
from tests.support.journals import run_of
from tests.support.simulated_journals import EPOCH, Journals, Part, Simulation, read


def merged(journals: Journals, now_ts: float | None = None, **pulses: Pulse) -> Run:
    [members] = group(journals.lives())
    return merge(members, now_ts, pulses)


def cut(journals: Journals, kind: str, count: int = 1) -> Journals:
    """As the journals were before the `count`-th event of that kind in each."""
    lines = {}
    for node, written in journals.lines.items():
        places = [place for place, line in enumerate(written) if f'"event":"{kind}"' in line]
        lines[node] = written[: places[count - 1]]
    return Journals(lines)


def simulated(*parts: Part, nodes: tuple[str, ...] = ("a", "b")) -> Journals:
    return Simulation(nodes, 2).run(parts)


def test_five_faults_are_told_as_they_happened() -> None:
    """The recorded run: each incident once, though both nodes have journalled it, with its node and cost."""
    run = run_of("five_faults")
    told = [(one.kind, one.node, one.culprit_rank, one.outcome, one.steps_lost) for one in run.incidents]
    recovered = Outcome.RECOVERED
    assert told == [
        ("killed", "gpu-b", 3, recovered, 7),
        ("exception", "gpu-a", 1, recovered, 7),
        ("stall", "gpu-b", 2, recovered, 7),
        ("segfault", "gpu-b", 3, recovered, 7),
        ("node_lost", "gpu-b", 2, recovered, 7),
    ]
    assert [one.number for one in run.incidents] == [1, 2, 3, 4, 5]
    assert all(one.recover_s and one.recover_s > 1 for one in run.incidents)
    assert run.incidents[2].detect_s == pytest.approx(3.0, abs=0.1)
    assert (run.state, run.exit_code, run.restart_count, run.max_restarts) == (State.ENDED, 0, 5, 9)
    assert [(work.base, work.steps, work.counted) for work in run.work] == [
        (0, 17, 10), (10, 17, 10), (20, 17, 10), (30, 17, 10), (40, 17, 10), (50, 30, 30),
    ]  # fmt: skip
    assert run.gaps == ("the agent of node gpu-b was killed: its last moments are not recorded",)


def test_preempted_node_and_the_spare_that_took_its_place() -> None:
    """The job's end is that of those that stayed, whatever code the node that left had."""
    run = run_of("spare")
    assert (run.state, run.exit_code, [one.kind for one in run.incidents]) == (State.ENDED, 0, ["preempted"])
    assert [one.nodes for one in run.rounds] == [("gpu-a", "gpu-b"), ("gpu-a", "gpu-c")]


def test_restarts_that_fail_before_a_step_are_no_recoveries() -> None:
    """The last one ends the job."""
    ends = [one.outcome for one in run_of("crash_loop").incidents]
    assert ends == [Outcome.FAILED_RESTART, Outcome.FAILED_RESTART, Outcome.ENDED]


@pytest.mark.parametrize(
    ("pulse", "state", "wall_s"),
    [
        (Pulse.ALIVE, State.RUNNING, 5010.0),
        (Pulse.GONE, State.KILLED, 10.0),
        (Pulse.UNKNOWN, State.UNKNOWN, 10.0),
    ],
)
def test_run_without_an_end_is_what_its_agents_are(pulse: Pulse, state: State, wall_s: float) -> None:
    """While they are there it lasts until now; else as long as its journals tell."""
    journals = Journals({"a": simulated(Part(steps=0, rendezvous_s=10), nodes=("a",)).lines["a"][:2]})
    run = merged(journals, now_ts=1.7e9 + 5010, a=pulse)
    assert (run.state, run.exit_code, run.wall_s) == (state, None, pytest.approx(wall_s, abs=1e-3))


def test_agent_of_another_node_that_is_silent_is_lost_once_the_job_has_ended() -> None:
    """Nobody needs to know its process for that."""
    journals = simulated(Part(), Part())
    journals.lines["b"] = journals.lines["b"][:-1]
    run = merged(journals)
    assert (run.state, run.exit_code, [node.presences[-1].state for node in run.nodes]) == (
        State.ENDED, 0, [State.ENDED, State.KILLED],
    )  # fmt: skip


def test_incident_is_pending_until_training_moves_again() -> None:
    """And afterwards it is recovered from."""
    journals = simulated(Part(), Part())
    waiting = merged(cut(journals, "worker.progressed", 3), a=Pulse.ALIVE, b=Pulse.ALIVE)
    assert [(one.outcome, one.recover_s) for one in waiting.incidents] == [(Outcome.PENDING, None)]
    assert [one.outcome for one in merged(journals).incidents] == [Outcome.RECOVERED]


def test_missing_journal_is_a_gap_that_is_told() -> None:
    """What the other nodes have written is enough for the rest."""
    journals = simulated(Part(), Part())
    del journals.lines["b"]
    run = merged(journals)
    assert run.gaps == ("no journal here of node b: what these nodes did is not counted",)
    assert (len(run.incidents), len(run.rounds), run.rounds[0].nodes) == (1, 2, ("a", "b"))


def test_journal_that_begins_in_the_middle_is_read_from_there() -> None:
    """Its beginning may have been removed to save space."""
    journals = simulated(Part(), Part(), nodes=("a",))
    journals.lines["a"] = journals.lines["a"][8:]
    run = merged(journals)
    assert run.gaps == ("the journal of node a begins in the middle of the run",)
    assert (run.state, len(run.incidents)) == (State.ENDED, 1)


@pytest.mark.parametrize("kept", [2, 9, 18])
def test_journal_that_ends_too_early_is_a_gap_and_no_death(kept: int) -> None:
    """Others name its node in later rounds: the rest was torn off, and is nobody's time."""
    journals = simulated(Part(), Part(), Part())
    whole = merged(journals)
    journals.lines["b"] = journals.lines["b"][:kept]
    run = merged(journals)
    node = run.nodes[1]
    assert (node.presences[0].state, node.presences[0].is_cut) == (State.UNKNOWN, True)
    where = {2: "in round 0", 9: "in round 0", 18: "in round 1"}[kept]
    expected = f"the journal of node b ends {where}, but the node took part in later ones"
    assert [gap.partition(":")[0] for gap in run.gaps] == [expected]
    assert (run.state, run.exit_code, run.incidents) == (State.ENDED, 0, whole.incidents)
    total = make_ledger(run, segments_of(run)).by_node["b"]
    assert total[Bucket.UNTOLD] == pytest.approx(run.ended - node.presences[0].ended, abs=1e-3)
    assert total[Bucket.DOWN] == 0


def test_node_that_was_lost_is_no_gap() -> None:
    """The host agent has seen it die, whatever round it was to be in."""
    journals = simulated(Part(), Part(), Part())
    journals.lines["b"] = journals.lines["b"][:9]
    lost = ev.NodeLost("b", "no keep-alive for 5.0 s")
    journals.lines["a"].insert(12, to_json(Record(EPOCH + 9, 1009.0, "a", lost)))
    run = merged(journals)
    assert run.nodes[1].presences[0].state is State.KILLED
    assert "the agent of node b was killed: its last moments are not recorded" in run.gaps


def test_time_before_a_journal_begins_is_a_gap() -> None:
    """Nobody knows whether its agent was there."""
    journals = simulated(Part(), Part(), Part())
    journals.lines["b"] = journals.lines["b"][12:]
    run = merged(journals)
    total = make_ledger(run, segments_of(run)).by_node["b"]
    assert total[Bucket.UNTOLD] == pytest.approx(run.nodes[1].presences[0].began - run.began, abs=1e-3)
    assert total[Bucket.UNTOLD] > 1


def test_agents_that_disagree_are_outvoted() -> None:
    """A node that left before the verdict came has judged by itself."""
    journals = Simulation(("a", "b", "c"), 1).run([Part(), Part()])
    lines = journals.lines["a"]
    place = next(place for place, line in enumerate(lines) if "incident.diagnosed" in line)
    lines[place] = lines[place].replace('"incident_kind":"killed"', '"incident_kind":"signal"')
    lines[place] = lines[place].replace('"fingerprint":"killed"', '"fingerprint":"signal"')
    assert [one.kind for one in merged(journals).incidents] == ["killed"]


@pytest.mark.parametrize(
    ("bases", "steps", "counted"),
    [
        ([0, 10], [17, 30], [10, 30]),
        ([0, 10, 10], [17, 5, 30], [10, 0, 30]),
        ([0, 20, 10], [25, 20, 30], [10, 0, 30]),  # back behind the checkpoint before: one was quarantined
        ([0, 17], [17, 5], [17, 5]),
        ([100, 110], [15, 5], [10, 5]),
    ],
)
def test_steps_count_unless_a_later_round_begins_before_them(
    bases: list[int], steps: list[int], counted: list[int]
) -> None:
    """Each round makes void what earlier ones did beyond its beginning."""
    assert [work.counted for work in with_bases(bases, steps).work] == counted


def with_bases(bases: list[int], steps: list[int]) -> Run:
    """One node; each round begins from a checkpoint of that step."""
    job = Simulation(("a",), 1)
    job.begin()
    for number, (base, done) in enumerate(zip(bases, steps, strict=True)):
        job.say("a", ev.RoundClosed(number, 1, number, "h", 5000 + number, f"/c/{base}", base, ("a",), ()))
        job.say("a", ev.WorkerStarted(number, 0, 0, 1, True, ""))
        job.say("a", ev.WorkerProgressed(number, 0, None, 0.0), after_s=1.0)
        job.say("a", ev.WorkerExited(number, 0, 0, 1, -9, None, False, done), after_s=9.0)
        job.say("a", ev.RoundStopped(number, "failure", 0.0), after_s=9.0)
        job.spend(next(iter(job.journals.truth)), 10.0)
    [members] = group([read(job.journals.lines["a"])])
    return merge(members)


def test_step_that_the_script_reports_tells_where_a_round_began() -> None:
    """A script that finds its checkpoints by itself says so with its first heartbeat."""
    journals = simulated(Part(steps=17, kept=17), Part(steps=5), nodes=("a",))
    lines = journals.lines["a"]
    place = max(place for place, line in enumerate(lines) if '"resume_step":17' in line)
    lines[place] = (
        lines[place].replace('"resume_step":17', '"resume_step":null').replace('"/c/step-17"', "null")
    )
    lines = [line for line in lines if "recovery.completed" not in line]
    unknown = merged(Journals({"a": lines}))
    assert [(work.base, work.is_base_known) for work in unknown.work] == [(0, True), (17, False)]
    told = [line.replace('"round":1,"rank":0,"step":null', '"round":1,"rank":0,"step":11') for line in lines]
    known = merged(Journals({"a": told}))
    assert [(work.base, work.counted, work.lost) for work in known.work] == [(0, 10, 7), (10, 5, 0)]


def test_history_is_plain_data() -> None:
    """It can be compared, and nothing of it can be changed."""
    assert run_of("spare") == run_of("spare")
    with pytest.raises(dataclasses.FrozenInstanceError):
        run_of("spare").state = State.RUNNING  # type: ignore[misc]

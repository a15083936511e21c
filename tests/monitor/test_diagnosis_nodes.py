"""Which of several nodes is named as the cause, without comparing their clocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.diagnosis import LostNode, asked_to_stop, diagnose
from ftrun.monitor.incident import ErrorRecord, Evidence, Host, Incident, IncidentKind, RankExit
from ftrun.monitor.liveness import Rule, Verdict

KIND = IncidentKind
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
ECHO = ErrorRecord("RuntimeError", GLOO, "")


def exited(
    rank: int, code: int, at: float = 10.0, error: ErrorRecord | None = None, *, stopped: bool = False
) -> RankExit:
    return RankExit(rank, rank % 2, 100 + rank, code, at, stopped, error)


def echo(rank: int) -> RankExit:
    return exited(rank, 1, error=ECHO)


def stopped(rank: int, code: int = -15) -> RankExit:
    return exited(rank, code, stopped=True)


def on(node: str, *exits: RankExit, **more: object) -> Evidence:
    return Evidence(node, 4, exits, False, **more)  # type: ignore[arg-type]


def hang(rule: Rule, *culprits: int) -> Verdict:
    return Verdict(rule, None, culprits, 9.0, 3.0, "learned", f"ranks {culprits} do not move")


LOST = LostNode("c", 4, 2, "no keep-alive for 5.2 s", False)
LEFT = LostNode("d", 6, 2, "SIGTERM", True)
OWN_A, OWN_B = on("a", exited(0, -9, at=900.0), stopped(1)), on("b", exited(2, 3), stopped(3))
ECHO_A, ECHO_B = on("a", echo(0), stopped(1)), on("b", echo(2), stopped(3))
QUIET_A, QUIET_B = on("a", stopped(0), stopped(1)), on("b", stopped(2), stopped(3))
HUNG_A = on("a", stopped(0), stopped(1), hang=hang(Rule.STALL))
HUNG_B = on("b", stopped(2), stopped(3), hang=hang(Rule.STALL, 3))
UNSTARTED_A = on("a", start_failure="[Errno 11] Resource temporarily unavailable")
CRASHED_B = on("b", stopped(2), stopped(3, -11))
APART_B = on("b", stopped(2), stopped(3), unreachable="node b cannot reach node a")
APART_CRASHED_B = on("b", stopped(2), stopped(3, -11), unreachable="node b cannot reach node a")
APART_ECHO_B = on("b", echo(2), stopped(3), unreachable="node b cannot reach node a")
APART_OWN_B = on("b", exited(2, 3), stopped(3), unreachable="node b cannot reach node a")

CASES: dict[str, tuple[Sequence[Evidence], Sequence[LostNode], str, tuple[IncidentKind, str, int]]] = {
    "own failure before an echo": ([ECHO_A, OWN_B], [], "a", (KIND.EXIT_CODE, "b", 2)),
    "of two own failures that of the first node": ([OWN_A, OWN_B], [], "b", (KIND.EXIT_CODE, "b", 2)),
    "of two own failures the order": ([OWN_A, OWN_B], [], "", (KIND.KILLED, "a", 0)),
    "of two echoes that of the first node": ([ECHO_A, ECHO_B], [], "b", (KIND.GLOO_PEER_LOST, "b", 2)),
    "lost node before echoes": ([ECHO_A, ECHO_B], [LOST], "a", (KIND.NODE_LOST, "c", 4)),
    "lost node before an own failure": ([OWN_A, OWN_B], [LOST], "c", (KIND.NODE_LOST, "c", 4)),
    "lost node, nobody knows who was first": ([OWN_A, ECHO_B], [LOST], "", (KIND.NODE_LOST, "c", 4)),
    "own failure of the first node before a lost one": ([OWN_A, ECHO_B], [LOST], "a", (KIND.KILLED, "a", 0)),
    "lost node alone": ([], [LOST], "", (KIND.NODE_LOST, "c", 4)),
    "node that was told to leave": ([QUIET_A, QUIET_B], [LEFT], "d", (KIND.PREEMPTED, "d", 6)),
    "of two lost nodes the first node": ([QUIET_A], [LOST, LEFT], "d", (KIND.PREEMPTED, "d", 6)),
    "of two lost nodes the order": ([QUIET_A], [LOST, LEFT], "a", (KIND.NODE_LOST, "c", 4)),
    "hang that names its culprits": ([HUNG_A, HUNG_B], [], "a", (KIND.STALL, "b", 3)),
    "hang before what fails elsewhere": ([OWN_A, HUNG_B], [], "b", (KIND.STALL, "b", 3)),
    "own failure of the first node before a hang": ([OWN_A, HUNG_B], [], "a", (KIND.KILLED, "a", 0)),
    "lost node before the silence it causes": ([HUNG_A, QUIET_B], [LOST], "a", (KIND.NODE_LOST, "c", 4)),
    "hang before a node that then left": ([HUNG_A, QUIET_B], [LEFT], "a", (KIND.STALL, "a", 0)),
    "node that left before later silence": ([HUNG_A, QUIET_B], [LEFT], "d", (KIND.PREEMPTED, "d", 6)),
    "start before the echoes": ([UNSTARTED_A, ECHO_B], [], "b", (KIND.START_FAILED, "a", -1)),
    "start on the first node": ([UNSTARTED_A, OWN_B], [], "a", (KIND.START_FAILED, "a", -1)),
    "no way between nodes": ([QUIET_A, APART_B], [], "b", (KIND.UNREACHABLE, "b", 2)),
    "no way between nodes before the echoes": ([ECHO_A, APART_ECHO_B], [], "a", (KIND.UNREACHABLE, "b", 2)),
    "no way, then a crash in the stop": ([QUIET_A, APART_CRASHED_B], [], "b", (KIND.UNREACHABLE, "b", 2)),
    "no way to a node that was lost": ([APART_B], [LOST], "b", (KIND.NODE_LOST, "c", 4)),
    "own failure before no way": ([OWN_A, APART_B], [], "b", (KIND.KILLED, "a", 0)),
    "own failure on the node without a way": ([QUIET_A, APART_OWN_B], [], "b", (KIND.EXIT_CODE, "b", 2)),
    "crash while it was stopped explains echoes": ([ECHO_A, CRASHED_B], [], "a", (KIND.SEGFAULT, "b", 3)),
    "lost node before a crash in the stop": ([ECHO_A, CRASHED_B], [LOST], "a", (KIND.NODE_LOST, "c", 4)),
    "crash while it was stopped is no cause": ([QUIET_A, CRASHED_B], [], "a", (KIND.UNKNOWN, "a", 0)),
    "nothing failed": ([QUIET_A, QUIET_B], [], "b", (KIND.UNKNOWN, "b", 2)),
    "nothing failed, the first node says nothing": ([QUIET_A], [], "z", (KIND.UNKNOWN, "a", 0)),
    "nothing is known": ([], [], "z", (KIND.UNKNOWN, "z", -1)),
}


@pytest.mark.parametrize(("evidences", "lost", "first", "expected"), CASES.values(), ids=CASES)
def test_cause_among_nodes(
    evidences: Sequence[Evidence],
    lost: Sequence[LostNode],
    first: str,
    expected: tuple[IncidentKind, str, int],
) -> None:
    """Causes come before their echoes, then what ended the round, then the order of the nodes."""
    found = diagnose(evidences, lost, first, stop_reason="it was stopped")
    assert (found.kind, found.node, found.culprit.rank) == expected


def test_nothing_failed_and_no_reason_is_refused() -> None:
    """Without a reason there is no incident to make up, on however many nodes."""
    with pytest.raises(ValueError, match="no rank failed"):
        diagnose([QUIET_A, QUIET_B], (), "a")


def test_unknown_cause_tells_why_the_round_was_stopped() -> None:
    """The order to stop may be all that is left of a failure."""
    found = diagnose([QUIET_A], stop_reason="rank 3 hangs for 12 s")
    assert found.reasons == ("rank 3 hangs for 12 s", "2 ranks fell with it: 0, 1")
    again = diagnose([QUIET_A], stop_reason="rank 5 hangs for 7 s")
    assert found.fingerprint == again.fingerprint


@pytest.mark.parametrize("evidences", [[QUIET_A, QUIET_B], [OWN_A, ECHO_B], []])
def test_end_that_the_script_asked_for_is_that_and_nothing_else(evidences: list[Evidence]) -> None:
    """However the ranks then ended, they did as they were told; the reason is the script's own."""
    found = asked_to_stop(evidences, "rank 2 asks for ShutdownWorkload: it has converged", "b")
    assert (found.kind, found.reasons) == (
        KIND.USER_STOP,
        ("rank 2 asks for ShutdownWorkload: it has converged",),
    )
    assert found.culprit.pid == 0
    assert {exit.rank for exit in found.collateral} == {
        exit.rank for evidence in evidences for exit in evidence.exits
    }


def test_rank_is_named_with_its_node_if_there_are_several() -> None:
    """A rank number alone does not say where to look."""
    assert diagnose([OWN_A, QUIET_B]).reasons == (
        "rank 0 on node a (pid 100) was killed by SIGKILL from outside",
        "the agent did not send it and the kernel counted no OOM kill in this cgroup",
        "it had not done a step in round 4",
        "3 other ranks fell with it: 1-3",
    )
    assert diagnose([OWN_A]).reasons[0].startswith("rank 0 (pid 100) was killed")


def test_lost_node_is_told_with_its_ranks_and_how_that_is_known() -> None:
    """The sentence stands alone; a node that was lost besides is mentioned."""
    assert diagnose([ECHO_A], [LOST, LEFT]).reasons == (
        "node c was lost: no keep-alive for 5.2 s",
        "it had ranks 4, 5",
        "also, node d left the job: SIGTERM",
        "2 other ranks fell with it: 0, 1",
    )


def test_start_that_failed_says_why_and_where() -> None:
    """The node is named if there are others."""
    why = "[Errno 11] Resource temporarily unavailable"
    assert diagnose([UNSTARTED_A]).reasons[0] == f"the workers could not be started: {why}"
    assert diagnose([UNSTARTED_A, QUIET_B]).reasons[0] == f"the workers could not be started on node a: {why}"


def test_hang_says_on_which_node_it_was_seen() -> None:
    """The verdict's own sentence names ranks only."""
    assert diagnose([QUIET_A, HUNG_B]).reasons == ("ranks (3,) do not move", "seen on node b")
    assert diagnose([HUNG_B]).reasons == ("ranks (3,) do not move",)


def test_hang_of_a_node_without_exits_has_a_culprit_all_the_same() -> None:
    """What is known of the ranks may have been lost."""
    assert diagnose([on("a", hang=hang(Rule.STALL, 7))]).culprit.rank == 7
    assert diagnose([on("a", hang=hang(Rule.STALL))]).culprit.rank == -1


@pytest.mark.parametrize("evidences", [[ECHO_A], [UNSTARTED_A], [QUIET_A]])
@pytest.mark.parametrize("lost", [[LOST], [LEFT], []])
def test_culprit_that_stands_for_its_node_is_no_process(
    evidences: list[Evidence], lost: list[LostNode]
) -> None:
    """It has no pid, and the exit code of any failure."""
    found = diagnose(evidences, lost, stop_reason="x")
    assert found.kind.is_of_node == (found.culprit.pid == 0)
    if found.kind.is_of_node:
        assert (found.culprit.exit_code, found.culprit.is_stopped_by_agent) == (1, False)


def test_same_node_lost_twice_is_the_same_failure() -> None:
    """Another node, or another way to go, is another one."""
    lost = [
        LOST,
        LostNode("c", 0, 2, "its agent was started again", False),
        LostNode("e", 4, 2, "x", False),
        LEFT,
    ]
    prints = [diagnose([], [one]).fingerprint for one in lost]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_progress_of_any_node_is_the_round_s() -> None:
    """A lost node's own progress is known from the others."""
    evidence = Evidence("a", 4, (stopped(0),), True)
    assert diagnose([QUIET_B, evidence], [LOST]).has_progressed
    assert not diagnose([QUIET_B], [LOST]).has_progressed


def test_incident_knows_the_clock_of_its_node_and_where_others_failed() -> None:
    """Another node can then show the time and the place of each failure."""
    evidences = [
        on("a", exited(0, -9), exited(1, 1, error=ECHO), wall_offset_s=1.5e9),
        on("b", echo(2), stopped(3), wall_offset_s=1.6e9),
        on("c", stopped(4), stopped(5), wall_offset_s=1.7e9),
    ]
    found = diagnose(evidences)
    assert (found.node, found.wall_offset_s) == ("a", 1.5e9)
    assert found.hosts == (Host("b", (2,), 1.6e9),)


EVIDENCE = st.sampled_from(
    [OWN_A, OWN_B, ECHO_A, ECHO_B, QUIET_A, QUIET_B, HUNG_A, HUNG_B, UNSTARTED_A, CRASHED_B]
)
NODES = st.lists(EVIDENCE, max_size=2, unique_by=lambda one: one.node)


def is_own_failure(found: Incident) -> bool:
    return not found.kind.is_of_node and found.kind is not KIND.GLOO_PEER_LOST


@given(NODES, st.lists(st.sampled_from([LOST, LEFT]), unique=True), st.sampled_from(["", "a", "b", "c", "d"]))
def test_diagnosis_of_nodes_is_total(evidences: list[Evidence], lost: list[LostNode], first: str) -> None:
    """Any end of a round has one incident, every rank is in it at most once, and echoes never win."""
    found = diagnose(evidences, lost, first, "it was stopped")
    every = [exit for evidence in evidences for exit in evidence.exits]
    ranks = [exit.rank for exit in (found.culprit, *found.collateral)]
    assert found.kind.is_of_node or found.culprit in every
    assert found.kind.is_of_node or len(ranks) == len(set(ranks))
    if lost:
        assert found.kind in (KIND.NODE_LOST, KIND.PREEMPTED, KIND.START_FAILED) or is_own_failure(found)

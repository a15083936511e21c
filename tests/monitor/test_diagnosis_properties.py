"""What holds of every diagnosis: echoes change nothing, the same evidence gives the same incident."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.diagnosis import ECHO_WINDOW_S, diagnose
from ftrun.monitor.failures import judge
from ftrun.monitor.incident import ErrorRecord, Evidence, FaultReport, Incident, IncidentKind, RankExit

GLOO = ErrorRecord(
    "RuntimeError",
    "[/p/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242",
    "",
)
STORE = ErrorRecord("DistStoreError", "wait timeout after 60000ms, keys: /none/x", "", bases=("DistError",))
NCCL = ErrorRecord("DistBackendError", "NCCL communicator was aborted on rank 2.", "", bases=("DistError",))
TOLD = ErrorRecord("CheckpointException", "CheckpointException ranks:dict_keys([999])\nValueError: x", "")
WATCHDOG = "[rank0]:[E ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL"
BUG = ErrorRecord("ValueError", "bad loss", "", "train.py:31 in step")
OOM = ErrorRecord("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "")
ROOT_AT = 100.0


def exited(rank: int, code: int, at: float, error: ErrorRecord | None = None, *stderr: str) -> RankExit:
    return RankExit(rank, rank % 4, 100 + rank, code, at, False, error, stderr_tail=stderr)


ROOTS = st.sampled_from(
    [
        exited(5, -11, ROOT_AT),
        exited(5, -9, ROOT_AT),
        exited(5, -7, ROOT_AT),
        exited(5, -6, ROOT_AT, None, "assertion failed"),
        exited(5, 3, ROOT_AT),
        exited(5, 1, ROOT_AT, BUG),
        exited(5, 1, ROOT_AT, OOM),
        exited(5, 1, ROOT_AT, ErrorRecord("ImportError", "no module", "")),
    ]
)
SMALL_S = ECHO_WINDOW_S * 0.9
TIMES = st.floats(ROOT_AT - SMALL_S, ROOT_AT + SMALL_S)
ECHO_FORMS = st.sampled_from(
    [(1, GLOO, ()), (1, STORE, ()), (1, NCCL, ()), (1, TOLD, ()), (-6, None, (WATCHDOG,))]
)
ECHOES = st.lists(st.tuples(ECHO_FORMS, TIMES), max_size=3).map(
    lambda forms: [
        exited(rank, code, at, error, *stderr) for rank, ((code, error, stderr), at) in enumerate(forms)
    ]
)


def on(node: str, exits: list[RankExit], first_rank: int = 0) -> Evidence:
    """A node with ranks of its own."""
    moved = [exit if exit.rank == 5 else replace(exit, rank=first_rank + exit.rank) for exit in exits]
    return Evidence(node, 4, tuple(moved), True)


def told(found: Incident) -> tuple[object, ...]:
    return found.kind, found.node, found.culprit, found.fingerprint, found.reasons[0], found.confidence


@given(ROOTS, ECHOES)
def test_every_echo_is_known_for_one(root: RankExit, echoes: list[RankExit]) -> None:
    """And no root cause is taken for one: the properties below would hold of nothing otherwise."""
    evidence = on("a", [root, *echoes])
    assert all(judge(echo, evidence).is_echo for echo in echoes)
    assert not judge(root, evidence).is_echo


@given(ROOTS, ECHOES, ECHOES, st.permutations(["a", "b", "c"]), st.sampled_from(["", "a", "b", "c"]))
def test_echoes_never_change_the_culprit(
    root: RankExit, same_node: list[RankExit], other_node: list[RankExit], order: list[str], first: str
) -> None:
    """However many, before the cause or after it, on its node or on another that stopped the round: clocks of
    other nodes are not looked at.
    """
    quiet = on("c", [], 20)
    alone = told(diagnose([on("a", [root]), on("b", [], 10), quiet], first_node="a"))
    nodes = {
        "a": on("a", [root, *same_node]),
        "b": on("b", [replace(echo, exited_at=echo.exited_at - 90.0) for echo in other_node], 10),
        "c": quiet,
    }
    found = diagnose([nodes[name] for name in order], first_node=first)
    assert told(found) == alone
    fallen = {exit.rank for exit in found.collateral}
    assert fallen == {echo.rank for echo in same_node} | {10 + echo.rank for echo in other_node}


EVIDENCES = st.tuples(
    st.lists(ROOTS, max_size=1),
    ECHOES,
    st.lists(ROOTS.map(lambda root: replace(root, rank=15)), max_size=1),
    ECHOES,
).map(lambda parts: (on("a", [*parts[0], *parts[1]]), on("b", [*parts[2], *parts[3]], 10)))


@given(EVIDENCES, st.sampled_from(["", "a", "b"]))
def test_same_evidence_gives_the_same_incident(evidences: tuple[Evidence, Evidence], first: str) -> None:
    """Nothing but the evidence is asked."""
    once, again = (diagnose(evidences, first_node=first, stop_reason="x") for _ in range(2))
    assert once == again


@given(EVIDENCES, st.sampled_from(["a", "b"]))
def test_order_of_nodes_matters_only_among_equals(evidences: tuple[Evidence, Evidence], first: str) -> None:
    """Which node was first decides between them, wherever it stands, or else what is no echo."""
    found, turned = (
        diagnose(order, first_node=first, stop_reason="x") for order in (evidences, evidences[::-1])
    )
    assert told(found) == told(turned)


@given(EVIDENCES, st.sampled_from(["", "a", "b"]))
def test_what_the_script_reports_comes_before_how_ranks_ended(
    evidences: tuple[Evidence, Evidence], first: str
) -> None:
    """On the node that ordered the stop, and on any other if that has only echoes to tell of."""
    report = FaultReport(5, IncidentKind.NAN_LOSS, "the loss is not a number")
    reporting = replace(evidences[0], report=report)
    found = diagnose([reporting, evidences[1]], first_node="a")
    assert (found.kind, found.node) == (IncidentKind.NAN_LOSS, "a")
    only_echoes = [exit for exit in evidences[1].exits if judge(exit, evidences[1]).is_echo]
    elsewhere = diagnose([reporting, replace(evidences[1], exits=tuple(only_echoes))], first_node=first)
    assert elsewhere.kind is IncidentKind.NAN_LOSS

"""A failure is told in few bytes, and what is cut off never makes it another failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.launcher.message_bounds import MAX_BYTES, bound_evidence, bound_incident
from ftrun.launcher.message_codec import size_of
from ftrun.monitor.diagnosis import diagnose
from ftrun.monitor.incident import (
    ErrorRecord,
    Evidence,
    FaultReport,
    Host,
    Incident,
    IncidentKind,
    RankExit,
    Space,
)
from ftrun.monitor.liveness import Rule, Verdict

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
WATCHDOG = "[rank0]:[E ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL"
CUDA = "CUDA error: an illegal memory access was encountered"
USERS = '  File "/home/u/train.py", line 31, in step\n    loss.backward()\n'
TORCHS = '  File "/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 9, in f\n    g()\n'
PYTHONS = (
    '  File "/usr/lib/python3.11/socket.py", line 706, in readinto\n    return self._sock.recv_into(b)\n'
)


LOADERS = '  File "/env/lib/python3/site-packages/torch/serialization.py", line 9, in load\n    return f()\n'
SAVERS = (
    '  File "/env/lib/python3/site-packages/torch/distributed/checkpoint/state_dict_saver.py", line 9, in f\n'
)
RESUMED = "/checkpoints/step-40"
NAMES_CHECKPOINT = f'  File "/home/u/train.py", line 12, in main\n    model.load("{RESUMED}/model.pt")\n'
FULL = Space("/dev/shm", "shared memory", 0, 64 << 20)


def exited(rank: int, code: int, at: float = 10.0, *, stopped: bool = False, **more: object) -> RankExit:
    return RankExit(rank, rank, 100 + rank, code, at, stopped, **more)  # type: ignore[arg-type]


def evidence(*exits: RankExit, **more: object) -> Evidence:
    return Evidence("node-a", 2, exits, True, **more)  # type: ignore[arg-type]


def test_what_fits_is_left_alone() -> None:
    """The common case loses nothing."""
    small = evidence(exited(0, 1, error=ErrorRecord("ValueError", "bad", "Traceback ...")))
    assert bound_evidence(small) is small
    incident = diagnose([small])
    assert bound_incident(incident) is incident


def test_others_are_cut_before_the_cause() -> None:
    """The rank that failed keeps its traceback as long as that fits."""
    trace = "Traceback (most recent call last):\n" + USERS * 60
    tail = tuple(f"line {number} of what this rank has written" for number in range(60))
    cause = exited(3, 1, at=9.0, error=ErrorRecord("ValueError", "bad loss", trace))
    stopped = [exited(rank, -15, at=11.0, stopped=True, stderr_tail=tail) for rank in range(3)]
    bounded = bound_evidence(evidence(*stopped, cause), 9000)
    assert bounded.exits[3] == cause
    assert [exit.rank for exit in bounded.exits] == [0, 1, 2, 3]
    assert all(exit.stderr_tail[0].endswith("lines cut]") for exit in bounded.exits[:3])
    assert bounded.left_out == 0


def test_end_of_a_traceback_and_begin_of_a_message_stay_and_the_cut_is_marked() -> None:
    """Where it happened is at the end of the one, what happened at the begin of the other."""
    trace = "Traceback (most recent call last):\n" + USERS * 2000 + "ValueError: bad loss"
    cause = exited(0, 1, error=ErrorRecord("ValueError", "bad loss of " + "x" * 100_000, trace))
    record = bound_evidence(evidence(cause)).exits[0].error
    assert record is not None
    assert record.message.startswith("bad loss of xxx")
    assert record.message.endswith("characters cut]")
    assert record.traceback.startswith("[")
    assert record.traceback.split("\n")[0].endswith(" characters cut]")
    assert record.traceback.endswith("loss.backward()\nValueError: bad loss")


def test_huge_node_keeps_its_cause_and_counts_what_is_left_out() -> None:
    """Of hundreds of ranks those that were stopped go first."""
    stopped = [exited(rank, -15, stopped=True) for rank in range(500)]
    bounded = bound_evidence(evidence(*stopped, exited(500, -9, at=9.0), exited(501, 1, at=9.1)))
    assert size_of(bounded) <= MAX_BYTES
    assert {500, 501} <= {exit.rank for exit in bounded.exits}
    assert len(bounded.exits) + bounded.left_out == 502
    incident = diagnose([bounded])
    assert (incident.culprit.rank, incident.kind) == (500, IncidentKind.KILLED)
    assert incident.left_out == bounded.left_out


def test_texts_around_the_ranks_are_bounded_too() -> None:
    """Paths and reports come from outside."""
    report = FaultReport(1, IncidentKind.NAN_LOSS, "é" * 4000)
    long = "/" + "d" * 4000
    exits = [exited(rank, -15, stopped=True) for rank in range(3)]
    spaces = (Space(long, "logs", 1, 2), Space(long, "checkpoints", 1, 2))
    whole = evidence(*exits, report=report, resume_from=long, spaces=spaces, file=long)
    bounded = bound_evidence(whole)
    assert size_of(bounded) <= MAX_BYTES
    assert bounded.resume_from == long[: len(bounded.resume_from)]
    assert told(diagnose([bounded])) == told(diagnose([whole]))


def test_ranks_to_blame_for_a_hang_are_kept() -> None:
    """The verdict names them; how they ended does not."""
    hang = Verdict(Rule.STALL, None, (77,), 9.0, 3.0, "learned", "no rank moves" * 5000)
    exits = [exited(rank, -9, stopped=True) for rank in range(200)]
    bounded = bound_evidence(evidence(*exits, hang=hang), 4000)
    assert size_of(bounded) <= 4000
    assert diagnose([bounded]).culprit.rank == 77


def filled(text: str) -> st.SearchStrategy[str]:
    """The text with much or little of something else around it; some of it needs six bytes per character."""
    filling = st.sampled_from(["", "x" * 30, "y" * 3000, "é" * 700, "a b\n" * 400])
    return st.tuples(filling, filling).map(lambda around: f"{around[0]} {text} {around[1]}")


MESSAGES = st.sampled_from(
    [
        GLOO,
        "bad",
        "DataLoader worker (pid 77) is killed by signal: Killed. ",
        "NCCL error in: x",
        CUDA,
        "PytorchStreamReader failed reading file",
        "[Errno 28] No space left on device",
        "Size mismatch between saved and current",
        f"cannot read {RESUMED}/model.pt",
        "CheckpointException ranks:dict_keys([999])",
    ]
).flatmap(filled)
TRACES = st.lists(
    st.sampled_from([USERS, TORCHS, PYTHONS, PYTHONS * 40, LOADERS, SAVERS, NAMES_CHECKPOINT]), max_size=5
).map(lambda frames: "Traceback (most recent call last):\n" + "".join(frames))
RECORDS = st.builds(
    ErrorRecord,
    st.sampled_from(
        ["RuntimeError", "ValueError", "TimeoutError", "DistStoreError", "ImportError", "E" * 5000]
    ),
    MESSAGES,
    TRACES,
    st.sampled_from(["", "train.py:31 in step"]),
    st.sampled_from([(), ("ConnectionError", "OSError")]),
    st.none() | st.floats(0, 20),
)
TAILS = st.lists(
    st.one_of(
        st.sampled_from([WATCHDOG, CUDA, "", "x" * 2000, "Traceback (most recent call last):"]),
        st.sampled_from([*USERS.split("\n"), *TORCHS.split("\n"), *PYTHONS.split("\n")]),
        MESSAGES.map(lambda message: f"[rank0]: RuntimeError: {message}".replace("\n", " ")),
        st.just("ConnectionResetError: gone"),
    ),
    max_size=8,
).map(tuple)
EXITS = st.lists(
    st.builds(
        lambda code, at, stopped, error, tail: exited(
            0, code, at, stopped=stopped, error=error, stderr_tail=tail
        ),
        st.sampled_from([0, 1, 3, 137, -6, -9, -11, -15]),
        st.floats(0, 20),
        st.booleans(),
        st.none() | RECORDS,
        TAILS,
    ),
    min_size=1,
    max_size=12,
).map(lambda exits: [replace(exit, rank=rank) for rank, exit in enumerate(exits)])


def told(incident: Incident) -> tuple[object, ...]:
    return incident.kind, incident.culprit.rank, incident.node, incident.has_progressed


@given(
    EXITS,
    st.integers(0, 2),
    st.sampled_from([5000, 9000, MAX_BYTES]),
    st.booleans(),
    st.sampled_from(["", RESUMED]),
    st.sampled_from([(), (FULL,)]),
)
def test_what_is_cut_off_does_not_change_the_diagnosis(
    exits: list[RankExit],
    oom_kills: int,
    max_bytes: int,
    has_progressed: bool,
    resume_from: str,
    spaces: tuple[Space, ...],
) -> None:
    """Whatever the ranks have left behind, it fits, and the same rank is blamed for the same thing."""
    whole = evidence(*exits, oom_kills=oom_kills, resume_from=resume_from, spaces=spaces)
    whole = replace(whole, has_progressed=has_progressed)
    bounded = bound_evidence(whole, max_bytes)
    assert size_of(bounded) <= max_bytes
    other = Evidence("node-b", 2, (exited(40, 1, error=ErrorRecord("RuntimeError", GLOO, "")),), False)
    expected, found = (diagnose([one, other], stop_reason="x") for one in (whole, bounded))
    assert told(found) == told(expected)


@settings(max_examples=20)
@given(EXITS)
def test_incident_of_many_ranks_fits(exits: list[RankExit]) -> None:
    """What all nodes read of it names the culprit, and no host of a rank that is left out."""
    many = [replace(exit, rank=rank) for rank, exit in enumerate(exits * 30, start=1)]
    hosts = tuple(Host(f"node-{exit.rank}", (exit.rank,), 0.0) for exit in many if exit.has_failed)
    culprit = exited(0, 1, error=ErrorRecord("ValueError", "bad" * 9000, USERS * 900))
    reasons = ("rank 0 raised" * 3000, "x")
    incident = Incident(
        IncidentKind.EXCEPTION, 2, "node-0", culprit, reasons, "f", True, tuple(many), 1.0, hosts
    )
    bounded = bound_incident(incident)
    assert size_of(bounded) <= MAX_BYTES
    assert told(bounded) == told(incident)
    assert len(bounded.collateral) + bounded.left_out == len(many)
    assert {rank for host in bounded.hosts for rank in host.ranks} <= {
        exit.rank for exit in bounded.collateral
    }


@pytest.mark.parametrize("max_bytes", [0, 100])
def test_limit_that_nothing_can_meet_leaves_the_cause(max_bytes: int) -> None:
    """Better a message that is too large than one that says nothing."""
    bounded = bound_evidence(evidence(exited(0, 0), exited(1, -9), exited(2, -15, stopped=True)), max_bytes)
    assert [exit.rank for exit in bounded.exits] == [1]

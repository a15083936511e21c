"""What failed health checks have to do with the end of a round: which explain it, and which do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.monitor.diagnosis import CONFIDENCE, LostNode, diagnose
from ftrun.monitor.hardware import RECENT_S
from ftrun.monitor.incident import Ailment, ErrorRecord, Evidence, Incident, IncidentKind, RankExit
from ftrun.monitor.liveness import Rule, Verdict

KIND = IncidentKind
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
ECHO = ErrorRecord("RuntimeError", GLOO, "")
CUDA = ErrorRecord("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "")
FAULT = ErrorRecord("AcceleratorError", "CUDA error: an illegal memory access was encountered", "")
OUT_OF_MEMORY = ErrorRecord("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "")
BUG = ErrorRecord("ValueError", "bad shape", "")


def ailment(
    check: str, observed: str = "it is so", *ranks: int, fatal: bool = True, age_s: float = 1.0
) -> Ailment:
    return Ailment(check, "gpu 1 (GPU-b)", observed, "reboot", ranks, fatal, age_s)


LOST = ailment("gpu.lost", "GPU is lost", 1)
REMAPPED = ailment("gpu.ecc", "1 uncorrectable error", 1, fatal=False)
XID_94 = ailment("gpu.xid", "Xid 94 (uncorrectable memory error, contained)", 1, fatal=False)
XID_31 = ailment("gpu.xid", "Xid 31 (memory page fault)", 1, fatal=False)
XID_119 = ailment("gpu.xid", "Xid 119 (the GPU system processor does not answer)", 1)
XID_79 = ailment("gpu.xid", "Xid 45 (a channel was removed), Xid 79 (the GPU has fallen off the bus)", 1)
PORT = replace(ailment("nic.state", "port 1 is down"), subject="nic mlx5_0")
STALL = Verdict(Rule.STALL, None, (), 9.0, 3.0, "learned", "no rank moves")


def exited(rank: int, code: int, error: ErrorRecord | None = None, *, stopped: bool = False) -> RankExit:
    return RankExit(rank, rank % 2, 100 + rank, code, 10.0, stopped, error, steps=7)


def of(*ends: RankExit, health: tuple[Ailment, ...] = (), **more: object) -> Evidence:
    return Evidence("a", 4, ends, True, health=health, **more)  # type: ignore[arg-type]


def found(*ends: RankExit, health: tuple[Ailment, ...], **more: object) -> Incident:
    return diagnose([of(*ends, health=health, **more)], first_node="a", stop_reason="it was stopped")


STOPPED = exited(0, -15, stopped=True)
ABORT, SEGFAULT, KILLED = exited(1, -6), exited(1, -11), exited(1, -9)


@pytest.mark.parametrize(
    ("end", "health", "kind"),
    [
        (ABORT, LOST, KIND.GPU_LOST),
        (ABORT, XID_79, KIND.GPU_LOST),
        (ABORT, ailment("gpu.reset", "reset required", 1), KIND.GPU_LOST),
        (ABORT, ailment("gpu.recovery", "node reboot", 1), KIND.GPU_LOST),
        (ABORT, REMAPPED, KIND.ECC_ERROR),
        (SEGFAULT, XID_94, KIND.ECC_ERROR),
        (exited(1, 1, CUDA), XID_94, KIND.ECC_ERROR),
        (exited(1, 1, ECHO), LOST, KIND.GPU_LOST),
        (exited(1, 3), XID_119, KIND.XID),
        (exited(1, 1, BUG), LOST, KIND.GPU_LOST),
        (exited(1, 1, BUG), REMAPPED, KIND.EXCEPTION),
        (exited(1, 1, FAULT), XID_31, KIND.CUDA_ERROR),
        (exited(1, 1, OUT_OF_MEMORY), LOST, KIND.GPU_LOST),
        (exited(1, 1, OUT_OF_MEMORY), REMAPPED, KIND.CUDA_OOM),
        (exited(1, 1, ErrorRecord("ImportError", "no x", "")), LOST, KIND.IMPORT_OR_SYNTAX_ERROR),
        (KILLED, REMAPPED, KIND.KILLED),
        (ABORT, replace(REMAPPED, local_ranks=(0,)), KIND.ABORT),
        (ABORT, replace(REMAPPED, age_s=RECENT_S + 1), KIND.ABORT),
        (ABORT, ailment("gpu.temperature", "99 C", 1, fatal=False), KIND.ABORT),
        (ABORT, PORT, KIND.ABORT),
    ],
    ids=[
        "lost",
        "fallen off the bus, by its Xid",
        "needs a reset",
        "needs a reboot",
        "an uncorrectable error",
        "the same, by its Xid",
        "an error of CUDA's",
        "what looks like an echo",
        "an Xid that is the GPU's",
        "any exception, if the GPU is gone",
        "a bug, though there was an error that did no harm",
        "an Xid that is the application's",
        "no memory on a GPU that is lost",
        "no memory, which explains itself",
        "a missing import",
        "killed from outside",
        "another rank's GPU",
        "found long before",
        "a check that ends no process",
        "a network card",
    ],
)
def test_check_on_the_culprits_gpu_explains_its_end(end: RankExit, health: Ailment, kind: KIND) -> None:
    """Or does not: it was another GPU, another time, or an end that has its own explanation."""
    incident = found(STOPPED, end, health=(health,))
    assert (incident.kind, incident.culprit) == (kind, end)
    is_explained = kind.is_of_hardware
    assert incident.confidence == CONFIDENCE["confirmed" if is_explained else "failed"]
    assert incident.reasons[0].startswith("the GPU of rank 1 (pid 101) failed") == is_explained


def test_own_words_of_the_end_are_kept() -> None:
    """The GPU's failure comes first, what the process said is the second reason, other findings follow."""
    incident = found(STOPPED, exited(1, 1, CUDA), health=(LOST, XID_31))
    assert incident.reasons[0].endswith("failed: gpu 1 (GPU-b): GPU is lost (gpu.lost)")
    assert "of its GPU: AcceleratorError: CUDA error" in incident.reasons[1]
    assert incident.reasons[2] == "its GPU: gpu 1 (GPU-b): Xid 31 (memory page fault) (gpu.xid)"


def test_error_of_the_application_is_a_hint() -> None:
    """It tells the person where to look, and changes nothing."""
    incident = found(STOPPED, exited(1, 1, FAULT), health=(XID_31,))
    assert incident.kind is KIND.CUDA_ERROR
    assert "its GPU: gpu 1 (GPU-b): Xid 31 (memory page fault) (gpu.xid)" in incident.reasons


def test_gravest_of_several_checks_names_the_kind() -> None:
    """A GPU that is gone is gone, whatever errors it had."""
    assert found(STOPPED, ABORT, health=(XID_119, REMAPPED, LOST)).kind is KIND.GPU_LOST


def test_round_that_the_agent_stopped_names_the_rank_on_the_gpu() -> None:
    """Nothing has failed by itself: all ranks were stopped."""
    stopped = [exited(rank, -15, stopped=True) for rank in range(2)]
    incident = found(*stopped, health=(LOST,), unhealthy="the GPU of local rank 1 failed")
    assert (incident.kind, incident.culprit.rank) == (KIND.GPU_LOST, 1)
    assert incident.confidence == CONFIDENCE["found"]
    assert "no rank had failed by itself yet" in incident.reasons[1]
    assert [exit.rank for exit in incident.collateral] == [0]


def test_lost_gpu_is_the_cause_where_another_rank_only_notices() -> None:
    """The rank that still hangs on it is named, not the one whose connection broke or that waits."""
    hangs = exited(1, -9, stopped=True)
    assert found(exited(0, 1, ECHO), hangs, health=(LOST,)).culprit.rank == 1
    assert found(STOPPED, hangs, health=(LOST,), hang=STALL).kind is KIND.GPU_LOST


def test_hang_may_be_older_than_what_explains_it() -> None:
    """It lasts from when the GPU was lost until its limit has passed."""
    hangs, age_s = exited(1, -9, stopped=True), RECENT_S + STALL.silent_s
    for lost, kind in (
        (replace(LOST, age_s=age_s), KIND.GPU_LOST),
        (replace(LOST, age_s=age_s + 1), KIND.STALL),
    ):
        assert found(STOPPED, hangs, health=(lost,), hang=STALL).kind is kind


def test_gpu_on_another_node_explains_the_echoes() -> None:
    """The node that ordered the stop has only lost its connections."""
    sick = Evidence(
        "b", 4, (exited(2, -15, stopped=True), exited(3, -15, stopped=True)), True, health=(LOST,)
    )
    incident = diagnose([of(exited(0, 1, ECHO), exited(1, 1, ECHO)), sick], first_node="a")
    assert (incident.kind, incident.node, incident.culprit.rank) == (KIND.GPU_LOST, "b", 3)
    assert incident.reasons[0].startswith("the GPU of rank 3 on node b (pid 103) failed")


def test_own_failure_of_the_first_node_comes_before_a_gpu_elsewhere() -> None:
    """It was there first."""
    sick = Evidence(
        "b", 4, (exited(2, -15, stopped=True), exited(3, -15, stopped=True)), True, health=(LOST,)
    )
    assert diagnose([of(STOPPED, exited(1, 3)), sick], first_node="a").kind is KIND.EXIT_CODE


def test_lost_node_comes_before_a_gpu() -> None:
    """A node that is gone takes much with it."""
    lost = LostNode("c", 4, 2, "no keep-alive", False)
    assert diagnose([of(STOPPED, health=(LOST,))], [lost]).kind is KIND.NODE_LOST


def test_finding_without_a_rank_stands_for_its_node() -> None:
    """Which of the GPUs is missing is not known, or it is no GPU for which the agent stopped the round."""
    count = replace(ailment("gpu.count", "7 GPUs"), subject="node a")
    for health, more in (((count,), {}), ((PORT,), {"unhealthy": "port 1 is down"})):
        incident = found(STOPPED, health=health, **more)
        assert (incident.kind, incident.culprit.pid) == (KIND.NODE_UNHEALTHY, 0)
        assert incident.reasons[0].startswith("this node is not healthy: ")
    assert found(STOPPED, health=(PORT,)).kind is KIND.UNKNOWN


def test_same_gpu_is_the_same_failure() -> None:
    """Whatever rank it serves; another GPU is another failure."""
    prints = [
        found(STOPPED, exited(1, code), health=(replace(LOST, subject=subject),)).fingerprint
        for code, subject in ((-6, "gpu 1 (GPU-b)"), (-11, "gpu 1 (GPU-b)"), (-6, "gpu 0 (GPU-a)"))
    ]
    assert prints[0] == prints[1] != prints[2]

"""Nodes and GPUs that are named again and again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.launcher.blame import is_blamed, ordinal
from ftrun.launcher.model import Case, Decision, Leeway, PastIncident
from ftrun.launcher.policy import decide
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor.diagnosis import CONFIDENCE
from ftrun.monitor.incident import Incident, IncidentKind, RankExit
from tests.support.cases import case_of

K = IncidentKind
CONFIG = RestartConfig()
FREE = Leeway("", "", is_alone=False)
NODES_ONLY = Leeway("", "GPUs are not left out alone (world.shrink)", is_alone=False)
FULL = Leeway("there is no spare, and the world may not be smaller", "the same", is_alone=False)
HOUR_S = 3600.0


def incident(kind: IncidentKind = K.HOST_OOM, node: str = "b", gpu: str = "", sure: float = 0.8) -> Incident:
    """Of rank 6."""
    culprit = RankExit(6, 0, 4242, -9, 10.0, is_stopped_by_agent=False, gpu=gpu)
    reason = "rank 6 was killed by the kernel's OOM killer"
    return Incident(kind, 3, node, culprit, (reason,), "f", True, confidence=sure)


def past(node: str = "b", gpu: str = "", after_s: float = HOUR_S, blamed: bool = True) -> PastIncident:
    """One that went before."""
    return PastIncident(K.HOST_OOM, "f", True, node, gpu, blamed, after_s=after_s)


def decided(case: Case, leeway: Leeway = NODES_ONLY, config: RestartConfig = CONFIG) -> Decision:
    """With five restarts."""
    return decide(replace(case, leeway=leeway), 5, config)


def taken_out(decision: Decision) -> tuple[str, str]:
    """Node and GPU."""
    return decision.excluded_node, decision.excluded_gpu


def test_decision_counts_up_to_the_exclusion() -> None:
    """The first time may be chance and is not worth a word."""
    sentences = [decided(case_of(incident(), (past(),) * n)).reason for n in range(3)]
    what = "rank 6 was killed by the kernel's OOM killer"
    assert sentences == [
        f"restart 1 of 5: {what}",
        f"restart 2 of 5: {what}; 2nd time on node b, which is excluded at 3",
        f"restart 3 of 5: {what}; 3rd time on node b, which is excluded from now on",
    ]


@pytest.mark.parametrize(
    ("history", "now"),
    [
        pytest.param((past(),), incident(), id="twice only"),
        pytest.param((past("a"), past()), incident(), id="another node in between"),
        pytest.param((past(blamed=False), past()), incident(), id="not its doing once"),
        pytest.param((past(), past()), incident(sure=CONFIDENCE["silent"]), id="not sure now"),
        pytest.param((past(), past()), incident(K.EXCEPTION), id="the script's doing now"),
        pytest.param((past(), past()), replace(incident(), node="a"), id="another node now"),
    ],
)
def test_near_misses_take_nobody_out(history: tuple[PastIncident, ...], now: Incident) -> None:
    """Three times, with confidence, and as its own doing."""
    assert taken_out(decided(case_of(now, history))) == ("", "")


def test_what_was_long_ago_is_not_held_against_a_node() -> None:
    """The window reaches from this failure back over the gaps between those before it."""
    for gap_s, expected in ((HOUR_S * 12, ("b", "")), (HOUR_S * 12.1, ("", ""))):
        case = case_of(incident(), (past(after_s=9e9), past(after_s=gap_s)), after_s=gap_s)
        assert taken_out(decided(case)) == expected


def test_node_that_cannot_be_done_without_stays_and_it_is_said_why() -> None:
    """The limits of restarts then say how long that goes on."""
    decision = decided(case_of(incident(), (past(), past())), FULL)
    assert taken_out(decision) == ("", "")
    assert decision.reason.endswith(
        "; 3rd time on node b, which stays, since there is no spare, and the world may not be smaller"
    )


def test_gpu_is_taken_out_alone_if_it_can_be() -> None:
    """The node goes on with its others."""
    case = case_of(incident(K.XID, gpu="GPU-7"), (past(gpu="GPU-7"),) * 2)
    decision = decided(case, FREE)
    assert taken_out(decision) == ("", "GPU-7")
    assert "3rd time on GPU-7 of node b, which is left out from now on" in decision.reason
    assert taken_out(decided(case, NODES_ONLY)) == ("b", "")


def test_node_whose_gpus_take_turns_is_taken_out_whole() -> None:
    """It is not this or that GPU then."""
    case = case_of(incident(K.XID, gpu="GPU-7"), (past(gpu="GPU-5"), past(gpu="GPU-6")))
    assert taken_out(decided(case, FREE)) == ("b", "")


def test_gpu_is_not_blamed_for_what_no_gpu_does() -> None:
    """A process that the kernel killed for want of memory would be killed on any."""
    case = case_of(incident(K.HOST_OOM, gpu="GPU-7"), (past(), past()))
    assert (case.now.gpu, taken_out(decided(case, FREE))) == ("", ("b", ""))


def test_gpu_that_is_out_is_not_held_against_its_node() -> None:
    """Its node begins anew."""
    history = (past(gpu="GPU-7"),) * 3
    case = replace(case_of(incident(), history), excluded_gpus=frozenset({"GPU-7"}))
    decision = decided(case, FREE)
    assert (taken_out(decision), decision.reason.endswith("OOM killer")) == (("", ""), True)


def test_lone_node_is_not_told_that_it_is_bad() -> None:
    """There is no other that a failure could be on."""
    assert decided(case_of(incident(), (past(), past())), Leeway()).reason.endswith("OOM killer")
    case = case_of(incident(K.XID, gpu="GPU-7"), (past(gpu="GPU-7"),) * 2)
    assert taken_out(decided(case, Leeway(gpu=""))) == ("", "GPU-7")


def test_exclusion_can_be_switched_off() -> None:
    """With 0, whatever happens."""
    case = case_of(incident(), (past(),) * 4)
    assert taken_out(decided(case, FREE, RestartConfig(exclude_after=0))) == ("", "")


@pytest.mark.parametrize(
    ("kind", "sure", "expected"),
    [
        (K.HOST_OOM, "failed", True),
        (K.NODE_LOST, "found", True),
        (K.HANG_STEADY, "named", True),
        (K.HANG_STEADY, "silent", False),
        (K.NCCL_TIMEOUT, "silent", False),
        (K.SEGFAULT, "failed", True),
        (K.EXCEPTION, "failed", False),
        (K.CUDA_OOM, "failed", False),
        (K.PREEMPTED, "found", False),
        (K.UNREACHABLE, "found", False),
        (K.START_FAILED, "found", True),
        (K.UNKNOWN, "unknown", False),
    ],
)
def test_failures_that_are_a_places_doing(kind: IncidentKind, sure: str, expected: bool) -> None:
    """Not the script's, and not where nobody can be named."""
    assert is_blamed(incident(kind, sure=CONFIDENCE[sure])) is expected


def test_ordinals_are_english() -> None:
    """As people read them."""
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 101, 111)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "101st", "111th"]
    )

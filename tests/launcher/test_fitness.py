"""Which nodes their health keeps out of a round, and when so many fail that none is left out."""

from __future__ import annotations

import pytest

from ftrun.launcher.fitness import describe_ailments, judge_fitness
from ftrun.launcher.messages import Agent, Join
from ftrun.monitor.incident import Ailment

LOST = Ailment("gpu.lost", "gpu 1 (GPU-b)", "GPU is lost", "reboot the node", (1,), is_fatal=True)
DRIVER = Ailment("gpu.driver", "node n", "NVML does not answer", is_fatal=True)
PORT = Ailment("nic.state", "nic mlx5_0", "port 1 is down", is_fatal=True)


def joins(*ailments: tuple[Ailment, ...]) -> list[Join]:
    """One node each."""
    return [
        Join(Agent(f"n{place}", f"i{place}"), 1, f"n{place}", 1000, unhealthy=found)
        for place, found in enumerate(ailments)
    ]


@pytest.mark.parametrize(
    ("found", "fraction", "unfit", "withheld"),
    [
        ([(), ()], 0.2, [], []),
        ([(LOST,)], 0.2, ["n0"], []),
        ([(LOST,), ()], 0.2, ["n0"], []),
        ([(LOST,), (LOST,)], 0.2, [], ["gpu.lost"]),
        ([(LOST,), (DRIVER,)], 0.2, ["n0", "n1"], []),
        ([(PORT,)] * 2 + [()] * 8, 0.2, ["n0", "n1"], []),
        ([(PORT,)] * 3 + [()] * 7, 0.2, [], ["nic.state"]),
        ([(PORT,)] * 3 + [()] * 7, 0.3, ["n0", "n1", "n2"], []),
        ([(PORT, LOST)] + [(PORT,)] * 9, 0.2, ["n0"], ["nic.state"]),
        ([(PORT, PORT)] + [()] * 3, 0.0, ["n0"], []),
        ([(PORT,)] * 4, 1.0, ["n0", "n1", "n2", "n3"], []),
    ],
    ids=[
        "all are well",
        "the only node",
        "one of two",
        "both of two",
        "two nodes, each for another reason",
        "as many as allowed",
        "one more than allowed",
        "a larger share is allowed",
        "a check that counts beside one that does not",
        "one node is never too many",
        "all may be left out",
    ],
)
def test_who_is_left_out(
    found: list[tuple[Ailment, ...]], fraction: float, unfit: list[str], withheld: list[str]
) -> None:
    """By check and share of nodes."""
    fitness = judge_fitness(joins(*found), fraction)
    assert [agent.node for agent in fitness.unfit] == unfit
    assert list(fitness.withheld) == withheld


def test_nodes_that_fail_together_are_named() -> None:
    """For whoever looks for what they share."""
    assert judge_fitness(joins((PORT,), (PORT,), (PORT,)), 0.2).withheld == {"nic.state": ("n0", "n1", "n2")}


def test_reason_says_whom_what_and_what_to_do() -> None:
    """It is all that the person sees whose node is left out; a check that does not count is not given."""
    reasons = judge_fitness(joins((PORT, LOST), (PORT,)), 0.2).unfit
    assert list(reasons.values()) == [
        "node n0 is not healthy: gpu 1 (GPU-b): GPU is lost (gpu.lost); reboot the node"
    ]
    assert describe_ailments([DRIVER, LOST]) == "node n: NVML does not answer (gpu.driver), and 1 more"

"""Which of the nodes that have joined are not healthy enough for a round. Pure.

A fault of what all nodes share, such as a driver that was just rolled out, shows on many of them at once.
Leaving all of those out would end the job for something that may be of no consequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun.launcher.messages import Agent, Join
from ftrun.monitor.incident import Ailment


@dataclass(frozen=True, slots=True)
class Fitness:
    """What the health of the candidates comes to."""

    unfit: Mapping[Agent, str]
    """Those to leave out, each with the reason."""
    withheld: Mapping[str, tuple[str, ...]]
    """Checks for which nobody is left out, with the nodes that fail them."""


def judge_fitness(joins: Sequence[Join], max_fraction: float) -> Fitness:
    """Who has to be left out of a round for which these have joined.

    A check that more than `max_fraction` of the nodes fail, and more than one of them, counts for none: one
    node that fails a check is never too many, however small the job.
    """
    failing: dict[str, list[str]] = {}
    for join in joins:
        for check in dict.fromkeys(ailment.check for ailment in join.unhealthy):
            failing.setdefault(check, []).append(join.agent.node)
    most = most_excluded(max_fraction, len(joins))
    withheld = {check: tuple(sorted(nodes)) for check, nodes in failing.items() if len(nodes) > most}
    unfit = {}
    for join in joins:
        counted = [ailment for ailment in join.unhealthy if ailment.check not in withheld]
        if counted:
            unfit[join.agent] = f"node {join.agent.node} is not healthy: {describe_ailments(counted)}"
    return Fitness(unfit, withheld)


def most_excluded(max_fraction: float, nodes: int) -> int:
    """How many of so many nodes may be left out for one and the same reason."""
    return max(1, int(max_fraction * nodes))


def describe_ailments(ailments: Sequence[Ailment]) -> str:
    """The first in words, how many more there are, and what to do about it."""
    first = ailments[0]
    more = f", and {len(ailments) - 1} more" if len(ailments) > 1 else ""
    remedy = f"; {first.remedy}" if first.remedy else ""
    return f"{first.subject}: {first.observed} ({first.check}){more}{remedy}"

"""The health of a node as the agent sees it: it waits so long for a check and no longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ftrun.healthchecks.policy import HealthPolicy, Scope
from ftrun.healthchecks.registry import GROUPS, Severity, severities
from ftrun.launcher.health import NodeHealth, Note, jittered

TAKES_S = 3.0
SILENT = severities(dict.fromkeys((group for group in GROUPS if group != "external"), Severity.OFF))


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Iterator[NodeHealth]:
    """Of a node whose only check takes a while."""
    policy = HealthPolicy(
        is_enabled=True, severities=SILENT, command=("sleep", "60"), external_timeout_s=TAKES_S
    )
    notes: list[Note] = []
    health = NodeHealth(policy, Scope("n0", local_world_size=2), notes.append, clock)
    yield health
    health.close()


def test_check_that_does_not_end_in_time_is_not_waited_for(health: NodeHealth, clock: Clock) -> None:
    """The node joins without its answer, and says so once."""
    health.start()
    assert not health.is_ready(clock.now)
    assert health.wanted_at is not None
    clock.now = health.wanted_at - 0.001
    assert not health.is_ready(clock.now)
    clock.now += 0.002
    assert health.is_ready(clock.now)
    delayed = health.delay()
    assert delayed is not None
    assert "going on without" in delayed.reason
    assert health.delay() is None
    assert (health.standing.unhealthy, health.standing.placement.slots) == ((), (0, 1))


def test_without_checks_a_node_is_always_ready(clock: Clock) -> None:
    """And has nothing to say."""
    health = NodeHealth(HealthPolicy(is_enabled=False), Scope("n0", local_world_size=1), print, clock)
    health.start()
    assert (health.is_ready(clock.now), health.wanted_at, health.delay()) == (True, None, None)


@pytest.mark.parametrize(("draw", "seconds"), [(0.0, 24.0), (0.5, 30.0), (1.0, 36.0)])
def test_interval_is_moved_at_random(draw: float, seconds: float) -> None:
    """A thousand nodes are not to ask their file server at once."""
    assert jittered(30.0, draw) == pytest.approx(seconds)

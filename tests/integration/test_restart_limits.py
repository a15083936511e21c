"""Limits of restarts in real jobs: a loop that gains nothing ends, a node that often fails is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support import nodes, run
from tests.support.nodes import ended, job, node_of

LOOP = """
from ftrun.monitor.client import heartbeat
for step in range(1, 4):
    heartbeat(step)
die(signal.SIGKILL)
"""
GAINS = LOOP.replace("range(1, 4)", "range(1, 4 + restart_count)")
KILLED_ON_REQUEST = """
name = f"kill{restart_count}"
heartbeat()
say("works")
while not has("end"):
    time.sleep(0.01)
    heartbeat()
    if os.environ["PLACE"] == PLACE and has(name):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_crash_loop_that_gains_nothing_is_stopped_with_93(tmp_path: Path) -> None:
    """Though it makes progress in each round, and 50 restarts are allowed."""
    options = ("--max-restarts", "50", "--ft-set", "restart.max_no_progress=2")
    code, done = run.finish(tmp_path, *options, run.WORKER, LOOP)
    assert code == 93, done.stderr
    decisions = done.events(events.RestartDecided)
    assert [one.action for one in decisions] == ["restart", "restart", "stop"]
    assert "1st restart in a row that brought nothing new, given up at 2" in decisions[1].reason
    assert "2 restarts in a row brought no new step and no new checkpoint" in decisions[2].reason
    assert decisions[2].reason in done.stderr


def test_loop_that_gains_a_step_each_time_has_all_its_restarts(tmp_path: Path) -> None:
    """The near miss: one step more than ever before, in every round."""
    options = ("--max-restarts", "4", "--ft-set", "restart.max_no_progress=2")
    code, done = run.finish(tmp_path, *options, run.WORKER, GAINS)
    assert code == 1, done.stderr
    assert "all 4 restarts are used up" in done.events(events.RestartDecided)[-1].reason


def fail_twice(this: nodes.Job) -> None:
    """The node that is told to, in two rounds."""
    for restart in range(2):
        this.wait_said("works", 2, restart=restart)
        this.release(f"kill{restart}")


@pytest.mark.parametrize("place", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["another", "the host's"])
def test_node_that_fails_again_and_again_is_replaced_by_a_spare(tmp_path: Path, place: int) -> None:
    """It ends with 94 and says why; the one that serves the store does that on for the others."""
    options = ("--nnodes", "2", "--ft-spares", "1", "--ft-set", "restart.exclude_after=2")
    code = f"import os\nPLACE = {str(place)!r}\n{KILLED_ON_REQUEST}"
    with job(tmp_path, *options, script=(nodes.WORKER, code)) as this:
        agents = [this.start_host(0), this.start(1)]
        this.wait_said("works", 2, restart=0)
        agents.append(this.start(2))
        this.wait_event(agents[2], events.NodeParked)
        fail_twice(this)
        again = this.wait_said("works", 2, restart=2)
        assert {one.place for one in again} == {0, 1, 2} - {place}
        if place:
            assert this.codes(agents[place]) == [94], this.account()
        this.release("end")
        assert this.codes() == [94 if at == place else 0 for at in range(3)], this.account()
        this.check_one_world()
        node = node_of(agents[place])
        assert f"node {node} fails again and again" in ended(agents[place]).reason
        assert f"2nd time on node {node}, which is excluded from now on" in agents[place].stderr
        [excluded] = [one for agent in agents for one in agent.events(events.NodeExcluded)]
        assert excluded.name == node


@pytest.mark.slow
def test_exclusion_outlives_the_host_agent(tmp_path: Path) -> None:
    """The new one knows from the others' joins which node may not come back."""
    options = ("--nnodes", "1:3", "--ft-set", "restart.exclude_after=2", "--max-restarts", "9")
    patience = ("--rdzv-conf", "last_call_timeout=300")
    code = f"import os\nPLACE = '2'\n{KILLED_ON_REQUEST}"
    with job(tmp_path, *options, *patience, script=(nodes.WORKER, code)) as this:
        host, other, third = this.start_host(0), this.start(1), this.start(2)
        for restart in range(2):
            this.wait_said("works", 3, restart=restart)
            this.release(f"kill{restart}")
        this.wait_said("works", 2, restart=2)
        assert this.codes(third) == [94]
        this.kill(host)
        this.wait_said("works", 1, restart=3)
        # Agents on one machine are told apart by numbers: the first takes that of the one that was killed.
        back = this.start_again(host)
        this.wait_event(back, events.NodeParked)
        again = this.start_again(third)
        assert this.codes(again) == [94], this.account()
        assert "was excluded from the job" in ended(again).reason
        this.release("end")
        assert this.codes(other, back) == [0, 0], this.account()

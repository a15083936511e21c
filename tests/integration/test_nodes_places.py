"""More nodes than places, and fewer: spares, late joiners, growth, and nodes that are told to leave."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import TRAINING, WORKER, Job, ended, job, node_of, seconds_since
from tests.support.run import Run

WORKS = "work_until('end')"
AT_ONCE_S = 10.0
"""Bound for what waits for nothing, on a busy machine."""
GRACE_S = 6.0
LOST_AFTER_S = 60.0
LINGERS = """
def linger(signum, frame):
    say("asked")
    wait_for("let go")
if group == 1:
    signal.signal(signal.SIGTERM, linger)
work_until("end")
"""


def worlds(this: Job) -> dict[int, int]:
    """World size by restart count."""
    return {one.restart: one.world for one in this.said("began")}


@pytest.mark.slow
def test_spare_takes_over_and_nobody_is_disturbed_by_one_too_many(tmp_path: Path) -> None:
    """A spare and a surplus node wait, one replaces a lost node at once, all end with the job's code."""
    options = ("--nnodes", "2", "--ft-set", "world.spares=1", "--ft-set", "rdzv.lost_after=5")
    with job(tmp_path, *options, script=(TRAINING,)) as this:
        host = this.start_host(0)
        rivals = {1: this.start(1), 2: this.start(2)}
        [seated] = {one.place for one in this.wait_said("began", 2, restart=0)} - {0}
        dies, spare = rivals.pop(seated), *rivals.values()
        surplus = this.start(3)
        for run in (spare, surplus):
            [parked, *_] = this.wait_event(run, events.NodeParked)
            assert parked.nodes == (node_of(host), node_of(dies))
        this.wait_event(spare, events.StandbyReadied)
        this.wait_said("step", 20, restart=0)
        assert worlds(this) == {0: 2}
        this.kill(dies)
        this.wait_said("step", 20, restart=1)
        assert worlds(this) == {0: 2, 1: 2}
        [_, closed] = host.events(events.RoundClosed)
        assert closed.nodes == (node_of(host), node_of(spare))
        assert closed.spares == (node_of(surplus),)
        assert [one.is_warm for one in spare.events(events.WorkerStarted)] == [True]
        this.release("end")
        assert this.codes(host, spare, surplus) == [0, 0, 0], this.account()
        assert surplus.events(events.WorkerStarted) == []
        this.check_weights(ranks=2)
        this.check_one_world()


@pytest.mark.slow
@pytest.mark.parametrize(("grow", "expected"), [("immediately", {0: 1, 1: 2}), ("never", {0: 1})])
def test_late_node(tmp_path: Path, grow: str, expected: dict[int, int]) -> None:
    """A node that comes late gets ranks when that is wanted, and else waits as a spare to the end."""
    options = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0", "--ft-set", f"world.grow={grow}")
    with job(tmp_path, *options, script=(TRAINING,)) as this:
        first = this.start_host(0)
        this.wait_said("step")
        late = this.start(1)
        this.wait_event(first, events.NodeJoined, 2)
        if grow == "immediately":
            this.wait_said("step", restart=1)
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        assert worlds(this) == expected
        assert ended(first).restart_count == ended(late).restart_count == len(expected) - 1
        assert first.events(events.IncidentDiagnosed) == []
        this.check_weights(ranks=max(expected.values()))
        this.check_one_world()


@pytest.mark.slow
def test_node_that_is_told_to_stop_leaves_within_its_grace(tmp_path: Path) -> None:
    """While joining, in a round and while stopping: it ends with 143 and is not waited for."""
    options = ("--nnodes", "1:3", "--ft-set", f"stop.grace_after_signal={GRACE_S}", "--max-restarts", "9")
    patience = ("--rdzv-conf", "last_call_timeout=120")
    with job(tmp_path, *options, *patience, script=(WORKER, LINGERS)) as this:
        stays, joining = this.start_host(0), this.start(1)
        this.wait_event(stays, events.NodeJoined, 2)
        assert end_after_sigterm(this, joining) < AT_ONCE_S
        assert node_of(joining) in [one.name for one in this.wait_event(stays, events.NodeLeft)]
        lingers, leaves = this.start(1), this.start(2)
        this.wait_said("works", 3, restart=0)
        assert end_after_sigterm(this, leaves) < AT_ONCE_S
        this.wait_said("asked", restart=0)
        assert 0 < end_after_sigterm(this, lingers) < GRACE_S + AT_ONCE_S
        this.wait_said("works", restart=1)
        this.release("end")
        assert this.codes(stays) == [0], this.account()
        assert worlds(this) == {0: 3, 1: 1}
        assert [one.incident_kind for one in stays.events(events.IncidentDiagnosed)] == ["preempted"]


@pytest.mark.slow
def test_host_agents_node_is_told_to_stop(tmp_path: Path) -> None:
    """It takes the store with it; the others go on without it, at once and as after any node that leaves."""
    lost = ("--ft-set", f"rdzv.lost_after={LOST_AFTER_S:g}")
    options = ("--nnodes", "1:3", "--rdzv-conf", "last_call_timeout=300", *lost)
    with job(tmp_path, *options, script=(TRAINING,)) as this:
        host = this.start_host(0)
        others = [this.start(1), this.start(2)]
        this.wait_said("step", 20, restart=0)
        assert end_after_sigterm(this, host) < AT_ONCE_S
        told_at = time.monotonic()
        this.wait_said("began", 2, restart=1)
        assert seconds_since(told_at) < LOST_AFTER_S / 2  # the ranks import torch again
        this.release("end")
        assert this.codes(*others) == [0, 0], this.account()
        assert worlds(this) == {0: 3, 1: 2}
        for run in others:
            [incident] = run.events(events.IncidentDiagnosed)
            assert incident.incident_kind == "preempted"
        this.check_weights(ranks=2)
        this.check_one_world()


def end_after_sigterm(this: Job, run: Run) -> float:
    """Tell an agent to stop; seconds until it has ended, with the code for that."""
    run.send(signal.SIGTERM)
    told_at = time.monotonic()
    assert this.codes(run) == [143], this.account()
    return seconds_since(told_at)

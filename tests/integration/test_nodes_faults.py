"""Faults in jobs of several agents on this machine: who goes on, with which ranks, and to which weights."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import TRAINING, Job, ended, first_record, job, node_of

REACHED_S = 2.5
"""Generous bound for a stop that is pushed to all nodes: a keep-alive comes half as often."""
SELDOM = ("--ft-set", f"rdzv.keep_alive_interval={2 * REACHED_S:g}")

PATIENT = ("--rdzv-conf", "last_call_timeout=300")
"""The first round waits for all nodes, however slow their start."""
LOST_AFTER_S = 5.0
QUICK = ("--ft-set", "rdzv.keep_alive_interval=0.5", "--ft-set", f"rdzv.lost_after={LOST_AFTER_S:g}")
REFORMED_S = 15.0
"""Bound for a new round after a node is lost, with cold workers on a busy machine."""


def wait_for_saved(this: Job, beyond: int = 0) -> int:
    """Until a later step than that is saved; which one is."""
    this.wait_until(lambda: saved_step(this) > beyond, f"something saved after step {beyond}")
    return saved_step(this)


def saved_step(this: Job) -> int:
    """Of what the training has saved last."""
    file = this.directory / "saved.json"
    return int(json.loads(file.read_text())[0]) if file.exists() else 0


def test_worker_killed_on_one_node_restarts_all_nodes_at_once(tmp_path: Path) -> None:
    """All ranks of unequal nodes see one restart, the stop comes by push, no step is lost and no log."""
    logs = tmp_path / "logs"
    options = ("--nnodes", "2", "--log-dir", str(logs), "--redirects", "3", *SELDOM)
    with job(tmp_path, *options, script=(TRAINING,)) as this:
        nodes = [this.start(0, "--nproc-per-node", "1"), this.start(1, "--nproc-per-node", "2")]
        ranks = {one.rank: one for one in this.wait_said("began", 3, restart=0)}
        assert [(ranks[rank].group, ranks[rank].local_rank) for rank in range(3)] == [(0, 0), (1, 0), (1, 1)]
        wait_for_saved(this)
        os.kill(ranks[2].pid, signal.SIGKILL)
        again = this.wait_said("began", 3, restart=1)
        assert all(one.more["step"] > 0 for one in again)
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        assert this.check_weights(ranks=3) > max(one.more["step"] for one in again)
        this.check_one_world()
        seen = first_record(nodes[1], events.WorkerExited)
        stopped = first_record(nodes[0], events.RoundStopOrdered)
        assert stopped.at - seen.at <= REACHED_S
        assert {ended(node).restart_count for node in nodes} == {1}
        assert {node.events(events.IncidentDiagnosed)[0].culprit_rank for node in nodes} == {2}
        assert len({node_of(node) for node in nodes}) == 2
        texts = [path.read_text() for path in logs.rglob("stdout.log")]
        assert sum("training from step 0 as rank" in text for text in texts) == 3
        assert len(texts) == 6


@pytest.mark.slow
def test_killed_agent_is_done_without_and_joins_again(tmp_path: Path) -> None:
    """Its workers die with it, the other node goes on alone, and gives it ranks at the next checkpoint."""
    options = ("--nnodes", "1:2", *PATIENT, *QUICK)
    with job(tmp_path, *options, script=(TRAINING, "report")) as this:
        stays, dies = this.start_host(0), this.start(1)
        this.wait_said("began", 2, world=2)
        wait_for_saved(this)
        killed_at = time.monotonic()
        this.kill(dies)
        [alone] = this.wait_said("began", restart=1)
        assert (alone.world, alone.rank) == (1, 0)
        assert alone.at - killed_at < LOST_AFTER_S + REFORMED_S
        [lost] = stays.events(events.NodeLost)
        assert lost.name == node_of(dies)
        assert "no keep-alive for" in lost.reason
        [incident] = stays.events(events.IncidentDiagnosed)
        assert incident.incident_kind == "node_lost"
        assert node_of(dies) in incident.reasons[0]
        again = this.start_again(dies)
        back = this.wait_said("began", 2, restart=2)
        assert {one.world for one in back} == {2}
        assert node_of(again) == node_of(dies)
        [order] = [one for one in stays.events(events.RoundStopOrdered) if one.cause == "grow"]
        assert node_of(again) in order.reason
        this.release("end")
        assert this.codes(stays, again) == [0, 0], this.account()
        this.check_weights(ranks=2)
        this.check_one_world()
        assert ended(stays).restart_count == ended(again).restart_count == 2
        assert len(stays.events(events.IncidentDiagnosed)) == 1  # growth is no incident


@pytest.mark.slow
def test_killed_host_agent_is_replaced_and_the_job_knows_its_past(tmp_path: Path) -> None:
    """The other node stops, finds whoever serves the store then, and counters and history go on."""
    with job(tmp_path, "--nnodes", "2", script=(TRAINING,)) as this:
        host, other = this.start_host(0), this.start(1)
        ranks = {one.rank: one for one in this.wait_said("began", 2, restart=0)}
        wait_for_saved(this)
        os.kill(ranks[1].pid, signal.SIGKILL)
        this.wait_said("began", 2, restart=1)
        saved = wait_for_saved(this, this.said("began", restart=1)[0].more["step"])
        this.kill(host)
        again = this.start_again(host)
        back = this.wait_said("began", 2, restart=2)
        assert all(one.more["step"] >= saved for one in back)
        this.release("end")
        assert this.codes(other, again) == [0, 0], this.account()
        this.check_weights(ranks=2)
        this.check_one_world()
        assert ended(other).restart_count == ended(again).restart_count == 2
        decisions = [one.reason for one in other.events(events.RestartDecided)]
        assert ["restart 1 of 3" in decisions[0], "restart 2 of 3" in decisions[1]] == [True, True]
        assert other.events(events.StoreLost)


@pytest.mark.slow
@pytest.mark.parametrize("is_host", [False, True])
def test_frozen_agent_is_lost_and_takes_part_again_when_it_is_thawed(tmp_path: Path, is_host: bool) -> None:
    """No world trains while another does; whoever was away stops its own workers and joins the next round."""
    options = ("--nnodes", "1:2", *PATIENT, *QUICK, "--ft-set", "world.grow=immediately")
    with job(tmp_path, *options, script=(TRAINING,)) as this:
        nodes = [this.start_host(0), this.start(1)]
        frozen, awake = nodes if is_host else nodes[::-1]
        this.wait_said("began", 2, world=2)
        wait_for_saved(this)
        frozen.send(signal.SIGSTOP)
        if is_host:
            this.wait_event(awake, events.StoreLost)
        else:
            this.wait_said("began", restart=1, world=1)
        frozen.send(signal.SIGCONT)
        this.wait_until(lambda: is_whole_again(this), "a later round with both nodes")
        steps = len(this.said("step"))
        this.wait_until(lambda: len(this.said("step")) > steps + 20, "steps of that round")
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        this.check_weights(ranks=2)
        this.check_one_world()


def is_whole_again(this: Job) -> bool:
    """Whether all ranks of both nodes have begun a later round."""
    later = [one for one in this.said("began", world=2) if one.restart > 0]
    return len([one for one in later if one.restart == later[-1].restart]) == 2


@pytest.mark.slow
def test_host_agent_is_lost_twenty_times(tmp_path: Path) -> None:
    """Whoever serves the store is killed and started again, each time in the middle of training."""
    times = 20
    with job(tmp_path, "--nnodes", "2", "--max-restarts", "100", script=(TRAINING,)) as this:
        running = [this.start(0), this.start(1)]
        for restart in range(times):
            this.wait_said("began", 2, restart=restart)
            wait_for_saved(this, this.said("began", restart=restart)[0].more["step"])
            host = this.host()
            this.kill(host)
            running.remove(host)
            running.append(this.start_again(host))
        this.wait_said("began", 2, restart=times)
        this.release("end")
        assert this.codes(*running) == [0, 0], this.account()
        this.check_weights(ranks=2)
        this.check_one_world()
        assert {ended(run).restart_count for run in running} == {times}

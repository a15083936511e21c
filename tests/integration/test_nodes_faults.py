"""Faults in jobs of several agents on this machine: who goes on, with which ranks, and to which weights."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ftrun.monitor import events
from tests.support.nodes import TRAINING, Job, ended, first_record, job, node_of
from tests.support.rank_words import weights_after

REACHED_S = 0.5
"""Generous bound for a stop that is pushed to all nodes."""


def check_weights(this: Job, ranks: int) -> int:
    """Every step was done exactly once, however often it was begun; how many there were."""
    done = this.said("done")
    assert len(done) == ranks, this.account()
    [(steps, weights)] = {(one.more["step"], one.more["weights"]) for one in done}
    assert weights == weights_after(steps), this.account()
    return steps


def wait_for_checkpoint(this: Job, more_than: int = 0) -> int:
    """Until there are more whole checkpoints than that; how many there are."""

    def count() -> int:
        return len(list((this.directory / "checkpoints").glob("step-*/.metadata")))

    this.wait_until(lambda: count() > more_than, f"more than {more_than} checkpoints")
    return count()


def training(directory: Path) -> tuple[str, ...]:
    """Script and arguments of a training that saves."""
    return TRAINING, str(directory / "checkpoints")


def saving(directory: Path) -> tuple[str, ...]:
    """Option with which every round begins from the newest checkpoint."""
    return "--ft-checkpoint-dir", str(directory / "checkpoints")


def test_worker_killed_on_one_node_restarts_all_nodes_at_once(tmp_path: Path) -> None:
    """All ranks of unequal nodes see one restart, the stop comes by push, no step is lost and no log."""
    logs = tmp_path / "logs"
    options = ("--nnodes", "2", *saving(tmp_path), "--log-dir", str(logs), "--redirects", "3")
    with job(tmp_path, *options, script=training(tmp_path)) as this:
        this.directory.joinpath("checkpoints")
        nodes = [this.start(0, "--nproc-per-node", "1"), this.start(1, "--nproc-per-node", "2")]
        ranks = {one.rank: one for one in this.wait_said("began", 3, restart=0)}
        assert [(ranks[rank].group, ranks[rank].local_rank) for rank in range(3)] == [(0, 0), (1, 0), (1, 1)]
        wait_for_checkpoint(this)
        os.kill(ranks[2].pid, signal.SIGKILL)
        again = this.wait_said("began", 3, restart=1)
        assert all(one.more["step"] > 0 for one in again)
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        assert check_weights(this, ranks=3) > max(one.more["step"] for one in again)
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

"""Whatever is killed on whichever node, the example ends with the weights of a run in which nothing was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.integration.test_bit_exact import EXAMPLE, SMALL
from tests.support.nodes import Job, ended, job
from tests.support.run import Run

HELD = str(Path(__file__).parents[1] / "support" / "held_example.py")
STEPS, EVERY = 200, 20


def kill_worker(this: Job, host: Run, other: Run) -> Run:
    """The newest worker of the node that does not serve the store."""
    os.kill(other.events(events.WorkerStarted)[-1].pid, signal.SIGKILL)
    return other


def kill_agent(this: Job, host: Run, other: Run) -> Run:
    """The agent of that node, which is started again."""
    this.kill(other)
    return this.start_again(other)


def kill_host(this: Job, host: Run, other: Run) -> Run:
    """The agent that serves the store, which is started again."""
    this.kill(host)
    return this.start_again(host)


Deed = Callable[[Job, Run, Run], Run]


def train(directory: Path, *deeds: Deed) -> tuple[str, list[Run]]:
    """Train on two nodes; the hash of the final weights, and the agents that ended by themselves."""
    checkpoints = directory / "checkpoints"
    script = (HELD, str(len(deeds)), EXAMPLE, *SMALL, "--steps", str(STEPS), "--checkpoint-every", str(EVERY))
    saving = ("--checkpoint-dir", str(checkpoints), "--final-hash", str(directory / "hash"))
    options = ("--nnodes", "2", "--ft-checkpoint-dir", str(checkpoints))
    with job(directory, *options, script=(*script, *saving)) as this:
        running = [this.start(0), this.start(1)]
        for restart, deed in enumerate(deeds):
            wait_for_progress(this, running, restart, checkpoints)
            host = this.host()
            [other] = [run for run in running if run is not host]
            deed(this, host, other)
            running = [run for run in this.runs if run.process.poll() is None]
        assert this.codes(*running, timeout_s=300) == [0, 0], this.account()
    return (directory / "hash").read_text(), running


def wait_for_progress(this: Job, running: list[Run], restart: int, checkpoints: Path) -> None:
    """Until all nodes train after that many restarts, and have saved something since."""

    def trains(run: Run) -> bool:
        rounds = {one.round for one in run.events(events.RoundClosed) if one.restart_count == restart}
        return any(one.round in rounds for one in run.events(events.WorkerProgressed))

    this.wait_until(lambda: all(map(trains, running)), f"training after {restart} restarts")
    closed = [one for one in running[0].events(events.RoundClosed) if one.restart_count == restart]
    begun = closed[-1].resume_step or 0
    this.wait_until(lambda: newest(checkpoints) > begun, "a new checkpoint")


def newest(checkpoints: Path) -> int:
    """Step of the newest checkpoint."""
    found = checkpoints.glob("step-*/.metadata")
    return max((int(path.parent.name.removeprefix("step-")) for path in found), default=0)


@pytest.mark.slow
def test_faults_on_any_node_change_no_bit_of_the_final_weights(tmp_path: Path) -> None:
    """A worker, an agent and the host agent are killed in one FSDP2 run; each goes on from a checkpoint."""
    undisturbed, _ = train(tmp_path / "undisturbed")
    disturbed, running = train(tmp_path / "disturbed", kill_worker, kill_agent, kill_host)
    assert disturbed == undisturbed
    assert {ended(run).restart_count for run in running} == {3}
    for run in running:
        resumed = [one for one in run.events(events.RoundClosed) if one.restart_count > 0]
        assert all(one.resume_step for one in resumed)

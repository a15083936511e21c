"""Processes around a job: what is the job's ends with it, what is not is left alone."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from ftrun.monitor import events
from tests.support.run import WORKER, finish, start
from tests.support.waiting import until

TWO = ("--nproc-per-node", "2")
NO_MEMORY_LIMIT = ("--ft-set", "standby.min_free_memory=0")


def test_children_of_an_entrypoint_that_became_ftrun_are_left_alone(tmp_path: Path) -> None:
    """An exporter or tunnel that a start script began before `exec ftrun` is no process of the job."""
    entrypoint = ("bash", "-c", 'sleep 60 & echo $! > "$D/exporter"; exec "$@"', "entrypoint")
    code = "if restart_count == 0: die(signal.SIGKILL)"
    with start(tmp_path, WORKER, code, wrapper=entrypoint) as run:
        assert run.wait() == 0
        exporter = int((tmp_path / "exporter").read_text())
        assert exporter in run.living()
        assert run.events(events.ProcessSwept) == []


def test_process_that_finishes_after_its_rank_is_waited_for_when_the_job_has_succeeded(
    tmp_path: Path,
) -> None:
    """An upload that the script started and left is not cut off."""
    code = 'subprocess.Popen(["sh", "-c", "sleep 1; touch \\"$D/uploaded\\""])'
    code_of_exit, run = finish(tmp_path, WORKER, code)
    assert code_of_exit == 0
    assert (tmp_path / "uploaded").exists()
    assert run.events(events.ProcessSwept) == []


def test_process_that_never_ends_is_ended_and_named_after_its_time(tmp_path: Path) -> None:
    """`stop.grace_after_success` bounds the wait."""
    code = 'subprocess.Popen(["sleep", "60"], start_new_session=True)'
    code_of_exit, run = finish(tmp_path, "--ft-set", "stop.grace_after_success=0.2", WORKER, code)
    assert code_of_exit == 0
    (swept,) = run.events(events.ProcessSwept)
    assert "sleep" in swept.command


def test_grandchildren_and_sockets_of_a_killed_agent_are_cleaned_up(tmp_path: Path) -> None:
    """The kernel ends a wrapper script with its agent; what the script had started, ftrun ends."""
    wrapped = tmp_path / "wrapped.sh"
    wrapped.write_text('#!/bin/bash\nsleep 60 &\nsetsid sleep 60 &\ntouch "$D/started$RANK"\nwait\n')
    wrapped.chmod(0o755)
    with start(tmp_path, *TWO, "--no-python", str(wrapped)) as run:
        run.wait_until(lambda: all((tmp_path / f"started{r}").exists() for r in (0, 1)), "both wrappers run")
        assert list((tmp_path / "tmp").glob("ftrun-*"))
        run.send(signal.SIGKILL)
        run.process.wait(10)
        run.wait_until_gone(20)
        until(lambda: not list((tmp_path / "tmp").glob("ftrun-*")), lambda: "the sockets are not removed")


def test_standby_that_cannot_be_started_costs_no_training(tmp_path: Path) -> None:
    """With no descriptors left there is no standby, and one line that says why; the job goes on."""
    code = """
from ftrun.monitor import client
client.heartbeat()
wait_for("done")
"""
    with start(tmp_path, *NO_MEMORY_LIMIT, WORKER, code) as run:
        (ready,) = run.wait_for_event(events.StandbyReadied)
        agent = run.process.pid
        limits = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        used = max(int(fd) for fd in os.listdir(f"/proc/{agent}/fd")) - 6
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (used, limits[1]))
        os.kill(ready.pid, signal.SIGKILL)
        (suspended,) = run.wait_for_event(events.StandbySuspended)
        assert "cannot be started" in suspended.reason
        resource.prlimit(agent, resource.RLIMIT_NOFILE, limits)
        (tmp_path / "done").touch()
        assert run.wait() == 0, run.stderr


def test_failure_is_explained_although_a_signal_ends_the_job(tmp_path: Path) -> None:
    """SIGTERM while the other ranks use their grace changes the exit code, not what is known."""
    code = """
if rank == 1:
    wait_for("ready")
    raise ValueError("bad shard")
signal.signal(signal.SIGTERM, lambda *_: None)
(directory / "ready").touch()
while not (directory / "signalled").exists():
    time.sleep(0.02)
"""
    with start(tmp_path, *TWO, "--ft-set", "stop.grace_after_failure=60", WORKER, code) as run:
        run.wait_for_event(events.WorkerExited)
        run.send(signal.SIGTERM)
        run.wait_for_event(events.SignalReceived)
        (tmp_path / "signalled").touch()
        assert run.wait() == 143
    assert "ValueError: bad shard" in run.stderr
    (incident,) = run.events(events.IncidentDiagnosed)
    assert incident.culprit_rank == 1

"""The account of real jobs, while they run, after their agents were killed, and once they have ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from ftrun.monitor import events
from ftrun.monitor.goodput import Bucket, make_ledger
from ftrun.monitor.history import Outcome, State
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.report import Report, make_report
from ftrun.monitor.runs import read_runs
from tests.support.run import WORKER, Run, start


def report_of(run: Run) -> Report:
    """As `ftctl report` would have it now."""
    [found] = read_runs(run.directory / "run", time.time())
    return make_report(found.run, found.name, str(found.directory))


def test_account_of_a_job_at_every_stage_of_its_life(tmp_path: Path) -> None:
    """It runs, a rank is killed, it runs again, it ends; every second of it is in a bucket at each time."""
    code = (
        "import time; from ftrun.monitor.client import heartbeat\n"
        "heartbeat()\n"
        "while not os.path.exists(os.path.join(os.environ['D'], 'end')): time.sleep(0.01); heartbeat()"
    )
    with start(tmp_path, "--nproc-per-node", "2", WORKER, f"import os\n{code}") as run:
        run.wait_for_event(events.WorkerProgressed, 2)
        first = report_of(run)
        assert (first.run.state, first.incidents, first.run.ranks) == ("running", (), 2)
        assert first.goodput.buckets_s["productive"] > 0
        victim = run.events(events.WorkerStarted)[1]
        os.kill(victim.pid, signal.SIGKILL)
        run.wait_for_event(events.WorkerProgressed, 4)
        run.wait_for_event(events.RecoveryCompleted)
        again = report_of(run)
        assert [(one.kind, one.rank, one.outcome) for one in again.incidents] == [("killed", 1, "recovered")]
        (tmp_path / "end").touch()
        assert run.wait() == 0
        last = report_of(run)
    assert (last.run.state, last.run.exit_code, last.run.restarts) == ("ended", 0, 1)
    assert last.recovery.count == 1
    ended = run.events(events.RunEnded)[0]
    assert abs(sum(last.goodput.buckets_s.values()) - last.run.wall_s) < 1e-3 * last.run.wall_s
    assert abs(last.run.wall_s - ended.duration_s) < 3.0


def test_job_whose_agent_was_killed_is_told_as_killed(tmp_path: Path) -> None:
    """Nobody has written an end; up to the last line all is known."""
    with start(tmp_path, "--nproc-per-node", "1", WORKER, "import time; time.sleep(600)") as run:
        run.wait_for_event(events.WorkerStarted)
        run.send(signal.SIGKILL)
        run.process.wait(10)
        run.wait_until_gone(10)
        [found] = read_runs(tmp_path / "run", time.time())
    assert found.run.state is State.KILLED
    assert found.run.gaps
    total = make_ledger(found.run, segments_of(found.run)).total
    assert abs(sum(total.values()) - found.run.wall_s) < 1e-6
    assert total[Bucket.DOWN] == 0


def test_job_that_cannot_begin_is_told_with_its_reason(tmp_path: Path) -> None:
    """An import error ends it at once; the incident has ended the job."""
    with start(tmp_path, "--nproc-per-node", "1", WORKER, "import a_module_that_is_not_there") as run:
        run.wait()
        [found] = read_runs(tmp_path / "run", time.time())
    [incident] = found.run.incidents
    assert (incident.kind, incident.outcome, found.run.exit_code) == (
        "import_or_syntax_error", Outcome.ENDED, 93,
    )  # fmt: skip

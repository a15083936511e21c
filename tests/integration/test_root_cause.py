"""The cause of a failure is found by the true order of things, and shown with what is needed to mend it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import WORKER, Run, finish

TWO = ("--nproc-per-node", "2")
NO_RESTARTS = ("--max-restarts", "0")
OWN_SCRIPT = """
import os, time

def step():
    raise ValueError("shape mismatch")

{decorator}
def main():
    if os.environ["RANK"] == "1":
        step()
    time.sleep(60)

if __name__ == "__main__":
    main()
"""
RECORD = "from torch.distributed.elastic.multiprocessing.errors import record\n@record"


def diagnosed(run: Run) -> events.IncidentDiagnosed:
    """The one incident of a run."""
    (incident,) = run.events(events.IncidentDiagnosed)
    return incident


def root_cause(run: Run) -> str:
    """The part of the summary that is about the first failure."""
    found = re.search(
        r"Root Cause \(first observed failure\):\n(.*?)\n-+\nOther failures:", run.stderr, re.DOTALL
    )
    assert found is not None, run.stderr
    return found[1]


def test_first_to_fail_is_named_although_another_rank_exits_before_it(tmp_path: Path) -> None:
    """Rank 1 raises first and is slow to leave; rank 0 raises because of it, and its exit is seen first."""
    code = """
import atexit
if rank == 1:
    @atexit.register
    def leave_slowly():
        (directory / "raised").touch()
        wait_for("other_is_gone")
        time.sleep(5.0)
    raise ValueError("the cause")
wait_for("raised")
atexit.register((directory / "other_is_gone").touch)
raise KeyError("rank 1 has not answered")
"""
    exit_code, run = finish(tmp_path, *TWO, *NO_RESTARTS, WORKER, code)
    assert exit_code == 1
    assert [event.rank for event in run.events(events.WorkerExited)] == [0, 1]
    incident = diagnosed(run)
    assert (incident.culprit_rank, incident.collateral_ranks) == (1, (0,))
    assert "the cause" in root_cause(run)
    others = run.stderr.partition("Other failures:")[2]
    assert "rank      : 0 (local_rank: 0)" in others
    assert "rank 1 has not answered" in others


def test_rank_that_fails_when_it_is_stopped_is_no_cause(tmp_path: Path) -> None:
    """Rank 0 answers SIGTERM with an exception; it was stopped, and rank 1 was the failure."""
    code = """
def fail(*_):
    raise RuntimeError("I was told to stop")
signal.signal(signal.SIGTERM, fail)
(directory / f"ready{rank}").touch()
wait_for("ready0")
if rank == 1:
    die(signal.SIGSEGV)
time.sleep(60)
"""
    exit_code, run = finish(tmp_path, *TWO, *NO_RESTARTS, WORKER, code)
    assert exit_code == 1
    incident = diagnosed(run)
    assert (incident.culprit_rank, incident.incident_kind) == (1, "segfault")
    assert "(SIGSEGV)" in root_cause(run)
    assert "Stopped by the agent: rank 0" in run.stderr
    assert "<NO_OTHER_FAILURES>" in run.stderr


@pytest.mark.parametrize("decorator", [pytest.param("", id="plain"), pytest.param(RECORD, id="with @record")])
def test_traceback_of_the_root_cause_is_shown(tmp_path: Path, decorator: str) -> None:
    """The exception and its traceback are in the summary, whether or not the script uses @record."""
    script = tmp_path / "train.py"
    script.write_text(OWN_SCRIPT.format(decorator=decorator))
    error_file = tmp_path / "agents_error.json"
    exit_code, run = finish(
        tmp_path, *TWO, *NO_RESTARTS, str(script), environment={"TORCHELASTIC_ERROR_FILE": str(error_file)}
    )
    assert exit_code == 1
    assert "train.py FAILED" in run.stderr
    shown = root_cause(run)
    assert "rank      : 1 (local_rank: 1)" in shown
    assert "exitcode  : 1 (pid: " in shown
    assert 'raise ValueError("shape mismatch")' in shown
    assert "ValueError: shape mismatch" in shown
    assert re.search(r"line \d+, in step", shown)
    assert "worker_main.py" not in shown
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: shape mismatch"
    assert "in step" in message["extraInfo"]["py_callstack"]


@pytest.mark.parametrize(
    ("death", "code", "name"),
    [
        pytest.param("os.abort()", -signal.SIGABRT, "(SIGABRT)", id="abort"),
        pytest.param("os._exit(3)", 3, "", id="exit code"),
        pytest.param("die(signal.SIGKILL)", -signal.SIGKILL, "(SIGKILL)", id="killed"),
    ],
)
def test_last_words_of_a_rank_without_a_traceback_are_shown(
    tmp_path: Path, death: str, code: int, name: str
) -> None:
    """What the rank wrote to stderr last stands in the summary, and still passes through to the console."""
    program = f"""
if rank == 1:
    for number in range(30):
        os.write(2, f"line {{number}}\\n".encode())
    os.write(2, b"device 3 is on fire")
    {death}
time.sleep(60)
"""
    exit_code, run = finish(tmp_path, *TWO, *NO_RESTARTS, WORKER, program)
    assert exit_code == max(1, code)
    shown = root_cause(run)
    assert re.search(rf"exitcode  : {code} \(pid: \d+\)" + (f"  {re.escape(name)}" if name else ""), shown)
    assert "    line 29\n" in shown
    assert "    device 3 is on fire" in shown
    assert run.stderr.partition("FAILED")[0].count("device 3 is on fire") == 1


def test_words_that_tools_look_for_are_there(tmp_path: Path) -> None:
    """Log scrapers know torchrun's lines; those that are true of ftrun too are written in the same words."""
    exit_code, run = finish(tmp_path, *TWO, *NO_RESTARTS, WORKER, "rank == 1 and die(9); time.sleep(60)")
    assert exit_code == 1
    (pid,) = (event.pid for event in run.events(events.WorkerExited) if event.rank == 1)
    for words in (
        "Setting OMP_NUM_THREADS environment variable for each process",
        f"failed (exitcode: -9) local_rank: 1 (pid: {pid}) of binary:",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
        f"{WORKER} FAILED",
        "Root Cause (first observed failure):",
        "<NO_OTHER_FAILURES>",
        f"exitcode  : -9 (pid: {pid})  (SIGKILL)",
    ):
        assert words in run.stderr

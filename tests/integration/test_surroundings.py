"""A job runs whatever the place is like that it was started in: streams, signals, a full home."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from ftrun.monitor import events
from ftrun.monitor.journal import read
from tests.support.run import WORKER, finish, start


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_problem(tmp_path: Path, closed: str) -> None:
    """No socket or file of the agent becomes a standard stream and gets text that was meant for it."""
    code = "print('text', file=sys.stderr, flush=True); (directory / f'ran{restart_count}').touch()"
    wrapper = ("sh", "-c", f'exec "$@" {closed}', "sh")
    exit_code, run = finish(tmp_path, WORKER, code + "; sys.exit(restart_count == 0)", wrapper=wrapper)
    assert exit_code == 0, run.stderr
    assert {"ran0", "ran1"} <= set(os.listdir(tmp_path))
    assert "error" not in run.stdout


def test_usage_error_with_stderr_closed_does_not_go_to_stdout(tmp_path: Path) -> None:
    """What reads the output of a job never finds the message of a wrong command line in it."""
    exit_code, run = finish(tmp_path, "nosuch.py", wrapper=("sh", "-c", 'exec "$@" 2>&-', "sh"))
    assert (exit_code, run.stdout) == (2, "")


def test_a_job_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    """SIGHUP, ignored at the start, ends neither the agent nor a worker."""
    code = """
assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
say("ready")
wait_for("hung_up")
"""
    with start(tmp_path, "--max-restarts", "0", WORKER, code, wrapper=("nohup",)) as run:
        run.wait_for_text("ready")
        run.send(signal.SIGHUP)
        (tmp_path / "hung_up").touch()
        assert run.wait() == 0, run.stderr
    assert run.events(events.SignalReceived) == []


@pytest.fixture
def full_state_home(tmp_path: Path) -> str:
    """A file system with room for directories and for no file."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=3", "none", str(place)]
    probe = subprocess.run(["unshare", "-rm", *mount], capture_output=True, text=True, timeout=20)
    if probe.returncode != 0:
        pytest.skip(f"no file system of one's own can be mounted here: {probe.stderr.strip()}")
    return f'{" ".join(mount)} && exec "$@"'


def test_a_full_home_costs_a_warning(tmp_path: Path, full_state_home: str) -> None:
    """Where no file can be written below $XDG_STATE_HOME, the journal is in the temporary directory."""
    wrapper = ("unshare", "-rm", "sh", "-c", full_state_home, "sh")
    environment = {"XDG_STATE_HOME": str(tmp_path / "full"), "PET_FT_RUN_DIR": ""}
    exit_code, run = finish(tmp_path, WORKER, "pass", environment=environment, wrapper=wrapper)
    assert exit_code == 0, run.stderr
    assert run.stderr.count("cannot be used: No space left on device") == 1
    (journal,) = (tmp_path / "tmp").glob("ftrun-*/ftrun/*/*.jsonl")
    assert any(isinstance(record.event, events.RunEnded) for record in read(journal))


def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    """A reader that begins only when the job has ended gets all lines and the account of the failure."""
    code = "[print(f'line {i} ' + 'x' * 60) for i in range(9000)]; sys.exit(3)"
    reader = f'until grep -qs run.ended "{tmp_path}"/run/*.jsonl; do :; done; cat'
    command = f'{{ "$@" 2>&1; echo "code $?"; }} | {{ {reader}; }}'
    options = ("--max-restarts", "0", "--tee", "3", "--log-dir", str(tmp_path / "logs"))
    wrapper = ("sh", "-c", command, "sh")
    _, run = finish(tmp_path, *options, WORKER, code, wrapper=wrapper, timeout_s=60)
    assert run.stdout.count("[default0]:line ") == 9000
    assert "Root Cause (first observed failure):" in run.stdout
    assert run.stdout.rstrip().endswith("code 3")

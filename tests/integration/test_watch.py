"""`ftctl watch` beside real runs."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import free_port
from tests.support.run import Run, start

TRAINING = str(Path(__file__).parents[1] / "support" / "accounted_training.py")
WATCH = [sys.executable, "-c", "from ftrun.monitor.ctl import main; main()", "watch"]


def watch(run: Run, *options: str) -> str:
    """One look."""
    command = [*WATCH, *options, str(run.directory / "run")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_snapshots_of_a_run(tmp_path: Path) -> None:
    """While it trains, after a restart, and after its agent was killed."""
    with start(tmp_path, "--nproc-per-node", "2", TRAINING, "60", "20") as run:
        run.wait_for_event(events.CheckpointSaved)
        text = watch(run)
        assert all(len(line) <= 80 for line in text.splitlines())
        assert re.search(r"^ +0 training +\d+ +[\d.]+ +[\d.]+ s", text, re.MULTILINE)
        assert re.search(
            r"^checkpoint at step [246]0, [\d.]+ s ago; a failure now costs \d+ steps?$", text, re.MULTILINE
        )
        os.kill(run.events(events.WorkerStarted)[1].pid, signal.SIGKILL)
        run.wait_for_event(events.RecoveryCompleted)
        view = json.loads(watch(run, "--json"))
        [node] = view["nodes"]
        assert (node["phase"], node["restarts"], node["round"]) == ("running", 1, 1)
        assert [rank["state"] for rank in node["ranks"]] == ["training", "training"]
        run.send(signal.SIGKILL)
        run.process.wait(10)
        assert "killed" in watch(run, "--plain").splitlines()[0]


@pytest.mark.slow
def test_two_nodes_of_one_directory(tmp_path: Path) -> None:
    """Both are shown, each with its ranks."""
    shared = str(tmp_path / "shared")
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--ft-run-dir", shared)
    endpoint = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "j")
    with (
        start(tmp_path / "a", *options, *endpoint, TRAINING, "60", "20") as first,
        start(tmp_path / "b", *options, *endpoint, TRAINING, "60", "20") as second,
    ):
        done = [False]

        def both_train() -> bool:
            command = [*WATCH, "--json", shared]
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
            nodes = json.loads(said)["nodes"] if said else []
            done[0] = [len(node["ranks"]) for node in nodes] == [1, 1]
            return done[0]

        first.wait_until(both_train, "both nodes have a rank", 120)
        for run in (first, second):
            (run.directory / "go").touch()
        assert (first.wait(120), second.wait(120)) == (0, 0)


def test_live_view_ends_with_the_run(tmp_path: Path) -> None:
    """In a terminal of 80 columns; the last state stays there."""
    pytest.importorskip("rich", reason="the extra ftrun[report] is not installed")
    with start(tmp_path, "--nproc-per-node", "1", TRAINING, "30", "20") as run:
        run.wait_for_event(events.WorkerProgressed)
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        command = [*WATCH, "--interval", "0.1", str(run.directory / "run")]
        live = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        output = bytearray()
        reader = threading.Thread(target=drain, args=(ours, output))
        reader.start()
        run.wait_until(lambda: b"training" in output, "the live view shows the rank")
        (tmp_path / "go").touch()
        assert run.wait() == 0
        assert live.wait(30) == 0
        reader.join(10)
        os.close(ours)
    text = output.decode()
    assert "\x1b[?1049h" in text  # another screen, so that what was on the terminal comes back
    assert "ended (exit code 0)" in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text.rpartition("\x1b[?1049l")[2])


def drain(fd: int, output: bytearray) -> None:
    """Until the other side is closed."""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            return
        if not data:
            return
        output += data


def test_missing_library_is_named(tmp_path: Path) -> None:
    """With the command that installs it, and what can be had without."""
    code = (
        "import sys; from importlib import util\n"
        "util.find_spec = lambda name: None; sys.stdout.isatty = lambda: True\n"
        "from ftrun.monitor.ctl import main; main()"
    )
    (tmp_path / "n.jsonl").write_text("{}\n")
    done = subprocess.run(
        [sys.executable, "-c", code, "watch", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'ftrun[report]'" in done.stderr
    assert "--plain" in done.stderr

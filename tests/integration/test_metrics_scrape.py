"""Metrics of real runs, scraped and read back by Prometheus' own parser."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.monitor import events
from ftrun.monitor.metrics import names
from tests.support.nodes import free_port
from tests.support.run import WORKER, Run, start

pytest.importorskip("prometheus_client", reason="the extra ftrun[metrics] is not installed")
from prometheus_client.parser import text_string_to_metric_families

TRAINING = str(Path(__file__).parents[1] / "support" / "accounted_training.py")
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Values:
    """By name and labels, without those that every metric has."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset(pair for pair in sample.labels.items() if pair[0] not in ("run", "node"))
            found[sample.name, labels] = sample.value
            assert {"run", "node"} <= sample.labels.keys()
    return found


def get(port: int, path: str) -> str:
    """What the agent answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def value(values: Values, name: str, **labels: str) -> float | None:
    return values.get((name, frozenset(labels.items())))


def once(run: Run, port: int, is_so: Callable[[Values], bool], what: str) -> Values:
    """The first values that are so."""
    found: Values = {}

    def is_reached() -> bool:
        found.clear()
        found.update(parse(get(port, "/metrics")))
        return is_so(found)

    run.wait_until(is_reached, what, 120)
    return found


def have_saved(values: Values) -> bool:
    """Both ranks, for the first time: one may begin well after the other."""
    return all((value(values, "ftrun_rank_steps_total", rank=rank) or 0) >= 20 for rank in "01")


def once_recovered(run: Run, port: int) -> Values:
    """The first values that count a recovery; the journal has it a moment earlier."""
    return once(
        run, port, lambda values: value(values, "ftrun_recovery_seconds_count") == 1, "a recovery is counted"
    )


def kill_rank_1(run: Run) -> None:
    victim = [one for one in run.events(events.WorkerStarted) if one.rank == 1][-1]
    os.kill(victim.pid, signal.SIGKILL)


def test_metrics_of_a_run_with_a_fault(tmp_path: Path) -> None:
    """Its ranks while it runs, the fault once it has recovered, and in the file how it ended."""
    file = tmp_path / "ftrun.prom"
    options = ("--nproc-per-node", "2", "--ft-metrics-port", "0", "--ft-metrics-file", str(file))
    with start(tmp_path, *options, "--max-restarts", "4", TRAINING, "60", "20") as run:
        [served] = run.wait_for_event(events.MetricsServed)
        assert served.host == "127.0.0.1"
        values = once(run, served.port, have_saved, "both ranks have saved")
        assert value(values, "ftrun_phase", phase="running") == 1
        assert value(values, "ftrun_rank_up", rank="0") == value(values, "ftrun_rank_up", rank="1") == 1
        assert (value(values, "ftrun_rank_steps_total", rank="1") or 0) >= 20
        kill_rank_1(run)
        values = once_recovered(run, served.port)
        assert value(values, "ftrun_incidents_total", kind="killed") == 1
        assert value(values, "ftrun_restarts_total") == value(values, "ftrun_recovery_seconds_count") == 1
        assert value(values, "ftrun_recoveries_total", kind="killed") == 1
        assert value(values, "ftrun_restarts_used") == 1
        assert value(values, "ftrun_restarts_limit") == 4
        status = json.loads(get(served.port, "/status"))
        assert (status["phase"], status["restarts"], len(status["ranks"])) == ("running", 1, 2)
        assert {name for name, _ in values} <= names() | {f"{one}_created" for one in names()}
        with pytest.raises(urllib.error.HTTPError):
            get(served.port, "/nothing")
        (tmp_path / "go").touch()
        assert run.wait() == 0
    at_end = parse(file.read_text())
    assert value(at_end, "ftrun_phase", phase="ended") == 1
    assert value(at_end, "ftrun_exit_code") == 0
    assert list(tmp_path.glob("ftrun.prom*")) == [file]


def test_taken_port_and_unwritable_file_are_warnings(tmp_path: Path) -> None:
    """The job is not about its metrics."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("--ft-metrics-port", port, "--ft-metrics-file", str(tmp_path / "no" / "m.prom"))
        with start(tmp_path, *options, WORKER, "wait_for('end')") as run:
            degraded = run.wait_for_event(events.MetricsDegraded, 2)
            (tmp_path / "end").touch()
            assert run.wait() == 0
    reasons = " ".join(one.reason for one in degraded)
    assert f"127.0.0.1:{port}" in reasons
    assert "No such file" in reasons
    assert run.stderr.count("metrics: ") == 2


def test_missing_library_is_named_before_anything_starts(tmp_path: Path) -> None:
    """With the command that installs it."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from importlib import util; found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'prometheus_client' else found(name, *more)\n"
        "from ftrun.launcher.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--ft-metrics-port", "0", "x.py"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "pip install 'ftrun[metrics]'" in done.stderr


@pytest.mark.slow
def test_nodes_of_a_job_export_the_same_incidents(tmp_path: Path) -> None:
    """Each its own ranks; the failure of one is counted by both, and told apart by their labels."""
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job7")
    options += ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--ft-metrics-port", "0", TRAINING, "60", "20")
    with start(tmp_path / "a", *options) as first, start(tmp_path / "b", *options) as second:
        runs = (first, second)
        ports = [run.wait_for_event(events.MetricsServed, timeout_s=120)[0].port for run in runs]
        for run in runs:
            run.wait_for_event(events.WorkerProgressed, timeout_s=120)
        os.kill(second.events(events.WorkerStarted)[0].pid, signal.SIGKILL)
        both = [once_recovered(run, port) for run, port in zip(runs, ports, strict=True)]
        texts = [get(port, "/metrics") for port in ports]
        for run in runs:
            (run.directory / "go").touch()
        assert [run.wait(120) for run in runs] == [0, 0]
    nodes = {label for text in texts for label in re.findall(r'node="([^"]+)"', text)}
    assert len(nodes) == 2
    assert all(set(re.findall(r'run="([^"]+)"', text)) == {"job7"} for text in texts)
    assert [value(values, "ftrun_incidents_total", kind="killed") for values in both] == [1, 1]
    assert [value(values, "ftrun_recoveries_total", kind="killed") for values in both] == [1, 1]
    ranks = [{dict(labels)["rank"] for name, labels in values if name == "ftrun_rank_up"} for values in both]
    assert sorted(map(len, ranks)) == [1, 1]
    assert ranks[0] != ranks[1]

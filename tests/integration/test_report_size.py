"""The account of a job that is as large as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.events import Event
from ftrun.monitor.records import Record, to_json

NODES, RANKS, ROUNDS = 1000, 8, 33
MOST_BYTES = 500 << 20
MOST_PAGE_BYTES = 2 << 20
TIMES_JSON = 2.0
"""Times as long as Python's json needs for such lines, one by one: 5 s where that takes 2.5 s a million."""


def write_journal(path: Path, node: str, boot: float) -> int:
    """A node's part in a job with many restarts, without the names of all nodes in each round."""
    lines = list(journal(node, boot))
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def journal(node: str, boot: float) -> Iterator[str]:
    t = 0.0

    def line(event: Event, after_s: float = 0.0) -> str:
        return to_json(Record(1.7e9 + t + after_s, boot + t + after_s, node, event))

    yield line(ev.RunStarted("large", "train.py", 0, RANKS, "given", 1, "0.1.0", "3.11"))
    for number in range(ROUNDS):
        yield line(
            ev.RoundClosed(number, RANKS * NODES, number, "h", 9000 + number, None, None, ("n0", "n1"), ())
        )
        for rank in range(RANKS):
            yield line(ev.WorkerStarted(number, rank, rank, rank, True, "a standby was ready"), 1)
        for rank in range(RANKS):
            yield line(ev.WorkerProgressed(number, rank, None, 2.5), 4)
        t += 100
        for rank in range(RANKS):
            yield line(ev.WorkerExited(number, rank, rank, rank, -15, "SIGTERM", True, 90))
        yield line(ev.RoundStopped(number, "failure", 0.1), 0.1)
        reasons = ("rank 3 was killed by SIGKILL from outside", "it had done 90 steps")
        yield line(ev.IncidentDiagnosed(number, "killed", 3, 3, 3, -9, reasons, "killed", True, (1,)), 0.2)
        yield line(ev.RestartDecided(number, "restart", "restart", 0.0, number + 1, 99), 0.2)
        yield line(ev.RecoveryCompleted(number, "killed", 3, None, 0.1, 0.1, 2.5, 2.7, 10), 0.2)
        t += 1
    yield line(ev.RunEnded(1, "all restarts are used up", ROUNDS, t))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a million events of a thousand nodes."""
    directory = tmp_path_factory.mktemp("large") / "run"
    directory.mkdir()
    count = sum(
        write_journal(directory / f"n{number}.jsonl", f"n{number}", 10.0 * number) for number in range(NODES)
    )
    assert count > 950_000
    return directory


def json_s(run: Path) -> float:
    """Seconds that Python's json needs for all lines of the run, one by one, on this machine now."""
    lines = (run / "n0.jsonl").read_text().splitlines()
    began = time.process_time()
    for line in lines * 20:
        json.loads(line)
    return (time.process_time() - began) * NODES / 20


def ftctl(output: Path, *arguments: str) -> tuple[str, float]:
    """What it says, and the seconds of a processor that it took; its memory is bounded."""
    command = (sys.executable, "-c", "from ftrun.monitor.ctl import main; main()", *arguments)
    with output.open("wb") as file:
        actions = [(os.POSIX_SPAWN_DUP2, file.fileno(), 1)]
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
    assert status == 0
    assert usage.ru_maxrss * 1024 < MOST_BYTES
    return output.read_text(), usage.ru_utime + usage.ru_stime


@pytest.mark.slow
def test_million_events_of_a_thousand_nodes_take_seconds(run: Path, tmp_path: Path) -> None:
    """In bounded memory, whatever the clocks of the nodes say."""
    least_s = json_s(run)
    text, spent_s = ftctl(tmp_path / "output", "report", str(run))
    assert "1000 nodes, 8000 ranks" in text
    assert "33 incidents: 33 x killed" in text
    assert spent_s < TIMES_JSON * max(least_s, json_s(run))


@pytest.mark.slow
def test_page_of_a_million_events_is_made_in_seconds(run: Path, tmp_path: Path) -> None:
    """It is small enough to be read: counts in place of a thousand rows, evidence of the last incidents."""
    least_s, page = json_s(run), tmp_path / "page.html"
    _, spent_s = ftctl(tmp_path / "output", "report", str(run), "--html", str(page))
    assert page.stat().st_size < MOST_PAGE_BYTES
    assert page.read_text().count("<article") == 2
    assert spent_s < 2 * TIMES_JSON * max(least_s, json_s(run))

"""The evidence of several incidents, gathered in one look: for each what one look for it alone finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.gathering import Tails, gather
from ftrun.monitor.journal_lines import Lines, lines_about, node_of
from ftrun.monitor.runs import FoundRun, read_runs
from tests.support.journals import JOURNALS, recorded
from tests.support.simulated_journals import Part, Simulation


def found_in(directory: Path) -> FoundRun:
    [found] = read_runs(directory, 0.0)
    return found


def write(directory: Path, simulation: Simulation, *parts: Part) -> Path:
    for node, lines in simulation.run(parts).lines.items():
        (directory / f"{node}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


@pytest.mark.parametrize("name", recorded())
def test_all_incidents_at_once_are_as_each_alone(name: str) -> None:
    """Journals are read once, however many there were."""
    found = found_in(JOURNALS / name)
    together = gather(found, found.run.incidents, Tails())
    assert together == [detail for one in found.run.incidents for detail in gather(found, [one], Tails())]
    assert [detail.incident.number for detail in together] == [one.number for one in found.run.incidents]
    for detail in together:
        assert {row.rank for row in detail.exits if row.is_culprit} <= {detail.incident.rank}
        assert detail.said


def test_incidents_close_together_share_what_was_said_between_them(tmp_path: Path) -> None:
    """A line may be about two: the recovery from one, and the last moments before the next."""
    parts = [Part(start_s=0.1, load_s=0.1, steps=1, step_s=0.1, stop_s=0.1)] * 4
    found = found_in(write(tmp_path, Simulation(("a", "b"), 2), *parts))
    details = gather(found, found.run.incidents, Tails())
    assert [len(one.exits) for one in details] == [4, 4, 4]
    closed = [[row.sentence for row in one.said if row.event == ev.RoundClosed.kind] for one in details]
    assert all(len(sentences) >= 3 for sentences in closed)
    assert details == [detail for one in found.run.incidents for detail in gather(found, [one], Tails())]


def test_files_of_the_culprit_are_shown_to_their_last_lines(tmp_path: Path) -> None:
    """Its traceback, what it wrote, and its stacks; as many lines as are asked for."""
    run, logs = tmp_path / "run", tmp_path / "logs"
    run.mkdir()
    write(run, Simulation(("a",), 2), Part(culprit=1, kind="exception"), Part())
    path = run / "a.jsonl"
    first, *rest = path.read_text().splitlines()
    stacks = logs / "attempt_0" / "1" / "stacks.txt"
    added = [
        {**json.loads(first), "event": "log.located", "path": str(logs)},
        {**json.loads(first), "event": "stacks.saved", "round": 0, "ranks": [1], "files": [str(stacks)]},
    ]
    path.write_text("\n".join([first, *map(json.dumps, added), *rest]) + "\n")
    stacks.parent.mkdir(parents=True)
    stacks.write_text("\n".join(f"frame {number}" for number in range(50)))
    (stacks.parent / "stderr.log").write_text("\n".join(f"line {number}" for number in range(50)))
    trace = {"message": {"message": "no", "extraInfo": {"py_callstack": "Traceback\n  here\nValueError: no"}}}
    (stacks.parent / "error.json").write_text(json.dumps(trace))
    found = found_in(run)
    [detail] = gather(found, found.run.incidents, Tails(log_lines=5, stack_lines=7))
    files = {one.what: one.tail for one in detail.files}
    assert files["error of rank 1"] == ("Traceback", "  here", "ValueError: no")
    assert files["stderr of rank 1"] == tuple(f"line {number}" for number in range(45, 50))
    assert files["stacks of rank 1"] == tuple(f"frame {number}" for number in range(43, 50))


def test_lines_about_rounds_are_all_but_workers_of_others(tmp_path: Path) -> None:
    """Nothing else is passed over."""
    path = write(tmp_path, Simulation(("a",), 3), Part(), Part(), Part()) / "a.jsonl"
    workers = {"worker.started", "worker.progressed", "worker.exited"}
    wanted = [line for line in Lines(path) if line["event"] not in workers or line["round"] == 1]
    assert list(lines_about(path, [1])) == wanted
    assert len(wanted) < len(list(Lines(path)))


def test_node_of_a_journal_is_found_behind_damage(tmp_path: Path) -> None:
    """A torn first line does not make a journal nobody's."""
    path = write(tmp_path, Simulation(("a",), 1), Part()) / "a.jsonl"
    text = path.read_text()
    path.write_text(text[40:])
    assert node_of(path) == "a"
    path.write_text("")
    assert node_of(path) == ""

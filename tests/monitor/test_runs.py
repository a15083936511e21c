"""Finding runs, whether they go on, and removing old ones; the commands of `ftctl` that show them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ftrun.monitor import events as ev
from ftrun.monitor.ctl import main
from ftrun.monitor.history import State
from ftrun.monitor.journal import Journal
from ftrun.monitor.runs import find_removable, read_run, read_runs
from tests.support.journals import JOURNALS, recorded

NOW = 1796100000.0
ENDED = ev.RunEnded(0, "all ranks finished", 0, 1.0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's runs are; empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    usual = tmp_path / "state/ftrun"
    usual.mkdir(parents=True)
    return usual


def copy(place: Path, name: str, written_ts: float = NOW) -> Path:
    """A recorded run in a place, its journals last written then."""
    target = place / name
    shutil.copytree(JOURNALS / name, target)
    for path in target.iterdir():
        os.utime(path, (written_ts, written_ts))
    return target


def open_journal(directory: Path, node: str, *events: ev.Event, pid: int | None = None) -> Journal:
    """A journal that this process has open, of an agent with that process id, its own by default."""
    journal = Journal(directory / f"{node}.jsonl", node, time.monotonic, time.time, lambda error: None)
    journal.append(ev.RunStarted("job", "t.py", 0, 1, "given", pid or os.getpid(), "0.1.0", "3.11"))
    for event in events:
        journal.append(event)
    return journal


def ftctl(*arguments: str, code: int = 0, answer: str = "") -> Result:
    """Runs the command in this process."""
    done = CliRunner().invoke(main, arguments, input=answer)
    assert done.exit_code == code, done.output
    return done


def test_run_goes_on_while_its_agent_has_the_journal_open(place: Path) -> None:
    """Its process id alone could be another's by now."""
    journal = open_journal(place / "job", socket.gethostname())
    assert read_run("job", os.environ, time.time()).run.state is State.RUNNING
    journal.close()
    assert read_run("job", os.environ, time.time()).run.state is State.KILLED


def test_agent_of_another_machine_cannot_be_seen(place: Path) -> None:
    """It may run or not: no end is recorded, and that is said."""
    open_journal(place / "job", "another-host").close()
    assert read_run("job", os.environ, time.time()).run.state is State.UNKNOWN


def test_second_agent_of_a_machine_is_seen_too(place: Path) -> None:
    """Its node has a number after the host's name."""
    open_journal(place / "job", f"{socket.gethostname()}#1", pid=1 << 22).close()
    assert read_run("job", os.environ, time.time()).run.state is State.KILLED


def test_runs_of_one_directory_are_asked_for_by_number(place: Path) -> None:
    """The last one needs none; what was killed before it is not running because the last one is."""
    node = socket.gethostname()
    open_journal(place / "job", node).close()
    open_journal(place / "job", node, ENDED).close()
    journal = open_journal(place / "job", node)
    found = read_runs(place / "job", time.time())
    assert [(one.name, one.run.state) for one in found] == [
        ("job:1", State.KILLED), ("job:2", State.ENDED), ("job", State.RUNNING),
    ]  # fmt: skip
    assert read_run("job:2", os.environ, time.time()).run.state is State.ENDED
    assert "there is no run 4" in ftctl("report", "job:4", code=1).output
    journal.close()


def test_newest_run_is_reported_by_default(place: Path) -> None:
    """Of those in the usual place."""
    copy(place, "spare", NOW)
    copy(place, "crash_loop", NOW + 1)
    assert ftctl("report").output.startswith("crash_loop: ")
    assert ftctl("report", "spare").output.startswith("spare: ")


def test_damaged_lines_are_told(place: Path) -> None:
    """With the journal that has them; a last line without its newline is one as well."""
    path = copy(place, "five_faults") / "gpu-b.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert "gpu-b.jsonl: 1 damaged line skipped" in ftctl("report", "five_faults").output


def test_runs_are_listed_newest_first(place: Path) -> None:
    """A line each, and one for what went wrong."""
    for age, name in enumerate(recorded()):
        copy(place, name, NOW - age)
    lines = ftctl("runs").output.splitlines()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == recorded()
    assert "    5 incidents: exception, killed, node_lost, segfault, stall" in lines
    assert max(map(len, lines)) <= 80
    assert len(ftctl("runs", "--limit", "2").output.splitlines()) == 5


def test_runs_are_found_by_kind_of_incident_and_age(place: Path) -> None:
    """Nothing found is an error, so that a script notices."""
    copy(place, "spare")
    copy(place, "five_faults", time.time())
    assert "five_faults" in ftctl("runs", "--kind", "stall", "--kind", "segfault").output
    assert "spare" not in ftctl("runs", "--kind", "stall").output
    assert "no run with an incident of kind xid in" in ftctl("runs", "--kind", "xid", code=1).output


def test_runs_are_found_by_age(place: Path) -> None:
    """By when they were still there, on the clock of their node."""
    for name, days in (("new", 1), ("old", 10)):
        ts = time.time() - days * 86400
        journal = Journal(place / name / "n.jsonl", "n", lambda: 1.0, lambda ts=ts: ts, lambda error: None)
        journal.append(ENDED)
        journal.close()
        os.utime(place / name / "n.jsonl", (ts, ts))
    found = ftctl("runs", "--since", "7d").output
    assert "new" in found
    assert "old" not in found
    assert "no run of the last 12 h in" in ftctl("runs", "--since", "12h", code=1).output
    assert "write it as" in ftctl("runs", "--since", "soon", code=2).output


def test_runs_elsewhere_are_listed_when_they_are_named(place: Path, tmp_path: Path) -> None:
    """A run directory, or a directory of such; they are asked for by their path."""
    chosen = copy(tmp_path / "chosen", "spare")
    assert "no run in" in ftctl("runs", code=1).output
    for named in (chosen, chosen.parent):
        assert str(chosen) in ftctl("runs", str(named)).output
    assert "on 3 nodes, 4 ranks" in ftctl("report", str(chosen)).output


def test_long_names_have_a_line_of_their_own(place: Path, tmp_path: Path) -> None:
    """So that they can be copied."""
    chosen = copy(tmp_path / "a-directory-with-a-long-name", "spare")
    assert str(chosen) in ftctl("runs", str(chosen)).output.splitlines()


def test_old_runs_that_are_over_are_removed_after_a_question(place: Path, tmp_path: Path) -> None:
    """Others stay: young ones, ones that may go on, ones elsewhere, and what only looks like one."""
    old = time.time() - 40 * 86400
    over, young = copy(place, "spare", old), copy(place, "five_faults", time.time())
    unknown = copy(place, "killed_agent", old)
    elsewhere = copy(tmp_path / "elsewhere", "spare", old)
    (place / "link").symlink_to(elsewhere)
    (over / "logs").mkdir()
    (over / "logs/link").symlink_to(young)
    refused = ftctl("runs", "--prune", code=1, answer="n\n").output
    assert str(over) in refused
    assert over.exists()
    done = ftctl("runs", "--prune", answer="y\n").output
    assert "removed 1 directory" in done
    assert [path.exists() for path in (over, young, unknown, elsewhere)] == [False, True, True, True]
    assert (young / "gpu-a.jsonl").exists()
    assert ftctl("runs", "--prune", "--yes").output == "nothing to remove\n"


def test_what_is_old_can_be_said(place: Path) -> None:
    """And a yes given beforehand."""
    copy(place, "spare", time.time() - 3 * 3600)
    assert find_removable(os.environ, time.time() - 4 * 3600, time.time()) == []
    assert "removed 1 directory" in ftctl("runs", "--prune", "--older-than", "2h", "--yes").output


def test_run_whose_agent_is_there_is_never_removed(place: Path) -> None:
    """However long ago it has written something."""
    journal = open_journal(place / "job", socket.gethostname())
    os.utime(place / "job" / f"{socket.gethostname()}.jsonl", (0.0, 1.0))
    assert find_removable(os.environ, time.time(), time.time()) == []
    journal.close()


@pytest.mark.parametrize(
    "arguments", [("report", "spare"), ("runs",), ("show", "1", "spare"), ("compare", "spare", "spare")]
)
def test_every_command_speaks_json(place: Path, arguments: tuple[str, ...]) -> None:
    """With the version of its form."""
    copy(place, "spare")
    assert json.loads(ftctl(*arguments, "--json").output)["schema"] == 1


def test_show_has_everything_about_an_incident(place: Path) -> None:
    """Root cause before what fell with it, the decision, and what the agents said."""
    copy(place, "five_faults")
    text = ftctl("show", "2", "five_faults").output
    lines = text.splitlines()
    assert lines[0].startswith("incident 2 of five_faults: exception, 80.0 % sure, rank 1, gpu-a, round 1")
    assert "* 3 other ranks fell with it: 0, 2, 3" in text
    assert "weighed  restart 2 of 9; the round had made progress; the first of its kind" in lines
    ranks = [line.split() for line in lines if line.endswith(("root cause", "stopped"))]
    assert [words[0] for words in ranks] == ["1", "0", "2", "3"]
    assert "resuming from /data/job/checkpoints/step-20" in text
    assert max(map(len, lines)) <= 80


def test_show_reads_logs_errors_and_stacks(place: Path, tmp_path: Path) -> None:
    """Their ends, where they can be read from here; control characters do nothing."""
    run = copy(place, "five_faults")
    rank = run / "logs/attempt_1/1"
    rank.mkdir(parents=True)
    trace = {"message": {"message": "x", "extraInfo": {"py_callstack": "Traceback\n  the line"}}}
    (rank / "error.json").write_text(json.dumps(trace))
    (rank / "stderr.log").write_text("\n".join(f"line {n}" for n in range(100)) + "\n\x1b[31mred\x1b[0m\n")
    for path in run.glob("*.jsonl"):
        path.write_text(path.read_text().replace("/data/job/agent0/run", str(run)))
    text = ftctl("show", "2", "five_faults").output
    assert "  |   the line" in text
    assert "  | line 99" in text
    assert "  | line 50" not in text
    assert "\x1b" not in text
    stacks = run / "logs/attempt_2/0/stacks.txt"
    stacks.parent.mkdir(parents=True)
    stacks.write_text("Thread 0x1\n  File waits\n")
    assert "  |   File waits" in ftctl("show", "3", "five_faults").output


def test_incident_that_was_not_is_told(place: Path) -> None:
    """With how many there were."""
    copy(place, "spare")
    assert "spare had 1 incident; there is no incident 2" in ftctl("show", "2", "spare", code=1).output


def test_missing_run_is_told_with_the_places(place: Path) -> None:
    """By all commands alike."""
    for arguments in (("report",), ("report", "none"), ("show", "1", "none"), ("compare", "none", "none")):
        assert str(place) in ftctl(*arguments, code=1).output


def test_commands_that_show_nothing_new_are_still_there() -> None:
    """`ftctl --help` names them all."""
    text = ftctl("--help").output
    assert all(f"  {name} " in text for name in ("runs", "report", "show", "compare", "timeouts"))

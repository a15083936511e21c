"""The `ftctl` command, as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ftrun.launcher.options import parse
from ftrun.monitor.events import Event, LogLocated
from ftrun.monitor.journal import Journal
from ftrun.monitor.timeouts import Longest, to_event

SEEN = Longest(41.2, 0.9, (("eval", 60.0),), None, 14.0)


def write_run(directory: Path, *events: Event, node: str = "n0", written_ts: float | None = None) -> Path:
    """A run directory; `written_ts` is when its journal was last written, now by default."""
    path = directory / f"{node}.jsonl"
    journal = Journal(path, node, lambda: 1.0, lambda: 1000.0, lambda error: None)
    for event in (LogLocated(str(directory)), *events):
        journal.append(event)
    journal.close()
    if written_ts is not None:
        os.utime(path, (written_ts, written_ts))
    return directory


def ftctl(home: Path, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it with `home` as the only place where it can find runs; it must end with `code`."""
    own = {"XDG_STATE_HOME": str(home / "state"), "TMPDIR": str(home), "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", "from ftrun.monitor.ctl import main; main()", *arguments],
        cwd=home,
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def configured(home: Path, output: str) -> Mapping[str, object]:
    """What ftrun understands of the output when it is its configuration file."""
    path = home / "ft.yaml"
    path.write_text(output)
    config = parse(["--ft-config", str(path), "train.py"], {})
    section = config.fault_tolerance
    return {
        "initial": section.initial_rank_heartbeat_timeout,
        "steady": section.rank_heartbeat_timeout,
        "sections": dict(section.rank_section_timeouts),
        "out_of_section": section.rank_out_of_section_timeout,
        "stall": config.ftrun.timeouts.stall,
    }


def test_timeouts_are_shown_and_can_be_pasted(tmp_path: Path) -> None:
    """The longest times come first, as comments, so that all of the output is a configuration file."""
    run = write_run(tmp_path / "run", to_event(SEEN, 0))
    output = ftctl(tmp_path, "timeouts", str(run)).stdout
    assert output.startswith(
        f"# Longest times in {run}:\n# initialisation  41.20 s\n# step gap        0.90 s\n"
    )
    assert configured(tmp_path, output) == {
        "initial": 206.0, "steady": 10.0, "sections": {"eval": 300.0}, "out_of_section": None, "stall": 70.0,
    }  # fmt: skip


def test_rounds_and_nodes_are_taken_together(tmp_path: Path) -> None:
    """The longest of each phase counts, whichever round or node has seen it."""
    run = write_run(tmp_path / "run", to_event(Longest(30.0, 3.0), 0), to_event(Longest(40.0, 4.0), 1))
    write_run(run, to_event(Longest(20.0, 5.0), 0), node="n1")
    found = configured(tmp_path, ftctl(tmp_path, "timeouts", str(run)).stdout)
    assert (found["initial"], found["steady"]) == (200.0, 25.0)


def test_safety_factor_can_be_chosen(tmp_path: Path) -> None:
    """It stands for `fault_tolerance.safety_factor`; one below 1 would suggest what has been exceeded."""
    run = write_run(tmp_path / "run", to_event(SEEN, 0))
    output = ftctl(tmp_path, "timeouts", "--safety-factor", "2.5", str(run)).stdout
    assert configured(tmp_path, output)["initial"] == 103.0
    refused = ftctl(tmp_path, "timeouts", "--safety-factor", "0.5", str(run), code=2)
    assert "--safety-factor" in refused.stderr


def test_newest_run_is_the_default(tmp_path: Path) -> None:
    """Of the runs that were not given a directory, the one that has written its journal last."""
    place = tmp_path / "state/ftrun"
    write_run(place / "a", to_event(Longest(1.0), 0), written_ts=1000.0)
    newest = write_run(place / "b", to_event(Longest(2.0), 0), written_ts=3000.0)
    write_run(place / "c", to_event(Longest(3.0), 0), written_ts=2000.0)
    (place / "d").mkdir()
    assert str(newest) in ftctl(tmp_path, "timeouts").stdout.splitlines()[0]


@pytest.mark.parametrize("place", ["state/ftrun", f"ftrun-{os.geteuid()}/ftrun"])
def test_run_is_found_by_its_id(tmp_path: Path, place: str) -> None:
    """Its directory's name is the id with other characters replaced; without a home it is in TMPDIR."""
    run = write_run(tmp_path / place / "team_job-7", to_event(SEEN, 0))
    assert str(run) in ftctl(tmp_path, "timeouts", "team/job-7").stdout


def test_missing_run_is_told_with_the_places(tmp_path: Path) -> None:
    """Both for an id that does not exist and when there are no runs at all."""
    for arguments in (["nothing"], []):
        told = ftctl(tmp_path, "timeouts", *arguments, code=1).stderr
        assert str(tmp_path / "state/ftrun") in told


def test_run_in_its_first_round_has_no_times_yet(tmp_path: Path) -> None:
    """That is told apart from rounds in which nothing was seen."""
    assert "no round has ended" in ftctl(tmp_path, "timeouts", str(write_run(tmp_path / "a")), code=1).stderr
    idle = write_run(tmp_path / "b", to_event(Longest(), 0))
    output = ftctl(tmp_path, "timeouts", str(idle)).stdout
    assert "# quiet           not seen\n" in output
    assert output.endswith("# Nothing was seen from which a timeout could follow.\n")


def test_damaged_lines_are_told_and_skipped(tmp_path: Path) -> None:
    """What is readable still counts."""
    run = write_run(tmp_path / "run", to_event(SEEN, 0))
    with (run / "n0.jsonl").open("a") as journal:
        journal.write('{"v":1,"ts"')
    done = ftctl(tmp_path, "timeouts", str(run))
    assert "skipped 1 damaged line" in done.stderr
    assert configured(tmp_path, done.stdout)["initial"] == 206.0


def test_odd_names_do_not_break_the_output(tmp_path: Path) -> None:
    """A line break or a byte that is no text in a path, on a terminal that knows ASCII only."""
    directory = tmp_path / "r\xfc\nn: [" / os.fsdecode(b"\xff")
    run = write_run(directory, to_event(SEEN, 0))
    output = ftctl(tmp_path, "timeouts", str(run), PYTHONIOENCODING="ascii").stdout
    assert configured(tmp_path, output)["initial"] == 206.0


def test_it_does_not_import_torch(tmp_path: Path) -> None:
    """It answers at once."""
    run = write_run(tmp_path / "run", to_event(SEEN, 0))
    imported = ftctl(tmp_path, "timeouts", str(run), PYTHONPROFILEIMPORTTIME="1").stderr
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "ftrun.monitor.timeouts" in modules
    assert "torch" not in modules

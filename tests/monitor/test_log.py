"""What the terminal shows of the journal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor import log
from ftrun.monitor.records import Record

DECISION = ev.RestartDecided(0, "restart", "rank 1 (pid 4242) was killed by SIGKILL from outside", 0.0, 1, 3)
RECOVERY = ev.RecoveryCompleted(1, "killed", 1, None, 0.01, 0.05, 0.11, 0.17, 7)


def shown(event: ev.Event, log_format: log.LogFormat = "human", level: int = log.WARNING) -> str:
    stream = io.StringIO()
    log.configure(log_format, stream, level).show(Record(ts=0.0, at=1.0, node="n0", event=event))
    return stream.getvalue()


def body(event: ev.Event, level: int = log.WARNING) -> str:
    """The line without its time."""
    return shown(event, level=level).partition("] ")[2].rstrip("\n")


def test_line_begins_with_ftrun_and_the_time() -> None:
    """A person sees who speaks and when, in local time."""
    assert shown(DECISION).startswith("[ftrun ")
    assert shown(DECISION)[7:16].count(":") == 2


def test_restart_is_one_line_with_cause_and_count() -> None:
    """A restart says what happened and how many are allowed."""
    assert body(DECISION) == "restart 1 of 3: rank 1 (pid 4242) was killed by SIGKILL from outside"


def test_count_is_not_said_twice() -> None:
    """A reason that begins with the count is shown as it is."""
    reason = "restart 1 of 3: rank 1 died"
    assert body(ev.RestartDecided(0, "restart", reason, 0.0, 1, 3)) == reason


def test_stop_says_why() -> None:
    """A decision not to restart is shown with its reason."""
    assert body(ev.RestartDecided(0, "stop", "all 3 restarts are used up", 0.0, 3, 3)) == (
        "stop: all 3 restarts are used up"
    )


def test_recovery_is_one_line_with_its_parts() -> None:
    """Being back in training is shown with the time it took and what it cost."""
    assert body(RECOVERY) == (
        "back in training: round 1, 0.17 s after the failure was seen "
        "(stop 0.01, start 0.05, first step 0.11); 7 steps redone"
    )


def test_recovery_without_known_redone_steps_does_not_invent_them() -> None:
    """What is unknown is left out."""
    event = ev.RecoveryCompleted(1, "killed", None, 0.02, 0.01, 0.05, 0.11, 0.17, None)
    assert body(event).endswith("(detect 0.02, stop 0.01, start 0.05, first step 0.11)")


def test_worker_count_is_shown_with_its_reason() -> None:
    """The resolved number of workers is never a surprise."""
    event = ev.RunStarted("r1", "train.py", 2, 4, "auto: 4 CPUs", 1, "0.1", "3.11")
    assert body(event) == "run r1: train.py with 4 workers on this node (auto: 4 CPUs)"


def test_clean_end_is_quiet_and_an_eventful_one_is_not() -> None:
    """A run without news ends without a line, like torchrun."""
    assert shown(ev.RunEnded(0, "all ranks finished", 0, 5.0)) == ""
    assert "1 restart" in shown(ev.RunEnded(0, "all ranks finished", 1, 5.0))
    assert "exit code 1" in shown(ev.RunEnded(1, "no restart left", 0, 5.0))


def test_details_need_a_level_that_asks_for_them() -> None:
    """Standbys are no news at the default level, and worker starts only at INFO."""
    standby = ev.StandbyReadied(1, 0.5, 3)
    worker = ev.WorkerStarted(0, 1, 1, 7, True, "preloaded")
    assert shown(standby) == shown(worker) == shown(standby, level=log.INFO) == ""
    assert shown(worker, level=log.INFO)
    assert shown(standby, level=log.DEBUG)


def test_json_shows_every_event_as_the_journal_has_it() -> None:
    """In JSON format nothing is left out and nothing reworded."""
    line = shown(ev.StandbyReadied(1, 0.5, 3), "json")
    assert line.endswith("\n")
    assert json.loads(line)["event"] == "standby.readied"
    assert json.loads(line)["preload_s"] == 0.5


def test_line_break_in_a_field_does_not_make_a_second_line() -> None:
    """One event is one line, whatever a path holds."""
    assert shown(ev.CheckpointSkipped("a\nb", "torn")).count("\n") == 1


def test_event_of_another_version_is_shown_when_debugging() -> None:
    """Unknown events appear with their fields."""
    assert body(ev.UnknownEvent("moon.rose", {"phase": 3}), level=log.DEBUG) == 'moon.rose: {"phase": 3}'


@pytest.mark.parametrize(
    ("value", "level"),
    [(None, 30), ("", 30), ("info", 20), ("DEBUG", 10), ("ERROR", 40), ("15", 15), ("nonsense", 30)],
)
def test_level_comes_from_loglevel(value: str | None, level: int) -> None:
    """LOGLEVEL means what it means to torchrun; nonsense is the default."""
    assert log.level_from({} if value is None else {"LOGLEVEL": value}) == level


def test_terminal_that_is_gone_is_no_error() -> None:
    """A reader that has left costs lines, not the job."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True)
    terminal = log.configure("human", stream)
    terminal.show(Record(0.0, 0.0, "n0", DECISION))
    stream.close()
    terminal.show(Record(0.0, 0.0, "n0", DECISION))


def test_import_leaves_structlog_and_torch_for_later() -> None:
    """Importing the module costs neither structlog's tens of milliseconds nor torch's seconds."""
    code = "import sys, ftrun.monitor.log; print({'structlog', 'torch', 'logging'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"

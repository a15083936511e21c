"""`--event-log-handler` gets torchrun's status events, made from the journal's records."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.events import get_logging_handler

from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.elastic_events import ElasticEventsError, StatusEvent, Translation, observer
from ftrun.monitor import events
from ftrun.monitor.records import Record, to_json

ENDS = {0, -signal.SIGABRT}
"""Torch aborts now and then when all is done and said: tests/integration/test_example.py."""
OPTIONS = LaunchOptions("train.py", role="trainer", rdzv_backend="static")
STARTED = events.RunStarted("job7", "train.py", 0, 2, "", 10, "0", "3")


def closed(round_number: int) -> events.RoundClosed:
    return events.RoundClosed(round_number, 2, round_number, "127.0.0.1", 29500, None, None, (), ())


def started(round_number: int, rank: int) -> events.WorkerStarted:
    return events.WorkerStarted(round_number, rank, rank, 100 * round_number + rank, True, "")


def exited(round_number: int, rank: int, code: int, is_stopped: bool = False) -> events.WorkerExited:
    pid = 100 * round_number + rank
    return events.WorkerExited(round_number, rank, rank, pid, code, None, is_stopped, 5)


def diagnosed(culprit: int) -> events.IncidentDiagnosed:
    return events.IncidentDiagnosed(
        0,
        "exception",
        culprit,
        culprit,
        culprit,
        1,
        ("ValueError: bad batch", "at train.py:3"),
        "f",
        True,
        (),
    )


RESTART_AND_SUCCESS: list[tuple[float, events.Event]] = [
    (0.0, STARTED),
    (0.25, closed(0)),
    (0.25, started(0, 0)),
    (0.25, started(0, 1)),
    (5.0, exited(0, 1, 1)),
    (5.1, exited(0, 0, -15, is_stopped=True)),
    (5.2, diagnosed(1)),
    (5.2, events.RestartDecided(0, "restart", "", 1.0, 1, 3)),
    (6.5, closed(1)),
    (6.5, started(1, 0)),
    (6.5, started(1, 1)),
    (9.0, exited(1, 0, 0)),
    (9.9, exited(1, 1, 0)),
    (9.9, events.RunEnded(0, "all ranks finished", 1, 9.9)),
]


def records(history: list[tuple[float, events.Event]]) -> list[Record]:
    """At 1000 s of the clock and 2,000,000 s of the epoch the run begins."""
    return [Record(2_000_000.0 + at, 1000.0 + at, "node7", event) for at, event in history]


def translate(history: list[tuple[float, events.Event]]) -> list[StatusEvent]:
    translation = Translation(OPTIONS.role, OPTIONS.rdzv_backend, OPTIONS.training_script)
    return [status for record in records(history) for status in translation.take(record)]


def test_a_run_with_one_restart_is_told_in_order() -> None:
    """Each round begins with RENDEZVOUS and gives each worker a start and an end; the agent's end is last."""
    told = [(status.state, status.metadata["global_rank"]) for status in translate(RESTART_AND_SUCCESS)]
    opening = [("RENDEZVOUS", None), ("ASSIGN_WORKER_RANKS", None), ("START", 0), ("START", 1)]
    assert told == [
        *opening,
        ("TERMINATED", 0),
        ("FAILED", 1),
        *opening,
        ("SUCCEEDED", 0),
        ("SUCCEEDED", 1),
        ("SUCCEEDED", None),
    ]


def test_metadata_names_job_worker_and_round() -> None:
    """Every value that torchrun gives is there, of the right worker."""
    failed = next(status for status in translate(RESTART_AND_SUCCESS) if status.state == "FAILED")
    assert failed.is_of_worker
    assert failed.timestamp_ms == 2_000_005_000
    details = json.loads(str(failed.metadata.pop("metadata")))
    error = json.loads(str(failed.metadata.pop("raw_error")))
    assert failed.metadata == {
        "run_id": "job7",
        "global_rank": 1,
        "group_rank": 0,
        "worker_id": "1",
        "role": "trainer",
        "hostname": "node7",
        "state": "FAILED",
        "total_run_time": 5,
        "rdzv_backend": "static",
        "agent_restarts": 0,
        "duration_ms": None,
    }
    assert details == {
        "group_world_size": 1,
        "entry_point": "train.py",
        "local_rank": [1],
        "role_rank": [1],
        "role_world_size": [2],
        "exit_code": [1],
        "worker_pid": [1],
    }
    assert error == {"message": "ValueError: bad batch; at train.py:3"}


def test_rendezvous_lasts_from_when_the_node_could_join() -> None:
    """The first time from the start of the run, then from the end of the pause before the restart."""
    durations = [
        status.metadata["duration_ms"]
        for status in translate(RESTART_AND_SUCCESS)
        if status.state == "RENDEZVOUS"
    ]
    assert durations == pytest.approx([250.0, 300.0])


def test_restarts_are_counted() -> None:
    """Events of the second round carry the restart that led to it."""
    counts = [status.metadata["agent_restarts"] for status in translate(RESTART_AND_SUCCESS)]
    assert counts == [0] * 6 + [1] * 7


def test_ranks_that_fell_after_the_cause_point_to_it() -> None:
    """Several ranks may fail by themselves; only one is the cause."""
    failures = [(1.0, exited(0, 0, 1)), (1.0, exited(0, 1, -9)), (1.1, diagnosed(1))]
    history = [(0.0, STARTED), (0.1, closed(0)), *failures]
    failed = [status for status in translate(history) if status.state == "FAILED"]
    messages = [json.loads(str(status.metadata["raw_error"]))["message"] for status in failed]
    assert messages == ["failed after rank 1, which is the cause", "ValueError: bad batch; at train.py:3"]


def test_failures_without_a_diagnosis_are_told_at_the_end() -> None:
    """A run that is stopped by a signal has no incident; none of its workers is left without an end."""
    ending = [(1.0, exited(0, 0, 3)), (2.0, events.RunEnded(143, "SIGTERM", 0, 2.0))]
    history = [(0.0, STARTED), (0.1, closed(0)), *ending]
    worker, agent = translate(history)[-2:]
    assert (worker.state, worker.metadata["raw_error"]) == ("FAILED", '{"message": "<NONE>"}')
    assert (agent.state, agent.metadata["raw_error"], agent.is_of_worker) == ("FAILED", "SIGTERM", False)


def test_null_needs_no_observer() -> None:
    """The default costs nothing."""
    assert observer("null", OPTIONS) is None


def test_unknown_handler_is_refused() -> None:
    """The message says which names there are."""
    with pytest.raises(ElasticEventsError, match=r"nosuch: there is no such handler; expected null, console"):
        observer("nosuch", OPTIONS)


def test_handler_registered_with_torch_is_accepted() -> None:
    """Names that only torch knows are looked up there."""
    assert observer("dynamic_rendezvous", OPTIONS) is not None


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a process prints that has not imported torch and observes a whole run."""
    journal = tmp_path_factory.mktemp("run") / "journal.jsonl"
    journal.write_text("\n".join(map(to_json, records(RESTART_AND_SUCCESS))))
    code = f"""
        import sys, threading
        from ftrun.launcher.config import LaunchOptions
        from ftrun.launcher.elastic_events import observer
        from ftrun.monitor.records import from_json
        *early, last = [from_json(line) for line in open({str(journal)!r})]
        observe = observer("console", LaunchOptions("train.py"))
        for record in early:
            observe(record)
        assert "torch" not in sys.modules and threading.active_count() == 1
        observe(last)
    """
    return event_lines([sys.executable, "-c", textwrap.dedent(code)])


def event_lines(command: list[str]) -> list[dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name != "LOGLEVEL"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert result.returncode in ENDS, result.stderr
    return [json.loads(line) for line in result.stderr.splitlines() if line.startswith('{"name"')]


def test_events_wait_for_torch_and_are_all_delivered_at_the_end(shown: list[dict[str, Any]]) -> None:
    """Observing imports nothing until the last record, which returns when everything is out."""
    states = [status.state for status in translate(RESTART_AND_SUCCESS)]
    assert [event["name"] for event in shown] == [f"torchelastic.worker.status.{state}" for state in states]


def test_events_are_delivered_during_the_run_once_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long job's events are not held back until its end."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    console = get_logging_handler("console")
    monkeypatch.setattr(console, "emit", lambda record: lines.put(record.getMessage()))
    observe = observer("console", OPTIONS)
    assert observe is not None
    for record in records(RESTART_AND_SUCCESS)[:4]:
        observe(record)
    states = [json.loads(lines.get(timeout=30))["metadata"]["state"] for _ in range(4)]
    assert states == ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START"]


def test_events_have_the_form_of_torchruns(shown: list[dict[str, Any]], tmp_path: Path) -> None:
    """Names, sources and keys are those of a real torchrun, so that whoever reads them reads ours."""
    script = tmp_path / "train.py"
    script.write_text("")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--event-log-handler", "console", str(script)]
    ours = {(event["name"], event["source"]): event for event in shown}
    theirs = {(event["name"], event["source"]): event for event in event_lines(torchrun)}
    assert theirs.keys() <= ours.keys()
    for key, event in theirs.items():
        assert shape(ours[key]) == shape(event)


def shape(event: dict[str, Any]) -> list[list[str]]:
    """The keys of an event, of its metadata and of the JSON within that."""
    metadata = event["metadata"]
    return [list(event), list(metadata), list(json.loads(metadata["metadata"]))]

"""What holds on a node now, from its journal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.journal import read
from ftrun.monitor.present import PHASES, Present, PresentFold
from ftrun.monitor.records import Record
from tests.support.journals import JOURNALS, recorded

STARTED = ev.RunStarted("r1", "train.py", 2, 2, "given", 77, "0.1", "3.11", 3)
CLOSED = ev.RoundClosed(0, 2, 0, "h", 1, None, None, ("a",), (), True)
RUNNING = (
    STARTED,
    ev.StandbyStarted(101, False, "first"),
    ev.StandbyStarted(102, False, "first"),
    CLOSED,
    ev.WorkerStarted(0, 0, 0, 101, True, "warm", "/proc/77/fd/5"),
    ev.WorkerStarted(0, 1, 1, 102, True, "warm", "/proc/77/fd/6"),
)
FAILED = (
    ev.WorkerProgressed(0, 0, 1, 0.5),
    ev.WorkerExited(0, 1, 1, 102, -9, "SIGKILL", False, 7),
    ev.WorkerExited(0, 0, 0, 101, -15, "SIGTERM", True, 7),
    ev.RoundStopped(0, "failure", 0.25),
    ev.IncidentDiagnosed(0, "killed", 1, 1, 102, -9, ("rank 1 was killed",), "f", True, (0,), 1.0),
    ev.RestartDecided(0, "restart", "rank 1 was killed", 0.0, 1, 3),
)


def present(events: Iterable[ev.Event], at: float = 100.0) -> Present:
    """After these events, a second apart."""
    fold = PresentFold()
    for place, event in enumerate(events):
        fold.take(Record(1.7e9 + place, at + place, "a", event))
    return fold.now


def test_workers_of_the_round_that_runs() -> None:
    """With where their pages are; what was a standby is one no more."""
    now = present((*RUNNING, ev.StandbyStarted(103, False, "next"), ev.StandbyReadied(103, 1.0, 9)))
    assert (now.phase, now.round, now.world_size, now.run_id, now.agent_pid) == ("running", 0, 2, "r1", 77)
    assert [(one.rank, one.pid, one.page) for one in now.workers.values()] == [
        (0, 101, "/proc/77/fd/5"), (1, 102, "/proc/77/fd/6"),
    ]  # fmt: skip
    assert now.standbys == {103: True}


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        ((), "running"),
        ((ev.WorkerExited(0, 1, 1, 102, 1, None, False, 7),), "stopping"),
        ((ev.WorkerExited(0, 1, 1, 102, 0, None, False, 7),), "running"),
        ((ev.SignalReceived("SIGTERM", 30.0, 1),), "stopping"),
        ((ev.RoundStopOrdered(0, "failure", "b", "rank 3 died"),), "stopping"),
        (FAILED, "joining"),
        ((ev.RoundFailed(0, "no memory"),), "joining"),
        ((ev.NodeParked(1, ("b", "c")),), "spare"),
        ((ev.RunEnded(0, "all ranks finished", 0, 9.0),), "ended"),
    ],
)
def test_phase_follows_what_happens(more: tuple[ev.Event, ...], phase: str) -> None:
    """Each is one of those that are exported."""
    assert present((*RUNNING, *more)).phase == phase
    assert phase in PHASES


def test_failure_is_counted_by_its_kind() -> None:
    """And how each worker ended."""
    recovered = ev.RecoveryCompleted(1, "killed", 1, 0.01, 0.1, 0.2, 0.3, 0.6, 12)
    again = ev.IncidentDiagnosed(1, "killed", 1, 1, 5, -9, ("again",), "f", False, (), 1.0)
    now = present((*RUNNING, *FAILED, recovered, again))
    assert (now.restart_count, now.max_restarts) == (1, 3)
    assert now.counts.incidents == {"killed": 2}
    assert now.counts.restarts == {"killed": 1}
    assert now.counts.failed_restarts == 1
    assert now.counts.recovery_s == {"killed": [0.6]}
    assert now.counts.recovery_phase_s == {"detect": 0.01, "stop": 0.1, "start": 0.2, "first_step": 0.3}
    assert now.counts.steps_redone == 12
    assert now.counts.exits == {"signal": 1, "stopped": 1}


def test_first_failure_before_progress_is_no_failed_restart() -> None:
    """Nothing had been restarted."""
    early = ev.IncidentDiagnosed(0, "exception", 1, 1, 5, 1, ("why",), "f", False, (), 1.0)
    assert present((*RUNNING, early)).counts.failed_restarts == 0


def test_saves_are_as_old_as_they_are() -> None:
    """Told some seconds later, and several at once."""
    now = present((*RUNNING, ev.CheckpointSaved(0, 1, "/c/20", 20, 0.5, age_s=2.0, count=3)))
    assert now.saved is not None
    assert (now.saved.step, now.saved.at, now.saved.ts) == (20, 104.0, 1.7e9 + 4)
    assert (now.counts.saves, now.counts.blocking_s) == (3, 1.5)


def test_ailment_is_there_until_it_is_healed() -> None:
    """By check and subject."""
    sick = ev.HealthChanged("gpu.ecc", "gpu 1", "unhealthy", "healthy", "9 errors", "0", "replace it", False)
    well = ev.HealthChanged("gpu.ecc", "gpu 1", "healthy", "unhealthy", "0 errors", "0", "", False)
    assert present((*RUNNING, sick)).ailments == {("gpu.ecc", "gpu 1"): ("unhealthy", "9 errors")}
    assert present((*RUNNING, sick, well)).ailments == {}


def test_another_agent_on_the_node_begins_anew() -> None:
    """Its journal goes on in the same file."""
    now = present((*RUNNING, *FAILED, STARTED))
    assert (now.counts.incidents, now.workers, now.restart_count, now.max_restarts) == ({}, {}, 0, 3)


def test_news_are_what_the_terminal_shows() -> None:
    """The last ones."""
    news = present((*RUNNING, *FAILED)).news
    assert [one.text for one in news][-1] == "restart 1 of 3: rank 1 was killed"
    assert not any("standby" in one.text for one in news)


@pytest.mark.parametrize(
    "path", [p for name in recorded() for p in sorted((JOURNALS / name).glob("*.jsonl"))]
)
def test_recorded_journals_fold(path: Path) -> None:
    """Real ones, from their beginning to wherever they end."""
    fold = PresentFold()
    for record in read(path):
        fold.take(record)
        assert fold.now.phase in PHASES
    assert fold.now.run_id

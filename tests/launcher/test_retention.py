"""Keeping the run directory within its size."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.recorder import Recorder
from ftrun.launcher.retention import OldLogs, Retention, choose
from ftrun.monitor import events as ev
from ftrun.monitor.journal import Journal, read
from ftrun.monitor.log import configure

SIZES = st.lists(st.integers(0, 1000), max_size=20)


@given(SIZES, st.integers(0, 5000), st.integers(0, 5000))
def test_no_more_goes_than_needed_and_the_oldest_first(sizes: list[int], others: int, limit: int) -> None:
    """What is left is within the limit, or nothing more could go."""
    old = [OldLogs(Path(f"r{number}"), (), size) for number, size in enumerate(sizes)]
    total = others + sum(sizes)
    chosen = choose(total, limit, old)
    assert list(chosen) == old[: len(chosen)]
    left = total - sum(one.size_bytes for one in chosen)
    assert left <= limit or len(chosen) == len(old)
    if chosen:
        assert left + chosen[-1].size_bytes > limit


def make_rounds(directory: Path, count: int, size: int) -> list[Path]:
    """As the launcher makes them: a directory per round, in it one per rank."""
    rounds = []
    for number in range(count):
        place = directory / "logs" / f"attempt_{number}" / "0"
        place.mkdir(parents=True)
        (place / "stdout.log").write_bytes(b"x" * size)
        (place / "error.json").write_text("{}")
        (place / "stacks.txt").write_text("stack")
        rounds.append(place.parent)
    return rounds


def looked(directory: Path, limit: int, rounds: list[Path], times: int = 1) -> list[ev.Event]:
    """What is said in so many looks."""
    said: list[ev.Event] = []
    retention = Retention(directory, limit, lambda: rounds, said.append)
    for _ in range(times):
        retention.look()
    retention.close()
    return said


def test_logs_of_the_oldest_rounds_go(tmp_path: Path) -> None:
    """Their error files and stacks stay, and the last two rounds have all that they had."""
    rounds = make_rounds(tmp_path, 5, 1000)
    [dropped] = looked(tmp_path, 3500, rounds, times=3)
    assert isinstance(dropped, ev.LogsDropped)
    assert dropped.paths == (str(rounds[0]), str(rounds[1]))
    assert (dropped.freed_bytes, dropped.limit_bytes) == (2000, 3500)
    assert [(one / "0" / "stdout.log").exists() for one in rounds] == [False, False, True, True, True]
    assert all((one / "0" / "error.json").exists() and (one / "0" / "stacks.txt").exists() for one in rounds)


def test_what_is_small_enough_is_left_alone(tmp_path: Path) -> None:
    """Nothing is said either."""
    assert looked(tmp_path, 10_000, make_rounds(tmp_path, 5, 1000)) == []


def test_last_rounds_are_kept_whatever_their_size(tmp_path: Path) -> None:
    """Then the journal says, once, that it will have no more details."""
    rounds = make_rounds(tmp_path, 3, 1000)
    first, second = looked(tmp_path, 500, rounds, times=3)
    assert isinstance(first, ev.LogsDropped)
    assert isinstance(second, ev.JournalReduced)
    assert (rounds[1] / "0" / "stdout.log").exists()


def test_logs_elsewhere_are_not_touched(tmp_path: Path) -> None:
    """They are not part of the run directory, and their user has chosen the place."""
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_dir.mkdir()
    (run_dir / "n.jsonl").write_bytes(b"x" * 2000)
    rounds = make_rounds(elsewhere, 5, 1000)
    [said] = looked(run_dir, 500, rounds)
    assert isinstance(said, ev.JournalReduced)
    assert all((one / "0" / "stdout.log").exists() for one in rounds)


def test_reduced_journal_has_what_matters(tmp_path: Path) -> None:
    """Details are left out from then on, and nothing else."""
    journal = Journal(tmp_path / "n.jsonl", "n", lambda: 1.0, lambda: 2.0, lambda text: None)
    record = Recorder(journal, configure("human", io.StringIO()), None)
    detail, decision = ev.StandbyReadied(1, 0.5, 3), ev.RestartDecided(0, "restart", "why", 0.0, 1, 3)
    seen: list[ev.Event] = []
    record.add(lambda one: seen.append(one.event))
    quiet = ev.ProgressObserved(0, 7, 7, 0.1, None, None, None, is_told=False)
    told = (detail, ev.JournalReduced(600, 500), detail, quiet, decision)
    for event in told:
        record(event)
    journal.close()
    kept = [detail, ev.JournalReduced(600, 500), quiet, decision]
    assert [one.event for one in read(journal.path)] == kept
    assert seen == list(told), "metrics and the terminal have no less"


def test_logs_of_earlier_runs_in_the_directory_go_first(tmp_path: Path) -> None:
    """A pod that is started again in place, or a fixed id: without that they would stay for ever."""
    day_s = 86400.0
    earlier, own = make_rounds(tmp_path / "a", 3, 1000), make_rounds(tmp_path / "b", 3, 1000)
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    places = []
    for number, (one, age_s) in enumerate(
        [(earlier[1], 2 * day_s), (earlier[0], 3 * day_s), (earlier[2], 60.0)]
    ):
        places.append(one.rename(logs / f"attempt_{number}.1"))
        os.utime(places[-1] / "0" / "stdout.log", (time.time() - age_s,) * 2)
    rounds = [one.rename(logs / one.name) for one in own]
    [dropped] = looked(tmp_path / "run", 4500, rounds)
    assert isinstance(dropped, ev.LogsDropped)
    assert dropped.paths == (str(places[1]), str(places[0])), "not what somebody has written to just now"


def test_nothing_is_said_after_the_end(tmp_path: Path) -> None:
    """Who would hear it is gone, and so is its descriptor."""
    said: list[ev.Event] = []
    rounds = make_rounds(tmp_path, 5, 1000)
    retention = Retention(tmp_path, 3500, lambda: rounds, said.append)
    retention.close()
    retention.look()
    assert said == []

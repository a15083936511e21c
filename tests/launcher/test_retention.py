"""Keeping the run directory within its size."""

from __future__ import annotations

import io
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
    for event in (detail, ev.JournalReduced(600, 500), detail, decision):
        record(event)
    journal.close()
    assert [one.event for one in read(journal.path)] == [detail, ev.JournalReduced(600, 500), decision]

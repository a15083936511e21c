"""Recorded journals of real runs, as tests read them (made by `tests.support.record_journals`)."""

from __future__ import annotations

from pathlib import Path

from ftrun.monitor.history import Run
from ftrun.monitor.journal_lines import Lines
from ftrun.monitor.life_fold import fold
from ftrun.monitor.lives import Life
from ftrun.monitor.merging import merge
from ftrun.monitor.report import Report, make_report
from ftrun.monitor.run_directories import journals_in
from ftrun.monitor.timeline import group

JOURNALS = Path(__file__).parents[1] / "journals"


def recorded() -> list[str]:
    """Names of the recordings."""
    return sorted(path.name for path in JOURNALS.iterdir() if path.is_dir())


def lives_of(directory: Path) -> list[tuple[Life, ...]]:
    """The lives in each journal of a directory."""
    return [fold(Lines(path)).lives() for path in journals_in(directory)]


def run_of(name: str) -> Run:
    """A recorded run."""
    [members] = group(lives_of(JOURNALS / name))
    return merge(members)


def report_of(name: str) -> Report:
    """The report of a recorded run."""
    return make_report(run_of(name), name, f"/runs/{name}")

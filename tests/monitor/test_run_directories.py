"""Where a run's directory is made."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from ftrun.monitor.run_directories import make_run_directory, usual_places


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose usual places are below the test's directory."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_run_directory_is_made_in_the_state_directory(tmp_path: Path, environ: dict[str, str]) -> None:
    """It exists, is empty, and nothing is to be warned of."""
    made = make_run_directory("a job/1", environ)
    assert (made.path, made.degraded) == (tmp_path / "state/ftrun/a_job_1", "")
    assert list(made.path.iterdir()) == []
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700, "what is said in there is for its user"


def test_a_state_directory_that_takes_no_files_is_left_for_the_temporary_one(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Whatever keeps the directory from being made is named, with the place that is used instead."""
    in_the_way = tmp_path / "state/ftrun/job"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    made = make_run_directory("job", environ)
    assert made.path == usual_places(environ)[1] / "job"
    assert made.path.is_dir()
    for part in (str(in_the_way), "File exists", str(made.path)):
        assert part in made.degraded


def test_a_place_without_any_hope_is_returned_for_the_journal_to_explain(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With neither home nor temporary directory the last place is named."""
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    made = make_run_directory("job", {"XDG_STATE_HOME": "/dev/null"})
    assert made.path == usual_places(environ)[1] / "job"
    assert made.degraded

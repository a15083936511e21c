"""From the command line to the program that the workers run."""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.entry import Entry, entry_of

OWN = "/venv/bin/python"
OTHER = "/other/bin/python"


def entry(python_exec: str | None = None, **options: Any) -> Entry:
    """The entry of `train.py --lr 1` (or module `train`) with these options."""
    return entry_of(LaunchOptions("train.py", ("--lr", "1"), **options), OWN, python_exec)


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "script"), ({"is_module": True}, "module"), ({"run_path": True}, "script")],
    ids=["script", "-m", "--run-path"],
)
def test_python_program_runs_in_the_worker_itself(options: dict[str, bool], kind: str) -> None:
    """Script and module keep their arguments and can be preloaded for."""
    assert entry(**options) == Entry(kind, ("train.py", "--lr", "1"))  # type: ignore[arg-type]


def test_no_python_runs_a_program_and_starts_cold() -> None:
    """Nothing can be imported ahead for what may not be Python at all."""
    found = entry(no_python=True)
    assert (found.kind, found.argv) == ("executable", ("train.py", "--lr", "1"))
    assert "--no-python" in found.cold_reason


def test_run_path_wins_over_no_python() -> None:
    """As in torchrun, which looks at --run-path first."""
    assert entry(no_python=True, run_path=True) == Entry("script", ("train.py", "--lr", "1"))


@pytest.mark.parametrize("python_exec", [None, "", OWN])
def test_own_interpreter_is_no_other_program(python_exec: str | None) -> None:
    """PYTHON_EXEC unset, empty or naming ftrun's own interpreter changes nothing."""
    assert entry(python_exec) == Entry("script", ("train.py", "--lr", "1"))


@pytest.mark.parametrize(
    ("is_module", "argv"),
    [
        (False, (OTHER, "-u", "train.py", "--lr", "1")),
        (True, (OTHER, "-u", "-m", "train.py", "--lr", "1")),
    ],
    ids=["script", "-m"],
)
def test_another_interpreter_is_run_as_a_program(is_module: bool, argv: tuple[str, ...]) -> None:
    """PYTHON_EXEC may lack ftrun, so the worker becomes it, unbuffered as torchrun's workers are."""
    found = entry(OTHER, is_module=is_module)
    assert (found.kind, found.argv) == ("executable", argv)
    assert OTHER in found.cold_reason


def test_another_interpreter_does_not_matter_without_python() -> None:
    """--no-python runs the program itself."""
    assert entry(OTHER, no_python=True).argv == ("train.py", "--lr", "1")


@pytest.mark.parametrize(
    ("python_exec", "options", "program"),
    [(None, {}, OWN), (OTHER, {}, OTHER), (None, {"no_python": True}, "train.py")],
    ids=["script", "PYTHON_EXEC", "--no-python"],
)
def test_program_of_the_worker_is_known(
    python_exec: str | None, options: dict[str, bool], program: str
) -> None:
    """What the failure summary names is the program that really ran."""
    assert entry(python_exec, **options).binary(OWN) == program

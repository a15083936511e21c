"""The commands of `ftctl` in report.md and README.md, run as they stand there, show what stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.monitor.goodput import MEANINGS
from ftrun.monitor.report_doc import render
from tests.support.journals import JOURNALS, recorded

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONSOLE = re.compile(r"```console\n\$ ftctl (.*)\n((?:.*\n)*?)```")
EXAMPLES = CONSOLE.findall((DOCS / "report.md").read_text())
SHOWN_FIRST = CONSOLE.findall((ROOT / "README.md").read_text())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the recorded runs are the user's."""
    directory = tmp_path_factory.mktemp("home")
    for age, name in enumerate(recorded()):
        target = directory / "state/ftrun" / name
        shutil.copytree(JOURNALS / name, target)
        for path in target.iterdir():
            os.utime(path, (1796012000 + age, 1796012000 + age))
    return directory


@pytest.mark.parametrize(
    ("command", "output"),
    [*EXAMPLES, *SHOWN_FIRST],
    ids=[*(command for command, _ in EXAMPLES), *(f"README: {command}" for command, _ in SHOWN_FIRST)],
)
def test_example_is_what_the_command_shows(home: Path, command: str, output: str) -> None:
    """In UTC, so that it is the same everywhere."""
    own = {"XDG_STATE_HOME": str(home / "state"), "HOME": str(home), "TMPDIR": str(home), "TZ": "UTC"}
    done = subprocess.run(
        [sys.executable, "-c", "from ftrun.monitor.ctl import main; main()", *shlex.split(command)],
        env={**os.environ, **own},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == output


def test_readme_shows_the_report_of_a_run_with_mixed_faults() -> None:
    """Its first lines answer how many, which kinds, whose, what they cost, and what to change."""
    [(command, output)] = SHOWN_FIRST
    assert command == "report five_faults"
    first = "\n".join(output.splitlines()[:25])
    for answer in ("5 incidents: killed, ", "begun on: gpu-b (4), gpu-a (1); cost: ", "to do    * "):
        assert answer in first


def test_every_command_has_an_example() -> None:
    """All that the page is about."""
    assert {command.split()[0] for command, _ in EXAMPLES} == {"report", "show", "runs", "compare"}


def test_page_ends_with_the_generated_forms() -> None:
    """Exactly as `python -m ftrun.monitor.report_doc` prints them."""
    assert (DOCS / "report.md").read_text().endswith(render())


def test_buckets_are_documented() -> None:
    """With the same words as in the code, in the same order."""
    rows = [f"| {bucket.value} | {meaning} |" for bucket, meaning in MEANINGS.items()]
    assert "\n".join(rows) in (DOCS / "goodput.md").read_text()

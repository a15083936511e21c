"""The examples of docs/policy.md, run as they stand there, decide what stands there; its numbers hold."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.launcher import blame, budgets
from ftrun.launcher.config import DEFAULT_KEYS
from ftrun.launcher.config_file import load
from ftrun.monitor.diagnosis import CONFIDENCE
from ftrun.monitor.incident import IncidentKind

TEXT = (Path(__file__).parents[1] / "docs/policy.md").read_text()
SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
EXAMPLES = re.findall(r"```console\n\$ ftrun (.*)\n((?:.*\n)*?)\$ echo \$\?\n(\d+)\n```", TEXT)
DECIDED = re.compile(r"^\[ftrun [\d:]{8}\] ((?:restart|stop).*\n)", re.MULTILINE)
LIMITS = (
    "max_restarts",
    "max_in_window",
    "window",
    "max_no_progress",
    "max_same_failure",
    "exclude_after",
    "exclude_window",
    "backoff_initial",
    "backoff_max",
    "backoff_below",
)


def masked(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"\(pid \d+\)", "(pid N)", text)


def test_every_example_is_found() -> None:
    """A block of another form would not be run."""
    assert len(EXAMPLES) == TEXT.count("```console") == 5
    assert len(SCRIPTS) == TEXT.count("```python") == 3


@pytest.mark.parametrize(("command", "output", "code"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_example_is_decided_as_it_says(tmp_path: Path, command: str, output: str, code: str) -> None:
    """The sentences, their order and the exit code; the pids are others."""
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(f"# {name}\n{text}")
    done = subprocess.run(
        [sys.executable, "-m", "ftrun.launcher", *shlex.split(command)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PET_FT_STANDBY": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert masked("".join(DECIDED.findall(done.stderr))) == masked(output)
    assert done.returncode == int(code)


def test_configuration_of_the_document_is_one(tmp_path: Path) -> None:
    """Every key and kind in it exists."""
    [text] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "c.yaml").write_text(text)
    found = {item.key: item.value for item in load(str(tmp_path / "c.yaml"))}
    assert [kind for kind, _ in found["ftrun.restart.kinds"]] == ["cuda_oom", "preempted", "nccl_timeout"]


@pytest.mark.parametrize("name", LIMITS)
def test_defaults_of_the_document_are_those_of_the_code(name: str) -> None:
    """In the table, and where the reasons are given."""
    value = DEFAULT_KEYS[f"ftrun.restart.{name}"].value
    assert isinstance(value, (int, float))
    table, _, reasons = TEXT.partition("## Why the defaults")
    for part in (table, reasons):
        assert f"`{name}: {value:g}`" in part


def test_every_rule_has_its_row_in_order() -> None:
    """The table has as many as the code; the tests of the rules hold their exit codes."""
    rows = re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)
    assert rows == [str(1 + place) for place in range(len(budgets.OF_ALL) + len(budgets.OF_COUNTED))]


def test_kinds_of_the_document_are_those_of_the_rules() -> None:
    """Named ones exist, and lists are whole."""
    _, _, rest = TEXT.partition("Rule 7 is for")
    own, _, rest = rest.partition("**Named**")
    not_named, _, rest = rest.partition("A GPU is named")
    of_gpu, _, _ = rest.partition("What a GPU did")
    kinds = {kind.value for kind in IncidentKind}

    def listed(part: str) -> set[str]:
        return set(re.findall(r"`(\w+)`", part)) & kinds

    assert listed(own) == budgets.OF_THE_PROGRAM
    assert listed(not_named) == blame.NOT_OF_A_PLACE
    assert listed(of_gpu) == blame.OF_A_GPU - {kind for kind in kinds if kind.startswith("hang_")}
    assert f"at least {CONFIDENCE['named']:g}" in not_named
    assert kinds >= budgets.OF_THE_PROGRAM | blame.NOT_OF_A_PLACE | blame.OF_A_GPU

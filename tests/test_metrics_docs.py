"""The commands of docs/metrics.md, run as they stand there but for the port and the number of workers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.nodes import free_port
from tests.support.waiting import until

pytest.importorskip("prometheus_client", reason="the extra ftrun[metrics] is not installed")
PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ASK = "import sys, urllib.request as web; print(web.urlopen(sys.argv[-1]).read().decode())"
STAND_INS = {
    "ftrun": f'exec "{sys.executable}" -m ftrun.launcher "$@"',
    "pip": "exit 0",
    # As curl -fsS: the body, or a failure.
    "curl": f'exec "{sys.executable}" -c "$ASK" "$@"',
}


def shell(block: str, directory: Path) -> subprocess.Popen[str]:
    """Start a block of the page."""
    (directory / "bin").mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (directory / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / "bin" / name).chmod(0o755)
    return subprocess.Popen(
        ["bash", "-euc", block],
        cwd=directory,
        env={
            "PATH": f"{directory / 'bin'}:/usr/bin:/bin",
            "HOME": str(directory),
            "PET_FT_STANDBY": "off",
            "ASK": ASK,
        },
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_commands_of_the_page(tmp_path: Path) -> None:
    """A job that runs answers both questions."""
    port = str(free_port())
    serve, ask = (block.replace("9800", port).replace("per-node 8", "per-node 1") for block in BLOCKS)
    (tmp_path / "train.py").write_text(
        "import pathlib, time\nwhile not pathlib.Path('end').exists(): time.sleep(0.02)"
    )
    job = shell(serve, tmp_path)
    try:
        for event in ("metrics.served", "round.closed"):
            until(lambda event=event: event in journal(tmp_path), lambda: journal(tmp_path), 60)
        said, _ = shell(ask, tmp_path).communicate(timeout=60)
        (tmp_path / "end").touch()
        assert job.wait(60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    metrics, _, status = said.partition("\n{\n")
    assert re.search(r'^ftrun_phase\{.*phase="running".*\} 1\.0$', metrics, re.MULTILINE)
    assert json.loads("{" + status)["phase"] == "running"


def test_example_for_prometheus_is_its_configuration() -> None:
    """With the names of its keys, and the port of the command above."""
    [example] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    found = yaml.safe_load(example)
    assert set(found) == {"scrape_configs", "rule_files"}
    targets = found["scrape_configs"][0]["static_configs"][0]["targets"]
    assert {one.partition(":")[2] for one in targets} == {"9800"}


def journal(directory: Path) -> str:
    return "".join(path.read_text() for path in (directory / ".local/state/ftrun").glob("*/*.jsonl"))

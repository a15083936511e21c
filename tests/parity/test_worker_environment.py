"""A worker finds under ftrun what it finds under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.run import finish

DUMP = """
import json, os, sys
path = os.path.join(os.environ["OUT"], os.environ["RANK"] + ".json")
json.dump({"environment": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd()}, open(path, "w"))
"""
# Random or a path of the one launcher's own; both must have them.
DIFFERENT = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "OUT"}
# torchrun 2.13 gives the host's name for a loopback store; ftrun the address itself, which needs no look-up.
SAME_MEANING = {"MASTER_ADDR"}
OWN = {"FTRUN_PAGE", "FTRUN_STACKS", "PYTHONUNBUFFERED"}
FT_LAUNCHERS = {"FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET"}


def dumped(directory: Path) -> dict[str, dict[str, object]]:
    """What each rank wrote."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}


def test_environment_arguments_and_directory_are_torchruns(tmp_path: Path) -> None:
    """Every variable that torchrun sets is there with the same value, and ftrun adds only its own."""
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    options = ["--nproc-per-node", "2", "--max-restarts", "2", "--role", "trainer"]
    words = [*options, str(script), "--lr", "0.1", "--rank=${local_rank}"]
    found = {}
    for launcher in ("torchrun", "ftrun"):
        out = tmp_path / launcher / "cwd"
        out.mkdir(parents=True)
        if launcher == "ftrun":
            code, _ = finish(tmp_path / launcher, *words, environment={"OUT": str(out)})
            assert code == 0
        else:
            command = [sys.executable, "-m", "torch.distributed.run", *words]
            ended = subprocess.run(command, timeout=120, cwd=out, env={**os.environ, "OUT": str(out)})
            # Torch aborts now and then when all is done: tests/integration/test_example.py.
            assert ended.returncode in {0, -signal.SIGABRT}
        found[launcher] = dumped(out)
    assert found["torchrun"].keys() == found["ftrun"].keys() == {"0", "1"}
    for rank, theirs in found["torchrun"].items():
        ours = found["ftrun"][rank]
        assert ours["argv"] == theirs["argv"]
        base = set(os.environ)
        their_environment, our_environment = theirs["environment"], ours["environment"]
        assert isinstance(their_environment, dict)
        assert isinstance(our_environment, dict)
        set_by_torchrun = {k: v for k, v in their_environment.items() if k not in base}
        assert set_by_torchrun.keys() <= our_environment.keys()
        for name, value in set_by_torchrun.items():
            if name not in DIFFERENT | SAME_MEANING:
                assert our_environment[name] == value, name
        added = {k for k in our_environment if k not in base and k not in set_by_torchrun}
        harness = {"D", "TMPDIR", "XDG_STATE_HOME", "PET_FT_RUN_DIR", "FTRUN_TEST_TOKEN"}
        assert added - harness <= OWN | FT_LAUNCHERS

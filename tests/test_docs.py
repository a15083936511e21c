"""The commands of the documents do what is said there: each block is run, on stand-ins of what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import free_port

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAIN = r"""
import os
line = "rank {RANK} of {WORLD_SIZE} in {TORCHELASTIC_RUN_ID}\n".format_map(os.environ)
os.write(1, line.encode())  # at once: nothing of the other rank's gets in between
"""
STAND_INS = {
    "ftrun": 'exec "{python}" -m ftrun.launcher "$@"',
    "scontrol": """
case $1 in
    show) printf '127.0.0.1\\nnode1\\n' ;;
    requeue) echo "$2" > requeued ;;
esac
""",
    # Two nodes, a task on each; the highest exit code.
    "srun": """
while [ "${{1#--}}" != "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2
SLURM_PROCID=1 "$@" &
SLURM_PROCID=0 "$@"
first=$?
wait $!
second=$?
exit $((first > second ? first : second))
""",
}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[0-1]"}


def blocks(name: str) -> list[str]:
    """The document's blocks of shell, in their order."""
    return BLOCK.findall((DOCS / name).read_text())


def run(block: str, directory: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a block in a directory with a script `train.py`, on another port and with one worker per node."""
    (directory / "bin").mkdir(exist_ok=True)
    (directory / "train.py").write_text(TRAIN)
    for name, text in STAND_INS.items():
        program = directory / "bin" / name
        program.write_text(f"#!/bin/sh\n{text.format(python=sys.executable)}\n")
        program.chmod(0o755)
    changed = block.replace("--nproc-per-node 8", "--nproc-per-node 1")
    environment = {
        "PATH": f"{directory / 'bin'}:/usr/bin:/bin",
        "HOME": str(directory),
        "PET_FT_STANDBY": "off",
        **variables,
    }
    return subprocess.Popen(
        ["timeout", "120", "bash", "-euc", changed],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*started: subprocess.Popen[str]) -> list[str]:
    """What the ranks said, sorted; all commands have ended well."""
    said = []
    for one in started:
        text, _ = one.communicate(timeout=150)
        assert one.returncode == 0, text
        said += re.findall(r"^rank .*", text, re.MULTILINE)
    return sorted(said)


def test_every_block_of_the_rendezvous_document_is_known() -> None:
    """A new one needs a test here."""
    assert len(blocks("rendezvous.md")) == 4


def test_two_nodes_on_one_machine(tmp_path: Path) -> None:
    """The block to try, as it is but for its port."""
    block = blocks("rendezvous.md")[0].replace("29400", str(free_port()))
    said = finish(run(block, tmp_path))
    assert [line.partition(" in ")[0] for line in said] == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.slow
@pytest.mark.parametrize("place", [1, 3])
def test_command_of_each_node(tmp_path: Path, place: int) -> None:
    """The same line on two nodes, which are this machine; those of Kubernetes know their places."""
    block = blocks("rendezvous.md")[place].replace("29400", str(free_port()))
    block = block.replace("node0:", "127.0.0.1:").replace("train-0.train:", "127.0.0.1:")
    pods = [
        {"JOB_COMPLETION_INDEX": f"{n}", "HOSTNAME": f"train-{n}-x7f2q"} if place == 3 else {} for n in (1, 0)
    ]
    said = finish(*(run(block, tmp_path, **variables) for variables in pods))
    assert [line.partition(" in ")[0] for line in said] == ["rank 0 of 2", "rank 1 of 2"]
    if place == 3:
        assert {line.partition(" in ")[2] for line in said} == {"train"}


@pytest.mark.slow
def test_command_for_slurm(tmp_path: Path) -> None:
    """One line for all nodes of an allocation, which gives the job its id."""
    block = blocks("rendezvous.md")[2].replace("29400", str(free_port()))
    assert finish(run(block, tmp_path, **SLURM)) == ["rank 0 of 2 in 77.0", "rank 1 of 2 in 77.0"]

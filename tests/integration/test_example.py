"""The example trains under plain torch, and comes back from a killed rank to the same weights, bit by bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.launcher.checkpoint import find_newest_whole
from tests.support.nodes import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_fsdp.py"
SMALL = ("--width", "32", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "2")
DEADLINE_S = 180
ABORT = "terminate called without an active exception"
"""How torch 2.13 ends some processes whose script is done, on a busy machine: a thread of its comes for the
interpreter while that ends. Nothing of ftrun is in these processes; what they did is looked at."""
ENDS = {0, -signal.SIGABRT}


def environment(**extra: str) -> dict[str, str]:
    """This environment without a launcher's variables, and with one thread, which CPU bit-exactness needs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "TORCHELASTIC_", "PET_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **extra}


@contextmanager
def two_ranks(*arguments: str, resume_from: Path | None = None) -> Iterator[list[subprocess.Popen[str]]]:
    """The example on two ranks without any launcher; killed at the deadline, nothing of it is left."""
    extra = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if resume_from is not None:
        extra["FTRUN_RESUME_FROM"] = str(resume_from)
    ranks: list[subprocess.Popen[str]] = []
    deadline = threading.Timer(DEADLINE_S, lambda: [process.kill() for process in ranks])
    deadline.start()
    try:
        for rank in ("0", "1"):
            env = environment(RANK=rank, LOCAL_RANK=rank, **extra)
            command = [sys.executable, "-u", str(EXAMPLE), *SMALL, *arguments]
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        yield ranks
    finally:
        deadline.cancel()
        for process in ranks:
            process.kill()
            process.communicate()


def finish(ranks: list[subprocess.Popen[str]]) -> str:
    """Rank 0's output, once both ranks have ended well."""
    output, _ = ranks[0].communicate(timeout=DEADLINE_S)
    assert {ranks[0].returncode, ranks[1].wait(timeout=DEADLINE_S)} <= ENDS
    return output


def read_steps(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^step (\d+) loss \d+\.\d+$", output, re.MULTILINE)]


def run_torchrun(*arguments: str) -> str:
    """The example's output under torchrun with one rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(EXAMPLE)]
    result = subprocess.run(
        [*command, *SMALL, *arguments], env=environment(), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert result.returncode == 0 or ABORT in result.stderr, result.stderr
    return result.stdout


@pytest.mark.slow
def test_plain_torchrun_starts_at_zero_and_resumes_when_told(tmp_path: Path) -> None:
    """Without ftrun the script needs no edit: it starts at step 0, and at a checkpoint with --resume."""
    save = ("--checkpoint-every", "3", "--checkpoint-dir", str(tmp_path))
    assert read_steps(run_torchrun("--steps", "4", *save)) == [1, 2, 3, 4]
    resumed = run_torchrun("--steps", "5", "--resume", str(tmp_path / "step-3"))
    assert f"resumed from {tmp_path / 'step-3'} at step 3" in resumed
    assert read_steps(resumed) == [4, 5]


@pytest.mark.slow
def test_killed_rank_and_resume_end_with_the_same_weights(tmp_path: Path) -> None:
    """A run that lost a rank to SIGKILL and resumed equals the run without fault, bit by bit."""
    checkpoints, hashes = tmp_path / "checkpoints", (tmp_path / "resumed", tmp_path / "reference")
    save = ("--checkpoint-every", "4", "--checkpoint-dir", str(checkpoints))
    with two_ranks("--steps", "1000000", *save) as ranks:
        assert ranks[0].stdout is not None
        # The example saves after the line of step 4, so with step 6 the first checkpoint is complete.
        assert any(line.startswith("step 6 ") for line in ranks[0].stdout)
        ranks[1].kill()
    newest = find_newest_whole(checkpoints)
    assert newest.path is not None
    assert newest.step is not None
    steps = ("--steps", str(newest.step + 5))
    with two_ranks(*steps, "--final-hash", str(hashes[0]), resume_from=newest.path) as ranks:
        assert read_steps(finish(ranks))[0] == newest.step + 1
    with two_ranks(*steps, "--final-hash", str(hashes[1])) as ranks:
        assert read_steps(finish(ranks))[0] == 1
    assert hashes[0].read_text() == hashes[1].read_text()

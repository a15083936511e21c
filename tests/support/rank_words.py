"""What the workers of a job on several nodes tell the test: one JSON line each, all in one file.

For programs that are run as scripts beside this one; tests read the file with `tests.support.nodes`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

SAID = "said.jsonl"
SAMPLES = 12
"""Of each step, over all ranks: worlds of 1, 2, 3, 4 and 6 ranks share them evenly."""


def directory() -> Path:
    """The job's, the same for all nodes."""
    return Path(os.environ["D"])


def say(what: str, **more: object) -> None:
    """Add a line that says who this is, in a single write."""
    line = {
        "what": what,
        "at": time.monotonic(),
        "pid": os.getpid(),
        "rank": int(os.environ["RANK"]),
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "place": int(os.environ.get("PLACE", -1)),
        "group": int(os.environ["GROUP_RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "restart": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "run_id": os.environ["TORCHELASTIC_RUN_ID"],
        "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        "more": more,
    }
    file = os.open(directory() / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def wait_for(name: str) -> None:
    """Until there is a file of that name in the job's directory."""
    while not (directory() / name).exists():
        time.sleep(0.01)


def gradient(step: int, sample: int) -> int:
    """A whole number: sums of it are exact in any order, so that every world comes to the same weights."""
    return (step * 7919 + sample * 104729) % 1009


def weights_after(steps: int) -> int:
    """What training from 0 comes to, whatever happened in between."""
    return -sum(gradient(step, sample) for step in range(steps) for sample in range(SAMPLES))

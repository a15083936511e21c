"""A worker for tests: executes its first argument as Python code, in which the names below can be used.

Each process drops a file named after its pid in `$D/pids`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

USED_BY_CODE = (signal, subprocess, time)

rank = int(os.environ["RANK"])
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
directory = Path(os.environ["D"])


def say(*words: object) -> None:
    """One line on stdout with who says it, in a single write."""
    os.write(1, f"[r{rank} rc{restart_count}] {' '.join(map(str, words))}\n".encode())


def wait_for(name: str) -> None:
    """Until there is a file of that name in `directory`."""
    while not (directory / name).exists():
        time.sleep(0.01)


def die(signum: int) -> None:
    """Of a signal, at once."""
    os.kill(os.getpid(), signum)
    time.sleep(60)


(directory / "pids" / str(os.getpid())).write_text(f"rank {rank}, restart {restart_count}")
exec(sys.argv[1])

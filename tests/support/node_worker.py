"""A worker without torch for jobs on several nodes: says that it is there, then executes its first argument.

The names below can be used in that code.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from rank_words import directory, say, wait_for

from ftrun.monitor.client import heartbeat

USED_BY_CODE = (signal, time, Path, wait_for)

rank, group = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def has(name: str) -> bool:
    """Whether there is a file of that name in the job's directory."""
    return (directory() / name).exists()


def work_until(name: str) -> None:
    """Show progress until there is a file of that name in the job's directory."""
    heartbeat()
    say("works")
    while not has(name):
        time.sleep(0.01)
        heartbeat()


say("began")
exec(sys.argv[1])
say("ends")

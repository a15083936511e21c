"""The job of the health benchmark: no torch, so that nothing hides what comes before the workers.

Each rank appends JSON lines to $BENCH_OUT/rank<n>.jsonl; times are CLOCK_MONOTONIC in seconds. It makes
progress, as the launcher sees it, until it is told to stop.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ftrun.monitor.client import heartbeat

PAUSE_S = 0.05


def main() -> None:
    out, rank = Path(os.environ["BENCH_OUT"]), os.environ["RANK"]
    with (out / f"rank{rank}.jsonl").open("a", buffering=1) as events:
        for event in ("begin", "step"):
            heartbeat()
            stamp = {"event": event, "pid": os.getpid(), "stepped_at": time.monotonic()}
            events.write(json.dumps(stamp) + "\n")
        while True:
            heartbeat()
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()

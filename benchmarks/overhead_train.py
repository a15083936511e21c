"""examples/train_fsdp.py with a time stamp after each optimizer step, for the overhead benchmark.

Each rank appends JSON lines to $BENCH_OUT/rank<n>.jsonl; times are CLOCK_MONOTONIC in seconds. Arguments are
the example's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import train_fsdp


def main() -> None:
    """Trains as the example does."""
    with (Path(os.environ["BENCH_OUT"]) / f"rank{os.environ['RANK']}.jsonl").open("a", buffering=1) as events:

        def note(event: str, **fields: float) -> None:
            events.write(json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n")

        note("begin")
        register_optimizer_step_post_hook(lambda *_: note("step", stepped_at=time.monotonic()))
        train_fsdp.main()


if __name__ == "__main__":
    main()

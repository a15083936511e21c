"""A training loop that reports its steps and saves, and begins again after its last save.

`python accounted_training.py STEPS SAVE_EVERY`: a step takes `STEP_S`, a save keeps training from going on
for `SAVE_S`. The last save is in `$D/saved-<rank>`. It waits for `$D/go` before its last step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ftrun.monitor import client

STEP_S, SAVE_S = 0.02, 0.2


def main(steps: int, save_every: int) -> None:
    """Train to the end."""
    home, rank = Path(os.environ["D"]), os.environ["RANK"]
    saved = home / f"saved-{rank}"
    step = int(saved.read_text()) if saved.exists() else 0
    while step < steps:
        while step == steps - 1 and not (home / "go").exists():
            time.sleep(STEP_S)
        time.sleep(STEP_S)
        step += 1
        client.heartbeat(step)
        if step % save_every == 0:
            time.sleep(SAVE_S)
            new = saved.with_suffix(".new")  # a kill may come at any time
            new.write_text(str(step))
            os.replace(new, saved)
            client.checkpoint_saved(home / f"step-{step}", step, has_checksums=False)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

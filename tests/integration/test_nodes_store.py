"""The workers' store of a job on several nodes, real ones on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import WORKER, job

ASKS_LATE = """
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store.set(f"rank {rank} is here", "")
store.wait(["rank 0 is here", "rank 1 is here"])
if rank == 1:
    wait_for("node 0 is done")
    assert store.check(["rank 0 is here"])
"""


@pytest.mark.slow
def test_store_outlives_the_ranks_of_its_node(tmp_path: Path) -> None:
    """Ranks elsewhere may need it to the end: torch's NCCL watchdog asks it for as long as it lives."""
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "0", "--ft-standby", "off")
    with job(tmp_path / "job", *options, script=(WORKER, ASKS_LATE)) as running:
        first = running.start(0)
        running.start(1)
        running.wait_event(first, events.RoundStopped)
        running.release("node 0 is done")
        assert running.codes() == [0, 0]

"""Every round has an empty store of its own: a restart never reads what the round before has left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import free_port
from tests.support.run import WORKER, Run, finish

TWO = ("--nproc-per-node", "2")
LEAVE_KEYS = """
import torch.distributed as dist
from datetime import timedelta
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store = dist.TCPStore(*address, None, False, timedelta(seconds=120), wait_for_workers=False)
say("agent serves the store:", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
say("stale:", store.check(["mine/0"]) or store.check(["mine/1"]))
dist.init_process_group("gloo")
dist.barrier()
store.set(f"mine/{rank}", "x")
dist.barrier()
dist.destroy_process_group()
os._exit(restart_count == 0)  # torch now and then ends a busy process with SIGABRT
"""
MEET_BY_ADDRESS = """
import torch.distributed as dist
from datetime import timedelta
def meet(address):
    dist.init_process_group(
        "gloo", f"tcp://{address}", timedelta(seconds=120), int(os.environ["WORLD_SIZE"]), rank
    )
    dist.barrier()
    dist.destroy_process_group()
meet(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
meet("127.0.0.1:<port>")
say("met twice")
os._exit(0)  # torch now and then ends a busy process with SIGABRT
"""
SCRIPT = """
import os, random, signal, sys, time
import torch
import torch.distributed as dist
from ftrun.monitor import client

rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
kills, exits = int(sys.argv[1]), int(sys.argv[2])
time.sleep(random.Random(2 * restart + rank).uniform(0, 0.2))
dist.init_process_group("gloo")
total = torch.ones(1)
for step in range(5):
    dist.all_reduce(total)
    client.heartbeat(step)
    if step == 2 and restart < kills and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 2 and kills <= restart < kills + exits and rank == restart % 2:
        os._exit(1)
dist.barrier()
os.write(1, f"rank {rank} done with {total.item()} after {restart} restarts\\n".encode())
dist.destroy_process_group()
os._exit(0)  # torch now and then ends a busy process with SIGABRT
"""


def run_gloo_job(directory: Path, kills: int, exits: int, *options: str) -> Run:
    """Two gloo ranks, one of which fails in each round: first rank 1 by SIGKILL, then both in turn."""
    script = directory / "train.py"
    script.write_text(SCRIPT)
    # It begins anew each time and fails in the same place, as on purpose.
    limits = ("--ft-set", "restart.max_no_progress=0", "--ft-set", "restart.max_same_failure=0")
    budget = ("--max-restarts", str(kills + exits + 5), *limits)
    command = (*TWO, *budget, *options, str(script), str(kills), str(exits))
    exit_code, run = finish(directory, *command, timeout_s=400)
    assert exit_code == 0, run.stderr
    for rank in (0, 1):
        assert f"rank {rank} done with 32.0 after {kills + exits} restarts\n" in run.stdout
    incidents = run.events(events.IncidentDiagnosed)
    assert [one.incident_kind for one in incidents] == ["killed"] * kills + ["exit_code"] * exits
    expected = [1] * kills + [restart % 2 for restart in range(kills, kills + exits)]
    assert [one.culprit_rank for one in incidents] == expected
    assert all(one.has_progressed for one in incidents)
    return run


def test_no_key_of_the_round_before_is_in_the_store(tmp_path: Path) -> None:
    """What a round has set is not there in the next one, looked for as a fresh init_process_group would."""
    exit_code, run = finish(tmp_path, *TWO, "--max-restarts", "1", WORKER, LEAVE_KEYS, timeout_s=90)
    assert exit_code == 0, run.stderr
    assert run.stdout.count("agent serves the store: True") == 4
    assert run.stdout.count("stale: False") == 4


@pytest.mark.slow
def test_ranks_can_meet_by_an_address(tmp_path: Path) -> None:
    """That of the agent's store as it is; one of their own once they have said that they serve it."""
    script = MEET_BY_ADDRESS.replace("<port>", str(free_port()))
    exit_code, run = finish(tmp_path, *TWO, WORKER, script, timeout_s=90)
    assert exit_code == 0, run.stderr
    assert run.stdout.count("met twice") == 2


@pytest.mark.slow
def test_twenty_failures_in_a_collective_cost_twenty_restarts(tmp_path: Path) -> None:
    """No attempt is lost to stale addresses, even with each round's store on the same port."""
    port = free_port()
    run = run_gloo_job(tmp_path, 10, 10, "--master-port", str(port))
    assert [event.master_port for event in run.events(events.RoundClosed)] == [port] * 21


@pytest.mark.slow
def test_ten_kills_cost_ten_restarts_on_free_ports(tmp_path: Path) -> None:
    """The same where each round chooses a port of its own."""
    run_gloo_job(tmp_path, 10, 0)

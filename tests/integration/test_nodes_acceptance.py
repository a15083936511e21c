"""Nodes that come late, are replaced and are lost, in jobs that ask for no special care.

Each of these ends a job under torchrun 2.13, after a minute or never.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import WORKER, Said, ended, job, node_of

REFORMED_S = 15.0
"""Bound for a new round, on a machine that does much else."""
LOST_AFTER_S = 5.0
QUICK = ("--ft-set", "rdzv.keep_alive_interval=0.5", "--ft-set", f"rdzv.lost_after={LOST_AFTER_S:g}")
WORKS = "print('incarnation', os.getpid(), flush=True)\nwork_until('end')"


def check_meeting(found: Sequence[Said], world: int) -> None:
    """All ranks of a world are there, and meet at one address, at which something listens."""
    assert sorted(one.rank for one in found) == list(range(world))
    assert {one.world for one in found} == {world}
    [(host, _, port)] = {one.master.rpartition(":") for one in found}
    socket.create_connection((host, int(port)), timeout=5).close()


def printed(logs: Path) -> dict[Path, str]:
    """What each file of a rank's output has, of those that are not empty."""
    texts = {path: path.read_text() for path in logs.rglob("stdout.log")}
    return {path: text for path, text in texts.items() if text}


@pytest.mark.slow
@pytest.mark.parametrize("addresses", [("", ""), ("localhost", "127.0.0.1")])
def test_node_that_comes_late_meets_the_others_and_no_log_is_lost(
    tmp_path: Path, addresses: tuple[str, str]
) -> None:
    """Whichever node is first in the order, and again when the late one is killed and another comes."""
    logs = tmp_path / "logs"
    options = (*("--nnodes", "1:2", "--ft-grow", "immediately", "--log-dir", str(logs)), *QUICK)
    files = ("--redirects", "3", "--rdzv-conf", "last_call_timeout=0")
    given = [("--local-addr", address) if address else () for address in addresses]
    with job(tmp_path, *options, *files, script=(WORKER, WORKS)) as this:
        # The late node stands before the first one where addresses are given.
        first = this.start(1 if addresses[0] else 0, *given[0])
        check_meeting(this.wait_said("works", restart=0), world=1)
        late = this.start(0 if addresses[0] else 1, *given[1])
        both = this.wait_said("works", 2, restart=1)
        check_meeting(both, world=2)
        _, came = [one.at for one in first.records() if isinstance(one.event, events.NodeJoined)]
        assert max(one.at for one in both) - came < REFORMED_S
        this.kill(late)
        check_meeting(this.wait_said("works", restart=2), world=1)
        again = this.start_again(late)
        check_meeting(this.wait_said("works", 2, restart=3), world=2)
        this.release("end")
        assert this.codes(first, again) == [0, 0], this.account()
        this.check_one_world()
        pids = sorted(one.pid for one in this.said("began"))
        assert sorted(int(text.split()[1]) for text in printed(logs).values()) == pids
        assert len(pids) == 6


@pytest.mark.slow
@pytest.mark.parametrize("is_host", [False, True])
def test_dead_node_is_noticed_and_the_others_go_on_without_it(tmp_path: Path, is_host: bool) -> None:
    """Its agent is killed, and never comes back: that of the first rank, which may serve the store too."""
    options = ("--nnodes", "1:3", *QUICK, "--rdzv-conf", "last_call_timeout=300", "--max-restarts", "1")
    with job(tmp_path, *options, script=(WORKER, WORKS)) as this:
        host = this.start_host(0 if is_host else 2)
        others = [this.start(place) for place in ((1, 2) if is_host else (0, 1))]
        dies, *rest = (host, *others) if is_host else (others[0], others[1], host)
        check_meeting(this.wait_said("works", 3, restart=0), world=3)
        killed_at = time.monotonic()
        this.kill(dies)
        again = this.wait_said("works", 2, restart=1)
        check_meeting(again, world=2)
        assert max(one.at for one in again) - killed_at < LOST_AFTER_S + REFORMED_S
        this.release("end")
        assert this.codes(*rest) == [0, 0], this.account()
        this.check_one_world()
        for run in rest:
            [incident] = run.events(events.IncidentDiagnosed)
            assert incident.incident_kind == "node_lost"
            assert node_of(dies) in incident.reasons[0]
            assert ended(run).restart_count == 1
        why = "the host agent was lost" if is_host else "no keep-alive for"
        assert any(why in run.stderr for run in rest), this.account()


@pytest.mark.slow
def test_node_that_dies_before_the_first_round_leaves_no_ghost_in_it(tmp_path: Path) -> None:
    """It had joined and is replaced by another node, however soon: no round waits for one that is dead."""
    options = ("--nnodes", "3", *QUICK, "--max-restarts", "1")
    with job(tmp_path, *options, script=(WORKER, WORKS)) as this:
        host, dies = this.start_host(0), this.start(1)
        this.wait_event(host, events.NodeJoined, 2)
        others = [this.start(2)]
        this.kill(dies)
        others.append(this.start(3))
        this.wait_until(lambda: {one.place for one in this.said("works")} == {0, 2, 3}, "three nodes")
        last = max(one.restart for one in this.said("works"))
        check_meeting(this.wait_said("works", 3, restart=last), world=3)
        this.release("end")
        assert this.codes(host, *others) == [0, 0, 0], this.account()
        [lost] = host.events(events.NodeLost)
        assert lost.name == node_of(dies)
        this.check_one_world()

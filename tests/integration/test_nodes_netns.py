"""Real agents on hosts with networks of their own: names, addresses, cables that are cut and mended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.netns import Host, HostJob, Network, host_job, network, why_not
from tests.support.nodes import TRAINING, WORKER, ended
from tests.support.rank_words import weights_after
from tests.support.run import Run

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

QUICK = ("--nproc-per-node", "1", "--ft-standby", "off")
STEPS = """
from ftrun.monitor.client import heartbeat
while not has("end"):
    heartbeat()
    say("step")
    time.sleep(0.05)
"""
"""A rank that needs no other: it shows for how long it is let run."""
LOST_AFTER_S = 5.0
"""Default of ftrun.rdzv.lost_after; nobody has anything to save here, so that workers end at once."""
SLACK_S = 3.0
"""Reading the keep-alives, and a machine that does much else."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with network(tmp_path / "net") as made:
        yield made


def names(*hosts: Host) -> dict[str, str]:
    return {host.name: host.address for host in hosts}


def wait_step(job: HostJob, restart: int, world: int) -> None:
    """Until every rank of such a world has done a step."""
    for rank in range(world):
        job.wait_said("step", restart=restart, rank=rank, world=world)


def last_step(job: HostJob, **wanted: int) -> float:
    return job.said("step", **wanted)[-1].at


def test_name_that_is_known_late_leads_to_a_host_that_takes_it_for_its_loopback(
    net: Network, tmp_path: Path
) -> None:
    """The endpoint is waited for, visibly; then the ranks meet at an address that both hosts reach."""
    a, b = net.add("node-a"), net.add("node-b")
    with host_job(tmp_path / "job", "node-a:29400", "--nnodes", "2", *QUICK, script=(TRAINING,)) as job:
        second, first = job.start_on(b, place=0), job.start_on(a, place=1)
        [waiting, *_] = job.wait_event(second, events.StoreAwaited)
        assert "cannot resolve node-a" in waiting.reason
        b.know(names(a))
        assert {one.master.rpartition(":")[0] for one in job.wait_said("began", 2)} == {b.address}
        job.release("end")
        assert job.codes() == [0, 0]
    joined = {one.name: one.address for one in first.events(events.NodeJoined)}
    assert joined == {"node-a": "127.0.0.1", "node-b": b.address}


def test_ranks_of_hosts_without_ipv4_meet_at_the_address_that_was_given(net: Network, tmp_path: Path) -> None:
    """An endpoint in brackets, and one of several addresses of the first node."""
    a, b = net.add("node-a", is_v6=True), net.add("node-b", is_v6=True)
    a.ip("addr", "add", "fd00::a/64", "dev", "eth0", "nodad")
    with host_job(tmp_path / "job", "[fd00::1]:29400", "--nnodes", "2", *QUICK, script=(TRAINING,)) as job:
        job.start_on(a, "--local-addr", "fd00::a")
        job.start_on(b)
        assert {one.master.rpartition(":")[0] for one in job.wait_said("began", 2)} == {"fd00::a"}
        job.release("end")
        assert job.codes() == [0, 0]


def test_node_that_is_cut_off_stops_and_comes_back_when_the_way_is_there_again(
    net: Network, tmp_path: Path
) -> None:
    """No world but one steps: the side with the host agent goes on, the other waits without workers."""
    hosts = [net.add(name) for name in ("node-a", "node-b", "node-c")]
    options = ("--nnodes", "2:3", "--ft-grow", "immediately", *QUICK)
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(WORKER, STEPS)) as job:
        first, _, third = (job.start_on(host) for host in hosts)
        wait_step(job, 0, 3)
        net.cut(hosts[2])
        cut_at = time.monotonic()
        wait_step(job, 1, 2)
        [lost] = first.events(events.NodeLost)
        assert (lost.name, lost.reason[:16]) == ("node-c", "no keep-alive fo")
        job.wait_event(third, events.StoreLost)
        job.wait_event(third, events.RoundStopped)
        assert all(
            last_step(job, restart=0, rank=rank) - cut_at < LOST_AFTER_S + SLACK_S for rank in range(3)
        )
        net.heal(hosts[2])
        wait_step(job, 2, 3)
        job.release("end")
        assert job.codes() == [0, 0, 0]
        job.check_one_world()


def test_node_whose_address_leads_nowhere_is_named_and_tried_again(net: Network, tmp_path: Path) -> None:
    """The round is stopped on both nodes; no restart is used up, and the way may come to be."""
    a, b = net.add("node-a"), net.add("node-b")
    options = ("--nnodes", "2", "--max-restarts", "0", *QUICK)
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(WORKER, STEPS)) as job:
        first, second = job.start_on(a, "--local-addr", "10.77.0.50"), job.start_on(b)
        [incident] = job.wait_event(first, events.IncidentDiagnosed)
        [closed] = first.events(events.RoundClosed)
        way = f"node node-b cannot reach the workers' store on node node-a: 10.77.0.50:{closed.master_port}: "
        assert incident.incident_kind == "unreachable"
        assert incident.reasons[0].startswith(way)
        assert "give node node-a --local-addr with an address that the other nodes" in incident.reasons[0]
        a.ip("addr", "add", "10.77.0.50/24", "dev", "eth0")
        wait_step(job, 1, 2)
        job.release("end")
        assert job.codes() == [0, 0]
    assert [one.action for one in second.events(events.RestartDecided)] == ["restart"]

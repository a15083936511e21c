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
MEET = """
import socket
store = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
while True:
    try:
        socket.create_connection(store, timeout=60).close()
        break
    except OSError:
        time.sleep(0.1)
"""
"""As `init_process_group` does it."""
LOST_AFTER_S = 5.0
"""Default of ftrun.rdzv.lost_after; nobody has anything to save here, so that workers end at once."""
SLACK_S = 8.0
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_node_whose_address_leads_nowhere_is_named_and_tried_again(net: Network, tmp_path: Path) -> None:
    """The round is stopped on both nodes; no restart is used up, and the way may come to be."""
    a, b = net.add("node-a"), net.add("node-b")
    options = ("--nnodes", "2", "--max-restarts", "0", *QUICK)
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(WORKER, MEET + STEPS)) as job:
        first, second = job.start_on(a, "--local-addr", "10.77.0.50"), job.start_on(b)
        [incident] = job.wait_event(first, events.IncidentDiagnosed)
        [closed] = first.events(events.RoundClosed)
        way = f"node node-b cannot reach the workers' store on node node-a: 10.77.0.50:{closed.master_port}: "
        assert incident.incident_kind == "unreachable"
        assert incident.reasons[0].startswith(way)
        assert "give node node-a --local-addr with an address that the other nodes" in incident.reasons[0]
        a.ip("addr", "add", "10.77.0.50/24", "dev", "eth0")
        wait_step(job, 0, 2)
        job.release("end")
        assert job.codes() == [0, 0]
    assert [one.action for one in second.events(events.RestartDecided)] == ["restart"]


@pytest.mark.slow
def test_nodes_that_never_find_a_way_to_each_other_end_with_an_explanation(
    net: Network, tmp_path: Path
) -> None:
    """Nothing gets better by itself: all nodes end alike, within a minute, and no restart is used up."""
    a, b = net.add("node-a"), net.add("node-b")
    with host_job(
        tmp_path / "job", "10.77.0.1:29400", "--nnodes", "2", *QUICK, script=(WORKER, MEET + STEPS)
    ) as job:
        runs = job.start_on(a, "--local-addr", "nowhere.invalid"), job.start_on(b)
        job.wait_event(runs[0], events.IncidentDiagnosed, timeout_s=120)
        assert job.codes() == [95, 95]
    for run in runs:
        why = "the workers could not find each other 5 times in a row: node node-b cannot reach the workers'"
        assert ended(run).reason.startswith(why)
        assert "nowhere.invalid" in run.stderr
        assert "give node node-a --local-addr with an address that the other nodes can reach" in run.stderr
    assert job.said("step") == []


@pytest.mark.slow
def test_side_without_the_host_agent_never_forms_a_world(net: Network, tmp_path: Path) -> None:
    """It has enough nodes, and the host agent has not: nobody trains until all are connected again."""
    hosts = [net.add(name) for name in ("node-a", "node-b", "node-c")]
    options = ("--nnodes", "2:3", "--ft-grow", "immediately", *QUICK)
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(WORKER, STEPS)) as job:
        runs = [job.start_on(host) for host in hosts]
        wait_step(job, 0, 3)
        net.cut(hosts[0])
        cut_at = time.monotonic()
        for run in runs:
            job.wait_event(run, events.RoundStopped)
        [awaited, *_] = job.wait_event(runs[0], events.RendezvousAwaited)
        assert "have node-a" in awaited.awaited
        for run in runs[1:]:
            job.wait_event(run, events.StoreAwaited)
        assert max(one.at for one in job.said("step")) - cut_at < LOST_AFTER_S + SLACK_S
        net.heal(hosts[0])
        job.wait_until(lambda: len({one.group for one in job.said("step") if one.restart}) > 1, "a new world")
        worlds = {one.world for one in job.said("step") if one.restart == 1}
        assert worlds <= {2, 3}
        for run in runs[1:]:  # one that still looks when the job ends would look on in vain
            job.wait_event(run, events.StoreConnected, 2)
        job.release("end")
        assert job.codes() == [0, 0, 0]
        job.check_one_world()


@pytest.mark.slow
def test_node_whose_interface_goes_down_is_lost_and_comes_back(net: Network, tmp_path: Path) -> None:
    """The kernel tells of it: routes go, connections may fail at once; it ends like silence."""
    a, b = net.add("node-a"), net.add("node-b")
    options = ("--nnodes", "1:2", "--ft-grow", "immediately", *QUICK, "--rdzv-conf", "last_call_timeout=60")
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(WORKER, STEPS)) as job:
        job.start_on(a)
        second = job.start_on(b)
        wait_step(job, 0, 2)
        b.unplug()
        cut_at = time.monotonic()
        wait_step(job, 1, 1)
        job.wait_event(second, events.RoundStopped)
        assert last_step(job, restart=0) - cut_at < LOST_AFTER_S + SLACK_S
        b.plug()
        wait_step(job, 2, 2)
        job.release("end")
        assert job.codes() == [0, 0]
        job.check_one_world()


@pytest.mark.slow
def test_node_that_stays_cut_off_gives_up_and_the_others_finish(net: Network, tmp_path: Path) -> None:
    """Training goes on from the newest checkpoint, each step is done once, and the lost node says why."""
    a, b = net.add("node-a"), net.add("node-b")
    checkpoints = tmp_path / "checkpoints"
    options = (
        *("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=60", "--ft-reconnect-timeout", "8"),
        *("--ft-checkpoint-dir", str(checkpoints), *QUICK),
    )
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(TRAINING, str(checkpoints))) as job:
        job.start_on(a)
        second = job.start_on(b)
        job.wait_said("step", 20, restart=0, world=2)
        net.cut(b)
        [began] = job.wait_said("began", world=1)
        assert began.more["step"] > 0
        assert job.codes(second) == [95]
        assert "gave up looking for a host agent" in ended(second).reason
        job.wait_said("step", 20, restart=1)
        job.release("end")
        assert job.codes()[0] == 0
        [done] = job.said("done")
        assert done.more["weights"] == weights_after(done.more["step"])
        job.check_one_world()


@pytest.mark.slow
def test_recovery_waits_for_no_name_server(net: Network, tmp_path: Path) -> None:
    """Hosts whose name server never answers: a look-up there takes 10 s, and a restart makes none."""
    a, b = net.add("node-a"), net.add("node-b")
    net.silence_names()
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--ft-set", "standby.min_free_memory=0")
    train = """
import torch.distributed as dist
dist.init_process_group("gloo")
from ftrun.monitor.client import heartbeat
heartbeat()
say("met")
if restart_count == 0:
    wait_for("go")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
wait_for("end")
os._exit(0)  # torch now and then ends a busy process with SIGABRT
"""
    with host_job(tmp_path / "job", "10.77.0.1:29400", *options, script=(WORKER, train)) as job:
        runs = job.start_on(a), job.start_on(b)
        for run in runs:
            job.wait_event(run, events.StandbyReadied, 1, timeout_s=120)
        job.release("go")
        recoveries = [job.wait_event(run, events.RecoveryCompleted) for run in runs]
        job.release("end")
        assert job.codes() == [0, 0]
    for [recovery] in recoveries:
        assert recovery.total_s < 8.0

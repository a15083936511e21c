"""How the agents of a job find each other, in which order they stand, and who is turned away."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.monitor import events
from ftrun.monitor.journal import read
from tests.support.nodes import DEADLINE_S, WORKER, ended, free_port, job, seconds_since
from tests.support.run import start
from tests.support.waiting import until

WORKS = "work_until('end')"
DIES_ONCE = """
if rank == 1 and restart_count == 0:
    os.kill(os.getpid(), 9)
work_until('end')
"""
AT_ONCE_S = 10.0
"""Bound for what waits for nothing, on a busy machine."""
JOB_A = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
SLURM = [{**JOB_A, "SLURM_PROCID": str(place)} for place in range(2)]
KUBERNETES = [{"JOB_COMPLETION_INDEX": str(place), "HOSTNAME": f"train-{place}-ab1cd"} for place in range(2)]


@pytest.mark.slow
def test_other_jobs_are_refused_and_the_same_id_can_be_used_again(tmp_path: Path) -> None:
    """Another id and other arguments end with 95, told on both sides; who waits is not disturbed."""
    with job(tmp_path, "--nnodes", "2", script=(WORKER, WORKS)) as this:
        first = this.start_host(0)
        strangers = [
            this.start(1, "--rdzv-id", "another"),
            this.start(1, script=(WORKER, "say('not the same')")),
        ]
        assert this.codes(*strangers) == [95, 95], this.account()
        reasons = [ended(one).reason for one in strangers]
        assert '"another"' in reasons[0]
        assert '"j"' in reasons[0]
        assert "same_arguments" in reasons[1]
        this.wait_event(first, events.NodeRefused, 2)
        assert sorted(one.reason for one in first.events(events.NodeRefused)) == sorted(reasons)
        assert this.said("began") == []
        this.release("end")
        second = this.start(1)
        assert this.codes(first, second) == [0, 0], this.account()
        again = [this.start(0), this.start(1)]
        assert this.codes(*again) == [0, 0], this.account()
        assert [one.restart for one in this.said("began")] == [0, 0, 0, 0]


def is_listened_to(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[int]:
    """Port of an etcd that speaks the v2 API."""
    if shutil.which("etcd") is None or importlib.util.find_spec("etcd") is None:
        pytest.skip("needs etcd (Debian: etcd-server) and its client (pip install python-etcd)")
    port, peers = free_port(), free_port()
    urls = ("--listen-client-urls", "--advertise-client-urls")
    command = ["etcd", "--enable-v2", "--data-dir", str(tmp_path / "etcd")]
    command += [part for option in urls for part in (option, f"http://127.0.0.1:{port}")]
    command += ["--listen-peer-urls", f"http://127.0.0.1:{peers}"]
    with (tmp_path / "etcd.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: is_listened_to(port), lambda: "etcd does not listen", 60)
        yield port
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_etcd_is_a_meeting_place_too(etcd: int, tmp_path: Path) -> None:
    """The store that torch's own handler returns carries the same rounds; no agent serves it."""
    options = ("--nnodes", "2", "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", f"127.0.0.1:{etcd}")
    with job(tmp_path, *options, "--local-addr", "127.0.0.1", script=(WORKER, DIES_ONCE)) as this:
        first, second = this.start(0), this.start(1)
        this.wait_said("began", 2, restart=1)
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        [decided] = first.events(events.RestartDecided)
        assert second.events(events.RestartDecided) == [decided]
        assert "rank 1" in decided.reason
        assert [one.world for one in this.said("began")] == [2, 2, 2, 2]


@pytest.mark.slow
def test_lost_host_agent_is_replaced_in_an_etcd(etcd: int, tmp_path: Path) -> None:
    """Another node takes its place, with all that is known of the job; it joins when it is started again."""
    meeting = (
        "--rdzv-backend",
        "etcd-v2",
        "--rdzv-endpoint",
        f"127.0.0.1:{etcd}",
        "--local-addr",
        "127.0.0.1",
    )
    options = ("--nnodes", "1:2", "--ft-grow", "immediately", "--ft-set", "rdzv.lost_after=4", *meeting)
    patience = ("--rdzv-conf", "last_call_timeout=300")
    with job(tmp_path, *options, *patience, script=(WORKER, WORKS)) as this:
        this.start(0), this.start(1)
        this.wait_said("works", 2, restart=0)
        lost = this.host()
        [stays] = this.others(lost)
        this.kill(lost)
        this.wait_said("works", restart=1, world=1)
        assert this.host() is stays
        again = this.start_again(lost)
        this.wait_said("works", 2, restart=2)
        this.release("end")
        assert this.codes(stays, again) == [0, 0], this.account()
        assert ended(stays).restart_count == ended(again).restart_count == 2
        [incident] = stays.events(events.IncidentDiagnosed)
        assert incident.incident_kind == "node_lost"


@pytest.mark.parametrize(
    ("variables", "run_id"), [(SLURM, "4711"), pytest.param(KUBERNETES, "train", marks=pytest.mark.slow)]
)
def test_scheduler_gives_order_and_id(tmp_path: Path, variables: list[dict[str, str]], run_id: str) -> None:
    """Ranks follow the scheduler's numbers, not who came first; journals lie side by side."""
    shared = {"PET_FT_RUN_DIR": str(tmp_path / "shared")}
    with job(tmp_path, "--nnodes", "2", script=(WORKER, WORKS), rdzv_id="none") as this:
        this.start(None, environment={**variables[1], **shared, "PLACE": "1"})
        this.start(None, environment={**variables[0], **shared, "PLACE": "0"})
        began = this.wait_said("began", 2)
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        assert {one.run_id for one in began} == {run_id}
        assert all(one.place == one.group for one in began)
        journals = sorted((tmp_path / "shared").glob("*.jsonl"))
        assert len(journals) == 2
        nodes = {path.stem: [record.event for record in read(path)] for path in journals}
        closed = [
            event for found in nodes.values() for event in found if isinstance(event, events.RoundClosed)
        ]
        assert len(closed) == 2
        assert closed[0] == closed[1]
        assert set(closed[0].nodes) == set(nodes)


def test_static_rendezvous_keeps_the_order_and_restarts_all_nodes(tmp_path: Path) -> None:
    """--node-rank, --master-addr and --master-port as under torchrun; a wait ends at once when told to."""
    options = (
        "--nnodes",
        "2",
        "--rdzv-backend",
        "static",
        "--rdzv-endpoint",
        "",
        "--master-addr",
        "127.0.0.1",
    )
    code = "if group == 1 and restart_count == 0: sys.exit(3)\nwork_until('end')"
    with job(tmp_path, *options, script=(WORKER, code)) as this:
        port = ("--master-port", str(this.port))
        waits = this.start(1, *port)
        [awaited, *_] = this.wait_event(waits, events.StoreAwaited)
        assert "no host agent there yet" in awaited.reason
        waits.send(signal.SIGINT)
        told_at = time.monotonic()
        assert this.codes(waits) == [130], this.account()
        assert seconds_since(told_at) < AT_ONCE_S
        this.start(1, *port)
        this.start(0, *port)
        again = this.wait_said("works", 2, restart=1)
        assert len({one.master for one in again}) == 1
        this.release("end")
        assert this.codes(*this.runs[1:]) == [0, 0], this.account()
        placed = {(one.rank, one.group, one.place) for one in this.said("began")}
        assert placed == {(0, 0, 0), (1, 1, 1)}


@pytest.mark.slow
def test_foreign_listener_on_the_endpoint_is_named(tmp_path: Path) -> None:
    """The wait is visible within seconds, and over as soon as the port is free."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as foreign:
        options = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0")
        with job(tmp_path, *options, script=(WORKER, "pass"), port=port) as this:
            run = this.start(0)
            [awaited, *_] = this.wait_event(run, events.StoreAwaited)
            assert "does not answer as a torch TCPStore" in awaited.reason
            assert f"pid {os.getpid()}" in awaited.reason
            this.wait_until(lambda: awaited.reason in run.stderr, "the reason on the terminal")
            foreign.close()
            assert this.codes() == [0], this.account()


def test_name_that_does_not_resolve_is_a_visible_wait(tmp_path: Path) -> None:
    """The reason and the deadline are shown, and SIGINT ends the wait at once."""
    endpoint = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "nosuchhost.invalid:29400", "--rdzv-id", "j")
    with start(tmp_path, "--nnodes", "2", *endpoint, WORKER, WORKS) as run:
        [awaited, *_] = run.wait_for_event(events.StoreAwaited, timeout_s=DEADLINE_S)
        assert "cannot resolve nosuchhost.invalid" in awaited.reason
        assert 0 < awaited.remaining_s <= 600
        run.wait_until(lambda: awaited.reason in run.stderr, "the reason on the terminal")
        told_at = time.monotonic()
        run.send(signal.SIGINT)
        assert run.wait() == 130
        assert seconds_since(told_at) < AT_ONCE_S
        assert run.living() == {}

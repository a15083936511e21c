"""How jobs of several agents end: with one code and one explanation on all nodes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import WORKER, Job, ended, job, node_of, seconds_since
from tests.support.run import Run

SHORT_S = 10.0

WORKS = "work_until('end')"
FAILS_ON_REQUEST = """
if group == 1:
    heartbeat()
    wait_for(f"fail{restart_count}")
    sys.exit(7)
work_until("never")
"""
FIRST_IS_DONE = """
if group == 1 or restart_count == 1:
    work_until("end")
"""
STANDS_STILL = """
def beat_until(is_reached):
    while True:
        beat_at = time.monotonic()
        heartbeat()
        if is_reached(beat_at):
            return beat_at
        time.sleep(0.01)
if restart_count == 0:
    (directory() / f"{group} works").touch()
    beat_until(lambda beat_at: has("1 works" if group == 0 else "0 is quiet"))
    until = time.monotonic() + 2 * 2.0 * group
    say("quiet", beat_at=beat_until(lambda beat_at: beat_at >= until))
    (directory() / f"{group} is quiet").touch()
    if group == 1 or not has("first may end"):
        time.sleep(1e6)
    sys.exit(0)
work_until("end")
"""
ASKS = """
heartbeat()
from ftrun.monitor import client
if group == 1:
    wait_for("exclude")
    client.exclude_this_node("this node is slow")
elif restart_count == 1:
    wait_for("shut down")
    client.request_stop("the loss is not a number")
time.sleep(60)
"""


def reasons(this: Job) -> set[str]:
    """Why the job ended, as the agents have it."""
    return {ended(run).reason for run in this.runs}


def test_budget_is_the_jobs_and_ends_all_nodes_alike(tmp_path: Path) -> None:
    """Both nodes count the same restarts; the failure after the last one ends both, with one explanation."""
    with job(tmp_path, "--nnodes", "2", "--max-restarts", "2", script=(WORKER, FAILS_ON_REQUEST)) as this:
        this.start(0)
        this.start(1)
        for restart in range(3):
            this.wait_said("began", 2, restart=restart)
            failed_at = time.monotonic()
            this.release(f"fail{restart}")
        assert this.codes() == [7, 7], this.account()
        assert seconds_since(failed_at) < SHORT_S
        [reason] = reasons(this)
        assert "exit code 7" in reason
        assert "all 2 restarts are used up" in reason
        assert all(reason in run.stderr for run in this.runs)
        assert {ended(run).restart_count for run in this.runs} == {2}
        this.check_one_world()


@pytest.mark.parametrize(
    ("code", "restarts", "why"),
    [
        ("import nosuch", 0, "before any progress, so a restart would fail the same way"),
        pytest.param(
            "raise ValueError(f'bad shape {time.time()}')",
            1,
            "the same exception twice in a row",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bug_ends_all_nodes_early(tmp_path: Path, code: str, restarts: int, why: str) -> None:
    """What fails before any progress, on one node and the same way again, is given up on all with 93."""
    options = ("--nnodes", "2", "--max-restarts", "5")
    with job(tmp_path, *options, script=(WORKER, f"if group == 1: {code}\ntime.sleep(60)")) as this:
        this.start(0)
        this.start(1)
        assert this.codes() == [93, 93], this.account()
        [reason] = reasons(this)
        assert why in reason
        assert {ended(run).restart_count for run in this.runs} == {restarts}


@pytest.mark.slow
def test_too_few_nodes(tmp_path: Path) -> None:
    """Everyone who waits ends with 95 and says who was there and how many were missing."""
    options = ("--nnodes", "3", "--rdzv-conf", "join_timeout=40")
    with job(tmp_path, *options, script=(WORKER, WORKS)) as this:
        first = this.start_host(0)
        second = this.start(1)
        [awaited, *_] = this.wait_event(first, events.RendezvousAwaited)
        assert "of 3 nodes" in awaited.awaited

        def is_seen_by(run: Run) -> bool:
            return any("1 of 3 nodes" in one.awaited for one in run.events(events.RendezvousAwaited))

        this.wait_until(lambda: is_seen_by(first) and is_seen_by(second), "all who wait see for what", 30)
        assert this.codes() == [95, 95], this.account()
        [reason] = reasons(this)
        assert "join_timeout" in reason
        assert "1 of 3 nodes" in reason
        assert this.said("began") == []
        assert first.events(events.RoundClosed) == second.events(events.RoundClosed) == []


@pytest.mark.slow
def test_node_that_is_done_waits_for_the_others_and_begins_again_if_one_is_lost(tmp_path: Path) -> None:
    """A rank that leaves with 0 is no failure; a node lost after that is replaced, and all end with 0."""
    with job(tmp_path, "--nnodes", "2", script=(WORKER, FIRST_IS_DONE)) as this:
        done, lost = this.start(0), this.start(1)
        this.wait_event(done, events.RoundStopped)
        assert done.events(events.RoundStopped)[0].cause == "success"
        this.wait_said("works", group=1)
        assert done.process.poll() is None
        this.kill(lost)
        again = this.start_again(lost)
        this.wait_said("works", 2, restart=1)
        this.release("end")
        assert this.codes(done, again) == [0, 0], this.account()
        this.check_one_world()


@pytest.mark.slow
@pytest.mark.parametrize("is_first_done", [False, True])
def test_standstill_is_judged_over_all_nodes(tmp_path: Path, is_first_done: bool) -> None:
    """Ranks that wait, or are done, are no hang while another node's move; once none does there is one."""
    options = ("--nnodes", "2", "--ft-set", "timeouts.stall=2", "--ft-set", "timeouts.stall_floor=2")
    with job(tmp_path, *options, script=(WORKER, STANDS_STILL)) as this:
        if is_first_done:
            this.release("first may end")
        this.start(0)
        this.start(1)
        first, last = this.wait_said("quiet", 2)
        assert (first.group, last.group) == (0, 1)
        assert last.more["beat_at"] - first.more["beat_at"] > 3.9
        this.wait_said("works", 2, restart=1)
        this.release("end")
        assert this.codes() == [0, 0], this.account()
        for run in this.runs:
            [incident] = run.events(events.IncidentDiagnosed)
            assert incident.incident_kind == "stall"
        if is_first_done:
            [order] = this.runs[1].events(events.RoundStopOrdered)
            assert f"node {node_of(this.runs[0])} had ended before, with exit code 0" in order.reason
        hangs = [
            one for run in this.runs for one in run.records() if isinstance(one.event, events.HangDetected)
        ]
        assert len(hangs) == (1 if is_first_done else 2)
        assert all(2 <= one.at - last.more["beat_at"] <= 2 + SHORT_S for one in hangs)


@pytest.mark.slow
@pytest.mark.parametrize("is_host", [True, False], ids=["the host's", "another"])
def test_requests_of_a_script_reach_all_nodes(tmp_path: Path, is_host: bool) -> None:
    """A node that wants to be left out leaves with 94 and stays out; a wish to end ends all with 93.

    One that serves the store has no workers any more, and does that on for the others.
    """
    options = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=300")
    with job(tmp_path, *options, script=(WORKER, ASKS)) as this:
        first = this.start_host(1 if is_host else 0)
        second = this.start(0 if is_host else 1)
        leaves, stays = (first, second) if is_host else (second, first)
        this.wait_said("began", 2)
        this.release("exclude")
        this.wait_said("began", restart=1, world=1)
        if not is_host:
            assert this.codes(leaves) == [94], this.account()
            again = this.start_again(leaves)
            assert this.codes(again) == [94], this.account()
            assert "excluded" in ended(again).reason
        this.release("shut down")
        assert this.codes(stays, leaves) == [93, 94], this.account()
        assert "this node is slow" in ended(leaves).reason
        assert "the loss is not a number" in ended(stays).reason
        assert not stays.events(events.StoreLost)


def test_all_nodes_are_told_to_stop(tmp_path: Path) -> None:
    """As a scheduler does: all end at once with 128 + n, and none waits for another."""
    with job(tmp_path, "--nnodes", "2", script=(WORKER, WORKS)) as this:
        this.start(0)
        this.start(1)
        this.wait_said("works", 2)
        told_at = time.monotonic()
        for run in this.runs:
            run.send(signal.SIGTERM)
        assert this.codes() == [143, 143], this.account()
        assert seconds_since(told_at) < SHORT_S

"""What a worker asks of the whole job is done at once, with one exit code and the worker's own reason."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ftrun.monitor import events, workload_requests
from ftrun.monitor.wire import ControlRequest, WorkloadAction
from tests.support.run import WORKER, Run, finish, start

TWO = ("--nproc-per-node", "2")
LONG_S = 120.0
SHORT_S = 10.0

NVRX = """
from nvidia_resiliency_ext.fault_tolerance import (
    RankMonitorClient, WorkloadAction, WorkloadControlRequest
)
client = RankMonitorClient()
client.init_workload_monitoring()
if rank == 1:
    for action, reason in ((WorkloadAction.Continue, "all is well"), (WorkloadAction.{action}, "{reason}")):
        client.send_workload_control_request(WorkloadControlRequest(action, reason))
        say("sent", action.name)
time.sleep(60)
"""
OWN = """
from ftrun.monitor import client
if rank == 1:
    stops = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(True))  # which may come before it has said a word
    say("taken", client.{function}("{reason}"))
    {after}
    while not stops:
        time.sleep(0.01)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die(signal.SIGTERM)
time.sleep(60)
"""
FAILS = """
(directory / "launcher.path").write_text(os.environ["FT_LAUNCHER_IPC_SOCKET"])
raise SystemExit(7)
"""


def requests_of(run: Run) -> list[tuple[int | None, str, str]]:
    """Rank, action and reason of each request in the journal."""
    found = run.events(events.RequestReceived)
    return [(one.rank, one.action, one.description) for one in found]


def check_end(run: Run, code: int, reason: str) -> None:
    """The job ended with this code, said why, and restarted nothing."""
    [ended] = run.events(events.RunEnded)
    assert (ended.exit_code, ended.restart_count) == (code, 0)
    assert reason in ended.reason
    assert reason in run.stderr
    # The end of the job is told as any other; that of one node's part in it is no incident.
    kinds = [incident.incident_kind for incident in run.events(events.IncidentDiagnosed)]
    assert kinds == (["user_stop"] if code == 93 else [])
    [stopped] = run.events(events.RoundStopped)
    assert stopped.cause == "request"
    assert stopped.stop_s < SHORT_S


@pytest.mark.parametrize(("action", "code"), [("ShutdownWorkload", 93), ("ExcludeThisNode", 94)])
def test_requests_of_the_unmodified_client(tmp_path: Path, action: str, code: int) -> None:
    """Continue is only journalled; the other two stop every worker, and the reason is shown."""
    reason = "the loss is not a number"
    script = NVRX.format(action=action, reason=reason)
    exit_code, run = finish(tmp_path, *TWO, WORKER, script, timeout_s=LONG_S)
    assert exit_code == code, run.stderr
    assert requests_of(run) == [(1, "Continue", "all is well"), (1, action, reason)]
    assert "[r1 rc0] sent Continue" in run.stdout
    check_end(run, code, reason)


@pytest.mark.parametrize(
    ("function", "action", "code", "after"),
    [
        ("request_stop", "ShutdownWorkload", 93, "pass"),
        ("exclude_this_node", "ExcludeThisNode", 94, "raise SystemExit(1)"),
    ],
)
def test_requests_of_the_own_client(
    tmp_path: Path, function: str, action: str, code: int, after: str
) -> None:
    """As above; a rank that fails right after it has asked is no failure of its own."""
    reason = "gradients are \\u221e on this node"
    script = OWN.format(function=function, reason=reason, after=after)
    exit_code, run = finish(tmp_path, *TWO, WORKER, script)
    assert exit_code == code, run.stderr
    assert "[r1 rc0] taken True" in run.stdout
    shown = reason.encode().decode("unicode_escape")
    assert requests_of(run) == [(1, action, shown)]
    check_end(run, code, shown)


def test_reason_is_told_without_secrets(tmp_path: Path) -> None:
    """In the journal, in the incident and on the terminal; one rank that stops itself is no other rank."""
    script = OWN.replace("rank == 1", "rank == 0").format(
        function="request_stop", reason="refused: db_password=hunter22", after="pass"
    )
    exit_code, run = finish(tmp_path, WORKER, script)
    assert exit_code == 93, run.stderr
    assert requests_of(run) == [(0, "ShutdownWorkload", "refused: db_password=***")]
    [incident] = run.events(events.IncidentDiagnosed)
    assert "db_password=***" in incident.reasons[0]
    assert "fell with it" not in run.stderr
    assert "hunter22" not in run.stderr
    assert not any("hunter22" in repr(record) for record in run.events(events.RoundStopOrdered))
    check_end(run, 93, "refused: db_password=***")


def test_request_during_the_pause_before_a_restart(tmp_path: Path) -> None:
    """What outlived its round, or a person on the node, is heard then too, and nothing starts any more."""
    pause = ("--ft-set", "restart.backoff_initial=60", "--ft-set", "restart.backoff_max=60")
    with start(tmp_path, *pause, WORKER, FAILS) as run:
        run.wait_until(
            lambda: any(one.delay_s > 0 for one in run.events(events.RestartDecided)), "a pause", LONG_S
        )
        path = (tmp_path / "launcher.path").read_text()
        request = ControlRequest(None, WorkloadAction.SHUTDOWN_WORKLOAD, "the operator has seen enough")
        asked_at = time.monotonic()
        assert workload_requests.send(path, request, SHORT_S)
        assert run.wait(SHORT_S) == 93, run.stderr
        assert time.monotonic() - asked_at < SHORT_S
        assert run.living() == {}
    assert requests_of(run) == [(None, "ShutdownWorkload", "the operator has seen enough")]
    [ended] = run.events(events.RunEnded)
    assert "the operator has seen enough" in ended.reason
    assert "the operator has seen enough" in run.stderr

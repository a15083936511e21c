"""Control requests: they are of nvidia-resiliency-ext's own classes, and nobody waits for ever."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.monitor import client, wire, workload_requests
from ftrun.monitor.incident import REPORTABLE, FaultReport, IncidentKind
from ftrun.monitor.page import Page
from ftrun.monitor.wire import ControlRequest, WorkloadAction

DEADLINE_S = 30.0


def take(connection: socket.socket) -> bytes:
    """The content of one frame."""
    buffer = bytearray()
    while not (contents := list(wire.split_frames(buffer))):
        received = connection.recv(65536)
        assert received
        buffer += received
    return contents[0]


@contextmanager
def launcher(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something that listens where a launcher would, for one connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(DEADLINE_S)

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(DEADLINE_S)
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("action", list(WorkloadAction))
@pytest.mark.parametrize("rank", [0, 255, 70_000, None])
@pytest.mark.parametrize("reason", ["", "loss is NaN", "ü" * 300, "\ud800"])
def test_what_is_sent_is_what_the_server_reads(action: WorkloadAction, rank: int | None, reason: str) -> None:
    """Whatever the reason holds."""
    request = ControlRequest(rank, action, reason)
    (content,) = wire.split_frames(bytearray(workload_requests.encode(request)))
    assert wire.decode_control(content) == request


def test_nvidia_resiliency_exts_own_launcher_could_read_it() -> None:
    """The pickle is of its classes, which this package does not import."""
    data = pytest.importorskip("nvidia_resiliency_ext.fault_tolerance.data")
    frame = workload_requests.encode(ControlRequest(3, WorkloadAction.SHUTDOWN_WORKLOAD, "loss is NaN"))
    rank, request = pickle.loads(frame[4:])
    assert (rank, type(request)) == (3, data.WorkloadControlRequest)
    assert request.action is data.WorkloadAction.ShutdownWorkload
    assert request.description == "loss is NaN"


CALLS = {
    "request_stop": WorkloadAction.SHUTDOWN_WORKLOAD,
    "exclude_this_node": WorkloadAction.EXCLUDE_THIS_NODE,
}


def requests_by(call: str, tmp_path: Path) -> list[ControlRequest]:
    """What a script of rank 5 asks the launcher for with this call of the client, which succeeds."""
    taken: list[ControlRequest] = []

    def serve(connection: socket.socket) -> None:
        taken.append(wire.decode_control(take(connection)))
        connection.sendall(wire.CONTROL_TAKEN)

    page = Page.create()
    path = tmp_path / "launcher.socket"
    environment = {"FTRUN_PAGE": page.path, "FT_LAUNCHER_IPC_SOCKET": str(path), "RANK": "5"}
    code = f"from ftrun.monitor import client; print(client.{call})"
    with launcher(path, serve):
        output = subprocess.check_output(
            [sys.executable, "-c", code], env={**os.environ, **environment}, timeout=DEADLINE_S
        )
    page.close()
    assert output == b"True\n"
    return taken


@pytest.mark.parametrize("name", CALLS)
def test_a_script_is_told_that_its_request_was_taken(name: str, tmp_path: Path) -> None:
    """Through the client, with the rank that it has."""
    taken = requests_by(f"{name}('a sick GPU')", tmp_path)
    assert taken == [ControlRequest(5, CALLS[name], "a sick GPU")]


def test_reported_fault_is_a_request_with_its_kind(tmp_path: Path) -> None:
    """A kind that only the launcher can see is the script's mistake, and says which there are."""
    taken = requests_by("report_fault('nan_loss', 'at step 7: nan')", tmp_path)
    assert taken == [ControlRequest(5, WorkloadAction.REPORT_FAULT, "nan_loss: at step 7: nan")]
    report = FaultReport.parse(taken[0].global_rank, taken[0].description)
    assert report == FaultReport(5, IncidentKind.NAN_LOSS, "at step 7: nan")
    with pytest.raises(ValueError, match="kind is 'segfault'; expected is one of nan_loss, checkpoint_load"):
        client.report_fault("segfault", "x")
    assert FaultReport.parse(5, "segfault: x") is None


def test_what_a_script_may_report_is_the_same_on_both_sides() -> None:
    """The client does not import the kinds."""
    assert tuple(kind.value for kind in REPORTABLE) == client.REPORTABLE


REQUEST = ControlRequest(0, WorkloadAction.SHUTDOWN_WORKLOAD, "why")


def test_a_launcher_that_does_not_answer_costs_no_more_than_the_limit(tmp_path: Path) -> None:
    """Nor one that hangs up, nor none at all."""
    path = tmp_path / "launcher.socket"
    is_over = threading.Event()
    with launcher(path, lambda _: assert_so(is_over.wait(DEADLINE_S))):
        assert not workload_requests.send(str(path), REQUEST, 0.2)
        is_over.set()
    assert not workload_requests.send(str(path), REQUEST, DEADLINE_S)
    path.unlink()
    with launcher(path, lambda connection: assert_so(bool(take(connection)))):
        assert not workload_requests.send(str(path), REQUEST, DEADLINE_S)
    assert not workload_requests.send(str(tmp_path / "nothing"), REQUEST, DEADLINE_S)
    assert not workload_requests.send("x" * 200, REQUEST, DEADLINE_S)


def assert_so(condition: bool) -> None:
    assert condition

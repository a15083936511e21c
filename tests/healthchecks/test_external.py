"""Checks that others wrote: commands, and the answers of NVRx's daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.healthchecks import children, external
from ftrun.healthchecks.external import check_command, check_nvhcd, judge_answer
from ftrun.healthchecks.nvhcd import NodeAnswer, decode_answer, encode_request
from ftrun.healthchecks.result import Status
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("script", "status", "observed"),
    [
        ("echo all fine", Status.HEALTHY, "sh: all fine"),
        ("true", Status.HEALTHY, "sh: ended with exit code 0"),
        ("echo looking; echo disk is bad >&2; exit 1", Status.UNHEALTHY, "sh: disk is bad"),
        ("echo no idea; exit 2", Status.UNKNOWN, "sh: no idea"),
        ("echo odd; exit 77", Status.UNKNOWN, "sh ended with exit code 77: odd"),
        ("kill -9 $$", Status.UNKNOWN, "sh was killed by SIGKILL"),
        ("no-such-command-anywhere 2>/dev/null", Status.UNKNOWN, "sh ended with exit code 127"),
    ],
)
def test_exit_codes_of_a_command(script: str, status: Status, observed: str) -> None:
    """0, 1 and 2 have a meaning, anything else says nothing of the node."""
    result = check_command(["sh", "-c", script], 20, "node-a")
    assert (result.status, result.observed) == (status, observed)


def test_command_that_is_not_there_is_unknown() -> None:
    """A typo excludes no node."""
    result = check_command(["/opt/no/checker", "--fast"], 20, "node-a")
    assert result.status is Status.UNKNOWN
    assert "No such file or directory" in result.observed


def test_command_without_an_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the deadline, and no healthy result."""
    monkeypatch.setattr(children, "DEATH_S", 20.0)  # a busy machine takes a moment to end it
    started = time.monotonic()
    result = check_command(["sleep", "60"], 0.3, "node-a")
    assert (result.status, result.observed) == (Status.UNKNOWN, "sleep gave no answer within 0.3 s")
    assert time.monotonic() - started < 30


def test_command_ends_with_its_agent() -> None:
    """Nobody is left to end it later."""
    code = (
        "from ftrun.healthchecks.external import check_command\ncheck_command(['sh', '-c', {!r}], 600, 'n')"
    )
    script = "echo $$ > $OUT.new; mv $OUT.new $OUT; exec sleep 600"
    out = Path(os.environ.get("TMPDIR", "/tmp")) / f"ftrun-test-tether-{os.getpid()}"
    environ = {**os.environ, "OUT": str(out)}
    agent = subprocess.Popen([sys.executable, "-c", code.format(script)], env=environ)
    try:
        until(out.exists, lambda: "the command has not started")
        pid = int(out.read_text())
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        until(lambda: not _is_running(pid), lambda: f"{pid} still runs")
    finally:
        agent.kill()
        agent.wait()
        out.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"success": True}, Status.HEALTHY),
        ({"success": True, "output": '{"fail_count": 0}'}, Status.HEALTHY),
        ({"success": True, "output": '{"other": 1}'}, Status.HEALTHY),
        ({"success": True, "output": '{"fail_count": 2}'}, Status.UNHEALTHY),
        ({"success": True, "output": "fine"}, Status.UNKNOWN),
        ({"success": False, "exit_code": 1, "output": '{"fail_count": 1}'}, Status.UNHEALTHY),
        ({"success": False, "exit_code": 1, "error": "gpu lost"}, Status.UNHEALTHY),
        ({"success": False, "exit_code": 127, "error": "no such script"}, Status.UNKNOWN),
        ({"success": False, "exit_code": -1, "error": "fork failed"}, Status.UNKNOWN),
        ({}, Status.UNHEALTHY),
        ({"unreachable": "UNAVAILABLE"}, Status.UNKNOWN),
    ],
)
def test_answers_of_the_daemon(answer: dict[str, object], status: Status) -> None:
    """A failed script condemns; one that did not run, or cannot be asked for, is unknown."""
    assert judge_answer(answer)[0] is status


def test_request_is_encoded_as_protobuf_does() -> None:
    """Field 1, a length, the text; a length above 127 takes two bytes."""
    assert encode_request(["--no-slurm", "gpu"]) == b"\x0a\x0a--no-slurm\x0a\x03gpu"
    assert encode_request(["x" * 200])[:3] == b"\x0a\xc8\x01"
    assert encode_request([]) == b""


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", NodeAnswer()),
        (b"\x08\x01", NodeAnswer(success=True)),
        (b"\x10\x2a\x1a\x02{}\x22\x03bad", NodeAnswer(exit_code=42, output="{}", error="bad")),
        (b"\x10" + b"\xff" * 9 + b"\x01", NodeAnswer(exit_code=-1)),
        (b"\x2a\x01x\x31" + bytes(8) + b"\x3d" + bytes(4) + b"\x08\x01", NodeAnswer(success=True)),
    ],
)
def test_answer_is_decoded(data: bytes, answer: NodeAnswer) -> None:
    """Fields that are missing have their default, unknown ones are passed over."""
    assert decode_answer(data) == answer


@pytest.mark.parametrize("data", [b"\x08", b"\x1a\x05abc", b"\x0b", b"\x80" * 11, b"\x31abc"])
def test_answer_that_is_cut_off_is_none(data: bytes) -> None:
    """It does not look like success."""
    with pytest.raises(ValueError):
        decode_answer(data)


@given(st.binary(max_size=40))
def test_no_answer_raises_anything_else(data: bytes) -> None:
    """Whatever is behind the socket."""
    with contextlib.suppress(ValueError):
        assert isinstance(decode_answer(data), NodeAnswer)


def test_daemon_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    """With grpc or without it, and never healthy as in NVRx."""
    result = check_nvhcd(str(tmp_path / "nvhcd.sock"), "node-a", timeout_s=5.0)
    assert result.status is Status.UNKNOWN
    assert "cannot be reached" in result.observed


def test_launcher_does_not_load_grpc() -> None:
    """It is the child's."""
    code = "import sys, ftrun.healthchecks.external, ftrun.healthchecks.nvhcd; print('grpc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "False\n"


DAEMON = """
import sys, time, grpc
from concurrent import futures
from ftrun.healthchecks.nvhcd import METHOD
path, answer, delay_s = sys.argv[1], bytes.fromhex(sys.argv[2]), float(sys.argv[3])
def run(request, context):
    print(request.hex(), flush=True)
    time.sleep(delay_s)
    return answer
service, _, name = METHOD.strip("/").partition("/")
handler = grpc.method_handlers_generic_handler(service, {name: grpc.unary_unary_rpc_method_handler(run)})
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((handler,))
server.add_insecure_port(f"unix://{path}")
server.start()
print("ready", flush=True)
server.wait_for_termination()
"""


def _ask_real_daemon(path: Path, answer: bytes, delay_s: float, timeout_s: float) -> tuple[Status, str, str]:
    """Status and words of the check, and the request that the daemon got, in hexadecimal digits."""
    pytest.importorskip("grpc", reason="needs grpcio")
    argv = [sys.executable, "-c", DAEMON, str(path), answer.hex(), str(delay_s)]
    daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        result = check_nvhcd(f"unix://{path}", "node-a", timeout_s)
    finally:
        daemon.kill()
        output, _ = daemon.communicate()
    return result.status, result.observed, output.partition("\n")[0]


def test_real_call_over_a_real_socket(tmp_path: Path) -> None:
    """Request and answer as any gRPC server has them."""
    output = json.dumps({"fail_count": 3})
    answer = b"\x08\x01\x1a" + bytes([len(output)]) + output.encode()
    status, observed, request = _ask_real_daemon(tmp_path / "s", answer, 0, 20)
    assert (status, observed) == (Status.UNHEALTHY, f"3 checks failed: {output}")
    assert bytes.fromhex(request) == encode_request(
        ["--no-slurm", "--group", "prolog", "epilog", "logs", "gpu"]
    )


def test_real_daemon_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own deadline tells so, however long it takes to import."""
    monkeypatch.setattr(external, "_GRPC_START_S", 60.0)
    status, observed, _ = _ask_real_daemon(tmp_path / "s", b"\x08\x01", 60, 0.5)
    assert (status, "DEADLINE_EXCEEDED" in observed) == (Status.UNKNOWN, True)


def test_real_daemon_that_answers_garbage(tmp_path: Path) -> None:
    """No success without a message that says so."""
    assert _ask_real_daemon(tmp_path / "s", b"\x1a\x7fxx", 0, 20)[0] is Status.UNKNOWN

"""The exit code tells the scheduler what to do; each row of the table is a real run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.nodes import free_port
from tests.support.run import WORKER, finish, start

HUNG_FUSE = Path(__file__).parents[1] / "support" / "hung_fuse.py"
RAISE = "raise ValueError('always the same')"
NO_RESTARTS = ("--max-restarts", "0")
NONE_FOR_CODES = ("--ft-set", "restart.kinds={exit_code: {max: 0}}")
ONE_AN_HOUR = ("--ft-set", "restart.max_in_window=1", "--ft-set", "restart.window=3600")
FRUITLESS = ("--max-restarts", "9", "--ft-set", "restart.max_no_progress=2")
ASKS = """
from ftrun.monitor import client
client.{}("as the test has it")
time.sleep(60)
"""
SAME_STEP = """
from ftrun.monitor.client import heartbeat
heartbeat(20)
raise ValueError("bad sample")
"""


@pytest.mark.parametrize(
    ("options", "code", "expected", "restarts"),
    [
        pytest.param((), "pass", 0, 0, id="all ranks finish"),
        pytest.param((), "sys.exit(restart_count == 0)", 0, 1, id="recovered"),
        pytest.param((), RAISE, 93, 1, id="same exception twice without progress"),
        pytest.param((), "import nosuchmodule", 93, 0, id="missing import"),
        pytest.param((), "undefined_name", 93, 0, id="missing name"),
        pytest.param(("--max-restarts", "1"), "sys.exit(42)", 42, 1, id="own code, budget used"),
        pytest.param(NO_RESTARTS, "sys.exit(42)", 42, 0, id="own code, restarts off"),
        pytest.param(NO_RESTARTS, "sys.exit(93)", 1, 0, id="own code that is reserved"),
        pytest.param(NO_RESTARTS, "sys.exit(2)", 1, 0, id="own code that would say usage error"),
        pytest.param(NO_RESTARTS, "die(signal.SIGKILL)", 1, 0, id="killed"),
        pytest.param(NO_RESTARTS, RAISE, 1, 0, id="exception, restarts off"),
        pytest.param(NONE_FOR_CODES, "sys.exit(42)", 42, 0, id="own code, no restart for its kind"),
        pytest.param(ONE_AN_HOUR, "die(signal.SIGKILL)", 1, 1, id="too many in a window"),
        pytest.param(FRUITLESS, "die(signal.SIGKILL)", 93, 2, id="no progress"),
        pytest.param(FRUITLESS, SAME_STEP, 93, 2, id="same failure at the same step"),
        pytest.param((), ASKS.format("request_stop"), 93, 0, id="the script asks for the end"),
        pytest.param(
            (), ASKS.format("exclude_this_node"), 94, 0, id="the script asks to be without this node"
        ),
    ],
)
def test_end_of_the_workers_decides(
    tmp_path: Path, options: tuple[str, ...], code: str, expected: int, restarts: int
) -> None:
    """How the ranks ended, and what was tried about it, gives the code; the journal says the same."""
    exit_code, run = finish(tmp_path, *options, WORKER, code)
    assert exit_code == expected, run.stderr
    (ended,) = run.events(events.RunEnded)
    assert (ended.exit_code, ended.restart_count) == (expected, restarts)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param((), "script", id="no script"),
        pytest.param(("--nosuch-option", "train.py"), "--nosuch-option", id="unknown option"),
        pytest.param(("--max-restarts", "many", "train.py"), "many", id="not a number"),
        pytest.param(("--nproc-per-node", "0", "train.py"), "--nproc-per-node", id="no workers"),
        pytest.param(
            ("--nnodes", "2", "--rdzv-backend", "c10d", WORKER),
            "--rdzv-endpoint",
            id="nodes that cannot meet",
        ),
        pytest.param(("--rdzv-backend", "c10", WORKER), "--rdzv-backend", id="unknown rendezvous"),
        pytest.param(("nosuch/train.py",), "nosuch/train.py", id="missing script"),
        pytest.param(("-m", "nosuch.train"), "nosuch.train", id="missing module"),
        pytest.param(("--ft-set", "ftrun.stop.grace=1", "train.py"), "ftrun.stop.grace", id="unknown key"),
        pytest.param(("--ft-config", "nosuch.yaml", "train.py"), "nosuch.yaml", id="missing file"),
        pytest.param(("--log-dir", "/dev/full/x", WORKER), "--log-dir", id="no log directory"),
    ],
)
def test_wrong_command_line_is_2(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    """What cannot be run as asked starts nothing, names what is wrong and shows no traceback."""
    exit_code, run = finish(tmp_path, *arguments)
    assert exit_code == 2
    assert named in run.stderr
    assert "Traceback" not in run.stderr
    assert run.events(events.RoundClosed) == []


def test_fewer_devices_than_virtual_local_ranks_is_2(tmp_path: Path) -> None:
    """--virtual-local-rank needs a device for each worker; nothing is started to find that out."""
    options = ("--nproc-per-node", "2", "--virtual-local-rank")
    exit_code, run = finish(
        tmp_path, *options, WORKER, "say('ran')", environment={"CUDA_VISIBLE_DEVICES": "0"}
    )
    assert exit_code == 2
    assert "CUDA_VISIBLE_DEVICES=0" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_busy_master_port_is_95_and_its_holder_is_named(tmp_path: Path) -> None:
    """A port that was asked for and is taken ends the job at once, with the pid that has it."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        exit_code, run = finish(tmp_path, "--master-port", str(port), WORKER, "say('ran')")
    assert exit_code == 95, run.stderr
    assert f"port {port}" in run.stderr
    assert f"pid {os.getpid()} " in run.stderr
    assert "Traceback" not in run.stderr
    assert "ran" not in run.stdout


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    """A directory on which a filesystem that never answers can be mounted."""
    directory = tmp_path / "hung"
    directory.mkdir()
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"/dev/fuse cannot be opened: {error.strerror}")
    probe = subprocess.run(
        [sys.executable, str(HUNG_FUSE), str(directory), "true"], capture_output=True, text=True, timeout=20
    )
    if probe.returncode != 0:
        pytest.skip(f"a FUSE filesystem cannot be mounted here: {probe.stderr.strip()}")
    return directory


def test_worker_that_survives_sigkill_is_94_and_named(tmp_path: Path, mount_point: Path) -> None:
    """A rank in uninterruptible sleep cannot be ended: the agent says so and leaves, in bounded time."""
    code = f"""
if rank == 0:
    os.stat("{mount_point}/x")
wait_for("{mount_point}.asked")
die(signal.SIGKILL)
"""
    short = ("--shutdown-timeout", "0.3", "--ft-set", "ftrun.stop.kill_timeout=0.5")
    beside = (sys.executable, str(HUNG_FUSE), str(mount_point))
    with start(tmp_path, "--nproc-per-node", "2", *short, WORKER, code, wrapper=beside) as run:
        assert run.wait() == 94, run.stderr
        run.wait_until_gone(20)  # the filesystem is taken away, and SIGKILL has its effect
    (unkillable,) = run.events(events.WorkerUnkillable)
    assert (unkillable.rank, unkillable.state) == (0, "D")
    assert f"pid {unkillable.pid}" in run.stderr


def test_death_of_the_agent_by_signal_is_128_plus_n(tmp_path: Path) -> None:
    """SIGTERM that comes from inside the job, when the agent itself is asked to end, is 143."""
    exit_code, run = finish(tmp_path, WORKER, "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")
    assert exit_code == 143, run.stderr
    assert "Traceback" not in run.stderr


def test_interrupt_of_the_agent_is_130(tmp_path: Path) -> None:
    """Ctrl-C, as a shell reports it; and 0 if somebody wants a job that was told to stop to have finished."""
    code = "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
    code += "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    for options, expected in (((), 130), (("--ft-graceful-exit-code", "0"), 0)):
        exit_code, run = finish(tmp_path / str(expected), *options, WORKER, code)
        assert exit_code == expected, run.stderr


def test_rendezvous_that_does_not_form_is_95(tmp_path: Path) -> None:
    """One of two nodes: it says who was there and how many were missing."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "j")
    exit_code, run = finish(
        tmp_path,
        "--nnodes",
        "2",
        *meeting,
        "--rdzv-conf",
        "join_timeout=2",
        WORKER,
        "say('ran')",
        timeout_s=90,
    )
    assert exit_code == 95, run.stderr
    assert "1 of 2 nodes" in run.stderr
    assert "ran" not in run.stdout

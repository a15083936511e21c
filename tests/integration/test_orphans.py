"""No process outlives its round, and none outlives the agent."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import WORKER, Run, finish, start

TWO = ("--nproc-per-node", "2")
GONE_WITHIN_S = 10.0
NO_MEMORY_LIMIT = ("--ft-set", "ftrun.standby.min_free_memory=0")
BEAT_AND_WAIT = "from ftrun.monitor import client; client.heartbeat(); say('ready'); time.sleep(60)"


def kill_the_agent(run: Run) -> None:
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    run.wait_until_gone(GONE_WITHIN_S)


@pytest.mark.parametrize("no_python", [False, True])
def test_workers_die_with_the_agent(tmp_path: Path, no_python: bool) -> None:
    """SIGKILL of the agent takes the workers along, also those that were replaced by another program."""
    command = ("--no-python", "sleep", "60") if no_python else (WORKER, "say('ready'); time.sleep(60)")
    with start(tmp_path, *TWO, *command) as run:
        if no_python:
            run.wait_until(lambda: list(run.living().values()).count("sleep 60 ") == 2, "both sleep")
        else:
            run.wait_for_text("ready", count=2)
        kill_the_agent(run)


def test_waiting_standbys_die_with_the_agent(tmp_path: Path) -> None:
    """SIGKILL of the agent takes the standbys along that are ready for the next restart."""
    with start(tmp_path, *TWO, *NO_MEMORY_LIMIT, WORKER, BEAT_AND_WAIT) as run:
        ready = {event.pid for event in run.wait_for_event(events.StandbyReadied, count=2)}
        assert ready <= run.living().keys()
        kill_the_agent(run)


def test_loading_standbys_die_with_the_agent(tmp_path: Path) -> None:
    """SIGKILL of the agent takes the processes along that are in the middle of their imports."""
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport slow\nprint('script ran')\n")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    with start(tmp_path, *TWO, str(script)) as run:
        run.wait_for_event(events.StandbyStarted, count=2)
        kill_the_agent(run)
        assert "script ran" not in run.stdout


CHILD = """
import pathlib, signal, socket, time
signal.signal(signal.SIGTERM, {on_sigterm})
server = socket.create_server(("127.0.0.1", 0))
pathlib.Path({port_file!r}).write_text(str(server.getsockname()[1]))
time.sleep(60)
"""
PARENT = """
import socket
if restart_count == 0:
    subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session={new_session})
    while not (directory / "port").exists() or not (directory / "port").read_text():
        time.sleep(0.01)
    os._exit(7)
with socket.socket() as server:
    server.bind(("127.0.0.1", int((directory / "port").read_text())))
    server.listen()
    say("PORT OK")
"""


@pytest.mark.parametrize("on_sigterm", ["signal.SIG_DFL", "signal.SIG_IGN"])
@pytest.mark.parametrize("new_session", [False, True])
def test_children_of_a_crashed_rank_free_their_port(
    tmp_path: Path, new_session: bool, on_sigterm: str
) -> None:
    """What a rank leaves behind is gone before the next round; a detached and a stubborn one are named."""
    child = CHILD.format(on_sigterm=on_sigterm, port_file=str(tmp_path / "port"))
    code = PARENT.format(child=child, new_session=new_session)
    is_stubborn = on_sigterm == "signal.SIG_IGN"
    options = ("--max-restarts", "1", "--ft-workers-stop-timeout", "0.5" if is_stubborn else "10")
    exit_code, run = finish(tmp_path, *options, WORKER, code)
    assert exit_code == 0, run.stderr
    assert "PORT OK" in run.stdout
    swept = run.events(events.ProcessSwept)
    assert ["SIGKILL" in event.how for event in swept] == [False] * new_session + [True] * is_stubborn
    assert all(
        "ended a process left behind" in run.stderr and f"pid {one.pid}" in run.stderr for one in swept
    )


def test_daemons_that_lost_their_parents_are_found(tmp_path: Path) -> None:
    """A grandchild that forked twice into a session of its own is still the round's, and ends with it."""
    code = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("daemon", os.getpid())
        (directory / "daemon").touch()
        time.sleep(60)
    os._exit(0)
os.wait()
wait_for("daemon")
"""
    options = ("--ft-workers-stop-timeout", "0.3", "--ft-set", "stop.grace_after_success=0")
    exit_code, run = finish(tmp_path, *options, WORKER, code)
    assert exit_code == 0, run.stderr
    (pid,) = {swept.pid for swept in run.events(events.ProcessSwept)}
    assert f"daemon {pid}" in run.stdout


def test_standbys_survive_the_sweep_of_a_round(tmp_path: Path) -> None:
    """The standbys are no part of the round: they take over as they are."""
    code = """
from ftrun.monitor import client
client.heartbeat()
if restart_count == 0:
    wait_for("go")
    die(signal.SIGKILL)
"""
    with start(tmp_path, *TWO, *NO_MEMORY_LIMIT, WORKER, code) as run:
        standbys = {event.pid for event in run.wait_for_event(events.StandbyReadied, count=2)}
        (tmp_path / "go").touch()
        assert run.wait() == 0
    started = [event for event in run.events(events.WorkerStarted) if event.round == 1]
    assert {event.pid for event in started} == standbys
    assert all(event.is_warm for event in started)

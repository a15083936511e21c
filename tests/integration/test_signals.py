"""Signals to the agent: what the workers see of them, how long they get, and what ftrun ends with."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from ftrun.launcher.process import state_of
from ftrun.monitor import events
from tests.support.run import WORKER, start

TWO = ("--nproc-per-node", "2")
SAVE_AND_LEAVE = """
def save(signum, frame):
    say("SAVING")
    time.sleep(0.5)
    say("SAVED")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
say("ready")
while True:  # one long sleep could begin just after a signal was noted, and Python would sleep on
    time.sleep(0.05)
"""
FAIL_WHEN_RANK_0_IS_READY = """
(directory / f"ready{rank}").touch()
wait_for("ready0")
if rank == 1:
    sys.exit(1)
"""
COUNT_SIGNALS = """
seen = []
def note(signum, frame):
    seen.append(signum)
    say("saw", signal.Signals(signum).name)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, note)
say("ready")
while not seen:
    time.sleep(0.01)
time.sleep(0.3)
"""


@pytest.mark.parametrize(("options", "expected"), [((), 143), (("--ft-graceful-exit-code", "0"), 0)])
def test_workers_save_once_and_the_code_tells_of_the_signal(
    tmp_path: Path, options: tuple[str, ...], expected: int
) -> None:
    """Each rank saves once, uncut; a drained job must not look finished unless told otherwise."""
    with start(tmp_path, *TWO, *options, WORKER, SAVE_AND_LEAVE) as run:
        run.wait_for_text("ready", count=2)
        run.send(signal.SIGTERM)
        assert run.wait() == expected
        assert sorted(re.findall(r"\[r(\d) rc0\] (SAV\w+)", run.stdout)) == [
            ("0", "SAVED"), ("0", "SAVING"), ("1", "SAVED"), ("1", "SAVING"),
        ]  # fmt: skip
        assert "Traceback" not in run.stderr
        assert run.living() == {}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_each_worker_sees_the_signal_itself_and_once(tmp_path: Path, signum: signal.Signals) -> None:
    """The workers get the very signal that the agent got; the job ends with 128 + n, without a traceback."""
    with start(tmp_path, *TWO, WORKER, COUNT_SIGNALS) as run:
        run.wait_for_text("ready", count=2)
        run.send(signum)
        assert run.wait() == 128 + signum
        assert sorted(re.findall(r"\[r(\d) rc0\] saw (\w+)", run.stdout)) == [
            ("0", signum.name), ("1", signum.name),
        ]  # fmt: skip
        assert "Traceback" not in run.stderr
        assert f"Received {int(signum)} death signal, shutting down workers" in run.stderr
        (received,) = run.events(events.SignalReceived)
        assert (received.signal_name, received.count) == (signum.name, 1)


def test_python_workers_without_handlers_end_by_sigint(tmp_path: Path) -> None:
    """Ctrl-C does to a script what it does under python; the agent adds no traceback of its own."""
    with start(tmp_path, *TWO, WORKER, "say('ready'); time.sleep(60)") as run:
        run.wait_for_text("ready", count=2)
        run.send(signal.SIGINT)
        assert run.wait() == 130
        assert run.stderr.count("KeyboardInterrupt") == 2
        assert "ftrun/launcher" not in run.stderr
        assert "agent.py" not in run.stderr


def test_later_signals_only_shorten_the_grace(tmp_path: Path) -> None:
    """Workers that ignore SIGTERM are not asked again; three signals halve the grace twice."""
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say('ready'); time.sleep(60)"
    with start(tmp_path, *TWO, "--shutdown-timeout", "8", WORKER, ignore) as run:
        run.wait_for_text("ready", count=2)
        began_at = time.monotonic()
        for count in (1, 2, 3):
            run.send(signal.SIGTERM)
            run.wait_for_event(events.SignalReceived, count=count)
        assert run.wait() == 143
        assert time.monotonic() - began_at < 7.0
        assert run.living() == {}
        graces = [event.grace_s for event in run.events(events.SignalReceived)]
        assert graces == sorted(graces, reverse=True)
        assert graces[2] <= 2.0


def test_later_signals_do_not_run_the_save_again(tmp_path: Path) -> None:
    """A second SIGTERM while a rank saves leaves its handler alone."""
    with start(tmp_path, WORKER, SAVE_AND_LEAVE) as run:
        run.wait_for_text("ready")
        run.send(signal.SIGTERM)
        run.wait_for_text("SAVING")
        run.send(signal.SIGTERM)
        assert run.wait() == 143
        assert (run.stdout.count("SAVING"), run.stdout.count("SAVED")) == (1, 1)


def test_warning_signals_are_passed_on_and_the_job_goes_on(tmp_path: Path) -> None:
    """SIGUSR1 reaches every rank that handles it; nothing else happens."""
    code = """
signal.signal(signal.SIGUSR1, lambda *_: say("saw SIGUSR1"))
say("ready")
wait_for("go")
"""
    with start(tmp_path, *TWO, WORKER, code) as run:
        run.wait_for_text("ready", count=2)
        run.send(signal.SIGUSR1)
        run.wait_for_text("saw SIGUSR1", count=2)
        (tmp_path / "go").touch()
        assert run.wait() == 0
        assert run.stdout.count("saw SIGUSR1") == 2
        assert run.events(events.SignalForwarded) == [events.SignalForwarded("SIGUSR1", (0, 1), ())]
        assert run.events(events.RestartDecided) == []


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_warning_signals_do_not_kill_workers_without_a_handler(
    tmp_path: Path, signum: signal.Signals
) -> None:
    """Their default action is death, so only a rank that would survive gets them; the journal tells who."""
    code = f"""
if rank == 1:
    signal.signal({int(signum)}, lambda *_: say("saw it"))
say("ready")
wait_for("go")
"""
    with start(tmp_path, *TWO, WORKER, code) as run:
        run.wait_for_text("ready", count=2)
        run.send(signum)
        run.wait_for_text("[r1 rc0] saw it")
        (forwarded,) = run.wait_for_event(events.SignalForwarded)
        assert (forwarded.ranks, forwarded.skipped_ranks) == ((1,), (0,))
        (tmp_path / "go").touch()
        assert run.wait() == 0


def test_warning_signal_that_is_listed_ends_the_job(tmp_path: Path) -> None:
    """--signals-to-handle names the signals that end the job with grace; a listed SIGUSR1 is one of them."""
    with start(tmp_path, *TWO, "--signals-to-handle", "SIGTERM,SIGUSR1", WORKER, COUNT_SIGNALS) as run:
        run.wait_for_text("ready", count=2)
        run.send(signal.SIGUSR1)
        assert run.wait() == 128 + signal.SIGUSR1
        assert run.stdout.count("saw SIGUSR1") == 2


def test_rank_that_saves_is_waited_for_after_a_failure(tmp_path: Path) -> None:
    """--shutdown-timeout rules this path too: enough of it lets rank 0 save what it has."""
    code = SAVE_AND_LEAVE.replace('say("ready")', FAIL_WHEN_RANK_0_IS_READY)
    options = ("--shutdown-timeout", "20", "--max-restarts", "0")
    with start(tmp_path, *TWO, *options, WORKER, code) as run:
        assert run.wait() == 1
        assert "[r0 rc0] SAVED" in run.stdout


def test_rank_that_saves_too_long_after_a_failure_is_killed(tmp_path: Path) -> None:
    """--shutdown-timeout rules this path too: when it is over, rank 0 is not waited for."""
    code = SAVE_AND_LEAVE.replace("time.sleep(0.5)", "time.sleep(30)")
    code = code.replace('say("ready")', FAIL_WHEN_RANK_0_IS_READY)
    options = ("--shutdown-timeout", "3", "--max-restarts", "0")
    with start(tmp_path, *TWO, *options, WORKER, code) as run:
        assert run.wait() == 1
        assert "[r0 rc0] SAVING" in run.stdout
        assert "SAVED" not in run.stdout
        (stopped,) = run.events(events.RoundStopped)
        assert 2.9 < stopped.stop_s < 15.0
        assert run.events(events.WorkerExited)[-1].signal_name == "SIGKILL"


def test_signal_during_the_pause_before_a_restart_ends_at_once(tmp_path: Path) -> None:
    """While nothing runs there is nobody to give grace to."""
    pause = ("--ft-set", "ftrun.restart.backoff_initial=60", "--ft-set", "ftrun.restart.backoff_max=60")
    with start(tmp_path, *pause, WORKER, "die(signal.SIGKILL)") as run:
        assert run.wait_for_event(events.RestartDecided, count=2)[-1].delay_s == 60
        run.send(signal.SIGTERM)
        assert run.wait(30) == 143
        assert len(run.events(events.RoundClosed)) == 2


def test_signal_before_the_script_runs_ends_the_job(tmp_path: Path) -> None:
    """Workers that are still importing end like others; the script is not begun."""
    script = tmp_path / "train.py"
    script.write_text("import torch\nimport slow\nprint('script ran')\n")
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    with start(tmp_path, *TWO, str(script)) as run:
        run.wait_for_event(events.RoundClosed)
        run.send(signal.SIGTERM)
        assert run.wait() == 143
        assert "script ran" not in run.stdout
        assert "Traceback" not in run.stderr
        assert run.living() == {}


def test_stopped_worker_ends_when_the_job_is_told_to(tmp_path: Path) -> None:
    """A rank in SIGSTOP acts on no SIGTERM until it is woken, which the agent does."""
    with start(tmp_path, *TWO, WORKER, "say('ready', os.getpid()); time.sleep(60)") as run:
        run.wait_for_text("ready", count=2)
        pid = int(re.findall(r"\[r1 rc0\] ready (\d+)", run.stdout)[0])
        os.kill(pid, signal.SIGSTOP)
        run.wait_until(lambda: state_of(pid) == "T", "the worker is stopped")
        run.send(signal.SIGTERM)
        assert run.wait(20) == 143

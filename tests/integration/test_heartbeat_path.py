"""Whatever happens to the way that heartbeats take: training goes on, and what is left is still watched."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import WORKER, finish, start

LIMITS = ("--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "4")
NO_STALL_RULE = ("--ft-set", "timeouts.stall=off")
LONG_S = 60.0
STOPPED_S = 6.0
"""Longer than the limit for heartbeats: what the agent has missed is no silence."""

BEATS = """
from ftrun.monitor.client import heartbeat
if rank == 1:
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    heartbeat = client.send_heartbeat
heartbeat()
say("begins")
longest_s, beat_at = 0.0, time.monotonic()
while not (directory / "end").exists():
    heartbeat()
    longest_s, beat_at = max(longest_s, time.monotonic() - beat_at), time.monotonic()
    time.sleep(0.01)
if rank == 1:
    client.shutdown_workload_monitoring()
say("longest gap", longest_s)
"""


@pytest.mark.slow
def test_stopped_agent_stops_nobody(tmp_path: Path) -> None:
    """Beats are stores into memory; only an old client of nvidia-resiliency-ext waits for its answer.

    When the agent goes on, as on a node that swaps, it condemns nobody for what it has missed.
    """
    nobody_sets_it = threading.Event()
    with start(tmp_path, "--nproc-per-node", "2", *LIMITS, WORKER, BEATS) as run:
        run.wait_for_text("begins", count=2, timeout_s=LONG_S)
        run.send(signal.SIGSTOP)
        nobody_sets_it.wait(STOPPED_S)
        run.send(signal.SIGCONT)
        nobody_sets_it.wait(1.5)  # it looks at the ranks again
        (tmp_path / "end").touch()
        assert run.wait() == 0, run.stderr
    assert run.events(events.HangDetected) == []
    [ended] = run.events(events.RunEnded)
    assert ended.restart_count == 0
    gaps_s = dict(re.findall(r"^\[r(\d) rc0\] longest gap (\S+)$", run.stdout, re.MULTILINE))
    assert set(gaps_s) == {"0", "1"}
    assert float(gaps_s["0"]) < STOPPED_S / 2


GARBAGE = """
import socket, struct
from ftrun.monitor.client import heartbeat
heartbeat()
names = ("FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET")
if restart_count == 0:
    kept = []
    frames = (struct.pack(">I", 2**32 - 1) + b"x", struct.pack(">I", 9) + b"half", b"\\0\\0\\0\\4\\x80\\4N.")
    for path in [os.environ[name] for name in names]:
        for data in (b"", os.urandom(4096), b"GET / HTTP/1.1\\r\\n\\r\\n", *frames):
            heartbeat()
            for _ in range(20):
                kept.append(socket.socket(socket.AF_UNIX))
                kept[-1].connect(path)
                try:
                    kept[-1].sendall(data)
                except OSError:
                    pass
    say("garbage sent")
for _ in range(60 if restart_count else 10):
    heartbeat()
    time.sleep(0.05)
if restart_count == 0:
    time.sleep(60)
"""


@pytest.mark.slow
def test_garbage_on_the_sockets_disturbs_nothing(tmp_path: Path) -> None:
    """Hundreds of connections that say nonsense, half of something or nothing; the hang after is found."""
    code, run = finish(tmp_path, *LIMITS, *NO_STALL_RULE, WORKER, GARBAGE)
    assert code == 0, run.stderr
    assert "garbage sent" in run.stdout
    [hang] = run.events(events.HangDetected)
    assert (hang.round, hang.rule, hang.rank) == (0, "steady", 0)


REMOVED = """
import shutil
from ftrun.monitor import client
client.heartbeat()
if restart_count == 0:
    shutil.rmtree(os.path.dirname(os.environ["FT_LAUNCHER_IPC_SOCKET"]))
    say("taken", client.request_stop("nobody hears this"))
for _ in range(10):
    client.heartbeat()
    time.sleep(0.05)
if restart_count == 0:
    time.sleep(60)
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(True))  # which may come before it has said a word
say("taken", client.request_stop("heard again"))
while not stops:
    time.sleep(0.01)
"""


def test_removed_sockets_disturb_nothing(tmp_path: Path) -> None:
    """As by a cleaner of /tmp: a request is refused, a hang is found, and the next round has new ones."""
    code, run = finish(tmp_path, *LIMITS, *NO_STALL_RULE, WORKER, REMOVED)
    assert code == 93, run.stderr
    assert "rc0] taken False" in run.stdout
    assert "rc1] taken True" in run.stdout
    [hang] = run.events(events.HangDetected)
    assert (hang.round, hang.rule) == (0, "steady")


CLOSED = """
from ftrun.monitor import client
os.closerange(3, 65536)
for _ in range(10):
    client.heartbeat()
    time.sleep(0.05)
if restart_count == 0:
    time.sleep(60)
"""


def test_script_that_closes_all_descriptors_is_watched(tmp_path: Path) -> None:
    """As daemons do. Its stacks are lost with the file, and it is not killed by the wish for them."""
    code, run = finish(tmp_path, *LIMITS, *NO_STALL_RULE, WORKER, CLOSED)
    assert code == 0, run.stderr
    [hang] = run.events(events.HangDetected)
    assert (hang.round, hang.rule) == (0, "steady")
    [saved] = run.events(events.StacksSaved)
    assert (saved.ranks, saved.missing_ranks) == ((), (0,))
    assert not list((tmp_path / "run").rglob("stacks.txt"))


def test_sockets_are_gone_when_the_job_has_ended(tmp_path: Path) -> None:
    """And only this user could reach them before."""
    code = """
    paths = [os.environ[name] for name in ("FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET")]
    say(*[oct(os.stat(path).st_mode & 0o777) for path in (os.path.dirname(paths[0]), *paths)], *paths)
    """
    exit_code, run = finish(tmp_path, WORKER, "if True:" + code)
    assert exit_code == 0, run.stderr
    words = run.stdout.split()[2:]
    assert words[:3] == ["0o700", "0o600", "0o600"]
    assert not os.path.exists(os.path.dirname(words[3]))

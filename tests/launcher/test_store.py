"""The workers' store: fresh each round, on the port that was listening before torch was there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist

from ftrun.launcher.ports import listen
from ftrun.launcher.store import StoreHost

DEADLINE_S = 60.0
LOOPBACK = "127.0.0.1"

LATE_HOST = """
import sys
from ftrun.launcher.ports import listen
from ftrun.launcher.store import StoreHost

host = StoreHost(print)
listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
assert "torch" not in sys.modules
host.serve(listener)
sys.stdin.readline()
host.close()
"""

NO_TORCH = """
import sys, threading
sys.modules["torch"] = None
from ftrun.launcher.ports import listen
from ftrun.launcher.store import StoreHost

told = threading.Event()
reasons = []
def tell(reason):
    reasons.append(reason)
    told.set()
host = StoreHost(tell)
host.serve(listen("127.0.0.1", 0))
assert told.wait(60)
print(reasons)
host.close()
"""


@pytest.fixture
def host() -> Iterator[StoreHost]:
    failures: list[str] = []
    host = StoreHost(failures.append)
    yield host
    host.close()
    assert failures == []


def client_of(port: int) -> dist.TCPStore:
    """A worker's connection."""
    return dist.TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=DEADLINE_S))


def serve(host: StoreHost, port: int = 0) -> int:
    """Serve a new store; returns its port."""
    listener = listen(LOOPBACK, port)
    chosen = int(listener.getsockname()[1])
    host.serve(listener)
    return chosen


def eventually(is_true: Callable[[], bool]) -> bool:
    """Whether the condition comes true within the deadline."""
    give_up_at = time.monotonic() + DEADLINE_S
    nobody_sets_it = threading.Event()
    while not is_true() and time.monotonic() < give_up_at:
        nobody_sets_it.wait(0.005)
    return is_true()


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_apart(program: str) -> str:
    """Output of `program` in a process that has not imported torch."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_each_round_gets_an_empty_store(host: StoreHost) -> None:
    """Keys of the round before (addresses of dead ranks) are not there any more."""
    client = client_of(serve(host))
    client.set("address", "of a rank that is dead")
    assert client.check(["address"])
    del client
    host.close()
    assert not client_of(serve(host)).check(["address"])


def test_same_port_serves_twenty_rounds_in_a_row(host: StoreHost) -> None:
    """With --master-port every restart uses the port again at once, whatever connections were cut."""
    port = serve(host)
    for round_number in range(20):
        clients = [client_of(port) for _ in range(2)]
        assert clients[0].add("ranks", 1) == 1
        assert clients[1].add("ranks", 1) == 2
        host.close()
        assert serve(host, port) == port, round_number
        del clients


def test_closing_frees_port_and_descriptors(host: StoreHost) -> None:
    """A job of many restarts must not fill the agent's descriptor table."""
    port = serve(host)
    client_of(port)
    host.close()
    listen(LOOPBACK, port).close()
    before = open_fds()
    for _ in range(5):
        serve(host, port)
        client = client_of(port)
        client.set("key", "value")
        del client
        host.close()
    listen(LOOPBACK, port).close()
    assert eventually(lambda: open_fds() <= before), open_fds()  # torch's threads close the last ones


def test_closing_what_never_served_is_no_error() -> None:
    """A round that is stopped before its store is up ends like any other."""
    StoreHost(lambda reason: None).close()


def is_connected_to(port: int) -> bool:
    """Whether this process has a connection to the port."""
    return any(c.raddr and c.raddr.port == port for c in psutil.Process().net_connections("tcp"))


def test_worker_that_connects_before_torch_is_imported_is_served() -> None:
    """The port listens from the start: early workers queue instead of being refused."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    argv = [sys.executable, "-W", "ignore", "-c", LATE_HOST]
    with subprocess.Popen(argv, **pipes) as agent, ThreadPoolExecutor(1) as worker:  # type: ignore[call-overload]
        try:
            port = int(agent.stdout.readline())
            early = worker.submit(client_of, port)
            assert eventually(lambda: is_connected_to(port))
            assert not early.done()
            agent.stdin.write("serve\n")
            agent.stdin.flush()
            client = early.result(DEADLINE_S)
            client.set("key", "value")
            assert client.get("key") == b"value"
            del client, early
            assert agent.communicate("close\n", timeout=DEADLINE_S)[0] == ""
        finally:
            agent.kill()


def test_agent_without_torch_says_why_there_is_no_store() -> None:
    """The workers would wait for ever otherwise."""
    assert "torch cannot be imported by the agent" in run_apart(NO_TORCH)

"""What one heartbeat costs the training loop: ftrun's, and NVRx's to ftrun's server and to its own.

    python benchmarks/heartbeat.py

The three take turns, batch by batch. A server runs in a process of its own, as it does in a job. Numbers are
medians over the batches of the mean cost of one call. Put another version of nvidia-resiliency-ext on
PYTHONPATH to measure that.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

warnings.filterwarnings("ignore", category=FutureWarning)

OWN, TO_FTRUN, TO_NVRX = "ftrun heartbeat", "NVRx heartbeat to ftrun", "NVRx heartbeat to NVRx"
CALLS = {OWN: 20_000, TO_FTRUN: 500, TO_NVRX: 500}
"""Per batch: enough to make the clock's own cost small."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=40, help="per kind of heartbeat (default 40)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    with ExitStack() as stack:
        contenders = {
            OWN: stack.enter_context(own_heartbeat()),
            TO_FTRUN: stack.enter_context(heartbeat_to_ftrun()),
            TO_NVRX: stack.enter_context(heartbeat_to_nvrx()),
        }
        costs_us = measure(contenders, args.batches)
    report(costs_us)


def measure(contenders: dict[str, Callable[[], None]], batches: int) -> dict[str, list[float]]:
    """Mean cost of a call, in microseconds, per contender and batch."""
    costs_us: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(batches + 1):
        for name, beat in contenders.items():
            calls = range(CALLS[name])
            began = time.perf_counter()
            for _ in calls:
                beat()
            costs_us[name].append((time.perf_counter() - began) / len(calls) * 1e6)
    return {name: costs[1:] for name, costs in costs_us.items()}  # the first batch warms up


def report(costs_us: dict[str, list[float]]) -> None:
    """One line per contender, with its ratio to ftrun's own heartbeat."""
    from importlib.metadata import version

    print(
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs, "
        f"nvidia-resiliency-ext {version('nvidia-resiliency-ext')}"
    )
    own_us = statistics.median(costs_us[OWN])
    print(f"{'':26}{'median us':>11}{'min us':>9}{'max us':>9}{'ratio':>9}")
    for name, costs in costs_us.items():
        median_us = statistics.median(costs)
        print(f"{name:26}{median_us:11.3f}{min(costs):9.3f}{max(costs):9.3f}{median_us / own_us:8.0f}x")


@contextmanager
def own_heartbeat() -> Iterator[Callable[[], None]]:
    """`ftrun.monitor.client.heartbeat` on a page, as in a worker."""
    from ftrun.monitor.page import Page
    from ftrun.monitor.page_writer import PAGE_VARIABLE

    page = Page.create()
    os.environ[PAGE_VARIABLE] = page.path
    from ftrun.monitor.client import heartbeat

    yield heartbeat
    assert page.read().steps > 0
    page.close()


@contextmanager
def heartbeat_to_ftrun() -> Iterator[Callable[[], None]]:
    """A client of the installed nvidia-resiliency-ext against ftrun's heartbeat server."""
    from ftrun.monitor.server import RANK_VARIABLE
    from ftrun.monitor.sockets import make_runtime_directory

    directory = make_runtime_directory(os.environ)
    command = [sys.executable, __file__, "--serve", str(directory)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        os.environ[RANK_VARIABLE] = server.stdout.readline().strip()
        with client() as beat:
            yield beat
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()


@contextmanager
def heartbeat_to_nvrx() -> Iterator[Callable[[], None]]:
    """The same client against its own rank monitor."""
    import torch
    from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorServer

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/rank0.socket"
        config = FaultToleranceConfig(enable_nic_monitor=False, log_level=40)
        monitor = RankMonitorServer.run_in_subprocess(
            config, path, is_restarter_logger=False, mp_ctx=torch.multiprocessing.get_context("spawn")
        )
        try:
            os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = path
            with client() as beat:
                yield beat
        finally:
            monitor.kill()
            monitor.join()


@contextmanager
def client() -> Iterator[Callable[[], None]]:
    """`send_heartbeat` of a client that is connected to the server that the environment names."""
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")
    monitored = RankMonitorClient()
    monitored.init_workload_monitoring()
    yield monitored.send_heartbeat
    monitored.shutdown_workload_monitoring()


def serve(directory: Path) -> None:
    """Heartbeat servers for one rank, until stdin ends."""
    from ftrun.monitor.heartbeats import Timeouts
    from ftrun.monitor.server import RANK_VARIABLE, HeartbeatServers
    from ftrun.monitor.wire import ClientSettings

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    servers = HeartbeatServers(
        directory, [0], Timeouts(), ClientSettings(), lambda rank, state: None, lambda request: None
    )
    print(servers.environment(0)[RANK_VARIABLE], flush=True)
    sys.stdin.read()
    servers.close()


if __name__ == "__main__":
    main()

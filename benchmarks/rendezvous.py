"""How long a round of many nodes takes to form, and to form again after a failure; torch's beside it.

    python benchmarks/rendezvous.py --agents 128,1024,4096

The host agent is ftrun's own: its exchange, its rules, its store. The others are simulated, all on this
machine, with ftrun's own requests and messages (rendezvous_agents.py). What each of them does on a machine of
its own is left out of the measured times and shown apart: writing its join, reading the plan. So is
connecting, which happens once.

form     from the first join to when the last agent has the plan
re-form  from when an agent orders a stop to when the last one has the plan of the next round, with everyone's
         account of how the round ended; median over the failures
stop     the part of it until the last agent has the order

torch's are next_rendezvous() of DynamicRendezvousHandler with the c10d backend, as torchrun sets it up, for
as many agents as it gets done in the given time (rendezvous_torch.py).
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from machine import describe_machine

from ftrun.launcher import exchange as ex
from ftrun.launcher import policy
from ftrun.launcher.config import RestartConfig
from ftrun.launcher.hosting import Hosting
from ftrun.launcher.mailbox import Mailbox
from ftrun.launcher.messages import Agent, Hello
from ftrun.launcher.ports import listen
from ftrun.launcher.quorum import Rules
from ftrun.launcher.store_exchange import StoreExchange
from ftrun.launcher.store_setting import StoreSetting

AGENTS = Path(__file__).with_name("rendezvous_agents.py")
TORCH = Path(__file__).with_name("rendezvous_torch.py")
TORCH_SIZES = (16, 32, 64, 128, 256, 512, 1024)
LOOPBACK = "127.0.0.1"
PROCESSES = 2
"""That the simulated agents are spread over."""
LONG_S = 600.0


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", default="128,1024,4096", help="numbers of agents (default 128,1024,4096)")
    parser.add_argument("--failures", type=int, default=5, help="per number of agents (default 5)")
    parser.add_argument(
        "--torch-seconds", type=float, default=60.0, help="for torch's (default 60, 0 = none)"
    )
    args = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    for name, value in describe_machine().items():
        print(f"{name:12} {value}")
    torchs = dict(measure_torch(args.torch_seconds))
    sizes = sorted({*map(int, args.agents.split(",")), *list(torchs)[-1:]})
    print(
        f"\n{'agents':>8}{'form s':>9}{'re-form s':>11}{'slowest s':>11}{'stop s':>9}{'requests':>10}", end=""
    )
    print(f"{'connect s':>11}{'join ms':>9}{'KB':>6}{'plan ms':>9}{'KB':>6}")
    ours = {}
    for size in sizes:
        ours[size] = measure(size, args.failures)
        print(ours[size].line(size), flush=True)
    for size, (form_s, reform_s) in torchs.items():
        beside = ours.get(size)
        print(f"torch, {size} agents: form {form_s:.2f} s, re-form {reform_s:.2f} s", end="")
        print("" if beside is None else f": {reform_s / beside.reform_s:.0f} times ftrun's")


@dataclass(frozen=True, slots=True)
class Result:
    """Of one number of agents; seconds unless said otherwise."""

    connect_s: float
    form_s: float
    reforms_s: Sequence[float]
    stop_s: float
    requests: float
    """Per agent and failure."""
    costs: dict[str, float]
    """Of one agent on its own: milliseconds and KB of its join and of the plan."""

    @property
    def reform_s(self) -> float:
        return statistics.median(self.reforms_s)

    def line(self, size: int) -> str:
        costs = self.costs
        return (
            f"{size:8}{self.form_s:9.3f}{self.reform_s:11.3f}{max(self.reforms_s):11.3f}{self.stop_s:9.3f}"
            f"{self.requests:10.1f}{self.connect_s:11.2f}{costs['join_ms']:9.2f}{costs['join_kb']:6.0f}"
            f"{costs['plan_ms']:9.2f}{costs['plan_kb']:6.0f}"
        )


def measure(size: int, failures: int) -> Result:
    """Form a world of `size` agents and let it fail so many times."""
    with listen(LOOPBACK, 0) as listener:
        port = int(listener.getsockname()[1])
    share = size // PROCESSES
    shares = [share] * (PROCESSES - 1) + [size - share * (PROCESSES - 1)]
    with ExitStack() as stack:
        stack.enter_context(host_agent(port, size))
        processes = [
            stack.enter_context(child(AGENTS, port, index * share, count, failures))
            for index, count in enumerate(shares)
        ]
        connect_s = max(read(one)["connect_s"] for one in processes)
        rounds = []
        for _ in range(failures + 1):
            for one in processes:
                tell(one, "go")
            rounds.append([read(one) for one in processes])
    began_at = [max(part["began_at"] for part in parts) for parts in rounds[1:]]
    ended_at = [max(part["planned_at"] for part in parts) for parts in rounds]
    told_at = [max(part["stopped_at"] for part in parts) for parts in rounds[1:]]
    return Result(
        connect_s,
        ended_at[0] - min(part["began_at"] for part in rounds[0]),
        [end - begin for begin, end in zip(began_at, ended_at[1:], strict=True)],
        statistics.median(end - begin for begin, end in zip(began_at, told_at, strict=True)),
        sum(part["requests"] for part in rounds[-1]) / size,
        rounds[-1][0]["costs"],
    )


@contextmanager
def host_agent(port: int, size: int) -> Iterator[None]:
    """The host agent of a job of so many other nodes, in threads of this process, until the block is left."""
    mailbox: Mailbox[ex.Note] = Mailbox()
    agent, hello = Agent("host", "host"), Hello("benchmark", "e", "-", "-", "-", "host")
    # Nobody sends keep-alives in between: thousands of threads for that are not what is measured.
    setting = StoreSetting("c10d", LOOPBACK, port, is_host=True, lost_after_s=LONG_S)
    exchange = StoreExchange(setting, hello, agent, mailbox.post)
    decide = partial(policy.decide, max_restarts=1_000_000, config=RestartConfig())
    rules = Rules(size, size, lost_after_s=LONG_S, join_timeout_s=LONG_S)
    hosting = Hosting(rules, exchange, decide, lambda event, durable=False: None, time.monotonic())
    is_up, is_over = threading.Event(), threading.Event()

    def run() -> None:
        while not is_over.is_set():
            select.select([mailbox], [], [], 0.1)
            heard = []
            for note in mailbox.take():
                match note:
                    case ex.Connected():
                        is_up.set()
                    case ex.Received() | ex.Beats() | ex.Stopped():
                        heard.append(note)
            if heard:
                hosting.hear(heard, time.monotonic())

    loop = threading.Thread(target=run)
    loop.start()
    exchange.connect()
    assert is_up.wait(LONG_S)
    try:
        yield
    finally:
        is_over.set()
        loop.join()
        exchange.close(1.0)
        mailbox.close()


def measure_torch(budget_s: float) -> Iterator[tuple[int, tuple[float, float]]]:
    """Form and re-form times of torch's rendezvous by number of agents, as far as it gets."""
    left_s = budget_s
    for size in TORCH_SIZES if budget_s > 0 else ():
        with child(TORCH, size) as process:
            read(process)  # all are connected: only the rendezvous itself counts
            if (result := read_until(process, time.monotonic() + left_s)) is None:
                print(
                    f"torch had not formed a world of {size} agents twice when its {budget_s:g} s were over"
                )
                return
            left_s -= result["form_s"] + result["reform_s"]
            yield size, (result["form_s"], result["reform_s"])


@contextmanager
def child(program: Path, *arguments: int) -> Iterator[subprocess.Popen[str]]:
    """A process that reads lines and writes JSON lines, killed at the end."""
    command = [sys.executable, "-W", "ignore", str(program), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Send one line."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def read(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON line of a process that has nothing else to say."""
    answer = read_until(process, time.monotonic() + LONG_S)
    if answer is None:
        raise SystemExit(f"no answer from {process.args!r}")
    return answer


def read_until(process: subprocess.Popen[str], give_up_at: float) -> dict[str, Any] | None:
    """The same; None if there is none in time."""
    assert process.stdout is not None
    is_readable, _, _ = select.select([process.stdout], [], [], max(0.0, give_up_at - time.monotonic()))
    line = process.stdout.readline() if is_readable else ""
    return json.loads(line) if line else None


if __name__ == "__main__":
    main()

"""Simulated agents for benchmarks/rendezvous.py: nodes of a job, each with its connections and a thread.

    python rendezvous_agents.py PORT FIRST COUNT FAILURES

Reads "go" before each round; writes a JSON line when all are connected, and after each round. Node 0 is the
one that fails.
"""

from __future__ import annotations

import json
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from ftrun.launcher.memory import brief
from ftrun.launcher.message_codec import decode_publication, encode
from ftrun.launcher.messages import Agent, JobPlan, Join, Memory, Outcome, StopKind, StopOrder
from ftrun.launcher.store_board import Board, unpack
from ftrun.launcher.store_client import import_torch
from ftrun.launcher.store_tcp import TcpClient
from ftrun.monitor.incident import Evidence, RankExit

SLOTS = 8
LONG_S = 600.0
STACK_BYTES = 512 * 1024
"""Of an agent's thread: there are thousands."""
STDERR = tuple(f"[rank{SLOTS}]: a line of what a worker wrote last, {number}" for number in range(20))


class Counted:
    """A store that counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        self.count += 1
        return getattr(self._store, name)


@dataclass(slots=True)
class Simulated:
    """One agent."""

    agent: Agent
    sender: Board
    waiter: Board
    stores: tuple[Counted, Counted]
    join: str = ""
    """What it says next."""
    plan: bytes = b""
    """What it has heard last."""
    began_at: float = 0.0
    stopped_at: float = 0.0
    planned_at: float = 0.0

    @property
    def requests(self) -> int:
        return sum(store.count for store in self.stores)


def main() -> None:
    """Runs the agents through all rounds."""
    port, first, count, failures = map(int, sys.argv[1:])
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    threading.stack_size(STACK_BYTES)
    # Each thread that waits for the interpreter asks for it that often: thousands would do nothing else. They
    # all give it up of themselves at the next request.
    sys.setswitchinterval(1.0)
    import_torch()
    began = time.monotonic()
    with ThreadPoolExecutor(64) as pool:
        agents = list(pool.map(partial(connect, port), range(first, first + count)))
    say({"connect_s": time.monotonic() - began})
    done: queue.SimpleQueue[None] = queue.SimpleQueue()
    starts = [threading.Event() for _ in range(failures + 1)]
    memory, costs = Memory(), {}
    for one in agents:
        one.join, _ = timed(partial(encode, join_of(one.agent, 0, memory)))
        threading.Thread(target=live, args=(one, starts, done.put), daemon=True).start()
    for start in starts:
        before = sum(one.requests for one in agents)
        sys.stdin.readline()
        start.set()
        for _ in agents:
            done.get()
        requests = sum(one.requests for one in agents) - before
        plan, costs["plan_ms"] = timed(lambda: decode_publication(unpack(agents[0].plan)))
        assert isinstance(plan, JobPlan)
        sequence = plan.memory.round_number + 1
        memory = brief(plan.memory)  # as an agent has it for the host agent that published it
        for one in agents:
            one.join, costs["join_ms"] = timed(partial(encode, join_of(one.agent, sequence, memory)))
        costs |= {"plan_kb": len(agents[0].plan) / 1e3, "join_kb": len(agents[0].join) / 1e3}
        say(
            {
                "began_at": (min if sequence == 1 else max)(one.began_at for one in agents),
                "stopped_at": max(one.stopped_at for one in agents),
                "planned_at": max(one.planned_at for one in agents),
                "requests": requests,
                "costs": costs,
            }
        )
    sys.stdin.readline()


def connect(port: int, index: int) -> Simulated:
    """An agent with its connections, known to the store by its first keep-alive."""
    from torch.distributed import TCPStore

    timeout = timedelta(seconds=LONG_S)
    stores = [
        Counted(TCPStore("127.0.0.1", port, None, False, timeout=timeout, wait_for_workers=False))
        for _ in range(2)
    ]
    sender, waiter = (Board(TcpClient(store, None, time.monotonic), "ftrun/") for store in stores)
    agent = Agent(f"node{index:04}", f"{index:012x}")
    sender.beat(agent.incarnation)
    return Simulated(agent, sender, waiter, (stores[0], stores[1]))


def live(me: Simulated, starts: list[threading.Event], report: Callable[[None], None]) -> None:
    """Go through the rounds as an agent does whose workers start and end in no time."""
    for sequence, start in enumerate(starts):
        if sequence == 0:
            start.wait()
            me.began_at = time.monotonic()
        else:
            if me.agent.node == "node0000":
                start.wait()
                me.began_at = time.monotonic()
                order = StopOrder(StopKind.FAILURE, me.agent.node, "rank 0 was killed by SIGKILL")
                me.sender.stop(sequence - 1, encode(order))
            me.waiter.wait_stop(sequence - 1, LONG_S)
            me.stopped_at = time.monotonic()
        me.sender.send(me.join)
        me.plan = me.waiter.wait_plan(sequence, LONG_S) or b""
        me.planned_at = time.monotonic()
        report(None)


def join_of(agent: Agent, sequence: int, memory: Memory) -> Join:
    """A node of eight ranks; on the first one, rank 0 has died, and all others were stopped for that."""
    join = Join(agent, SLOTS, "10.0.0.1", 29401, sequence=sequence, memory=memory)
    if sequence == 0:
        return join
    is_culprit = agent.node == "node0000"
    exits = tuple(
        RankExit(
            rank=rank,
            local_rank=rank,
            pid=1000 + rank,
            exit_code=-9 if is_culprit and rank == 0 else -15,
            exited_at=100.0,
            is_stopped_by_agent=not (is_culprit and rank == 0),
            stderr_tail=STDERR if is_culprit else (),
            max_rss_bytes=1 << 34,
            steps=100,
        )
        for rank in range(SLOTS)
    )
    evidence = Evidence(agent.node, memory.round_number, exits, has_progressed=True)
    return replace(join, outcome=Outcome.STOPPED, evidence=evidence)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and how many milliseconds it has taken."""
    began = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - began) * 1e3


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

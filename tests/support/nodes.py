"""Several agents of one job on this machine, each a node with a directory of its own.

Built on `tests.support.run`: whatever happens, all of it ends.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ftrun.monitor import events
from ftrun.monitor.events import Event
from ftrun.monitor.records import Record
from tests.support.rank_words import SAID, weights_after
from tests.support.run import Run, start

WORKER = str(Path(__file__).with_name("node_worker.py"))
"""Executes its first argument as Python code; imports no torch."""
TRAINING = str(Path(__file__).with_name("node_training.py"))
DEADLINE_S = 120.0
"""Agents import torch, which takes many seconds on a machine that does much else."""
_LOOK_EVERY_S = 0.05
"""Seldom, since a look reads whole files while the agents want the CPU."""
_TAIL = 2500
_PORTS = range(20000, 32000)
"""Below the ports that the kernel hands out (net.ipv4.ip_local_port_range)."""

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Said:
    """What a worker said (`tests.support.rank_words`)."""

    what: str
    at: float
    pid: int
    rank: int
    local_rank: int
    place: int
    """Of the node, as it was started; -1 for one without."""
    group: int
    world: int
    restart: int
    run_id: str
    master: str
    more: Mapping[str, float] = field(default_factory=dict)


class Job:
    """Agents that are given the same job; make it with `job`."""

    def __init__(
        self, directory: Path, options: Sequence[str], script: Sequence[str], port: int, stack: ExitStack
    ) -> None:
        self.directory = directory
        """The workers' `$D`, the same for all nodes."""
        self.port = port
        self.runs: list[Run] = []
        """Every agent ever started, in that order."""
        self._places: dict[Run, int | None] = {}
        self._options = options
        self._script = script
        self._stack = stack
        (directory / "pids").mkdir(parents=True, exist_ok=True)

    def start(
        self,
        place: int | None,
        *more: str,
        script: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        """Start an agent on the node that has this place in the order of nodes; None for one without."""
        directory = self.directory / f"agent{len(self.runs)}"
        place_option = () if place is None else ("--node-rank", str(place))
        arguments = (*self._options, *place_option, *more, *(script or self._script))
        own = {"D": str(self.directory), "PLACE": str(-1 if place is None else place), **(environment or {})}
        run = self._stack.enter_context(start(directory, *arguments, environment=own))
        self.runs.append(run)
        self._places[run] = place
        return run

    def start_host(self, place: int | None, *more: str) -> Run:
        """Start an agent and wait until it serves the store, so that no later one does."""
        run = self.start(place, *more)
        self.wait_event(run, events.StoreConnected)
        assert self.host() is run
        return run

    def start_again(self, run: Run) -> Run:
        """Start another agent on the node of one that has ended."""
        return self.start(self._places[run])

    def said(self, what: str, **wanted: int) -> list[Said]:
        """What the workers said so far, oldest first; only with these values, if any are named."""
        try:
            whole, _, _ = (self.directory / SAID).read_text().rpartition("\n")  # the last is being written
        except FileNotFoundError:
            return []
        found = [Said(**json.loads(line)) for line in whole.splitlines()]
        found = [one for one in found if one.what == what]
        return [one for one in found if all(getattr(one, name) == value for name, value in wanted.items())]

    def wait_until(self, is_true: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Until the condition holds; says how all agents are if it does not in time."""
        deadline = time.monotonic() + timeout_s
        while not is_true():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.account()}"
            time.sleep(_LOOK_EVERY_S)

    def wait_said(self, what: str, count: int = 1, **wanted: int) -> list[Said]:
        """Until the workers have said it so often."""
        self.wait_until(
            lambda: len(self.said(what, **wanted)) >= count or self._all_ended(),
            f"{count} x {what!r} with {wanted}",
        )
        found = self.said(what, **wanted)
        assert len(found) >= count, f"all agents ended before {count} x {what!r} {wanted}\n{self.account()}"
        return found

    def wait_event(self, run: Run, kind: type[E], count: int = 1, timeout_s: float = DEADLINE_S) -> list[E]:
        """Until an agent has journalled it so often."""
        self.wait_until(
            lambda: len(run.events(kind)) >= count or run.process.poll() is not None,
            f"{count} x {kind.kind}",
            timeout_s,
        )
        found = run.events(kind)
        assert len(found) >= count, f"the agent ended before {count} x {kind.kind}\n{self.account()}"
        return found

    def _all_ended(self) -> bool:
        return all(run.process.poll() is not None for run in self.runs)

    def host(self) -> Run:
        """The agent that serves the store, of those that run."""
        for run in self.runs:
            is_host = any(one.is_host for one in run.events(events.StoreConnected))
            if is_host and run.process.poll() is None:
                return run
        raise AssertionError(f"no agent serves the store\n{self.account()}")

    def others(self, *runs: Run) -> list[Run]:
        """All agents but these."""
        return [run for run in self.runs if run not in runs]

    def release(self, name: str) -> None:
        """Make a file that the workers wait for."""
        (self.directory / name).touch()

    def codes(self, *runs: Run, timeout_s: float = DEADLINE_S) -> list[int]:
        """Exit codes of these agents (of all, if none is named) once they have ended; nothing is left."""
        wanted = runs or tuple(self.runs)
        self.wait_until(
            lambda: all(run.process.poll() is not None for run in wanted), "the agents end", timeout_s
        )
        for run in wanted:
            self.wait_until(lambda run=run: not run.living(), "no process of an ended agent is left", 20)
        return [run.process.returncode for run in wanted]

    def kill(self, run: Run) -> None:
        """SIGKILL an agent; its workers die with it."""
        run.send(signal.SIGKILL)
        run.process.wait(10)
        self.wait_until(lambda: not run.living(), "workers of a killed agent die", 20)

    def account(self) -> str:
        """How everything is, for a person."""
        parts = []
        for number, run in enumerate(self.runs):
            parts.append(f"=== agent {number} ({node_of(run)}), returned {run.process.poll()}")
            parts.append(run.stderr[-_TAIL:])
            parts += [f"{one.at:.3f} {one.event}" for one in run.records()[-25:]]
        said = self.directory / SAID
        parts.append("=== said\n" + (said.read_text()[-_TAIL:] if said.exists() else "nothing"))
        return "\n".join(parts)

    def check_weights(self, ranks: int) -> int:
        """`TRAINING` did every step exactly once, however often it was begun; how many there were."""
        done = self.said("done")
        assert len(done) == ranks, self.account()
        [(steps, weights)] = {(one.more["step"], one.more["weights"]) for one in done}
        assert weights == weights_after(steps), self.account()
        return steps

    def check_one_world(self) -> None:
        """No step was ever done by a world that had been followed by another."""
        rounds = [one.restart for one in self.said("step")]
        assert rounds == sorted(rounds), self.account()
        worlds = {(one.restart, one.master, one.world) for one in self.said("began")}
        assert len({restart for restart, _, _ in worlds}) == len(worlds), worlds


@contextmanager
def job(
    directory: Path, *options: str, script: Sequence[str], port: int = 0, rdzv_id: str = "j"
) -> Iterator[Job]:
    """A job that meets on the loopback over c10d, with no agent yet."""
    port = port or free_port()
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", rdzv_id)
    patience = ("--ft-set", "rdzv.lost_after=20")  # the machine may do much else; a test of it has its own
    with ExitStack() as stack:
        yield Job(directory, (*meeting, *patience, *options), script, port, stack)


def free_port() -> int:
    """A port on which nothing listens; the kernel does not give it to anybody else either."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def node_of(run: Run) -> str:
    """What the agent's node is called."""
    return next((record.node for record in run.records()), "")


def first_record(run: Run, kind: type[Event]) -> Record:
    """The first of that kind in an agent's journal."""
    return next(record for record in run.records() if isinstance(record.event, kind))


def ended(run: Run) -> events.RunEnded:
    """How the job ended for an agent."""
    [event] = run.events(events.RunEnded)
    return event


def seconds_since(began_at: float) -> float:
    """Time since a moment of CLOCK_MONOTONIC."""
    return time.monotonic() - began_at

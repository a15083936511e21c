"""Names of real agent processes on one host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

HOST = socket.gethostname()
PROGRAM = """
import subprocess, sys
from pathlib import Path
from ftrun.launcher.identity import node_name
name = node_name(sys.argv[1], (Path(sys.argv[2]),))
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL) if sys.argv[3:] else None
print(name.name, child.pid if child else 0, name.degraded, flush=True)
sys.stdin.read()
"""


class Agents:
    """Processes that hold a name each."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._words = [str(uuid.uuid4()), str(directory)]
        self._stack = stack

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, *self._words, *words]
        agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(agent.communicate)
        self._stack.callback(agent.kill)
        return agent


def said(agent: subprocess.Popen[str]) -> tuple[str, int]:
    """Name of an agent, and process id of its child."""
    assert agent.stdout is not None
    name, pid, *degraded = agent.stdout.readline().split()
    assert degraded == []
    return name, int(pid)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    with ExitStack() as stack:
        yield Agents(tmp_path / "nodes", stack)


def test_agents_that_start_at_once_have_different_names(agents: Agents) -> None:
    """However they race, each number is one agent's."""
    started = [agents.start() for _ in range(6)]
    assert {said(agent)[0] for agent in started} == {HOST, *(f"{HOST}#{number}" for number in range(1, 6))}


def test_killed_agents_name_is_its_successors_although_its_child_lives(agents: Agents) -> None:
    """The lock is the agent's alone: a worker that outlives it does not keep the name."""
    first, second = agents.start("with a child"), agents.start()
    name, child = said(first)
    assert said(second)[0] != name
    try:
        first.kill()
        first.wait()
        assert said(agents.start())[0] == name
    finally:
        os.kill(child, signal.SIGKILL)

"""Name and address of this agent."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ftrun.launcher.identity import NodeName, incarnation, lock_places, node_name, own_address

HOST = socket.gethostname()


@pytest.fixture
def key() -> str:
    """Of a job that no other test has: its abstract sockets are the whole machine's."""
    return f"host:{uuid.uuid4()}"


class Agents:
    """Names that are given back at the end."""

    def __init__(self, key: str, places: tuple[Path, ...], stack: ExitStack) -> None:
        self._key = key
        self._places = places
        self._stack = stack

    def add(self, key: str = "") -> NodeName:
        name = node_name(key or self._key, self._places)
        if name.lock is not None:
            self._stack.callback(name.lock.release)
        return name


@pytest.fixture
def agents(key: str, tmp_path: Path) -> Iterator[Agents]:
    with ExitStack() as stack:
        yield Agents(key, (tmp_path / "nodes",), stack)


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name.rpartition(".")[2] for path in (tmp_path / "nodes").iterdir())


def test_agents_of_a_job_on_one_host_have_different_names(agents: Agents) -> None:
    """The first is called like the host, the others with a number behind it."""
    assert [agents.add().name for _ in range(3)] == [HOST, f"{HOST}#1", f"{HOST}#2"]


def test_lowest_free_number_is_taken(agents: Agents) -> None:
    """An agent in the place of another one gets its name."""
    first, second, _ = agents.add(), agents.add(), agents.add()
    assert second.lock is not None
    assert first.lock is not None
    second.lock.release()
    assert agents.add().name == second.name
    first.lock.release()
    assert agents.add().name == HOST


def test_other_job_does_not_matter(agents: Agents, key: str) -> None:
    """Each job has names of its own, also where the readable parts of their files are the same."""
    agents.add(f"{key}/a")
    assert agents.add(f"{key}_a").name == HOST


def test_single_agent_needs_no_lock(tmp_path: Path) -> None:
    """Without a key nothing is written."""
    assert node_name("", (tmp_path / "nodes",)) == NodeName(HOST)
    assert list(tmp_path.iterdir()) == []


def test_files_are_removed_with_their_agents(agents: Agents, tmp_path: Path) -> None:
    """What is left are those of killed agents, which are swept when they are a day old and nobody's."""
    first, second, third = agents.add(), agents.add(), agents.add()
    for name in (first, second):
        assert name.lock is not None
        name.lock.release()
        name.lock.release()
    assert files(tmp_path) == ["2"]
    old, young = tmp_path / "nodes" / "old.0", tmp_path / "nodes" / "young.1"
    young.touch()
    held = next((tmp_path / "nodes").glob("host*.2"))
    old.touch()
    for path in (old, held):
        os.utime(path, (time.time() - 90000,) * 2)
    assert agents.add().name == first.name
    assert files(tmp_path) == ["0", "1", "2"]
    assert not old.exists()
    assert third.lock is not None


@pytest.mark.parametrize("kind", ["open to all", "a file", "no parent", "a link"])
def test_unsafe_directory_is_not_used(kind: str, key: str, tmp_path: Path) -> None:
    """The next place is; without one the agents are still told apart, and the reason says by what."""
    unsafe, safe = tmp_path / "a" / "nodes", tmp_path / "nodes"
    if kind != "no parent":
        unsafe.parent.mkdir()
    if kind == "open to all":
        unsafe.mkdir()
        unsafe.chmod(0o777)
    elif kind == "a file":
        unsafe.touch()
    elif kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        unsafe.symlink_to(tmp_path / "theirs")
    with ExitStack() as stack:
        agents = Agents(key, (unsafe, safe), stack)
        assert (agents.add().name, agents.add().degraded) == (HOST, "")
        assert len(files(tmp_path)) == 2
        agents = Agents(f"{key} 2", (unsafe,), stack)
        names = [agents.add(), agents.add()]
        assert [name.name for name in names] == [HOST, f"{HOST}#1"]
        assert all("by sockets only" in name.degraded and str(unsafe) in name.degraded for name in names)


def test_number_is_taken_where_only_the_socket_is_shared(key: str, tmp_path: Path) -> None:
    """Containers on one host may have a /tmp each and the network of the host."""
    with ExitStack() as stack:
        names = [Agents(key, (tmp_path / place,), stack).add().name for place in ("a", "b")]
        assert names == [HOST, f"{HOST}#1"]
        assert len(list((tmp_path / "b").iterdir())) == 1


def test_places_are_the_same_for_all_agents_of_a_user() -> None:
    """/tmp first, whatever a scheduler has set; a relative $TMPDIR is no place."""
    name = f"ftrun-{os.geteuid()}-nodes"
    assert lock_places({"TMPDIR": "/scratch"}) == (Path("/tmp", name), Path("/scratch", name))
    assert lock_places({"TMPDIR": "here"}) == (Path("/tmp", name),)


def test_incarnations_differ() -> None:
    """12 hexadecimal digits each."""
    made = {incarnation() for _ in range(100)}
    assert len(made) == 100
    assert all(len(text) == 12 and int(text, 16) >= 0 for text in made)


def test_given_address_is_used_as_it_is() -> None:
    """--local-addr may name what this machine does not know."""
    assert own_address("10.0.0.1", 1, "pod-0.svc") == "pod-0.svc"


@pytest.mark.parametrize("endpoint", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_endpoint_needs_no_other_address(endpoint: str) -> None:
    """All agents are on this machine then."""
    assert own_address(endpoint, 29400, None) == "127.0.0.1"


@pytest.mark.parametrize("endpoint", [HOST, "nosuch.invalid", "", "a" * 70, "192.0.2.77", "2001:db8::77"])
def test_address_is_one_of_this_machine(endpoint: str) -> None:
    """Whether or not the endpoint is known, somebody could connect to it: a socket can be bound to it."""
    address = own_address(endpoint, 29400, None)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as bound:
        bound.bind((address, 0))

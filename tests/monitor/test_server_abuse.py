"""What bad clients do to the heartbeat servers, over their real sockets: nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ftrun.monitor.server import LAUNCHER_VARIABLE, MAX_IDLE, RANK_VARIABLE
from ftrun.monitor.sessions import MAX_SESSIONS
from tests.support.heartbeat_node import Node, beats
from tests.support.nvrx_frames import (
    AUTHKEY,
    DEADLINE_S,
    HEARTBEAT,
    Member,
    Object,
    Peer,
    framed,
    pickled,
    section,
)
from tests.support.waiting import until


@pytest.fixture
def node() -> Iterator[Node]:
    """Servers as by default."""
    one = Node()
    yield one
    one.close()


def a_second_client_that_wants_the_session(node: Node) -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.support.nvrx_frames import AUTHKEY, Peer, init\n"
        "peer = Peer(sys.argv[1]); peer.ask(AUTHKEY); answer = peer.ask(init())\n"
        "print(type(answer).__name__, answer.cause)\n"
    )
    path = node.servers.environment(0)[RANK_VARIABLE]
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, path]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=True).stdout
    assert f"ErrorMsg process {os.getpid()} is this rank's client already" in said


def garbage(node: Node) -> None:
    peer = node.connect()
    assert type(peer.ask(AUTHKEY)).__name__ == "OkMsg"
    peer.socket.sendall(framed(os.urandom(100)))
    peer.socket.sendall(framed(b""))
    peer.socket.sendall(framed(b"\x80\x04."))
    peer.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    peer.socket.settimeout(DEADLINE_S)
    while peer.socket.recv(4096):  # errors, then the end: "GET " is no length of a frame
        pass


def half_a_frame(node: Node) -> None:
    node.connect().socket.sendall(framed(pickled(HEARTBEAT))[:20])
    peer = node.connect()
    peer.socket.sendall(b"\0\0")
    peer.close()


def a_frame_of_4_gb(node: Node) -> None:
    peer = node.connect()
    peer.socket.sendall(b"\xff\xff\xff\xff")
    assert peer.is_closed_by_server()
    assert "4294967295 bytes" in node.state().last_error


def nothing_at_all(node: Node) -> None:
    for _ in range(2 * MAX_IDLE):
        node.connect()


def a_slow_writer(node: Node) -> None:
    peer = node.connect()
    for byte in framed(pickled(AUTHKEY)):
        peer.socket.sendall(bytes([byte]))
    assert peer.receive()


def a_forbidden_pickle(node: Node) -> None:
    peer = node.connect()
    peer.ask(AUTHKEY)
    peer.socket.sendall(framed(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x06exit 1\x85R."))
    assert b"posix.system is not allowed here" in peer.receive()
    peer.socket.sendall(framed(b"cposix\nsystem\n(S'exit 1'\ntR."))
    assert b"damaged pickle" in peer.receive()


def no_reader_of_answers(node: Node) -> None:
    peer = node.connect()
    peer.socket.setblocking(False)
    sent = framed(pickled(AUTHKEY)) * 100
    with suppress(BlockingIOError):
        while True:  # until the server reads no more, since its answers are not read either
            peer.socket.send(sent)


def a_client_that_hangs_up_at_once(node: Node) -> None:
    for _ in range(50):
        node.connect().close()


@pytest.mark.parametrize(
    "act",
    [
        a_second_client_that_wants_the_session,
        garbage,
        half_a_frame,
        a_frame_of_4_gb,
        nothing_at_all,
        a_slow_writer,
        a_forbidden_pickle,
        no_reader_of_answers,
        a_client_that_hangs_up_at_once,
    ],
)
def test_the_live_rank_is_not_disturbed_by(act: Callable[[Node], None], node: Node) -> None:
    """Whatever another connection does, the session of the rank's client goes on as it was."""
    peer = node.join()
    peer.ask(section("step", "OPEN"))
    before = node.state()
    act(node)
    after = node.state()
    assert after.is_connected
    assert (after.initialized_at, after.open_sections) == (before.initialized_at, before.open_sections)
    beats(peer, node)
    beats(node.join(1), node, 1)
    assert not [state for _, state in list(node.changes.queue) if not state.is_connected]


def test_a_client_that_dies_within_a_frame_ends_its_own_session(node: Node) -> None:
    """Its rank is not connected any more, the others are not concerned."""
    other = node.join(1)
    peer = node.join()
    peer.socket.sendall(framed(pickled(HEARTBEAT))[:-3])
    peer.close()
    state = node.wait(lambda state: not state.is_connected)
    assert (state.heartbeat_count, state.initialized_at is not None) == (0, True)
    beats(other, node, 1)


def test_sessions_of_a_leaky_process_are_bounded(node: Node) -> None:
    """The oldest are closed, the newest counts."""
    peers = [node.join() for _ in range(MAX_SESSIONS + 2)]
    assert peers[0].is_closed_by_server()
    assert peers[1].is_closed_by_server()
    beats(peers[-1], node)


def resources() -> dict[str, int]:
    """What this process has open."""
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}


def test_a_thousand_connections_in_a_row_leave_nothing(node: Node) -> None:
    """Neither descriptors nor threads grow."""
    node.join().close()
    node.wait(lambda state: not state.is_connected)
    before = resources()
    for number in range(1000):
        peer = node.connect()
        if number % 3 == 0:
            peer.ask(AUTHKEY)
        peer.close()
    node.peers.clear()
    until(lambda: all(count <= before[what] for what, count in resources().items()), resources)


@pytest.fixture
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Takes all descriptors that the process may have, until the test ends or it is called again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []

    def toggle() -> None:
        if fillers:
            while fillers:
                os.close(fillers.pop())
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))

    yield toggle
    if fillers:
        toggle()


def test_no_free_descriptor_is_a_pause_and_not_the_end(
    node: Node, no_descriptors: Callable[[], None]
) -> None:
    """New clients wait in the backlog, known ones are served, and the thread does not burn a core."""
    peer = node.join()
    late = Peer(None)
    no_descriptors()
    late.socket.connect(node.servers.environment(1)[RANK_VARIABLE])
    spent_s = time.process_time()
    beats(peer, node)
    late.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        late.ask(AUTHKEY)
    assert time.process_time() - spent_s < 0.2
    no_descriptors()
    late.socket.settimeout(DEADLINE_S)
    assert late.receive()
    late.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_served(node: Node) -> None:
    """Nobody else can reach the sockets, and who does by a permission given later gets no answer."""
    path = node.servers.environment(0)[RANK_VARIABLE]
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(10)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s.connect(sys.argv[1]); print(s.recv(1))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, path]

    def attempt() -> str:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return ended.stdout + ended.stderr

    peer = node.join()
    assert "PermissionError" in attempt()
    node.directory.chmod(0o755)
    Path(path).chmod(0o666)
    assert attempt() == "b''\n"
    beats(peer, node)


def test_a_bad_control_request_harms_nobody(node: Node) -> None:
    """Its connection is closed; the next request is served."""
    for content in (b"", pickled((0, HEARTBEAT)), pickled("x"), os.urandom(64)):
        peer = Peer(node.servers.environment(0)[LAUNCHER_VARIABLE])
        node.peers.append(peer)
        peer.socket.sendall(framed(content))
        assert peer.is_closed_by_server()
    peer = Peer(node.servers.environment(0)[LAUNCHER_VARIABLE])
    node.peers.append(peer)
    action = Member("WorkloadAction", 0)
    assert peer.ask((0, Object("WorkloadControlRequest", action=action, description="why"))) == b"ok"

"""The heartbeat servers, spoken to over their real sockets by clients that behave."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.monitor.server import LAUNCHER_VARIABLE, RANK_VARIABLE, HeartbeatServers
from ftrun.monitor.sockets import SocketPathError, make_runtime_directory
from ftrun.monitor.wire import ClientSettings, ControlRequest, WorkloadAction
from tests.support.heartbeat_node import TIMEOUTS, Node, beats
from tests.support.nvrx_frames import (
    AUTHKEY,
    DEADLINE_S,
    HEARTBEAT,
    Member,
    Object,
    Peer,
    init,
    section,
    update,
)
from tests.support.waiting import until


@pytest.fixture
def node() -> Iterator[Node]:
    """Servers as by default."""
    one = Node()
    yield one
    one.close()


def test_an_old_client_gets_an_answer_to_every_message(node: Node) -> None:
    """Clients before 0.6 wait for each; what they say is the rank's state by then."""
    peer = node.join()
    beats(peer, node)
    assert type(peer.ask(section("step", "OPEN"))).__name__ == "OkMsg"
    assert [one.name for one in node.state().open_sections] == ["step"]
    assert type(peer.ask(section("step", "CLOSE"))).__name__ == "OkMsg"
    assert type(peer.ask(update(heartbeat=(9.0, 3.0)))).__name__ == "OkMsg"
    assert (node.state().timeouts.initial, node.state().timeouts.steady) == (9.0, 3.0)
    assert node.state(1).initialized_at is None


def test_a_new_client_gets_no_answer_to_heartbeats_and_sections(node: Node) -> None:
    """Clients of 0.6 and later read an answer only to the messages that they wait for."""
    peer = node.connect()
    peer.ask(AUTHKEY)
    assert peer.ask(init(is_new=True)).cfg.skip_section_response is True
    for message in (HEARTBEAT, section("step", "OPEN"), section("step", "OPEN"), section("odd", "OPEN")):
        peer.send(message)
    assert type(peer.ask(update(heartbeat=(9.0, 3.0)))).__name__ == "OkMsg"
    state = node.state()
    assert (state.heartbeat_count, state.error_count) == (1, 2)
    assert "'odd' is not known" in state.last_error


def test_the_users_wish_for_answers_is_kept() -> None:
    """skip_section_response: false makes new clients wait for each answer, and they get it."""
    node = Node(ClientSettings(skip_section_response=False))
    peer = node.connect()
    peer.ask(AUTHKEY)
    assert peer.ask(init(is_new=True)).cfg.skip_section_response is False
    beats(peer, node)
    node.close()


def test_the_client_learns_its_limits(node: Node) -> None:
    """The answer to InitMsg has the configuration, calculated limits included."""
    peer = node.join()
    peer.ask(update(sections={"step": 2.5}, out_of_section=4.0))
    config = node.connect().ask(init()).cfg
    assert type(config).__name__ == "FaultToleranceConfig"
    assert config.rank_section_timeouts == {"step": 2.5, "eval": None}
    assert (config.initial_rank_heartbeat_timeout, config.rank_out_of_section_timeout) == (600.0, 4.0)
    assert config.skip_section_response is False


def test_an_unknown_section_is_an_error_to_the_client_only(node: Node) -> None:
    """The rank stays monitored."""
    peer = node.join()
    answer = peer.ask(section("odd", "OPEN"))
    assert type(answer).__name__ == "ErrorMsg"
    assert "rank_section_timeouts" in answer.cause
    beats(peer, node)


def test_a_rank_that_reconnects_is_the_same_rank(node: Node) -> None:
    """The restart inside a process ends the session and begins another one."""
    peer = node.join()
    beats(peer, node)
    peer.ask(section("step", "OPEN"))
    peer.close()
    node.wait(lambda state: not state.is_connected)
    beats(node.join(), node)
    state = node.state()
    assert (state.session_count, state.heartbeat_count, state.open_sections) == (2, 2, ())


def test_a_client_left_behind_by_a_restart_does_not_matter(node: Node) -> None:
    """The newer session of the same process counts; the old one is still answered, by its own sections."""
    old = node.join()
    old.ask(section("step", "OPEN"))
    new = node.join()
    assert node.state().open_sections == ()
    assert type(new.ask(section("step", "OPEN"))).__name__ == "OkMsg"
    assert type(old.ask(section("step", "CLOSE"))).__name__ == "OkMsg"
    assert [one.name for one in node.state().open_sections] == ["step"]
    old.close()
    beats(new, node)


def test_only_the_user_can_reach_the_sockets(node: Node) -> None:
    """The directory is 0700 and the sockets are 0600, and the variables name them."""
    variables = node.servers.environment(1)
    assert set(variables) == {RANK_VARIABLE, LAUNCHER_VARIABLE}
    assert stat.S_IMODE(node.directory.stat().st_mode) == 0o700
    for path in variables.values():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_closing_removes_everything() -> None:
    """Sockets, directory, thread and descriptors are gone; closing twice is harmless."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    node = Node(ClientSettings())
    node.join()
    node.close()
    node.close()
    assert not node.directory.exists()
    assert len(os.listdir("/proc/self/fd")) <= before[0]
    assert threading.active_count() <= before[1]


def test_a_new_round_forgets_the_workers_of_the_last(node: Node) -> None:
    """Limits that were calculated stay; connections that are left over neither count nor get an answer."""
    left = node.join()
    beats(left, node)
    left.ask(update(heartbeat=(9.0, 3.0)))
    node.servers.begin_round()
    state = node.state()
    assert (state.initialized_at, state.heartbeat_count, state.is_connected) == (None, 0, False)
    assert (state.timeouts.steady, "steady" in state.timeouts.calculated) == (3.0, True)
    assert state.observed.initial is not None
    assert left.is_closed_by_server()
    beats(node.join(), node)


def test_only_what_may_move_a_limit_is_reported(node: Node) -> None:
    """A further heartbeat is no news; the first one is, and so are sections, limits and the end."""
    peer = node.join()
    for message in (HEARTBEAT, HEARTBEAT, HEARTBEAT, section("step", "OPEN"), update(heartbeat=(9.0, 3.0))):
        peer.ask(message)
    peer.close()
    node.wait(lambda state: not state.is_connected)
    until(lambda: node.changes.qsize() >= 5, node.changes.qsize)
    told = [state for _, state in list(node.changes.queue)]
    assert [state.heartbeat_count for state in told] == [0, 1, 3, 3, 3]
    assert [state.is_connected for state in told] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (0, WorkloadAction.CONTINUE),
        (1, WorkloadAction.EXCLUDE_THIS_NODE),
        ("ShutdownWorkload", WorkloadAction.SHUTDOWN_WORKLOAD),
    ],
)
def test_control_requests_are_taken_before_they_are_answered(
    code: int | str, action: WorkloadAction, node: Node
) -> None:
    """A rank that has its answer may end at once: its request is not lost."""
    peer = Peer(node.servers.environment(0)[LAUNCHER_VARIABLE])
    node.peers.append(peer)
    request = Object("WorkloadControlRequest", action=Member("WorkloadAction", code), description="why")
    assert peer.ask(("3", request)) == b"ok"
    assert node.requests.get_nowait() == ControlRequest(3, action, "why")


def test_paths_of_sockets_are_short_whatever_tmpdir_is(tmp_path: Path) -> None:
    """A $TMPDIR that leaves no room is passed over; one that does is used."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    for environ, parent in (
        ({"TMPDIR": str(deep)}, Path("/tmp")),
        ({"TMPDIR": "/var/tmp"}, Path("/var/tmp")),
    ):
        made = make_runtime_directory(environ)
        made.rmdir()
        assert made.parent == parent
        assert len(f"{made}/rank4095.socket") < 108


def test_a_directory_with_a_long_path_is_refused(tmp_path: Path) -> None:
    """The error says what is wrong, and nothing stays open."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SocketPathError, match="at most 107 bytes"):
        HeartbeatServers(
            deep, [0], TIMEOUTS, ClientSettings(), lambda rank, state: None, lambda request: None
        )
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_ranks_at_once_are_all_served(node: Node) -> None:
    """Several clients that beat as fast as they can lose no message and no answer."""
    peers = [node.join(0), node.join(1, is_new=True)]

    def beat_answered() -> None:
        for _ in range(500):
            peers[0].ask(HEARTBEAT)

    def beat_fast() -> None:
        for _ in range(5000):
            peers[1].send(HEARTBEAT)

    threads = [threading.Thread(target=work) for work in (beat_answered, beat_fast)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * DEADLINE_S)
    assert node.state(0).heartbeat_count == 500
    node.wait(lambda state: state.heartbeat_count == 5000, 1)

"""Heartbeat servers of a node of two ranks, and hand-made clients of them."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue

from ftrun.monitor.heartbeats import RankHeartbeats, Timeouts
from ftrun.monitor.server import RANK_VARIABLE, HeartbeatServers
from ftrun.monitor.sockets import make_runtime_directory
from ftrun.monitor.wire import ClientSettings, ControlRequest
from tests.support.nvrx_frames import AUTHKEY, HEARTBEAT, Peer, init
from tests.support.waiting import until

TIMEOUTS = Timeouts.from_config(600.0, 60.0, {"step": 5.0, "eval": None}, 7.0)


class Node:
    """Servers for two ranks, with all that they reported."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.directory = make_runtime_directory({})
        self.changes: Queue[tuple[int, RankHeartbeats]] = Queue()
        self.requests: Queue[ControlRequest] = Queue()
        self.peers: list[Peer] = []
        self.servers = HeartbeatServers(
            self.directory,
            [0, 1],
            TIMEOUTS,
            settings or ClientSettings(),
            lambda rank, state: self.changes.put((rank, state)),
            self.requests.put,
        )

    def connect(self, local_rank: int = 0) -> Peer:
        """A connection that has said nothing yet."""
        self.peers.append(Peer(self.servers.environment(local_rank)[RANK_VARIABLE]))
        return self.peers[-1]

    def join(self, local_rank: int = 0, is_new: bool = False) -> Peer:
        """A client in a session."""
        peer = self.connect(local_rank)
        assert type(peer.ask(AUTHKEY)).__name__ == "OkMsg"
        assert type(peer.ask(init(is_new))).__name__ == "OkMsg"
        return peer

    def state(self, local_rank: int = 0) -> RankHeartbeats:
        """What is known of a rank."""
        return self.servers.snapshot()[local_rank]

    def wait(self, is_reached: Callable[[RankHeartbeats], bool], local_rank: int = 0) -> RankHeartbeats:
        """The rank's state once it is as asked."""
        until(lambda: is_reached(self.state(local_rank)), lambda: self.state(local_rank))
        return self.state(local_rank)

    def close(self) -> None:
        """All clients, then the servers."""
        for peer in self.peers:
            peer.close()
        self.servers.close()


def beats(peer: Peer, node: Node, local_rank: int = 0) -> None:
    """Asserts that the session of `peer` is alive and is what its rank is judged by."""
    count = node.state(local_rank).heartbeat_count
    assert type(peer.ask(HEARTBEAT)).__name__ == "OkMsg"
    state = node.state(local_rank)
    assert (state.is_connected, state.heartbeat_count) == (True, count + 1)

"""Whether another node can be connected to, on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

from ftrun.launcher.model import Plan
from ftrun.launcher.ranks import NodeRanks, assign
from ftrun.launcher.reach import StoreCheck, Unreachable, check_reachable
from tests.support.nodes import free_port
from tests.support.waiting import until


def test_listener_is_reached() -> None:
    """Somebody listens: there is nothing to say."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert check_reachable("127.0.0.1", server.getsockname()[1], 5.0) == ""
        assert check_reachable("localhost", server.getsockname()[1], 5.0) == ""


def test_port_without_listener_refuses() -> None:
    """The sentence has the place and the reason."""
    port = free_port()
    reason = f"127.0.0.1:{port}: connection refused, so nothing listens there or a firewall rejects it"
    assert check_reachable("127.0.0.1", port, 5.0) == reason


def test_silence_is_told_from_refusal() -> None:
    """A listener whose queue is full drops what comes, as a firewall does."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        address, port = server.getsockname()
        assert check_reachable(address, port, 0.2) == f"{address}:{port}: no answer"


def test_name_without_an_address_is_told() -> None:
    """An unknown name, and what is no name at all."""
    assert check_reachable("nosuch.invalid", 1, 1.0).startswith("nosuch.invalid:1 cannot be resolved (")
    assert "is no host name" in check_reachable(f"{'a' * 70}.example", 1, 1.0)


def test_address_of_the_other_family_is_shown_readably() -> None:
    """Brackets tell an IPv6 address from its port."""
    assert check_reachable("::1", 1, 1.0).startswith("[::1]:1: ")


def plan(port: int, place: int) -> Plan:
    ranks: NodeRanks = assign([1, 1])[place]
    return Plan(7, 0, ranks, "127.0.0.1", port, nodes=("a", "b"))


def check(found: list[Unreachable], patience_s: float = 0.6) -> StoreCheck:
    post: Callable[[Unreachable], None] = found.append
    return StoreCheck("b", post, patience_s)


def is_trying() -> bool:
    return any(thread.name == "ftrun-reach" for thread in threading.enumerate())


def test_node_that_cannot_reach_the_store_says_who_and_what_to_do() -> None:
    """The round it is about, both nodes, the place, the reason and the remedy."""
    found: list[Unreachable] = []
    port = free_port()
    check(found).begin(plan(port, 1))
    until(lambda: found, lambda: "nothing is said")
    assert found == [
        Unreachable(
            7,
            f"node b cannot reach the workers' store on node a: 127.0.0.1:{port}: connection refused, so "
            "nothing listens there or a firewall rejects it (tried for 0.6 s); give node a --local-addr with "
            "an address that the other nodes can reach, or open its ports to them",
        )
    ]


def test_store_that_is_reached_late_is_reached() -> None:
    """A way that is missing for a moment is no reason to stop a round."""
    found: list[Unreachable] = []
    port = free_port()
    check(found, patience_s=20.0).begin(plan(port, 1))
    assert is_trying()
    with socket.create_server(("127.0.0.1", port)):
        until(lambda: not is_trying(), lambda: "it is still tried")
    assert found == []


def test_first_node_and_ended_round_are_not_judged() -> None:
    """The store's own node tries nothing, and what a round has found out is not told after its end."""
    found: list[Unreachable] = []
    port = free_port()
    check(found).begin(plan(port, 0))
    assert not is_trying()
    ended = check(found)
    ended.begin(plan(port, 1))
    ended.end()
    until(lambda: not is_trying(), lambda: "it is still tried")
    assert found == []

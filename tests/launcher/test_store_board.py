"""How many requests a round costs, whatever its size: the store is one thread for all agents of a job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore

from ftrun.launcher.store_board import KEPT_ROUNDS, Board, unpack
from ftrun.launcher.store_client import StoreClient
from ftrun.launcher.store_inbox import Inbox


class CountedStore:
    """A store that counts what it is asked."""

    def __init__(self, store: HashStore) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: object) -> Any:
            self.asked[name] += 1
            return getattr(self._store, name)(*args)

        return ask


def boards(count: int) -> tuple[list[Board], list[CountedStore]]:
    """Agents with a connection each to one store."""
    shared = HashStore()
    stores = [CountedStore(shared) for _ in range(count)]
    made = [Board(StoreClient(store, time.monotonic), "j/") for store in stores]  # type: ignore[arg-type]
    return made, stores


@pytest.mark.parametrize("agents", [1, 30, 1000])
def test_round_costs_each_agent_the_same_few_requests(agents: int) -> None:
    """A join is one add and one set; the host agent reads all of them with one request for their values."""
    [host, *members], [hosts, *asked] = boards(agents + 1)
    host.announce("hello")
    inbox = Inbox(host, time.monotonic)
    for number, member in enumerate(members):
        member.send(f"join {number}")
    hosts.asked.clear()
    assert inbox.read(1.0) == [f"join {number}".encode() for number in range(agents)]
    assert hosts.asked == {"check": 2, "add": 1, "multi_get": 1}
    assert {tuple(store.asked.items()) for store in asked} == {(("add", 1), ("set", 1))}
    host.publish(0, "plan", "over")
    for member, store in zip(members, asked, strict=True):
        store.asked.clear()
        packed = member.wait_plan(0, 1.0)
        assert packed is not None
        assert unpack(packed) == b"plan"
        assert store.asked == {"check": 1, "get": 1}


def test_keys_of_a_round_are_its_own_and_old_ones_go() -> None:
    """Nothing of one round is seen in another, and a job of many rounds does not fill the store."""
    [board], _ = boards(1)
    for sequence in range(3 * KEPT_ROUNDS):
        assert board.wait_plan(sequence, 0.0) is None
        assert board.wait_stop(sequence, 0.0) is None
        board.publish(sequence, f"plan {sequence}", "over")
        board.stop(sequence, f"stop {sequence}")
        board.stop(sequence, "too late")
        assert board.wait_stop(sequence, 0.0) == f"stop {sequence}".encode()
        assert board.open_sequence() == sequence + 1
    assert board.wait_plan(2 * KEPT_ROUNDS - 1, 0.0) is None
    packed = board.wait_plan(2 * KEPT_ROUNDS, 0.0)
    assert packed is not None
    assert unpack(packed) == f"plan {2 * KEPT_ROUNDS}".encode()

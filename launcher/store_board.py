"""The job's keys in a store: who writes what, and who waits for what.

    hello        the host agent's, set once everything else is there
    open         sequence number of the round that can be joined
    inbox/count  messages announced so far; inbox/<i> a message
    alive/<a>    keep-alives of agent process a
    plan/<k>     publication that closes round k, compressed; stop/<k> the order that ends it
    awaited/<k>  what round k waits for, if it had to be said; of interest to people only

A message costs an agent two requests, a plan or a stop one blocking wait and a read; the host agent reads all
new messages with one request.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ftrun.launcher.store_client import StoreClient, StoreError

_QUICK = 1
"""zlib's level: a plan of 1,000 nodes, which all of them read, has 110 KB, and 17 KB after 1 ms."""

KEPT_ROUNDS = 16
"""Plans and stops are kept that long for agents that are slow to see them, and not for ever."""


class Board:
    """The keys under `prefix`, through one connection. Each method raises StoreError if the store fails."""

    def __init__(self, client: StoreClient, prefix: str) -> None:
        self.client = client
        self.prefix = prefix

    def key(self, name: str) -> str:
        """Full name of a key."""
        return self.prefix + name

    def announce(self, hello: str) -> None:
        """Begin with round 0; host agent only."""
        self.client.set(self.key("open"), "0")
        self.client.set(self.key("hello"), hello)

    def read_hello(self, timeout_s: float) -> bytes | None:
        """The host agent's; None if there is none in time."""
        return self._read("hello", timeout_s)

    def open_sequence(self) -> int:
        """Of the round that can be joined."""
        return int(self.client.get(self.key("open")))

    def beat(self, incarnation: str) -> None:
        """One more keep-alive."""
        self.client.add(self.key(f"alive/{incarnation}"), 1)

    def read_beats(self, incarnations: Sequence[str]) -> dict[str, int]:
        """Keep-alive counters; agents that have never sent one are left out."""
        keys = [self.key(f"alive/{one}") for one in incarnations]
        there = find_present(self.client, keys)
        counts = dict(zip(there, self.client.fetch(there), strict=True)) if there else {}
        return {one: int(counts[key]) for one, key in zip(incarnations, keys, strict=True) if key in counts}

    def send(self, text: str) -> None:
        """Put a message into the inbox."""
        index = self.client.add(self.key("inbox/count"), 1) - 1
        self.client.set(self.key(f"inbox/{index}"), text)

    def stop(self, sequence: int, order: str) -> None:
        """End a round, unless somebody has."""
        self.client.settle(self.key(f"stop/{sequence}"), order)

    def publish(self, sequence: int, text: str, over: str) -> None:
        """Close a round and open the next; `over` ends the one before if nobody has. Host agent only."""
        if sequence > 0:
            self.stop(sequence - 1, over)
        self.client.set(self.key("open"), str(sequence + 1))  # who comes now is too late for this round
        self.client.set(self.key(f"plan/{sequence}"), zlib.compress(text.encode(), _QUICK))
        if sequence >= KEPT_ROUNDS:
            self.client.delete(self.key(f"plan/{sequence - KEPT_ROUNDS}"))
            self.client.delete(self.key(f"stop/{sequence - KEPT_ROUNDS}"))
            self.client.delete(self.key(f"awaited/{sequence - KEPT_ROUNDS}"))

    def tell_awaited(self, sequence: int, text: str) -> None:
        """What the open round waits for. Host agent only."""
        self.client.set(self.key(f"awaited/{sequence}"), text)

    def read_awaited(self, sequence: int) -> bytes | None:
        """What the round waits for; None if that was never said."""
        return self._peek(f"awaited/{sequence}")

    def wait_plan(self, sequence: int, timeout_s: float) -> bytes | None:
        """What closed the round, packed; None if nothing has in time."""
        return self._read(f"plan/{sequence}", timeout_s)

    def wait_stop(self, sequence: int, timeout_s: float) -> bytes | None:
        """The order that ended the round; None if it has not been ended in time."""
        return self._read(f"stop/{sequence}", timeout_s)

    def _peek(self, name: str) -> bytes | None:
        key = self.key(name)
        return self.client.get(key) if self.client.has([key]) else None

    def _read(self, name: str, timeout_s: float) -> bytes | None:
        key = self.key(name)
        return self.client.get(key) if self.client.wait(key, timeout_s) else None


def unpack(packed: bytes) -> bytes:
    """The text of a plan.

    Raises:
        StoreError: it is none.
    """
    try:
        return zlib.decompress(packed)
    except zlib.error as error:
        raise StoreError(f"what stands there for a plan is none: {error}") from error


def find_present(client: StoreClient, keys: Sequence[str], max_requests: int = 64) -> list[str]:
    """Those of `keys` that are there, in their order.

    A store can only be asked whether all of some keys are there, so parts are halved until they are whole.
    After `max_requests` the rest is left for another time: it is later in the order than all that was found.
    """
    found: list[str] = []
    parts = [list(keys)] if keys else []
    requests = 0
    while parts and requests < max_requests:
        part = parts.pop()
        requests += 1
        if client.has(part):
            found += part
        elif len(part) > 1:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
    return found

"""One side of a store exchange for tests: collects its notes, and can be run as a process of its own.

python -m tests.support.exchange_party PORT    serves the store there until stdin ends
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ftrun.launcher.exchange import Connected, Note
from ftrun.launcher.messages import Agent, Hello
from ftrun.launcher.store_exchange import StoreExchange
from ftrun.launcher.store_setting import StoreSetting

DEADLINE_S = 20.0
LOOPBACK = "127.0.0.1"
HELLO = Hello("job7", "e", "1.0", "f1", "train.py on 2 nodes", "a")

Kind = TypeVar("Kind")


def setting(port: int, **changes: Any) -> StoreSetting:
    """Of a job on the loopback, with quick keep-alives."""
    values: dict[str, Any] = {
        "backend": "c10d",
        "host": LOOPBACK,
        "port": port,
        "keep_alive_interval_s": 0.1,
        "lost_after_s": 10.0,
        "read_timeout_s": 10.0,
    }
    return StoreSetting(**values | changes)


class Party:
    """One agent's exchange; `expect` takes its notes in order, and looks after time as an agent does."""

    def __init__(self, name: str, settings: StoreSetting, hello: Hello = HELLO, **arguments: Any) -> None:
        self.agent = Agent(name, f"{name}-1")
        self.seen: list[Note] = []
        self._notes: list[Note] = []
        self._changed = threading.Condition()
        self.exchange = StoreExchange(settings, hello, self.agent, self._post, **arguments)

    def _post(self, note: Note) -> None:
        with self._changed:
            self._notes.append(note)
            self._changed.notify_all()

    def connect(self) -> Connected:
        """Connect and wait until that has happened."""
        self.exchange.connect()
        return self.expect(Connected)

    def expect(
        self, kind: type[Kind], fits: Callable[[Kind], bool] = lambda _: True, timeout_s: float = DEADLINE_S
    ) -> Kind:
        """The next note of that kind that fits; those before it are gone."""
        give_up_at = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at:
            note = self._next()
            if isinstance(note, kind) and fits(note):
                return note
            self.exchange.check(time.monotonic())
        raise AssertionError(f"no {kind.__name__} in {timeout_s} s, but {self.seen}")

    def _next(self) -> Note | None:
        with self._changed:
            if not self._notes:
                self._changed.wait(0.02)
            if not self._notes:
                return None
            self.seen.append(self._notes.pop(0))
            return self.seen[-1]


def main() -> None:
    """Serve until stdin ends."""
    host = Party("host", setting(int(sys.argv[1])))
    print("host" if host.connect().is_host else "member", flush=True)
    sys.stdin.read()
    host.exchange.close(1.0)


if __name__ == "__main__":
    main()

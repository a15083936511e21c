"""One connection to a c10d Store: the few requests that ftrun makes, alike for all kinds of stores.

A store is asked by one thread at a time. A request may block in C++ for as long as the network is silent;
`due_at` shows that to other threads, and `cut` ends the request where the kind of store allows it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from torch.distributed import Store

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

Clock = Callable[[], float]

_LOOK_EVERY_S = 0.02
"""How often a store that tells nobody of a new key is looked at; FileStore's own wait looks every 10 ms."""

_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


class StoreError(Exception):
    """The store failed, or the connection was cut; one line."""


class BackendError(Exception):
    """The kind of store cannot be used on this node; says what to install."""


def import_torch() -> None:
    """Import torch.distributed; slow.

    torch writes a stack trace to stderr for every connection that ends, and warnings for every wait that runs
    out; both are everyday events here, and an exception tells of them too. Its level is read once, at the
    import. `putenv` changes it for C++ only: `os.environ`, which the workers get, never has it.

    Raises:
        BackendError: there is none.
    """
    is_users_wish = _LOG_LEVEL in os.environ
    if not is_users_wish:
        os.putenv(_LOG_LEVEL, "FATAL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the workers show what torch has to say about this machine
            import torch.distributed
    except (ImportError, OSError) as error:
        raise BackendError(f"torch cannot be imported by the agent: {error}") from error
    finally:
        if not is_users_wish:
            os.unsetenv(_LOG_LEVEL)
    if not torch.distributed.is_available():
        raise BackendError("this build of torch has no torch.distributed")


def first_line(error: BaseException) -> str:
    """What an exception says, without the stack that torch may add."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class StoreClient:
    """A connection to any store that torch itself implements; waits by looking again and again."""

    errors: tuple[type[Exception], ...] = (RuntimeError, LookupError, OSError)
    """What the store raises; torch's DistError is a RuntimeError."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_cut = threading.Event()
        self._due_at: float | None = None

    @property
    def source(self) -> str:
        """This machine's own address on the way to the store; "" if it is the loopback's, or not known."""
        return ""

    @property
    def due_at(self) -> float | None:
        """When the request under way should have been answered (CLOCK_MONOTONIC, s); None between two."""
        return self._due_at

    def cut(self) -> None:
        """Give the connection up, from any thread; whoever waits in it gets a `StoreError` if possible."""
        self._is_cut.set()

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value and wake who waits for it."""
        self._ask(self._store.set, key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and return it."""
        return int(self._ask(self._store.add, key, amount))

    def get(self, key: str) -> bytes:
        """Value of a key that is known to be there."""
        return bytes(self._ask(self._store.get, key))

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._ask(self._store.check, list(keys)))

    def fetch(self, keys: Sequence[str]) -> list[bytes]:
        """Values of keys that are known to be there."""
        return [bytes(value) for value in self._ask(self._store.multi_get, list(keys))]

    def delete(self, key: str) -> None:
        """Forget a key, if the store can."""
        self._ask(self._store.delete_key, key)

    def settle(self, key: str, value: str) -> bytes:
        """Store a value unless the key has one; returns what it has. Wakes who waits for it.

        A TCPStore without libuv wakes nobody at compare_set (torch 2.13). Everybody sets the winner's value
        again: if the winner has died between the two requests, the next one finishes its work.
        """
        winner = bytes(self._ask(self._store.compare_set, key, "", value))
        self._ask(self._store.set, key, winner.decode())
        return winner

    def wait(self, key: str, timeout_s: float) -> bool:
        """Whether the key is there, after at most `timeout_s`."""
        give_up_at = self._clock() + timeout_s
        while not self.has([key]):
            left_s = give_up_at - self._clock()
            if left_s <= 0:
                return False
            self._is_cut.wait(min(left_s, _LOOK_EVERY_S))
        return True

    def _ask(
        self, request: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return self._ask_until(self._clock(), request, *args, **kwargs)

    def _ask_until(
        self,
        due_at: float,
        request: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        if self._is_cut.is_set():
            raise StoreError("the connection was given up")
        self._due_at = due_at
        try:
            return request(*args, **kwargs)
        except self.errors as error:
            raise StoreError(first_line(error)) from error
        finally:
            self._due_at = None

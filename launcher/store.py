"""The workers' store: a fresh torch TCPStore for each round, served by this agent. The only c10d user.

torch is imported in a thread of its own, because a launcher that imports it first makes every worker wait
for it. The port listens from the start: workers that are early queue in the backlog until the store serves.
The store is made in that thread too: its constructor connects to itself and asks the DNS for the name of
127.0.0.1 (torch/csrc/distributed/c10d/socket.cpp), which takes 5 s where the answer is lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_CLIENT_TIMEOUT = timedelta(minutes=30)


def rehearse() -> None:
    """Connect once to a store of this process's own, so that the first connection to another one is quick.

    Each process's first connection asks the DNS for the name of 127.0.0.1, and waits for 10 s where no server
    answers; torch asks no more once that has failed. A standby has the time.
    """
    from torch.distributed import DistError, TCPStore

    with contextlib.suppress(DistError, RuntimeError):
        TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30), wait_for_workers=False)


class StoreHost:
    """Serves at most one store at a time.

    `on_failure` is called, from any thread, with a sentence when torch cannot be imported or the store cannot
    be served; the workers of the round would wait for ever otherwise.
    """

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._store: TCPStore | None = None

    def serve(self, listener: socket.socket) -> None:
        """Serve a new, empty store on `listener` (bound and listening) as soon as torch allows.

        Takes the socket over.
        """
        with self._lock:
            self._listener = listener
        threading.Thread(target=self._run, name="ftrun-store", daemon=True).start()

    def close(self) -> None:
        """Stop serving; the port is free when this returns. Waits for a store that is just being made."""
        with self._lock:
            # This was the last reference: torch's destructor stops the daemon and closes the socket.
            self._store = None
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    def _run(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the workers show what torch has to say about this machine
                import torch.distributed
        except (ImportError, OSError) as error:
            self._on_failure(f"torch cannot be imported by the agent: {error}")
            return
        if not torch.distributed.is_available():
            self._on_failure("this build of torch has no torch.distributed")
            return
        with self._lock:
            if self._listener is not None:
                self._open()

    def _open(self) -> None:
        from torch.distributed import DistError, TCPStore

        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        try:
            self._store = TCPStore(
                host,
                port,
                None,
                True,
                timeout=_CLIENT_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=self._listener.detach(),
            )
        except (DistError, RuntimeError, ValueError) as error:
            self._on_failure(f"the store of the round cannot be served on port {port}: {error}")
        self._listener = None

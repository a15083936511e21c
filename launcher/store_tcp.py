"""Connections to a torch TCPStore that another thread can end, and serving one.

torch's client has no way out of a request that gets no answer, and its constructor waits without limit for a
listener that accepts and says nothing. The kernel has one: shutting the socket down. The socket is found
among this process's descriptors by its peer's port; where /proc cannot be read, the thread is left to itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from ftrun.launcher.quorum import is_loopback
from ftrun.launcher.store_client import Clock, StoreClient, StoreError, first_line

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_opening = threading.Lock()
"""Held while a connection is made, so that new descriptors are that connection's."""

_MAPPED = "::ffff:"
"""How torch's sockets, which are IPv6 ones wherever that exists, show an IPv4 address (RFC 4291)."""

_LOOK_EVERY_S = 0.05
_CUTS = 20
"""After a cut torch's constructor may connect again, with a pause, until its own time is over."""


class SilentError(StoreError):
    """Somebody accepts connections and does not answer as a TCPStore would."""


class TcpClient(StoreClient):
    """A connection to a TCPStore; waits for a key in one request."""

    def __init__(self, store: TCPStore, line: socket.socket | None, clock: Clock) -> None:
        super().__init__(store, clock)
        self._line = line
        """A second descriptor of the connection's socket."""

    @property
    def source(self) -> str:
        """This machine's own address on the way to the store; "" if it is the loopback's, or not known."""
        try:
            own = "" if self._line is None else str(self._line.getsockname()[0])
        except OSError:
            return ""
        own = own.removeprefix(_MAPPED)
        return "" if is_loopback(own) else own

    def cut(self) -> None:
        """End the connection; a request under way fails at once."""
        super().cut()
        line, self._line = self._line, None
        if line is not None:
            _shut(line)

    def wait(self, key: str, timeout_s: float) -> bool:
        """Whether the key is there, after at most `timeout_s`; the store tells of it at once."""
        from torch.distributed import DistStoreError

        def wait() -> bool:
            try:
                self._store.wait([key], timedelta(seconds=timeout_s))
            except DistStoreError:  # the time is over
                return False
            return True

        return self._ask_until(self._clock() + timeout_s, wait)


def serve(listener: socket.socket, use_libuv: bool) -> TCPStore:
    """A new, empty store on `listener`, which it takes over; dropping the last reference ends it.

    Raises:
        StoreError: torch cannot serve it.
    """
    from torch.distributed import TCPStore

    host, port = listener.getsockname()[:2]
    try:
        return TCPStore(
            host,
            port,
            None,
            True,
            timeout=timedelta(minutes=5),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=use_libuv,
        )
    except (RuntimeError, ValueError) as error:
        raise StoreError(f"the store cannot be served on port {port}: {first_line(error)}") from error


def connect(
    address: str,
    port: int,
    timeout_s: float,
    read_timeout_s: float,
    clock: Clock,
    goes_on: Callable[[float], bool],
) -> TcpClient:
    """A connection to the TCPStore at a numeric address, made within `timeout_s`.

    torch asks the DNS for the name of the address first, which takes 10 s if no server answers. Meanwhile
    `goes_on` is asked, with the seconds that have passed, whether the connection is still wanted.

    Raises:
        SilentError: nothing that a TCPStore would say has come within `timeout_s`.
        StoreError: it cannot be reached.
    """
    with _opening:
        before = _sockets_to(port)
        attempt = _Attempt(address, port, timeout_s, read_timeout_s)
        try:
            attempt.wait(timeout_s, clock, goes_on)
            made = {inode: fd for inode, fd in _sockets_to(port).items() if inode not in before}
            line = _second_descriptor(next(iter(made.values()), None))
            return TcpClient(attempt.result(), line, clock)
        finally:
            attempt.abandon(lambda: [fd for inode, fd in _sockets_to(port).items() if inode not in before])


class _Attempt:
    """A TCPStore under construction, in a thread of its own."""

    def __init__(self, address: str, port: int, timeout_s: float, read_timeout_s: float) -> None:
        self._arguments = (address, port, timedelta(seconds=timeout_s), timedelta(seconds=read_timeout_s))
        self._store: TCPStore | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ftrun-store-connect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from torch.distributed import TCPStore

        address, port, timeout, read_timeout = self._arguments
        try:
            store = TCPStore(address, port, None, False, timeout=timeout, wait_for_workers=False)
            store.set_timeout(read_timeout)
        except (RuntimeError, ValueError) as error:
            self._error = error
        else:
            self._store = store

    def wait(self, timeout_s: float, clock: Clock, goes_on: Callable[[float], bool]) -> None:
        """Return when it has ended, or the time is over."""
        began_at = clock()
        while self._thread.is_alive() and clock() - began_at < timeout_s and goes_on(clock() - began_at):
            self._thread.join(_LOOK_EVERY_S)

    def result(self) -> TCPStore:
        if self._store is not None:
            return self._store
        if self._error is not None:
            raise StoreError(first_line(self._error)) from self._error
        raise SilentError("no answer to torch's greeting")

    def abandon(self, sockets: Callable[[], list[int]]) -> None:
        """End the thread if it is still there, by ending what it waits for."""
        for _ in range(_CUTS):
            if not self._thread.is_alive():
                return
            for fd in sockets():
                line = _second_descriptor(fd)
                if line is not None:
                    _shut(line)
            self._thread.join(_LOOK_EVERY_S)


def _sockets_to(port: int) -> dict[int, int]:
    """This process's TCP connections to that port of whatever host: inode -> descriptor."""
    found = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return {}
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as line:
                    is_internet = line.family in (socket.AF_INET, socket.AF_INET6)
                    if is_internet and line.getpeername()[1] == port:
                        found[status.st_ino] = int(name)
    return found


def _second_descriptor(fd: int | None) -> socket.socket | None:
    try:
        return None if fd is None else socket.socket(fileno=os.dup(fd))
    except OSError:
        return None


def _shut(line: socket.socket) -> None:
    with line, contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)

"""One connection of a client: whole frames in, frames out, never waiting and with bounded memory.

Knows nothing of what the frames mean.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ftrun.monitor import wire

_READ_BYTES = 65536
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """Who connected, as the kernel noted it then (SO_PEERCRED)."""

    pid: int
    uid: int


class ConnectionGoneError(Exception):
    """The peer has ended the connection, or it broke."""


class Connection:
    """A non-blocking Unix stream socket to a client."""

    def __init__(self, peer_socket: socket.socket) -> None:
        self._socket = peer_socket
        self._socket.setblocking(False)
        credentials = peer_socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        self.peer = PeerProcess(pid, uid)
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Answers wait for the peer to read; until it does, nothing more should be read from it."""
        return bool(self._unsent)

    def read(self) -> Iterator[bytes]:
        """Content of each frame that is whole now, from at most 64 KiB more of input.

        Raises:
            ConnectionGoneError: nothing more will come. A frame that was begun is lost.
            FrameTooLongError: as `wire.split_frames`.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionGoneError(str(error)) from error
        if not data:
            raise ConnectionGoneError("closed by the client")
        self._received += data
        yield from wire.split_frames(self._received)

    def send(self, frame: bytes) -> None:
        """Send now what the peer has room for, and keep the rest.

        Raises:
            ConnectionGoneError: the peer does not take anything any more.
        """
        self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Go on with what is kept.

        Raises:
            ConnectionGoneError: as `send`.
        """
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionGoneError(str(error)) from error
        del self._unsent[:sent]

    def close(self) -> None:
        """End it; what was not sent is lost."""
        self._socket.close()

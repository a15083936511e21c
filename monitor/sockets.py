"""Listening Unix sockets that only this user can reach, and a directory for them.

What comes over them is the business of `server`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ftrun.monitor.connection import Connection

_LONGEST_PATH_BYTES = 107
"""sun_path of Linux's sockaddr_un has 108, with a zero at the end."""
_BACKLOG = 128


class SocketPathError(Exception):
    """The directory's path leaves no room for the names of sockets in it."""


def make_runtime_directory(environ: Mapping[str, str]) -> Path:
    """A new directory for sockets that only this user can enter, with a short path.

    It is `ftrun-<uid>-*` in $TMPDIR, or in /tmp if a socket's path would not fit there. $XDG_RUNTIME_DIR is
    not used: it is taken away when the user logs out, and jobs outlive their login.
    """
    prefix = f"ftrun-{os.geteuid()}-"
    room = _LONGEST_PATH_BYTES - len(f"/{prefix}12345678/launcher.socket")
    parent = environ.get("TMPDIR", "")
    if os.path.isabs(parent) and len(os.fsencode(parent)) <= room:
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


class Listener:
    """A listening socket; `local_rank` is None for the one that takes control requests."""

    def __init__(self, path: Path, local_rank: int | None) -> None:
        if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
            raise SocketPathError(f"{path}: a socket's path has at most {_LONGEST_PATH_BYTES} bytes")
        self.local_rank = local_rank
        self.path = path
        self.connections: dict[Connection, int] = {}
        """With the round in which each was accepted, oldest first."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            self.socket.bind(os.fspath(path))
            path.chmod(0o600)
            self.socket.listen(_BACKLOG)
        except OSError:
            self.socket.close()
            raise

    def fileno(self) -> int:
        """For a selector."""
        return self.socket.fileno()

    def close(self) -> None:
        """End all connections and remove the socket."""
        for connection in self.connections:
            connection.close()
        self.socket.close()
        self.path.unlink(missing_ok=True)

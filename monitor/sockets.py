"""Listening Unix sockets that only this user can reach, and a directory for them.

What comes over them is the business of `server`.
"""

from __future__ import annotations

import os
import socket
import stat
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
        self.socket = _listen(path)

    def is_lost(self) -> bool:
        """Somebody has removed the socket's file: cleaners of /tmp do, in jobs that run for weeks."""
        return not self.path.is_socket()

    def restore(self) -> None:
        """Make the socket anew, and its directory; connections stay.

        Raises:
            OSError: it cannot be made, or the directory is somebody else's now. The old one stays.
        """
        with suppress(FileExistsError):
            self.path.parent.mkdir(mode=0o700)
        status = self.path.parent.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"{self.path.parent}: not a directory that only this user can enter")
        new = _listen(self.path)
        self.socket.close()
        self.socket = new

    def fileno(self) -> int:
        """For a selector."""
        return self.socket.fileno()

    def close(self) -> None:
        """End all connections and remove the socket."""
        for connection in self.connections:
            connection.close()
        self.socket.close()
        self.path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, for this user only."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    try:
        listening.bind(os.fspath(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening

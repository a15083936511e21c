"""Who this agent is among those of its job: the name of its node, its own incarnation, where others reach it.

Nothing here asks a name server for the name of an address, or for a full name.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ftrun.launcher.quorum import is_loopback

_MOST_AGENTS = 1024
"""On one machine, for one job."""
_MOST_SWEPT = 1000
"""Files that one start looks at to find those of dead agents."""
_STALE_AFTER_S = 86400.0
"""Age of a lock file at which it may be removed, if nobody holds it; it is as old as its last owner."""
_LONGEST_KEY = 100

_LOOPBACK = "127.0.0.1"
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses kept for documentation (RFC 5737, RFC 3849): the way to them is the default route."""


class NodeLock:
    """Keeps a number of this machine's for one agent, until `release` or the end of the process.

    Two things are held, since agents of one machine may share only one of them: a lock on a file, and an
    abstract Unix socket. Containers often have a /tmp each but one network; network namespaces the reverse.
    """

    def __init__(self, path: Path | None, file: int, bound: socket.socket | None) -> None:
        self._path = path
        self._file = file
        self._socket = bound

    def release(self) -> None:
        """Give the number back; safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._path is not None:
            _remove(self._path, self._file)
            self._path = None


@dataclass(frozen=True, slots=True)
class NodeName:
    """What this agent's node is called."""

    name: str
    """The host's name; with "#1" and so on for further agents of the job on this host."""
    lock: NodeLock | None = None
    """To be kept for as long as the name is used; None if there was nothing to lock."""
    degraded: str = ""
    """Why the name may not be what a restarted agent would get; "" if it will."""


def node_name(key: str, places: Sequence[Path]) -> NodeName:
    """The name of this agent's node; an agent that is started again gets the name of the dead one.

    Args:
        key: the same for all agents of the job on this machine; "" if there is only this one.
        places: directories for lock files, the first usable one is taken; see `lock_places`.
    """
    host = socket.gethostname()
    if not key:
        return NodeName(host)
    directory, reason = _find_directory(places)
    if directory is not None:
        _sweep(directory)
        try:
            return _take_lowest(host, directory, key)
        except OSError as error:
            reason = f"{error.filename or directory}: {error.strerror or error}"
    try:
        degraded = f"agents on this host are told apart by sockets only: {reason}"
        return replace(_take_lowest(host, None, key), degraded=degraded)
    except OSError as error:
        reason = f"{reason}; an abstract socket: {error.strerror or error}"
    degraded = f"agents on this host are told apart by process only: {reason}"
    return NodeName(f"{host}#pid{os.getpid()}", None, degraded)


def lock_places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where agents of one user on one machine keep their lock files, best first.

    /tmp comes before $TMPDIR, and $XDG_RUNTIME_DIR is not used at all: agents that were started in different
    ways may have different ones, and would not see each other.
    """
    name = f"ftrun-{os.geteuid()}-nodes"
    parents = dict.fromkeys(("/tmp", environ.get("TMPDIR") or tempfile.gettempdir()))
    return tuple(Path(parent) / name for parent in parents if os.path.isabs(parent))


def incarnation() -> str:
    """12 hexadecimal digits, different for each agent process."""
    return secrets.token_hex(6)


def _find_directory(places: Sequence[Path]) -> tuple[Path | None, str]:
    """The first place that is or can be made a directory for this user only; else why there is none."""
    reasons = []
    for place in places:
        try:
            _make_private(place)
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
        else:
            return place, ""
    return None, f"no directory for lock files ({'; '.join(reasons)})"


def _make_private(directory: Path) -> None:
    """Make a directory that only this user can enter.

    Raises:
        OSError: it cannot be made or used, or is somebody else's.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "not a directory that only this user can enter")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "not writable")


def _take_lowest(host: str, directory: Path | None, key: str) -> NodeName:
    """The name with the lowest number that no living agent has.

    Raises:
        OSError: numbers cannot be taken, or all of them are.
    """
    digest = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]
    safe = re.sub(r"[^\w.+-]", "_", key, flags=re.ASCII)[:_LONGEST_KEY]
    for number in range(_MOST_AGENTS):
        path = None if directory is None else directory / f"{safe}.{digest}.{number}"
        with suppress(BlockingIOError):
            lock = _take(path, f"\0ftrun-{os.geteuid()}-{digest}-{number}")
            return NodeName(f"{host}#{number}" if number else host, lock)
    raise OSError(errno.EAGAIN, f"{_MOST_AGENTS} agents of this job run on this host")


def _take(path: Path | None, socket_name: str) -> NodeLock:
    """Take one number, with a file if there is a path for it.

    Raises:
        BlockingIOError: a living agent has it.
        OSError: the file, or without one the socket, cannot be had.
    """
    file = -1 if path is None else _lock(path)
    bound = None
    try:
        bound = _bind(socket_name)
    except BlockingIOError:
        if path is not None:
            _remove(path, file)
        raise
    except OSError:  # not allowed here; the file says enough
        if path is None:
            raise
    return NodeLock(path, file, bound)


def _bind(name: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.bind(name)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise BlockingIOError(error.errno, error.strerror) from error
        raise
    return bound


def _lock(path: Path) -> int:
    """Lock a file, which is made if need be; its descriptor is not inherited by any child.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file cannot be made or locked.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                os.utime(file)
                return file
        except OSError:
            os.close(file)
            raise
        os.close(file)  # its last owner has just removed it


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def _remove(path: Path, file: int) -> None:
    """Remove a file that is locked, and only then the lock: whoever waits for it sees that it is gone."""
    with suppress(OSError):
        path.unlink()
    os.close(file)


def _sweep(directory: Path) -> None:
    """Remove the files of agents that were killed long ago: old ones that nobody has locked.

    A younger one may be taken by its restarted agent just now, which must not find it locked by a sweeper.
    """
    oldest_ts = time.time() - _STALE_AFTER_S
    with suppress(OSError):
        for path in islice(directory.iterdir(), _MOST_SWEPT):
            with suppress(OSError):
                if path.lstat().st_mtime < oldest_ts:
                    _remove(path, _lock(path))


def own_address(endpoint_host: str, port: int, local_addr: str | None) -> str:
    """The address at which the other nodes of the job can reach this one; never fails.

    `local_addr`, if it is given; else the address from which this machine would send to the endpoint, which
    costs no packet; 127.0.0.1 if the endpoint is a loopback address. Asks the name server for the endpoint's
    addresses, and so may take as long as that does.
    """
    if local_addr:
        return local_addr
    if is_loopback(endpoint_host):
        return _LOOPBACK
    # The endpoint may not be known yet, or be this host, to whose name Debian gives a loopback address.
    hosts = (endpoint_host, *_ELSEWHERE, socket.gethostname())
    sources = (source for host in hosts for source in _sources(host, port))
    return next((source for source in sources if not is_loopback(source)), _LOOPBACK)


def _sources(host: str, port: int) -> list[str]:
    """From where this machine would send to each address of a host; those with no way are left out."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    sources = []
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            sources.append(str(probe.getsockname()[0]))
    return sources

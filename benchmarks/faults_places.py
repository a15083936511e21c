"""Places that a job can be put into: little memory, a small disk, a small /dev/shm, a port that is taken."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults_matrix import Place

MEMORY_BYTES = 1 << 30
"""For an agent, two ranks and their libraries, with some room."""
DISK_BYTES = 4 << 20
"""For some dozens of the small checkpoints."""
SHM_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 10
_EMPTY_WITHIN_S = 10.0


class NotHereError(Exception):
    """This machine, or this user, has no such place; the message says why."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """How a job gets into a place."""

    wrapper: tuple[str, ...] = ()
    """A command that runs what follows it."""
    options: tuple[str, ...] = ()
    """Of ftrun."""


@contextmanager
def enter(place: Place, checkpoints: Path) -> Iterator[Entrance]:
    """Make the place; it is gone at the end. `checkpoints` is where the job's will be.

    Raises:
        NotHereError: it cannot be had here.
    """
    with _MAKERS[place](checkpoints) as entrance:
        yield entrance


@contextmanager
def _plain(_checkpoints: Path) -> Iterator[Entrance]:
    yield Entrance()


@contextmanager
def _busy_port(_checkpoints: Path) -> Iterator[Entrance]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield Entrance(options=("--master-port", str(holder.getsockname()[1])))


@contextmanager
def _small_disk(checkpoints: Path) -> Iterator[Entrance]:
    yield _with_tmpfs(checkpoints, DISK_BYTES)


@contextmanager
def _small_shm(_checkpoints: Path) -> Iterator[Entrance]:
    yield _with_tmpfs(Path("/dev/shm"), SHM_BYTES)


def _with_tmpfs(directory: Path, size_bytes: int) -> Entrance:
    """In a mount namespace of its own, which ends with its last process."""
    mount = f"mount -t tmpfs -o size={size_bytes} none {shlex.quote(str(directory))}"
    wrapper = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    try:
        probe = subprocess.run([*wrapper, "true"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except OSError as error:
        raise NotHereError(f"no mount namespace can be made: {error}") from error
    if probe.returncode != 0:
        raise NotHereError(f"a tmpfs in a mount namespace cannot be had: {probe.stderr.strip()}")
    return Entrance(wrapper)


@contextmanager
def _small_memory(_checkpoints: Path) -> Iterator[Entrance]:
    parent = _own_memory_group()
    group = parent / f"ftrun-faults-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotHereError(f"no memory cgroup can be made: {error}") from error
    try:
        (group / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
        join = f'echo $$ > {shlex.quote(str(group / "cgroup.procs"))} && exec "$@"'
        yield Entrance(("sh", "-c", join, "sh"))
    finally:
        _remove(group, parent)


def _remove(group: Path, parent: Path) -> None:
    """Whatever is in it has been killed; a process that is still on its way out keeps the directory busy."""
    until = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            for pid in (group / "cgroup.procs").read_text().split():
                (parent / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def _own_memory_group() -> Path:
    """This process's cgroup of the memory controller (v1)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    raise NotHereError("there is no cgroup v1 memory controller; this does not know how to limit v2's")


_MAKERS: dict[Place, Callable[[Path], contextlib.AbstractContextManager[Entrance]]] = {
    Place.PLAIN: _plain,
    Place.SMALL_MEMORY: _small_memory,
    Place.SMALL_DISK: _small_disk,
    Place.SMALL_SHM: _small_shm,
    Place.BUSY_PORT: _busy_port,
}

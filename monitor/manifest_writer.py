"""Writes the manifest of a checkpoint that a script has saved, while the script goes on.

A bare thread, as `ftrun.monitor.sampler` has one and for its reasons: the script does not see it, and it ends
with the process. It runs at the lowest CPU priority, from which its I/O priority follows (ioprio_set(2)), and
holds the GIL for a few microseconds per MiB: reading and hashing are done without it. Of several checkpoints
that wait for their turn only the newest is read. Whatever goes wrong, there is no manifest, which is no
evidence of anything. Does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from _thread import allocate_lock, get_native_id, start_new_thread
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ftrun.monitor.manifest import (
    COMMIT_FILES,
    PARTIAL,
    CommitStamp,
    FileRecord,
    Manifest,
    encode,
    is_own,
    name_of_manifest,
    read_name,
)

CHUNK_BYTES = 1 << 20
_LOWEST_NICENESS = 19
_SYNCHRONOUS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}


@dataclass(frozen=True, slots=True)
class _Order:
    path: str
    step: int | None
    rank: int


class ManifestWriter:
    """Takes orders from any thread and works on them one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._next: _Order | None = None
        self._is_running = False

    def order(self, path: str, step: int | None, rank: int) -> None:
        """Have the manifest of `rank` written for the checkpoint at `path`; returns at once."""
        with self._lock:
            self._next = _Order(path, step, rank)
            if self._is_running:
                return
            self._is_running = True
        try:
            start_new_thread(self._run, ())
        except RuntimeError:  # no more threads: then there is no manifest
            self.forget()

    def forget(self) -> None:
        """Drop what is ordered; in a forked child, where the thread is not."""
        self._lock = allocate_lock()
        self._next, self._is_running = None, False

    def _run(self) -> None:
        # Signals must come to the main thread, which alone handles them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _SYNCHRONOUS)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), _LOWEST_NICENESS)
        while (order := self._take()) is not None:
            with contextlib.suppress(OSError):
                write_manifest(order.path, order.step, order.rank, self._has_newer)

    def _take(self) -> _Order | None:
        with self._lock:
            order, self._next = self._next, None
            self._is_running = order is not None
            return order

    def _has_newer(self) -> bool:
        return self._next is not None


def write_manifest(
    path: str, step: int | None, rank: int, is_given_up: Callable[[], bool] = lambda: False
) -> str | None:
    """Read the files that `rank` answers for and write its manifest; returns the manifest's path.

    None if it answers for none, or if `is_given_up` became true. A file that changes meanwhile is left out.

    Raises:
        OSError: something cannot be read, or the manifest cannot be written.
    """
    if os.path.isdir(path):
        directory, names, about = path, [name for name in _walk(path, "") if _is_mine(name, rank)], ""
    else:
        directory, about = os.path.split(path)
        names = [about] if is_own(about, rank) else []
    commits = _read_commits(directory) if not about else {}
    files = {}
    for name in names:
        if (record := _read_record(os.path.join(directory, name), is_given_up)) is not None:
            files[name] = record
        if is_given_up():
            return None
    if not files:
        return None
    target = os.path.join(directory, name_of_manifest(rank, about))
    _replace(target, encode(Manifest(rank, step, commits, files)))
    if about:
        _remove_widowed(directory, rank)
    return target


def _walk(directory: str, prefix: str) -> Iterator[str]:
    """Relative paths of all files below, links not followed; in the order of their names."""
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            yield name


def _is_mine(name: str, rank: int) -> bool:
    base = os.path.basename(name)
    is_ours = read_name(base.removesuffix(PARTIAL)) is not None
    return not is_ours and is_own(base, rank)


def _read_commits(directory: str) -> dict[str, CommitStamp]:
    commits = {}
    for name in COMMIT_FILES:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(os.path.join(directory, name))
            commits[name] = CommitStamp(status.st_size, status.st_mtime_ns)
    return commits


def _read_record(path: str, is_given_up: Callable[[], bool]) -> FileRecord | None:
    """None if the file changed while it was read, vanished, or was given up."""
    try:
        with open(path, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            digest = hash_to_end(file.readinto, is_given_up)
            after = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    if digest is None or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        return None
    return FileRecord(after.st_size, after.st_mtime_ns, digest)


def hash_to_end(read_into: Callable[[bytearray], int | None], is_given_up: Callable[[], bool]) -> str | None:
    """SHA-256 of all that `read_into` gives until it gives 0; None if it was given up."""
    digest, chunk = hashlib.sha256(), bytearray(CHUNK_BYTES)
    view = memoryview(chunk)
    while count := read_into(chunk):
        digest.update(view[:count])
        if is_given_up():
            return None
    return digest.hexdigest()


def _replace(target: str, text: str) -> None:
    """Whole or not at all, after a power failure too."""
    partial = target + PARTIAL
    with open(partial, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, target)


def _remove_widowed(directory: str, rank: int) -> None:
    """Manifests of this rank whose checkpoint file was removed: trainers keep only the newest few."""
    with os.scandir(directory) as listing:
        names = [entry.name for entry in listing]
    present = set(names)
    for name in names:
        found = read_name(name)
        if found is not None and found[1] == rank and found[0] and found[0] not in present:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))

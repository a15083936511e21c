"""Threads and children of a process, from /proc: the one reader of both.

Linux: /proc/<pid>/task/<tid>/children (proc(5)), if built with CONFIG_PROC_CHILDREN; else psutil.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import psutil

_HAS_CHILDREN_FILES = os.path.exists("/proc/thread-self/children")


def threads(pid: int) -> list[int]:
    """Ids of the threads of `pid`; none if it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def children(pid: int, tids: Iterable[int] | None = None) -> list[int]:
    """Pids of the direct children of `pid`, zombies included; `tids` are its threads if they are known.

    Raises:
        OSError: the system does not let them be read, e.g. for want of descriptors.
    """
    found: list[int] = []
    if not _HAS_CHILDREN_FILES:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.extend(child.pid for child in psutil.Process(pid).children())
        return found
    for tid in threads(pid) if tids is None else tids:
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{tid}/children", "rb") as file,
        ):
            # Longer than one system call gives, where a thread has many children.
            found.extend(map(int, file.read().split()))
    return found

"""Reads a worker's signs of life from /proc: CPU time, file I/O and states of its threads and descendants.

Decides nothing. Linux only (proc(5)); processes and threads that vanish while they are read are left out.
One reading costs about 30 us per thread of the worker and 35 us per descendant on an idle machine: 1.7 ms for
a tree of 50 processes. While the page shows that the rank moves, `SignsReader` does without.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace

from ftrun.monitor.page import PageSnapshot
from ftrun.monitor.process_tree import children, threads
from ftrun.monitor.rank_signs import Signs

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

WAITING_THREADS = ("NCCL", "nccl", "pt_nccl_", "pt_autograd_", "cuda", "ftrun")
"""How the names (/proc/<pid>/task/<tid>/comm) of threads begin that use CPU while they only wait: NCCL's
proxies and PyTorch's watchdogs over it poll, an autograd thread spins in a CUDA call for a collective that
does not come, CUDA's own poll for events; ftrun's sampler looks each half second."""

_UNKNOWN_WAITS = frozenset({"", "0"})
"""What /proc/<pid>/wchan says where the kernel or the container does not tell."""
_CHILD_WAITS = ("do_wait", "pipe_read", "anon_pipe_read", "pipe_wait")
"""Kernel functions in which a thread sleeps that waits for a child's end or output; no collective does."""
_POLL_WAIT = "poll_schedule_timeout"
"""In which one sleeps that waits for several pipes of a child, but also for the store or a data loader."""

_IO_FIELDS = (b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:")


@dataclass(frozen=True, slots=True)
class TreeReading:
    """A process with its threads and descendants at one moment; fields as those of `rank_signs.Signs`."""

    is_alive: bool = False
    state: str = ""
    is_in_disk_wait: bool = False
    main_cpu_s: float = 0.0
    other_threads_cpu_s: float = 0.0
    children_cpu_s: float = 0.0
    io_bytes: int | None = None
    process_count: int = 0
    is_waiting_for_child: bool = False


@dataclass(frozen=True, slots=True)
class _Stat:
    """What is used of a stat file of proc(5)."""

    name: str
    state: str
    cpu_s: float
    reaped_cpu_s: float
    """CPU time of children that have ended and were waited for."""
    started_ticks: int


class TreeReader:
    """Reads the tree of one process again and again; remembers the threads that have ended since."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._threads: dict[int, tuple[int, float]] = {}
        """By thread id: when it started, and its CPU time at the last reading."""
        self._ended_cpu_s = 0.0

    def read(self) -> TreeReading:
        """The tree now; not alive if the process has ended. Its number must not have been given away."""
        root = _stat(f"/proc/{self._pid}/stat")
        if root is None or root.state in "ZX":
            return TreeReading()
        tids = threads(self._pid)
        main, is_in_disk_wait = self._read_threads(tids)
        reading = TreeReading(
            is_alive=True,
            state=main.state if main is not None else root.state,
            is_in_disk_wait=is_in_disk_wait,
            main_cpu_s=main.cpu_s if main is not None else 0.0,
            other_threads_cpu_s=self._ended_cpu_s + sum(cpu_s for _, cpu_s in self._threads.values()),
            children_cpu_s=root.reaped_cpu_s,
            io_bytes=_io_bytes(self._pid),
            process_count=1,
        )
        waiting = _children(self._pid, tids)
        if reading.state == "S" and waiting:
            reading = replace(reading, is_waiting_for_child=_is_waiting_for_child(self._pid, waiting))
        while waiting:
            pid = waiting.pop()
            waiting.extend(_children(pid, threads(pid)))
            reading = _with_descendant(reading, pid)
        return reading

    def _read_threads(self, tids: list[int]) -> tuple[_Stat | None, bool]:
        """Reads all threads; returns the main one, and whether any is in state D."""
        main, is_in_disk_wait = None, False
        seen: dict[int, tuple[int, float]] = {}
        for tid in tids:
            stat = _stat(f"/proc/{self._pid}/task/{tid}/stat")
            if stat is None:
                continue
            is_in_disk_wait = is_in_disk_wait or stat.state == "D"
            if tid == self._pid:
                main = stat
            elif not stat.name.startswith(WAITING_THREADS):
                seen[tid] = (stat.started_ticks, stat.cpu_s)
        for tid, (started_ticks, cpu_s) in self._threads.items():
            if tid not in seen or seen[tid][0] != started_ticks:
                self._ended_cpu_s += cpu_s
        self._threads = seen
        return main, is_in_disk_wait


class SignsReader:
    """The signs of one worker: what its page shows, and what /proc tells of its processes."""

    def __init__(self, pid: int, started_at: float) -> None:
        self._pid = pid
        self._started_at = started_at
        self._tree = TreeReader(pid)
        self._last_shown: Signs | None = None
        self._last_reading = TreeReading()

    def read(self, page: PageSnapshot, now: float, heartbeat_count: int = 0, is_full: bool = False) -> Signs:
        """The signs at `now`; `heartbeat_count` are heartbeats that did not come by the page.

        Unless `is_full`, /proc is only read when the rank has not moved since the last call; until then the
        counters stay what they were and the state is not known.
        """
        shown = self._shown(page, now, heartbeat_count)
        last, self._last_shown = self._last_shown, shown
        if is_full or last is None or not _has_moved(last, shown):
            reading = self._last_reading = self._tree.read()
        else:
            reading = replace(
                self._last_reading, is_alive=True, state="", is_in_disk_wait=False, is_waiting_for_child=False
            )
        has_sampler = page.sampler_tid is None or self._has_thread(page.sampler_tid)
        return replace(
            shown,
            sampler_at=shown.sampler_at if has_sampler else None,
            io_bytes=reading.io_bytes,
            children_cpu_s=reading.children_cpu_s,
            other_threads_cpu_s=reading.other_threads_cpu_s,
            main_cpu_s=reading.main_cpu_s,
            process_state=reading.state,
            is_in_disk_wait=reading.is_in_disk_wait,
            is_waiting_for_child=reading.is_waiting_for_child,
            is_alive=reading.is_alive,
        )

    def _shown(self, page: PageSnapshot, now: float, heartbeat_count: int) -> Signs:
        return Signs(
            at=now,
            started_at=self._started_at,
            progress_count=page.steps + page.checkpoints + heartbeat_count,
            last_progress_at=page.last_progress_at,
            has_client=page.heartbeats > 0 or page.sections_opened > 0,
            open_sections=page.sections,
            section_closed_at=page.section_closed_at,
            bytecode_changes=page.bytecode_changes,
            sampler_at=page.sampler_at,
        )

    def _has_thread(self, tid: int) -> bool:
        """After exec the process is another program, and the sampler's silence means nothing."""
        return os.path.exists(f"/proc/{self._pid}/task/{tid}")


def _has_moved(before: Signs, after: Signs) -> bool:
    return (before.progress_count, before.bytecode_changes) != (after.progress_count, after.bytecode_changes)


def _with_descendant(reading: TreeReading, pid: int) -> TreeReading:
    stat = _stat(f"/proc/{pid}/stat")
    if stat is None:
        return reading
    io_bytes = _io_bytes(pid)
    return replace(
        reading,
        is_in_disk_wait=reading.is_in_disk_wait or stat.state == "D",
        children_cpu_s=reading.children_cpu_s + stat.cpu_s + stat.reaped_cpu_s,
        io_bytes=None if reading.io_bytes is None else reading.io_bytes + (io_bytes or 0),
        process_count=reading.process_count + 1,
    )


def _is_waiting_for_child(pid: int, children: list[int]) -> bool:
    """Whether the main thread, which sleeps, waits for one of its children; so it does if nobody knows.

    A thread in poll does only if some child runs a program of its own: data loaders and compile workers run
    the worker's, and what their parent waits for may as well be another rank.
    """
    children = [child for child in children if _is_alive(child)]
    place = _content(f"/proc/{pid}/wchan").decode(errors="replace")
    if place in _UNKNOWN_WAITS:
        return bool(children)
    if place.startswith(_POLL_WAIT):
        own = _program(pid)
        return any(_program(child) not in ("", own) for child in children)
    return place in _CHILD_WAITS and bool(children)


def _is_alive(pid: int) -> bool:
    stat = _stat(f"/proc/{pid}/stat")
    return stat is not None and stat.state not in "ZX"


def _program(pid: int) -> str:
    """The file that a process runs; "" if it is gone or not to be read."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _children(pid: int, tids: list[int]) -> list[int]:
    with contextlib.suppress(OSError):
        return children(pid, tids)
    return []


def _stat(path: str) -> _Stat | None:
    """A stat file of proc(5); the name in it may hold blanks and brackets."""
    content = _content(path)
    begin, end = content.find(b"("), content.rfind(b")")
    fields = content[end + 1 :].split()
    if begin < 0 or len(fields) < 20:
        return None
    return _Stat(
        name=content[begin + 1 : end].decode(errors="replace"),
        state=fields[0].decode(),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        reaped_cpu_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
        started_ticks=int(fields[19]),
    )


def _io_bytes(pid: int) -> int | None:
    """Sum of the I/O counters of a process and its reaped children; None if there are none to read."""
    words = _content(f"/proc/{pid}/io").split()
    if not words:
        return None
    return sum(int(value) for name, value in zip(words[::2], words[1::2], strict=True) if name in _IO_FIELDS)


def _content(path: str) -> bytes:
    """What a file of /proc holds; b"" if it, or its process, is gone or not to be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)

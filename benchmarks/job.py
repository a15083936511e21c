"""One training job under one launcher: start it, watch its steps, hold it up, leave nothing behind.

All times are CLOCK_MONOTONIC in seconds. The launcher's output is only kept for messages; the job's script
stamps what it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

WORLD_SIZE = 2
STOP_GRACE_S = 15.0
_POLL_S = 0.003
_KILL_ATTEMPTS = 3  # a process may have been forking when its children were listed
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_OUT_VARIABLE = "BENCH_OUT"


@dataclass(frozen=True, slots=True)
class Launcher:
    """How to start one launcher and how to tell from its output that it has noticed a failure."""

    name: str
    command: tuple[str, ...]
    """The same on each node; PORT stands for a free one."""
    notices: re.Pattern[str]
    environment: tuple[tuple[str, str], ...] = ()
    nodes: int = 1
    """Launchers that are started side by side on this machine, each for its part of the ranks."""


class JobLostError(Exception):
    """The job did not come back: its launcher ended, or made no step before the deadline."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the script's log: what happened in which process, and its time stamps."""

    kind: str
    pid: int
    stamps: dict[str, float]


@dataclass(slots=True)
class RankLog:
    """The events that one rank's processes have written so far."""

    path: Path
    events: list[Event] = field(default_factory=list)
    offset: int = 0

    def read_new(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            lines, newline, _ = file.read().rpartition(b"\n")
        self.offset += len(lines) + len(newline)
        for line in lines.splitlines():
            record = json.loads(line)
            self.events.append(Event(record.pop("event"), record.pop("pid"), record))

    def pids(self) -> list[int]:
        """Every process that began, in order."""
        return [event.pid for event in self.events if event.kind == "begin"]

    def first(self, kind: str, pid: int) -> dict[str, float] | None:
        return next((e.stamps for e in self.events if (e.kind, e.pid) == (kind, pid)), None)


class Job:
    """A running job; a context manager at whose end none of its processes is left."""

    def __init__(self, launcher: Launcher, script: tuple[str, ...], out: Path, deadline_s: float) -> None:
        """`script` is the training script with its arguments; `out` a directory of this job's own."""
        self.ranks = [RankLog(out / f"rank{rank}.jsonl") for rank in range(WORLD_SIZE)]
        self.launcher = launcher
        self._script = script
        self.deadline_s = deadline_s
        self._out = out
        self._output = b""
        self.noticed_at: float | None = None
        """When the launcher first said that a worker had failed; set back by whoever makes one fail."""
        self._started_at = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipe: IO[bytes]

    def __enter__(self) -> Self:
        # torchrun leaves a directory in TMPDIR for each run; ftrun's journal goes to XDG_STATE_HOME.
        own = {_OUT_VARIABLE: self._out, "TMPDIR": self._out, "XDG_STATE_HOME": self._out}
        env = {**os.environ, **{name: str(path) for name, path in own.items()}, "OMP_NUM_THREADS": "1"}
        port = str(find_free_port())
        launcher = [part.replace("PORT", port) for part in self.launcher.command]
        output, end = os.pipe()
        self._started_at = time.monotonic()
        for _ in range(self.launcher.nodes):
            self._processes.append(
                subprocess.Popen(
                    [*launcher, *self._script],
                    env=env | dict(self.launcher.environment),
                    stdout=end,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        os.close(end)
        self._pipe = os.fdopen(output, "rb")
        os.set_blocking(output, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def wait_for_first_step(self) -> float:
        """Seconds from the command to rank 0's first step.

        Raises:
            JobLostError: no step before the deadline.
        """
        return self.wait_for_step(frozenset(), self._started_at) - self._started_at

    def train_for(self, seconds: float, pause_s: float = 0.0) -> None:
        """Lets the job run on; looks at it after each pause, which leaves the CPU to the job.

        Raises:
            JobLostError: the launcher ended.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.observe()
            time.sleep(pause_s)

    def wait_for_step(self, old_pids: frozenset[int], since: float) -> float:
        """When rank 0 of a later process than `old_pids` made its first step.

        Raises:
            JobLostError: no step before the deadline.
        """
        while time.monotonic() < since + self.deadline_s:
            self.observe()
            new = [pid for pid in self.ranks[0].pids() if pid not in old_pids]
            step = self.ranks[0].first("step", new[-1]) if new else None
            if step is not None:
                return step["stepped_at"]
        raise JobLostError(f"no step within {self.deadline_s:.0f} s")

    def observe(self, descriptors: set[int] | None = None) -> list[int]:
        """Waits a few milliseconds at most for output or an exit; returns the descriptors that are ready.

        Raises:
            JobLostError: the launcher ended.
        """
        output = self._pipe.fileno()
        ready, _, _ = select.select([output, *(descriptors or ())], [], [], _POLL_S)
        if output in ready:
            ready.remove(output)
            self._read_output(output)
        for rank in self.ranks:
            rank.read_new()
        for process in self._processes:
            if process.poll() is not None:
                tail = self._output.decode(errors="replace").splitlines()[-5:]
                raise JobLostError("\n    ".join([f"launcher ended with {process.returncode}", *tail]))
        return ready

    def _read_output(self, descriptor: int) -> None:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            # A closed pipe is always ready: without this pause the loop would spin until the launcher ends.
            time.sleep(_POLL_S)
        self._output = (self._output + chunk)[-100_000:]
        if self.noticed_at is None and self.launcher.notices.search(chunk.decode(errors="replace")):
            self.noticed_at = time.monotonic()

    def processes(self) -> list[psutil.Process]:
        """The launcher of the first node and all that it has started, itself first."""
        launcher = psutil.Process(self._processes[0].pid)
        return [launcher, *launcher.children(recursive=True)]

    def pause(self) -> None:
        """Stops every process of the job, the launcher first, so that none is started meanwhile."""
        os.kill(self._processes[0].pid, signal.SIGSTOP)
        self._signal_workers(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused job go on, the launcher last."""
        self._signal_workers(signal.SIGCONT)
        os.kill(self._processes[0].pid, signal.SIGCONT)

    def _signal_workers(self, number: signal.Signals) -> None:
        for process in self.processes()[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _stop(self) -> None:
        """Asks the launchers to end, then kills whatever is left of the job."""
        if self._processes[0].poll() is None:
            self._processes[0].terminate()
            self.resume()
        for process in self._processes[1:]:
            process.terminate()
        until = time.monotonic() + STOP_GRACE_S
        while any(one.poll() is None for one in self._processes) and time.monotonic() < until:
            time.sleep(_POLL_S)
            self._pipe.read()
        for process in self._processes:
            process.kill()
            process.wait()
        self._pipe.close()
        end_descendants(self._out)


def find_free_port() -> int:
    """A TCP port of the loopback that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Around a benchmark: at its end, also by SIGINT or SIGTERM, nothing that it has started is left."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    adopt_orphans()
    try:
        yield
    finally:
        end_descendants()


def _leave(number: int, _frame: FrameType | None) -> None:
    """Ends the benchmark by an exception, so that it cleans up; a second signal does not disturb that."""
    for late in (signal.SIGINT, signal.SIGTERM):
        signal.signal(late, lambda *_: None)  # SIG_IGN would be an error if one is pending already
    sys.exit(128 + number)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own, so that none can escape `Job`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def end_descendants(out: Path | None = None) -> None:
    """Kills every process that this one or its descendants started; complete after `adopt_orphans`.

    With `out`, only those of the job that has this directory.
    """
    for _ in range(_KILL_ATTEMPTS):
        alive = [one for one in psutil.Process().children(recursive=True) if out is None or _is_of(one, out)]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=2)


def _is_of(process: psutil.Process, out: Path) -> bool:
    try:
        return process.environ().get(_OUT_VARIABLE) == str(out)
    except psutil.Error:
        return False


def known_launchers() -> dict[str, Launcher]:
    """Every launcher that can be measured, by name, from the environment that runs the benchmark."""
    binaries = Path(sys.prefix) / "bin"
    workers = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "1000")
    elastic = re.compile(r"closing signal SIG|failed \(exitcode|Worker group FAILED")
    fresh_store = (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    pair = ("--nnodes", "2", "--nproc-per-node", str(WORLD_SIZE // 2), "--max-restarts", "1000")
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:PORT", "--rdzv-id", "benchmark")
    as_often = ("--ft-set", "restart.max_in_window=0")  # as the others: what is measured are many kills
    notice = re.compile(r"restart \d+ of \d+: ")
    launchers = (
        Launcher("torchrun", (str(binaries / "torchrun"), *workers), elastic, fresh_store),
        Launcher("torchrun-default", (str(binaries / "torchrun"), *workers), elastic),
        Launcher("ft_launcher", (str(binaries / "ft_launcher"), *workers, *rendezvous), elastic),
        Launcher("ftrun", (str(binaries / "ftrun"), *workers, *as_often), notice),
        Launcher("torchrun-2", (str(binaries / "torchrun"), *pair, *meeting), elastic, fresh_store, 2),
        Launcher("ft_launcher-2", (str(binaries / "ft_launcher"), *pair, *meeting), elastic, (), 2),
        Launcher("ftrun-2", (str(binaries / "ftrun"), *pair, *meeting, *as_often), notice, (), 2),
    )
    return {launcher.name: launcher for launcher in launchers}

"""One training job under one launcher: start it, kill a rank, time its way back, leave nothing behind.

All times are CLOCK_MONOTONIC in seconds. Of the launcher itself only the first line is used in which it says
that a worker failed; the rest is seen from outside or stamped by the job's script.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

SCRIPT = Path(__file__).with_name("recovery_train.py")
WORLD_SIZE = 2
STOP_GRACE_S = 15.0
_POLL_S = 0.003
_KILL_ATTEMPTS = 3  # a process may have been forking when its children were listed
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Launcher:
    """How to start one launcher and how to tell from its output that it has noticed a failure."""

    name: str
    command: tuple[str, ...]
    notices: re.Pattern[str]
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill and the way back of rank 0; marks in the order in which they must come, seconds."""

    killed_at: float
    noticed_at: float | None
    gone_at: float
    """The last process of the old worker group ended."""
    script_at: float
    imported_at: float
    group_at: float
    loaded_at: float
    stepped_at: float
    starts: int
    """How often rank 0 was started until a step was made; more than 1 if restarts failed too."""

    @property
    def total_s(self) -> float:
        return self.stepped_at - self.killed_at

    def split(self) -> dict[str, float | None]:
        """Seconds per part; they add up to `total_s` (parts that overlap count for the earlier one)."""
        marks = {
            "detect": self.noticed_at,
            "stop": self.gone_at,
            "start": self.script_at,
            "import": self.imported_at,
            "group": self.group_at,
            "load": self.loaded_at,
            "step": self.stepped_at,
        }
        parts: dict[str, float | None] = {}
        last = self.killed_at
        for name, mark in marks.items():
            parts[name] = None if mark is None else max(0.0, mark - last)
            last = last if mark is None else max(last, mark)
        return parts


class JobLostError(Exception):
    """The job did not come back: its launcher ended, or made no step before the deadline."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One line of the script's log: what happened in which process, and its time stamps."""

    kind: str
    pid: int
    stamps: dict[str, float]


@dataclass(slots=True)
class _RankLog:
    """The events that one rank's processes have written so far."""

    path: Path
    events: list[_Event] = field(default_factory=list)
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
            self.events.append(_Event(record.pop("event"), record.pop("pid"), record))

    def pids(self) -> list[int]:
        """Every process that began, in order."""
        return [event.pid for event in self.events if event.kind == "begin"]

    def first(self, kind: str, pid: int) -> dict[str, float] | None:
        return next((e.stamps for e in self.events if (e.kind, e.pid) == (kind, pid)), None)


class Job:
    """A running job; a context manager at whose end none of its processes is left."""

    def __init__(self, launcher: Launcher, out: Path, deadline_s: float) -> None:
        self._launcher = launcher
        self._deadline_s = deadline_s
        self._out = out
        self._ranks = [_RankLog(out / f"rank{rank}.jsonl") for rank in range(WORLD_SIZE)]
        self._output = b""
        self._noticed_at: float | None = None
        self._started_at = time.monotonic()
        self._process: subprocess.Popen[bytes]
        self._pipe: IO[bytes]

    def __enter__(self) -> Job:
        # torchrun leaves a directory in TMPDIR for each run; ftrun's journal goes to XDG_STATE_HOME.
        own = {"BENCH_OUT": self._out, "TMPDIR": self._out, "XDG_STATE_HOME": self._out, "OMP_NUM_THREADS": 1}
        env = {**os.environ, **{k: str(v) for k, v in own.items()}, **dict(self._launcher.environment)}
        command = [*self._launcher.command, str(SCRIPT)]
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
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
        return self._wait_for_step(frozenset(), self._started_at) - self._started_at

    def train_for(self, seconds: float) -> None:
        """Lets the job run on; nothing is measured.

        Raises:
            JobLostError: the launcher ended.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._observe()

    def kill_and_measure(self) -> Recovery:
        """SIGKILL to the last rank, then waits for rank 0's first step of the next round.

        Raises:
            JobLostError: no step before the deadline.
        """
        old_pids = frozenset(pid for rank in self._ranks for pid in rank.pids())
        starts_before = len(self._ranks[0].pids())
        watched = {rank.pids()[-1]: os.pidfd_open(rank.pids()[-1]) for rank in self._ranks}
        try:
            self._noticed_at = None
            killed_at = time.monotonic()
            os.kill(self._ranks[-1].pids()[-1], signal.SIGKILL)
            gone_at = self._wait_until_gone(set(watched.values()))
        finally:
            for descriptor in watched.values():
                os.close(descriptor)
        stepped_at = self._wait_for_step(old_pids, killed_at)
        pid = self._ranks[0].pids()[-1]
        begin, loaded = self._ranks[0].first("begin", pid), self._ranks[0].first("loaded", pid)
        assert begin is not None
        assert loaded is not None
        return Recovery(
            killed_at=killed_at,
            noticed_at=self._noticed_at,
            gone_at=gone_at,
            script_at=begin["script_at"],
            imported_at=begin["imported_at"],
            group_at=loaded["group_at"],
            loaded_at=loaded["loaded_at"],
            stepped_at=stepped_at,
            starts=len(self._ranks[0].pids()) - starts_before,
        )

    def _wait_until_gone(self, descriptors: set[int]) -> float:
        """When the last of these processes ended; observes output meanwhile, so that its times stay exact."""
        until = time.monotonic() + self._deadline_s
        while descriptors:
            descriptors -= set(self._observe(descriptors))
            if time.monotonic() > until:
                raise JobLostError(f"old workers still alive {self._deadline_s:.0f} s after the kill")
        return time.monotonic()

    def _wait_for_step(self, old_pids: frozenset[int], since: float) -> float:
        """When rank 0 of a later process than `old_pids` made its first step."""
        while time.monotonic() < since + self._deadline_s:
            self._observe()
            new = [pid for pid in self._ranks[0].pids() if pid not in old_pids]
            step = self._ranks[0].first("step", new[-1]) if new else None
            if step is not None:
                return step["stepped_at"]
        raise JobLostError(f"no step within {self._deadline_s:.0f} s")

    def _observe(self, descriptors: set[int] | None = None) -> list[int]:
        """Waits a few milliseconds at most for output or an exit; returns the descriptors that are ready.

        Raises:
            JobLostError: the launcher ended.
        """
        output = self._pipe.fileno()
        ready, _, _ = select.select([output, *(descriptors or ())], [], [], _POLL_S)
        if output in ready:
            ready.remove(output)
            self._read_output(output)
        for rank in self._ranks:
            rank.read_new()
        if self._process.poll() is not None:
            tail = self._output.decode(errors="replace").splitlines()[-5:]
            raise JobLostError("\n    ".join([f"launcher ended with {self._process.returncode}", *tail]))
        return ready

    def _read_output(self, descriptor: int) -> None:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            # A closed pipe is always ready: without this pause the loop would spin until the launcher ends.
            time.sleep(_POLL_S)
        self._output = (self._output + chunk)[-100_000:]
        if self._noticed_at is None and self._launcher.notices.search(chunk.decode(errors="replace")):
            self._noticed_at = time.monotonic()

    def _stop(self) -> None:
        """Asks the launcher to end, then kills whatever is left of the job."""
        if self._process.poll() is None:
            self._process.terminate()
        until = time.monotonic() + STOP_GRACE_S
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(_POLL_S)
            self._pipe.read()
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        end_descendants()


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant that loses its own, so that none can escape `Job`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def end_descendants() -> None:
    """Kills every process that this one or its descendants started; complete after `adopt_orphans`."""
    for _ in range(_KILL_ATTEMPTS):
        alive = psutil.Process().children(recursive=True)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=2)


def known_launchers() -> dict[str, Launcher]:
    """Every launcher that can be measured, by name, from the environment that runs the benchmark."""
    binaries = Path(sys.prefix) / "bin"
    workers = ("--nproc-per-node", str(WORLD_SIZE), "--max-restarts", "1000")
    elastic = re.compile(r"closing signal SIG|failed \(exitcode|Worker group FAILED")
    fresh_store = (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    launchers = (
        Launcher("torchrun", (str(binaries / "torchrun"), *workers), elastic, fresh_store),
        Launcher("torchrun-default", (str(binaries / "torchrun"), *workers), elastic),
        Launcher("ft_launcher", (str(binaries / "ft_launcher"), *workers, *rendezvous), elastic),
        Launcher("ftrun", (str(binaries / "ftrun"), *workers), re.compile(r"restart \d+ of \d+: ")),
    )
    return {launcher.name: launcher for launcher in launchers}

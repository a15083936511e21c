"""A job of which a rank is killed: times the way back, part by part.

All times are CLOCK_MONOTONIC in seconds. Of the launcher itself only the first line is used in which it says
that a worker failed; the rest is seen from outside or stamped by the job's script.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from job import Job, JobLostError, Launcher

SCRIPT = Path(__file__).with_name("recovery_train.py")


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


class RecoveryJob(Job):
    """A job that can be hurt."""

    def __init__(self, launcher: Launcher, out: Path, deadline_s: float) -> None:
        super().__init__(launcher, (str(SCRIPT),), out, deadline_s)

    def kill_and_measure(self) -> Recovery:
        """SIGKILL to the last rank, then waits for rank 0's first step of the next round.

        Raises:
            JobLostError: no step before the deadline.
        """
        old_pids = frozenset(pid for rank in self.ranks for pid in rank.pids())
        starts_before = len(self.ranks[0].pids())
        watched = {rank.pids()[-1]: os.pidfd_open(rank.pids()[-1]) for rank in self.ranks}
        try:
            self.noticed_at = None
            killed_at = time.monotonic()
            os.kill(self.ranks[-1].pids()[-1], signal.SIGKILL)
            gone_at = self._wait_until_gone(set(watched.values()))
        finally:
            for descriptor in watched.values():
                os.close(descriptor)
        stepped_at = self.wait_for_step(old_pids, killed_at)
        pid = self.ranks[0].pids()[-1]
        begin, loaded = self.ranks[0].first("begin", pid), self.ranks[0].first("loaded", pid)
        assert begin is not None
        assert loaded is not None
        return Recovery(
            killed_at=killed_at,
            noticed_at=self.noticed_at,
            gone_at=gone_at,
            script_at=begin["script_at"],
            imported_at=begin["imported_at"],
            group_at=loaded["group_at"],
            loaded_at=loaded["loaded_at"],
            stepped_at=stepped_at,
            starts=len(self.ranks[0].pids()) - starts_before,
        )

    def _wait_until_gone(self, descriptors: set[int]) -> float:
        """When the last of these processes ended; observes output meanwhile, so that its times stay exact."""
        until = time.monotonic() + self.deadline_s
        while descriptors:
            descriptors -= set(self.observe(descriptors))
            if time.monotonic() > until:
                raise JobLostError(f"old workers still alive {self.deadline_s:.0f} s after the kill")
        return time.monotonic()

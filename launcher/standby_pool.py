"""The standbys of a node: how many wait, what they preload, and which are thrown away.

It never starts one by itself: the agent calls `refill` when training moves, so that a standby takes nothing
from a start or a recovery.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from ftrun.launcher import priority
from ftrun.launcher.control import ControlError, Ready
from ftrun.launcher.preload_list import learned, with_first_packages
from ftrun.launcher.standby import Standby
from ftrun.launcher.watcher import Watcher
from ftrun.monitor import events

Record = Callable[[events.Event], None]


class StandbyPool:
    """At most `size` standbys, of which at most one is loading.

    `start` spawns one with a preload list, for later or not. `memory_available` gives bytes, of which
    `min_free_memory` must be left. Without `may_learn` only `modules`, set from outside, are ever preloaded;
    `cold_reason` says why nothing is, "" if something may be.
    """

    def __init__(
        self,
        size: int,
        start: Callable[[Sequence[str], bool], Standby],
        watcher: Watcher[object],
        record: Record,
        memory_available: Callable[[], int],
        min_free_memory: int,
        may_learn: bool,
        cold_reason: str,
    ) -> None:
        self._size = size
        self._start = start
        self._watcher = watcher
        self._record = record
        self._memory_available = memory_available
        self._min_free_memory = min_free_memory
        self._may_learn = may_learn
        self._cold_reason = cold_reason
        self._first: list[Standby] = []
        self._waiting: list[Standby] = []
        self._never: set[str] = set()
        self._has_proven_list = False
        self._suspended = ""
        self.modules: tuple[str, ...] = ()

    @property
    def pids(self) -> set[int]:
        """Process ids of the standbys, which belong to no round."""
        return {standby.pid for standby in self._all()}

    def _all(self) -> tuple[Standby, ...]:
        return *self._first, *self._waiting

    def learn(self, modules: Sequence[str]) -> None:
        """Preload `modules` from now on, and torch as before, but nothing that has made trouble."""
        wanted = learned(with_first_packages(modules, self.modules), self._never)
        if not self._may_learn or wanted == self.modules:
            return
        self.modules = wanted
        self._has_proven_list = False
        self._record(events.PreloadLearned(module_count=len(wanted)))

    def adopt(self, standbys: Sequence[Standby], reason: str) -> None:
        """Take in processes started for the first round; they may be taken before they are ready.

        `reason` says why they preload what they do.
        """
        for standby in standbys:
            self._first.append(standby)
            self._watch(standby)
            self._record(events.StandbyStarted(standby.pid, not standby.modules, reason))

    def take(self) -> Standby:
        """A process for a rank: a ready standby, one that loads a list that has worked, or a new one."""
        if self._first:
            best, origin = self._first.pop(0), "started for the first round"
        elif ready := [standby for standby in self._waiting if standby.ready is not None]:
            best, origin = ready[0], "a standby was ready"
        elif self._waiting and self._has_proven_list:
            best, origin = self._waiting[0], "a standby was still importing"
        else:
            best, origin = self._start((), False), f"no standby: {self._why_none()}"
            self._watch(best)
            self._record(events.StandbyStarted(best.pid, True, "no standby was left for a rank"))
        if best in self._waiting:
            self._waiting.remove(best)
        best.origin = origin
        return best

    def _why_none(self) -> str:
        return self._cold_reason or self._suspended or "the last ones are in use, or were not ready in time"

    def refill(self) -> None:
        """Start one more if there is room, none is loading and enough memory is free."""
        if not self.modules or len(self._waiting) >= self._size:
            return
        if any(standby.ready is None for standby in self._waiting):
            return
        try:
            standby = self._start_if_memory_allows()
        except OSError as error:  # training goes on without
            self._suspend(f"another process cannot be started: {error}")
            return
        if standby is None:
            return
        self._suspended = ""
        priority.lower(standby.pid)
        self._waiting.append(standby)
        self._watch(standby)
        self._record(events.StandbyStarted(standby.pid, False, "to be ready for the next restart"))

    def _start_if_memory_allows(self) -> Standby | None:
        available = self._memory_available()
        if available >= self._min_free_memory:
            return self._start(self.modules, True)
        self._suspend(
            f"only {available >> 20} MiB of memory are available and standby.min_free_memory keeps "
            f"{self._min_free_memory >> 20} MiB free"
        )
        return None

    def read(self, standby: Standby) -> None:
        """Take what a waiting standby has to say; one that is no good is thrown away.

        Those of the first round wait too, for other nodes; unread, they would wake the agent again and again.
        """
        if standby not in self._all():
            return
        try:
            messages = standby.read()
        except ControlError as error:
            self.discard(standby, str(error))
            return
        for message in messages:
            if isinstance(message, Ready):
                self._judge(standby, message)
        if standby.has_hung_up:
            # It is ending, and `sweep` tells how; or a library closed the socket, and it can never be used.
            standby.process.signal(signal.SIGKILL)

    def sweep(self) -> None:
        """Throw away standbys that have died."""
        for standby in [one for one in self._all() if one.process.poll() is not None]:
            self.discard(standby, f"ended with exit code {standby.process.poll()} while it waited")
            self._has_proven_list = False

    def discard(self, standby: Standby, reason: str) -> None:
        """Throw `standby` away, taken or waiting."""
        for standbys in (self._first, self._waiting):
            if standby in standbys:
                standbys.remove(standby)
        self._record(events.StandbyDiscarded(standby.pid, reason))
        self.forget(standby)
        standby.close()

    def forget(self, standby: Standby) -> None:
        """Stop watching the descriptors of `standby`."""
        self._watcher.remove(standby.control.fileno())
        self._watcher.remove(standby.process.pidfd)

    def close(self) -> None:
        """Kill all standbys."""
        while self._first or self._waiting:
            standby = (self._first or self._waiting).pop()
            self.forget(standby)
            standby.close()

    def _watch(self, standby: Standby) -> None:
        self._watcher.add(standby.control.fileno(), standby)
        self._watcher.add(standby.process.pidfd, standby.process)

    def _judge(self, standby: Standby, ready: Ready) -> None:
        if ready.cuda_initialized_by is not None:
            self._ban(ready.cuda_initialized_by, "importing it initialises CUDA")
            self.discard(standby, f"{ready.cuda_initialized_by} initialised CUDA when it was imported")
        elif ready.failed:
            for module, error in ready.failed:
                self._ban(module, f"preloading it failed: {error}")
            self.discard(standby, "some of its modules cannot be imported ahead")
        elif standby.modules:
            standby.ready = ready
            self._has_proven_list = self._has_proven_list or standby.modules == self.modules
            self._record(events.StandbyReadied(standby.pid, ready.preload_s, len(standby.modules)))

    def _ban(self, module: str, reason: str) -> None:
        self._never.add(module)
        self.modules = learned(self.modules, self._never)
        self._has_proven_list = False
        self._record(events.PreloadReduced(module, reason))

    def _suspend(self, reason: str) -> None:
        if not self._suspended:  # one event per change; the numbers in the reason differ each time
            self._suspended = reason
            self._record(events.StandbySuspended(reason))

"""Looks at the workers of this node while they run: heartbeats, pages and /proc in, a verdict out.

Reads and remembers; whether what it has read is a hang is decided by `ftrun.monitor.liveness` and
`ftrun.monitor.stall`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftrun.launcher.workers import Worker
from ftrun.monitor import stall
from ftrun.monitor.heartbeats import RankHeartbeats, Timeouts
from ftrun.monitor.liveness import Verdict, judge_ranks, next_check_at
from ftrun.monitor.rank_signs import Signs
from ftrun.monitor.server import HeartbeatServers
from ftrun.monitor.signs import SignsReader
from ftrun.monitor.stall_limits import StallLimits
from ftrun.monitor.timeouts import Longest, merge, note

LOOK_EVERY_S = 1.0
"""Without a limit that ends earlier. A look at a rank that moves costs tens of microseconds."""
_SOONEST_S = 0.02


class Watchdog:
    """The workers of one node, over all rounds. `servers` None: clients of NVRx are not served."""

    def __init__(self, servers: HeartbeatServers | None, timeouts: Timeouts, limits: StallLimits) -> None:
        self._servers = servers
        self._timeouts = timeouts
        self._limits = limits
        self._workers: tuple[Worker, ...] = ()
        self._readers: dict[int, SignsReader] = {}
        self._stall = stall.StallState()
        self._longest = Longest()
        self.signs: dict[int, Signs] = {}
        """What each rank was last seen with."""
        self.standstill: Verdict | None = None
        """No rank of this node moves, as of the last look; None if one does."""
        self.next_look_at: float | None = None
        """When `look` is wanted (CLOCK_MONOTONIC, seconds); None while nothing runs."""

    def environment(self, local_rank: int) -> dict[str, str]:
        """Variables by which a worker's client finds its heartbeat server."""
        return {} if self._servers is None else self._servers.environment(local_rank)

    def begin_round(self) -> None:
        """Forget what the last round's workers said; its processes have ended, new ones are not started."""
        if self._servers is not None:
            self._servers.begin_round()

    def watch(self, workers: Sequence[Worker], now: float) -> None:
        """Look at these workers from now on."""
        self._workers = tuple(workers)
        self._readers = {worker.rank: SignsReader(worker.pid, now) for worker in workers}
        self._stall = stall.begin_round(self._stall)
        self.signs = {}
        self.standstill = None
        self.next_look_at = now + LOOK_EVERY_S

    def wake(self) -> None:
        """A limit may now end earlier than it seemed at the last look."""
        if self.next_look_at is not None:
            self.next_look_at = 0.0

    def look(self, now: float) -> Verdict | None:
        """Look at every rank; the verdict if one of them is hung by its own limits."""
        heartbeats = self._heartbeats()
        before, self.signs = self.signs, self._read(heartbeats, now, is_full=False)
        for rank, signs in self.signs.items():
            self._longest = note(self._longest, before.get(rank), signs)
        self._stall = stall.observe(self._stall, self.signs, now, LOOK_EVERY_S)
        verdict = judge_ranks(heartbeats, self.signs, now, self._stall.attention, self._stall.quiet_since)
        self.standstill = stall.judge(self._stall, now, self._limits)
        self.next_look_at = None if verdict else self._next_look(heartbeats, now)
        return verdict

    def read_signs(self, now: float) -> dict[int, Signs]:
        """The signs of each rank now, by rank, with /proc read also of ranks that move."""
        return self._read(self._heartbeats(), now, is_full=True)

    def _read(self, heartbeats: Mapping[int, RankHeartbeats], now: float, is_full: bool) -> dict[int, Signs]:
        return {
            worker.rank: self._readers[worker.rank].read(
                worker.page.read(), now, heartbeats[worker.rank].heartbeat_count, is_full
            )
            for worker in self._workers
        }

    def rest(self) -> None:
        """The round is being stopped: its silence is no hang."""
        self.next_look_at = None

    def end_round(self) -> Longest:
        """The workers have ended; the longest that each phase has taken so far, over all rounds."""
        self._workers = ()
        clients = [Longest.of_client(state.observed) for state in self._states().values()]
        return merge([self._longest, Longest.of_job(self._stall.learned), *clients])

    def close(self) -> None:
        """Stop serving clients."""
        if self._servers is not None:
            self._servers.close()

    def _states(self) -> dict[int, RankHeartbeats]:
        """What NVRx's clients said, by rank while there are workers, else by local rank."""
        if self._servers is None:
            return {}
        snapshot = self._servers.snapshot()
        ranks = {worker.local_rank: worker.rank for worker in self._workers}
        return {ranks.get(local_rank, local_rank): state for local_rank, state in snapshot.items()}

    def _heartbeats(self) -> Mapping[int, RankHeartbeats]:
        states = self._states()
        return {
            worker.rank: states.get(worker.rank, RankHeartbeats(self._timeouts)) for worker in self._workers
        }

    def _next_look(self, heartbeats: Mapping[int, RankHeartbeats], now: float) -> float:
        ends = [
            next_check_at(heartbeats, self.signs, self._stall.quiet_since),
            None if self.standstill else stall.next_judgement_at(self._stall, self._limits),
        ]
        # A limit is passed when it is exceeded, not when it is reached.
        soonest = min((end + _SOONEST_S for end in ends if end is not None), default=now + LOOK_EVERY_S)
        return min(now + LOOK_EVERY_S, max(now + _SOONEST_S, soonest))

"""Opens and closes the rounds of this node: store, logs, workers; then the evidence of how it ended.

Acts on behalf of the agent and decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ftrun.healthchecks.children import running_pids
from ftrun.launcher import environment, numa
from ftrun.launcher.checkpoint_watch import CheckpointWatch
from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.evidence import Ends, Gatherer, evidence_event, is_worth_keeping
from ftrun.launcher.logs import RoundLogs, RunLogs
from ftrun.launcher.messages import SeenCheckpoint
from ftrun.launcher.model import Plan
from ftrun.launcher.output import OutputPump
from ftrun.launcher.placement import Placement
from ftrun.launcher.ports import listen
from ftrun.launcher.reach import StoreCheck
from ftrun.launcher.store import StoreHost
from ftrun.launcher.watchdog import Watchdog
from ftrun.launcher.workers import Streams, Worker, WorkerGroup
from ftrun.monitor import events
from ftrun.monitor.culprits import Stack, read_stack
from ftrun.monitor.flight_recorder import ask_flight_recorder
from ftrun.monitor.incident import Evidence, FaultReport
from ftrun.monitor.liveness import Verdict
from ftrun.monitor.page import PageSnapshot
from ftrun.monitor.stacks import Outcome, StackRequest, request_stacks
from ftrun.monitor.timeouts import to_event

_DRAIN_S = 1.0
"""Longest wait for the last output of ended workers to reach a console that may be slow."""
_STACKS_S = 1.0
"""Longest wait for the stacks of ranks that hang: they are worth more than a second of a hung job."""
_RECORDER_S = 1.2
"""torch looks for a request to dump its flight recorder once a second (`ask_flight_recorder`)."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """What stays the same over all rounds of this node."""

    node: str
    options: LaunchOptions
    is_on_loopback: bool
    """All nodes are on this machine and meet on its loopback."""
    store_port: int
    """Port of the workers' store; 0 for any free one."""
    environ: Mapping[str, str]
    cpus: Mapping[int, frozenset[int]]
    """CPUs to which the worker in each slot is bound; empty without NUMA binding."""
    abandoned_pids: frozenset[int] = frozenset()
    """Children of the agent that belong to no round: its guard, what was there before it, a stuck probe.

    Those of health checks come and go, and are known elsewhere.
    """


@dataclass(frozen=True, slots=True)
class Offer:
    """What this node brings into a round."""

    port: int
    """Where it would serve the workers' store; it listens already."""
    has_checkpoint_dir: bool
    checkpoints: tuple[SeenCheckpoint, ...]
    """Whole ones, newest first."""
    is_resume_expected: bool = False
    """There is or was one: a start from nothing would throw training away."""
    is_checkpoint_dir_empty: bool = False


class Rounds:
    """The current round of this node, or none."""

    def __init__(
        self,
        setting: NodeSetting,
        group: WorkerGroup,
        logs: RunLogs,
        pump: OutputPump,
        store: StoreHost,
        evidence: Gatherer,
        watchdog: Watchdog,
        store_check: StoreCheck,
        checkpoints: CheckpointWatch | None,
        record: Callable[[events.Event], None],
    ) -> None:
        self._setting = setting
        self._group = group
        self._logs = logs
        self._pump = pump
        self._store = store
        self._evidence = evidence
        self._watchdog = watchdog
        self._store_check = store_check
        self._record = record
        self._checkpoints = checkpoints
        self.newest_on_disk = checkpoints.newest_on_disk if checkpoints is not None else lambda: None
        self._avoided: tuple[str, ...] = ()
        self._has_reported_save = False
        self._listener: socket.socket | None = None
        self._saved: tuple[int, str | None] = (0, None)
        self.plan: Plan | None = None
        self.placement = Placement(())
        """Of the next round's workers; set before `open`."""
        self.keep = evidence.keep
        self.mask = evidence.mask
        self.end = group.end
        self.pass_on = group.pass_on

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Workers of the round, ended ones included; none between rounds."""
        return self._group.workers

    def poll(self, now: float, is_stopping: bool) -> list[Worker]:
        """Workers that ended since the last call."""
        ended = self._group.poll(now, is_stopping)
        self._evidence.note_exits(ended)
        return ended

    def pages(self) -> tuple[PageSnapshot, ...]:
        """Progress of each worker of the round."""
        return tuple(self._group.snapshots().values())

    @property
    def abandoned_pids(self) -> frozenset[int]:
        """Children of the agent that belong to no round."""
        return self._setting.abandoned_pids | running_pids()

    def remains(self, standby_pids: set[int]) -> list[int]:
        """Pids of every process of the round that still runs, children and grandchildren included."""
        return self._group.remains(self._without(standby_pids))

    def ask(self, signum: int, standby_pids: set[int]) -> list[tuple[int, str]]:
        """Send `signum` once to every process of the round; returns (pid, command) of detached ones."""
        return self._group.ask(signum, self._without(standby_pids))

    def kill(self, standby_pids: set[int]) -> list[tuple[int, str]]:
        """SIGKILL what is left of the round; returns (pid, command) of each that was not a worker itself."""
        return self._group.kill(self._without(standby_pids))

    def _without(self, standby_pids: set[int]) -> set[int]:
        return standby_pids | self.abandoned_pids

    def follow_window_size(self) -> None:
        """The terminal has changed its size: tell the workers' terminals."""
        self._pump.copy_window_size()

    def offer(self, avoided: Collection[str]) -> Offer:
        """Make ready for a round: listen for a store, look for checkpoints that are not `avoided`.

        Raises:
            PortBusyError: the port asked for with --master-port is taken.
            OSError: there is no port to be had.
        """
        self._close_listener()
        self._listener = listen(self._bind_address(), self._setting.store_port)
        port = self._listener.getsockname()[1]
        self._avoided = tuple(avoided)
        if self._checkpoints is None:
            return Offer(port, False, ())
        offer = self._checkpoints.offer(avoided, self._has_reported_save)
        return Offer(port, True, offer.seen, offer.is_expected, offer.is_empty)

    def checkpoint_saved_at(self, plan: Plan) -> float | None:
        """When what a round begins from was saved (CLOCK_MONOTONIC, seconds); None if unknown."""
        return None if self._checkpoints is None else self._checkpoints.saved_at(plan.resume_from)

    def open(self, plan: Plan, run_id: str) -> None:
        """Serve the store if it is this node's part, start the workers.

        Raises:
            OSError: the system would not let a worker be started; `close` takes down the others.
        """
        self.plan = plan
        if self._checkpoints is not None:
            self._checkpoints.begin_round(plan)
        self._saved = self._count_saved()
        self._store.close()  # the last round's; now all ranks of that have ended
        self._start_workers(plan, run_id)
        if plan.ranks.group_rank == 0 and self._listener is not None:
            self._store.serve(self._listener)
            self._listener = None
        self._close_listener()
        self._store_check.begin(plan)
        self._announce(plan)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _bind_address(self) -> str:
        """The loopback where all ranks are on it; all addresses where they are not."""
        return _LOOPBACK if self._setting.is_on_loopback else ""

    def scout(self) -> None:
        """Look at the checkpoints while training runs, so that a restart knows most of them."""
        if self._checkpoints is not None:
            self._checkpoints.scout(self._avoided)

    def has_saved(self) -> bool:
        """Whether a checkpoint has become whole since the last call, as the script or the disk has it."""
        before, self._saved = self._saved, self._count_saved()
        return self._saved[0] > before[0] or (self._saved[1] or "") not in (before[1] or "", "")

    def _count_saved(self) -> tuple[int, str | None]:
        reported = max((page.checkpoints for page in self.pages()), default=0)
        self._has_reported_save |= reported > 0
        return reported, None if self._checkpoints is None else self._checkpoints.newest

    def _start_workers(self, plan: Plan, run_id: str) -> None:
        setting = self._setting
        variables: dict[int, dict[str, str]] = {}
        for local_rank in range(plan.ranks.local_world_size):
            variables[local_rank] = environment.of_rank(plan, local_rank, run_id, setting.options)
            variables[local_rank] |= self.placement.environment
            if setting.options.virtual_local_rank:
                seen = {**setting.environ, **self.placement.environment}
                variables[local_rank] |= environment.virtual_local_rank(seen, local_rank)
            variables[local_rank] |= self._watchdog.environment(local_rank)
        self._watchdog.begin_round()
        logs = self._logs.for_round(plan.round_number, variables)
        self._evidence.begin_round(plan, _directory_of(logs))
        streams = self._open_streams(logs)
        for local_rank, target in logs.by_local_rank.items():
            variables[local_rank] |= target.environment
        for worker in self._group.start(plan, streams, variables):
            if cpus := setting.cpus.get(self.placement.slots[worker.local_rank]):
                reason = numa.apply(worker.pid, cpus)
                if reason:
                    self._record(events.NumaDegraded(reason))

    def _open_streams(self, logs: RoundLogs) -> dict[int, Streams]:
        """Descriptors for each rank's output; all or none are open when this returns."""
        streams = {}
        with contextlib.ExitStack() as opened:
            for local_rank, target in logs.by_local_rank.items():
                stdout = self._pump.open(target.stdout)
                opened.callback(os.close, stdout)
                stderr = self._pump.open(target.stderr)
                opened.callback(os.close, stderr)
                stacks_file = str(target.error_file.with_name("stacks.txt"))
                streams[local_rank] = Streams(stdout, stderr, str(target.error_file), stacks_file)
            opened.pop_all()
        return streams

    def _announce(self, plan: Plan) -> None:
        self._record(
            events.RoundClosed(
                plan.round_number,
                plan.ranks.world_size,
                plan.restart_count,
                plan.master_addr,
                plan.master_port,
                plan.resume_from,
                plan.resume_step,
                plan.nodes,
                plan.spares,
                plan.is_resume_known,
            )
        )
        for worker in self.workers:
            self._record(
                events.WorkerStarted(
                    plan.round_number,
                    worker.rank,
                    worker.local_rank,
                    worker.pid,
                    worker.is_warm,
                    worker.standby.origin,
                    worker.page.path,
                )
            )

    def save_stacks(self) -> dict[int, Stack]:
        """Save the stacks of all threads of all ranks, and ask NCCL's flight recorder; stacks by rank."""
        assert self.plan is not None
        running = [worker for worker in self.workers if worker.exit_code is None]
        asked = [one.rank for one in running if ask_flight_recorder(self._setting.environ, one.rank)]
        if asked:
            time.sleep(_RECORDER_S)
        stacks = self.stacks_of(running)
        written = [one for one in running if one.rank in stacks]
        self._record(
            events.StacksSaved(
                self.plan.round_number,
                tuple(worker.rank for worker in written),
                tuple(worker.rank for worker in running if worker not in written),
                tuple(asked),
                tuple(worker.stacks_file for worker in written),
            )
        )
        return {rank: stack for rank, stack in stacks.items() if stack is not None}

    def stacks_of(self, workers: Sequence[Worker]) -> dict[int, Stack | None]:
        """The main thread's stack of each worker that has written its stacks, by rank; None if unreadable."""
        requests = [StackRequest(worker.pid, worker.stacks_file) for worker in workers]
        outcomes = request_stacks(requests, _STACKS_S)
        return {
            worker.rank: read_stack(_read_text(worker.stacks_file))
            for worker in workers
            if outcomes[worker.pid] in (Outcome.WRITTEN, Outcome.PARTIAL)
        }

    def close(
        self, seen_at: float, hang: Verdict | None = None, start_failure: str = "", unreachable: str = ""
    ) -> Evidence:
        """Take down what the round used and say how it ended; every worker has ended.

        `seen_at` is when the agent began to stop it (CLOCK_MONOTONIC, seconds); `hang`, `start_failure` and
        `unreachable` say why, if nothing failed by itself.
        """
        assert self.plan is not None
        self._store_check.end()
        self._pump.drain(_DRAIN_S)
        workers, pages = self.workers, self._group.snapshots()
        self._count_saved()  # a round can end before the loop has turned since its first save
        self._evidence.note_end(workers)
        self._note_longest(self.plan.round_number)
        statuses = self._group.collect()
        _remove_empty(worker.stacks_file for worker in workers)
        if self.plan.ranks.local_world_size == self.plan.ranks.world_size:
            self._store.close()  # otherwise ranks of other nodes may still ask it
        self._pump.close_round()
        tails = {worker.local_rank: self._pump.tail(worker.local_rank) for worker in workers}
        evidence = self._evidence.gather(Ends(workers, statuses, pages, tails), seen_at)
        return replace(evidence, hang=hang, start_failure=start_failure, unreachable=unreachable)

    def note(self, evidence: Evidence, report: FaultReport | None) -> Evidence:
        """Keep and journal what `close` has given, and what the script reported; says where it is kept."""
        evidence = self._evidence.with_report(evidence, report)
        if not is_worth_keeping(evidence):
            return evidence
        evidence = self.keep(evidence)
        self._record(evidence_event(evidence))
        return evidence

    def _note_longest(self, round_number: int) -> None:
        self._record(to_event(self._watchdog.end_round(), round_number))

    def discard(self) -> None:
        """Take down what is left without asking how it ended; for the end of the job."""
        self._store_check.end()
        self._pump.drain(_DRAIN_S)
        if self.workers and self.plan is not None:
            self._note_longest(self.plan.round_number)
        stacks_files = [worker.stacks_file for worker in self.workers]
        self._group.collect()
        _remove_empty(stacks_files)
        self._close_listener()
        self._store.close()
        self._pump.close_round()


def _directory_of(logs: RoundLogs) -> Path | None:
    """The round's own; where a plug-in decides, that of the first rank's error file."""
    first = next(iter(logs.by_local_rank.values()), None)
    return logs.directory or (None if first is None else first.error_file.parent)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _remove_empty(paths: Iterable[str]) -> None:
    """Files that the workers made in case stacks are wanted of them."""
    for path in paths:
        with contextlib.suppress(OSError):
            if os.stat(path).st_size == 0:
                os.unlink(path)

"""Opens and closes the rounds of this node: checkpoint, store, logs, workers; then the evidence of its end.

Acts on behalf of the agent and decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ftrun.launcher import environment, numa
from ftrun.launcher.checkpoint import find_newest_whole
from ftrun.launcher.checkpoint_choice import CheckpointChoice, SkippedCheckpoint
from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.evidence import OomCounter, read_error_file
from ftrun.launcher.logs import RoundLogs, RunLogs
from ftrun.launcher.model import Plan
from ftrun.launcher.output import OutputPump
from ftrun.launcher.ports import listen
from ftrun.launcher.process import ExitStatus
from ftrun.launcher.ranks import NodeRanks
from ftrun.launcher.store import StoreHost
from ftrun.launcher.watchdog import Watchdog
from ftrun.launcher.workers import Streams, Worker, WorkerGroup
from ftrun.monitor import events
from ftrun.monitor.culprits import Stack, read_stack
from ftrun.monitor.flight_recorder import ask_flight_recorder
from ftrun.monitor.incident import Evidence, RankExit
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
    run_id: str
    options: LaunchOptions
    ranks: NodeRanks
    environ: Mapping[str, str]
    checkpoint_dir: Path | None
    cpus: Mapping[int, frozenset[int]]
    """CPUs that each local rank is bound to; empty without NUMA binding."""
    abandoned_pids: frozenset[int] = frozenset()
    """Children of the agent that belong to no round: its guard, what was there before it, a stuck probe."""


class Rounds:
    """The current round of this node, or none."""

    def __init__(
        self,
        setting: NodeSetting,
        group: WorkerGroup,
        logs: RunLogs,
        pump: OutputPump,
        store: StoreHost,
        oom: OomCounter,
        watchdog: Watchdog,
        record: Callable[[events.Event], None],
    ) -> None:
        self._setting = setting
        self._group = group
        self._logs = logs
        self._pump = pump
        self._store = store
        self._oom = oom
        self._watchdog = watchdog
        self._record = record
        self._oom_kills_before = 0
        self._told_skipped: set[SkippedCheckpoint] = set()
        self._scout: threading.Thread | None = None
        self.plan: Plan | None = None
        self.poll = group.poll
        self.end = group.end

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Workers of the round, ended ones included; none between rounds."""
        return self._group.workers

    def pages(self) -> tuple[PageSnapshot, ...]:
        """Progress of each worker of the round."""
        return tuple(self._group.snapshots().values())

    @property
    def abandoned_pids(self) -> frozenset[int]:
        """Children of the agent that belong to no round."""
        return self._setting.abandoned_pids

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
        return standby_pids | self._setting.abandoned_pids

    def follow_window_size(self) -> None:
        """The terminal has changed its size: tell the workers' terminals."""
        self._pump.copy_window_size()

    def open(self, round_number: int, restart_count: int) -> None:
        """Choose the checkpoint, serve the store, start the workers.

        Raises:
            PortBusyError: the port asked for with --master-port is taken.
            OSError: the system would not let a worker be started; `discard` takes down the others.
        """
        options = self._setting.options
        choice = self._choose_checkpoint()
        listener = listen(self._bind_address(), options.master_port or 0)
        self.plan = Plan(
            round_number,
            restart_count,
            self._setting.ranks,
            options.master_addr,
            listener.getsockname()[1],
            str(choice.path) if choice.path is not None else None,
            choice.step,
            is_resume_known=self._setting.checkpoint_dir is not None,
        )
        self._oom_kills_before = self._oom.read() or 0
        try:
            self._start_workers(self.plan)
        except OSError:
            listener.close()
            raise
        self._store.serve(listener)
        self._announce(self.plan)

    def _bind_address(self) -> str:
        """All of a single node's ranks are on the loopback; another address is the user's explicit wish."""
        return _LOOPBACK if self._setting.options.master_addr in (_LOOPBACK, "localhost") else ""

    def scout(self) -> None:
        """Look at the checkpoints while training runs, so that a restart knows most of them.

        In a thread: large ones take a second, slow file systems more.
        """
        directory = self._setting.checkpoint_dir
        if directory is not None and (self._scout is None or not self._scout.is_alive()):
            self._scout = threading.Thread(target=find_newest_whole, args=(directory,), daemon=True)
            self._scout.start()

    def _choose_checkpoint(self) -> CheckpointChoice:
        if self._setting.checkpoint_dir is None:
            return CheckpointChoice(None, None, ())
        choice = find_newest_whole(self._setting.checkpoint_dir)
        for skipped in set(choice.skipped) - self._told_skipped:  # once each, not at every restart
            self._record(events.CheckpointSkipped(str(skipped.path), skipped.reason))
        self._told_skipped |= set(choice.skipped)
        return choice

    def _start_workers(self, plan: Plan) -> None:
        setting = self._setting
        variables: dict[int, dict[str, str]] = {}
        for local_rank in range(plan.ranks.local_world_size):
            variables[local_rank] = environment.of_rank(plan, local_rank, setting.run_id, setting.options)
            if setting.options.virtual_local_rank:
                variables[local_rank] |= environment.virtual_local_rank(setting.environ, local_rank)
            variables[local_rank] |= self._watchdog.environment(local_rank)
        self._watchdog.begin_round()
        logs = self._logs.for_round(plan.round_number, variables)
        streams = self._open_streams(logs)
        for local_rank, target in logs.by_local_rank.items():
            variables[local_rank] |= target.environment
        for worker in self._group.start(plan, streams, variables):
            if worker.local_rank in setting.cpus:
                reason = numa.apply(worker.pid, setting.cpus[worker.local_rank])
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

    def close(self, seen_at: float, hang: Verdict | None = None) -> Evidence:
        """Take down what the round used and say how it ended; every worker has ended.

        `seen_at` is when the agent began to stop it (CLOCK_MONOTONIC, seconds), `hang` why if nothing failed.
        """
        assert self.plan is not None
        self._pump.drain(_DRAIN_S)
        workers, pages = self.workers, self._group.snapshots()
        self._note_longest(self.plan.round_number)
        statuses = self._group.collect()
        _remove_empty(worker.stacks_file for worker in workers)
        self._store.close()
        self._pump.close_round()
        oom_kills = max(0, (self._oom.read() or 0) - self._oom_kills_before)
        return Evidence(
            node=self._setting.node,
            round_number=self.plan.round_number,
            exits=tuple(
                self._exit_of(worker, statuses[worker.local_rank], pages[worker.local_rank].steps, seen_at)
                for worker in workers
            ),
            has_progressed=any(page.has_progressed for page in pages.values()),
            oom_kills=oom_kills,
            hang=hang,
            memory_limit_bytes=self._oom.limit_bytes(),
        )

    def _note_longest(self, round_number: int) -> None:
        self._record(to_event(self._watchdog.end_round(), round_number))

    def _exit_of(self, worker: Worker, status: ExitStatus, steps: int, seen_at: float) -> RankExit:
        error = read_error_file(Path(worker.error_file)) if status.code != 0 else None
        found = RankExit(
            rank=worker.rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            exit_code=status.code,
            exited_at=worker.exited_at,
            is_stopped_by_agent=worker.is_stopped_by_agent,
            error=error,
            error_file=worker.error_file if error is not None else "",
            stderr_tail=self._pump.tail(worker.local_rank),
            max_rss_bytes=status.max_rss_bytes,
            steps=steps,
        )
        # It had failed by itself before it was told to stop, and was only slow to end.
        return replace(found, is_stopped_by_agent=worker.is_stopped_by_agent and found.failed_at > seen_at)

    def discard(self) -> None:
        """Take down what is left without asking how it ended; for the end of the job."""
        self._pump.drain(_DRAIN_S)
        if self.workers and self.plan is not None:
            self._note_longest(self.plan.round_number)
        stacks_files = [worker.stacks_file for worker in self.workers]
        self._group.collect()
        _remove_empty(stacks_files)
        self._store.close()
        self._pump.close_round()


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

"""One job on this node: builds the agent with its shells, runs it, and says how it began and ended.

Imported after the worker processes have been spawned, since all of this takes longer to import than they may
wait.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import cast

import psutil

from ftrun.healthchecks.cgroup import OomCounter
from ftrun.launcher import elastic_events, exit_codes, health_port, identity, numa, process
from ftrun.launcher.account import Account
from ftrun.launcher.agent import Agent as NodeAgent
from ftrun.launcher.agent import Note
from ftrun.launcher.announcement import announce
from ftrun.launcher.assembly import make_gatherer, make_health, make_membership, make_watchdog
from ftrun.launcher.checkpoint_assembly import make_checkpoint_watch
from ftrun.launcher.config import Config
from ftrun.launcher.exporting import Exporting
from ftrun.launcher.hangs import Hangs
from ftrun.launcher.health import NodeHealth
from ftrun.launcher.logs import DEFAULT_PREFIX_TEMPLATE, LogOptions, RunLogs
from ftrun.launcher.mailbox import Mailbox
from ftrun.launcher.membership import Membership, Self
from ftrun.launcher.messages import Agent
from ftrun.launcher.node_state import Graces
from ftrun.launcher.numa_choice import NumaBinding
from ftrun.launcher.output import ConsoleText, OutputPump
from ftrun.launcher.ports import PortBusyError
from ftrun.launcher.quorum import is_loopback
from ftrun.launcher.reach import StoreCheck
from ftrun.launcher.recorder import Recorder
from ftrun.launcher.rendezvous import begin
from ftrun.launcher.retention import Retention
from ftrun.launcher.rounds import NodeSetting, Rounds
from ftrun.launcher.signals import SignalInbox
from ftrun.launcher.standby import Standby
from ftrun.launcher.standby_pool import StandbyPool
from ftrun.launcher.start import Start
from ftrun.launcher.store import StoreHost
from ftrun.launcher.summary import failure_summary
from ftrun.launcher.watchdog import Watchdog
from ftrun.launcher.watcher import Watcher
from ftrun.launcher.workers import WorkerGroup
from ftrun.monitor import events
from ftrun.monitor.journal import Journal
from ftrun.monitor.log import LogFormat, configure, level_from
from ftrun.monitor.process_tree import children
from ftrun.monitor.run_directories import RunDirectory, make_run_directory
from ftrun.monitor.sockets import make_runtime_directory


class Job:
    """The shells of one job, and what is said about it at its begin and its end."""

    def __init__(self, config: Config, start: Start, stack: ExitStack) -> None:
        self._config = config
        self._start = start
        self._slots = start.slots
        self._stack = stack
        self._rendezvous = start.rendezvous
        name = identity.node_name(self._rendezvous.key, identity.lock_places(os.environ))
        if name.lock is not None:
            stack.callback(name.lock.release)
        self._node = name.name
        self._address = self._own_address()
        self._run_id = self._rendezvous.run_id or _fresh_run_id()
        run_directory = _run_dir(config, self._run_id)
        self._run_dir = run_directory.path
        self._started_at = time.monotonic()
        self._oom = OomCounter()
        self._inbox: SignalInbox | None = None
        self._mailbox: Mailbox[Note] = Mailbox()
        stack.callback(self._mailbox.close)
        self._pump = OutputPump(on_warning=self._warn)
        stack.callback(self._close_pump)
        self._record = self._make_recorder()
        if run_directory.degraded:
            self._warn(run_directory.degraded)
        if name.degraded:
            self._warn(name.degraded)

    def run(self, inbox: SignalInbox, first: Sequence[Standby]) -> int:
        """Build the agent and let it run; returns the exit code.

        Raises:
            PortBusyError: the port asked for is taken.
        """
        self._inbox = inbox
        self._foreign_pids = frozenset(children(os.getpid())) - {one.pid for one in first}
        logs = RunLogs(self._log_options(), self._run_dir / "logs", self._run_id, self._warn)
        watcher: Watcher[object] = Watcher()
        self._stack.callback(watcher.close)
        pool = self._make_pool(watcher)
        limit = self._config.ftrun.journal.max_size
        retention = Retention(self._run_dir, limit, lambda: tuple(logs.rounds), self._mailbox.post)
        self._stack.callback(retention.close)
        exporting = Exporting(self._config, self._record, self._run_id, self._node)
        self._announce(logs)
        directory = self._make_socket_directory()
        self._start_guard(directory)
        node_health = self._start_health()
        watchdog = make_watchdog(self._config, self._slots.count, directory, self._mailbox.post, self._record)
        self._stack.callback(watchdog.close)
        rounds = self._make_rounds(pool, logs, watchdog)
        pool.adopt(first, f"for the first round: {self._start.advice.reason}")
        account = Account(rounds, self._record, self._config.ftrun.journal.progress_interval)
        agent = self._make_agent(rounds, account, watchdog, node_health, pool, inbox, watcher)
        self._stack.callback(agent.close)
        exporting.start(account, lambda: agent.turned_at, self._mailbox.post)
        self._stack.callback(exporting.close)
        self._start_health_port(agent)
        try:
            agent.run()
        except PortBusyError as error:
            self._note_end(exit_codes.NO_RENDEZVOUS, str(error), agent)
            raise
        self._conclude(agent, logs)
        return agent.state.exit_code

    def _own_address(self) -> str:
        """Where other nodes reach this one; for one node alone, where its ranks meet."""
        options, setting = self._config.launch, self._rendezvous
        if self._rendezvous.is_alone:
            return options.master_addr
        return identity.own_address(setting.host, setting.port, options.local_addr)

    def _is_on_loopback(self) -> bool:
        """A node whose address is a loopback one for want of a better may still have others elsewhere."""
        meeting = (
            self._address
            if self._rendezvous.is_alone
            else self._config.launch.local_addr or self._rendezvous.host
        )
        return is_loopback(meeting)

    def _make_recorder(self) -> Recorder:
        terminal = configure(
            cast("LogFormat", self._config.ftrun.log_format),
            ConsoleText(self._pump),
            level_from(os.environ),
        )
        journal = Journal(
            self._run_dir / f"{self._node}.jsonl", self._node, time.monotonic, time.time, self._print
        )
        self._stack.callback(journal.close)
        return Recorder(
            journal,
            terminal,
            elastic_events.observer(self._config.launch.event_log_handler, self._config.launch),
        )

    def _close_pump(self) -> None:
        """Show all that is left, however slow its reader is; a further stop signal ends the wait."""
        self._pump.close(self._is_told_again)

    def _is_told_again(self) -> bool:
        return self._inbox is not None and any(
            number.name in self._config.launch.signals_to_handle for number in self._inbox.read()
        )

    def _warn(self, reason: str) -> None:
        """From the output pump, on its own thread."""
        self._mailbox.post(events.OutputDegraded(reason))

    def _print(self, text: str) -> None:
        """Whole lines for a person, among the workers' on the agent's stderr."""
        self._pump.write(f"{text}\n".encode(errors="surrogateescape"))

    def _log_options(self) -> LogOptions:
        options = self._config.launch
        return LogOptions(
            log_dir=options.log_dir,
            redirects=options.redirects,
            tee=options.tee,
            local_ranks_filter=options.local_ranks_filter,
            duplicate_stdout_filters=options.duplicate_stdout_filters,
            duplicate_stderr_filters=options.duplicate_stderr_filters,
            logs_specs=options.logs_specs,
            prefix_template=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", DEFAULT_PREFIX_TEMPLATE),
        )

    def _make_pool(self, watcher: Watcher[object]) -> StandbyPool:
        pool = StandbyPool(
            self._slots.count,
            self._start.spawn,
            watcher,
            self._record,
            self._available_memory,
            self._config.ftrun.standby.min_free_memory,
            self._start.may_learn,
            self._start.advice.reason if self._start.advice.is_cold else "",
        )
        pool.modules = self._start.modules
        return pool

    def _available_memory(self) -> int:
        """Bytes that a new process may use: of the machine, and of the container if that is tighter."""
        machine = int(psutil.virtual_memory().available)
        headroom = self._oom.headroom_bytes()
        return machine if headroom is None else min(machine, headroom)

    def _make_rounds(self, pool: StandbyPool, logs: RunLogs, watchdog: Watchdog) -> Rounds:
        options = self._config.launch
        binding = self._numa_binding()
        setting = NodeSetting(
            node=self._node,
            options=options,
            is_on_loopback=self._is_on_loopback(),
            store_port=(options.master_port or 0) if self._rendezvous.is_alone else 0,
            environ=os.environ,
            cpus=binding.cpus,
            abandoned_pids=self._foreign_pids | ({binding.survivor_pid} if binding.survivor_pid else set()),
        )
        group = WorkerGroup(self._start.entry, pool.take, pool.discard)
        store = StoreHost(self._warn_store)
        check = StoreCheck(self._node, self._mailbox.post)
        section = self._config.ftrun.checkpoint
        watch = make_checkpoint_watch(section, self._rendezvous, self._node, self._record)
        evidence = make_gatherer(self._config, self._node, self._oom, os.environ)
        shells = (group, logs, self._pump, store, evidence, watchdog, check, watch)
        return Rounds(setting, *shells, self._record)

    def _make_socket_directory(self) -> Path | None:
        try:
            return make_runtime_directory(os.environ)
        except OSError as error:
            self._record(events.HeartbeatsDegraded(str(error)))
            return None

    def _start_guard(self, directory: Path | None) -> None:
        """The one process that stays when this agent is killed; ended by hand when it is not."""
        try:
            guard = process.spawn_guard(os.getpid(), str(directory or ""))
        except OSError as error:
            self._record(events.GuardDegraded(str(error)))
            return
        self._stack.callback(guard.end)
        self._foreign_pids |= {guard.pid}

    def _start_health(self) -> NodeHealth:
        """Early, since the first check is made while the workers import what they need."""
        node_health = make_health(
            self._config, self._node, self._slots.count, self._run_dir, os.environ, self._mailbox.post
        )
        node_health.start()
        return node_health

    def _warn_store(self, reason: str) -> None:
        """From the store's thread: the workers will fail for want of a store, and this says why."""
        self._mailbox.post(events.StoreFailed(reason))

    def _numa_binding(self) -> NumaBinding:
        mode = self._config.launch.numa_binding
        if mode is None:
            return NumaBinding({})
        binding = numa.bind(mode, self._slots.count, os.environ)
        if binding.degraded:
            self._record(events.NumaDegraded(binding.degraded))
        return binding

    def _make_membership(self, rounds: Rounds) -> Membership:
        setting = self._rendezvous
        me = Self(
            Agent(self._node, identity.incarnation()),
            self._slots.count,
            setting.rank_hint,
            self._address,
            "" if self._rendezvous.is_alone else setting.endpoint,
            reconnect_s=setting.reconnect_timeout_s,
            max_restarts=self._config.launch.max_restarts,
            is_address_given=bool(self._config.launch.local_addr),
        )
        return make_membership(
            me, self._run_id, setting, self._config, self._mailbox.post, rounds.offer, self._record
        )

    def _make_agent(
        self,
        rounds: Rounds,
        account: Account,
        watchdog: Watchdog,
        node_health: NodeHealth,
        pool: StandbyPool,
        inbox: SignalInbox,
        watcher: Watcher[object],
    ) -> NodeAgent:
        config = self._config
        stop = config.ftrun.stop
        return NodeAgent(
            begin(self._slots.count, time.monotonic(), self._rendezvous.join_timeout_s),
            Graces(
                config.grace_after_failure_s,
                config.grace_after_signal_s,
                stop.grace_after_success,
                stop.kill_timeout,
                config.ftrun.graceful_exit_code,
                self._rendezvous.reconnect_timeout_s,
            ),
            signal.Signals[config.fault_tolerance.rank_termination_signal],
            self._make_membership(rounds),
            rounds,
            Hangs(watchdog, rounds, self._record),
            account,
            node_health,
            self._mailbox,
            pool,
            inbox,
            watcher,
            self._record,
            time.monotonic,
        )

    def _start_health_port(self, agent: NodeAgent) -> None:
        port = health_port.start(
            os.environ,
            lambda: health_port.AgentState(
                agent.state.phase.value, agent.state.round_number, agent.restart_count
            ),
            lambda: agent.turned_at,
            time.monotonic,
            self._warn,
        )
        if port is not None:
            self._stack.callback(port.stop)

    def _announce(self, logs: RunLogs) -> None:
        options = self._config.launch
        started = events.RunStarted(
            self._run_id,
            options.training_script,
            len(options.training_script_args),
            self._slots.count,
            self._slots.reason,
            os.getpid(),
            metadata.version("ftrun"),
            platform.python_version(),
            options.max_restarts,
        )
        log_dir = logs.directory if logs.directory.is_dir() else self._run_dir
        located = events.LogLocated(str(log_dir), str(self._run_dir))
        for event in announce(self._config, self._start, started, located, os.environ):
            self._record(event)

    def _conclude(self, agent: NodeAgent, logs: RunLogs) -> None:
        """Say how the job ended: to the journal, the person at the terminal, a launcher around this one."""
        state, incident = agent.state, agent.fatal_incident
        if state.exit_code != exit_codes.OK and incident is not None:
            self._print(
                failure_summary(
                    self._config.launch.training_script,
                    incident,
                    binary=self._start.entry.binary(sys.executable),
                    host=self._node,
                    wall_offset_s=time.time() - time.monotonic(),
                    log_dir=str(logs.directory),
                )
            )
            _copy_error_file(incident.culprit.error_file, os.environ.get("TORCHELASTIC_ERROR_FILE"))
        self._note_end(state.exit_code, state.end_reason, agent)

    def _note_end(self, exit_code: int, reason: str, agent: NodeAgent) -> None:
        duration_s = time.monotonic() - self._started_at
        self._record(events.RunEnded(exit_code, reason, agent.restart_count, duration_s), durable=True)


def _fresh_run_id() -> str:
    """For a job that nobody has named; "none", torchrun's default, would make all of those share one."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _run_dir(config: Config, run_id: str) -> RunDirectory:
    """Where the journal and, unless told otherwise, the logs go."""
    if config.ftrun.run_dir is not None:
        return RunDirectory(Path(config.ftrun.run_dir).absolute())
    return make_run_directory(run_id, os.environ)


def _copy_error_file(error_file: str, own_error_file: str | None) -> None:
    """Hand the root cause on to the launcher that started this one, as torchrun does."""
    if error_file and own_error_file:
        with contextlib.suppress(OSError):
            shutil.copyfile(error_file, own_error_file)

"""The agent: one loop that observes, lets the pure parts decide, and acts.

    observe   child exits (pidfds), control sockets, signals, the host agent's word, time
    decide    `rendezvous.advance` (what phase follows); what is done about a failure, the host agent says
    act       start, ask, kill, join, journal

Single-threaded; nothing calls into it. Each turn re-reads the levels (who has ended, who is left), so a
missed or doubled wake-up costs a turn and never correctness.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ftrun.launcher import exchange, exit_codes, health, node_state, process
from ftrun.launcher.account import Account
from ftrun.launcher.aftermath import Aftermath
from ftrun.launcher.control import ControlError, Progress
from ftrun.launcher.hangs import Hangs, Record
from ftrun.launcher.joining import Joining
from ftrun.launcher.mailbox import Mailbox
from ftrun.launcher.membership import Membership
from ftrun.launcher.messages import StopKind
from ftrun.launcher.node_state import Cause, Graces, Phase, State
from ftrun.launcher.reach import Unreachable
from ftrun.launcher.rendezvous import advance
from ftrun.launcher.rounds import Rounds
from ftrun.launcher.signals import SignalInbox
from ftrun.launcher.standby import Standby
from ftrun.launcher.standby_pool import StandbyPool
from ftrun.launcher.watcher import Watcher
from ftrun.launcher.workers import Worker, exited_event
from ftrun.monitor import events
from ftrun.monitor.heartbeats import RankHeartbeats
from ftrun.monitor.incident import FaultReport, Incident
from ftrun.monitor.log import sentence
from ftrun.monitor.process_tree import children
from ftrun.monitor.wire import ControlRequest, WorkloadAction

_SCOUT_EVERY_S = 10.0
_LONGEST_WAIT_S = 5.0
"""Upper bound of one wait: memory for standbys is looked at again, and the liveness endpoint sees a turn."""


_REQUESTED_CODES = {
    WorkloadAction.SHUTDOWN_WORKLOAD: exit_codes.FUTILE,
    WorkloadAction.EXCLUDE_THIS_NODE: exit_codes.NODE_UNHEALTHY,
}
"""What a worker's request means for the job, or for this node; the others change nothing."""

Note: TypeAlias = (
    "ControlRequest | tuple[int, RankHeartbeats] | events.Event | Unreachable | health.Note | exchange.Note"
)
"""What helper threads tell the agent: a worker's request, a local rank's new state, what to journal, that the
workers cannot find each other, how healthy the node is, and what comes from the other agents."""

_MOVES_AFTER_S = 10.0
"""From the first rank's progress on: the others may be of a kind that shows none, such as an actor."""


class Agent:
    """Runs one node's part of a job to its end."""

    def __init__(
        self,
        state: State,
        graces: Graces,
        termination_signal: int,
        membership: Membership,
        rounds: Rounds,
        hangs: Hangs,
        account: Account,
        node_health: health.NodeHealth,
        mailbox: Mailbox[Note],
        pool: StandbyPool,
        inbox: SignalInbox,
        watcher: Watcher[object],
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        self.state = state
        self._graces = graces
        self._termination_signal = termination_signal
        self._membership = membership
        self._rounds = rounds
        self._hangs = hangs
        self._account = account
        self._health = node_health
        self._mailbox = mailbox
        self._pool = pool
        self._inbox = inbox
        self._watcher = watcher
        self._record = record
        self._clock = clock
        self._aftermath = Aftermath(rounds)
        self._joining = Joining(node_health, rounds, self._aftermath, membership, record)
        self._progressed: set[int] = set()
        self._progressed_at = 0.0
        self._scout_at = 0.0
        self._is_hurried = False
        self.turned_at = clock()
        """CLOCK_MONOTONIC of the last turn of the loop, seconds; for the liveness endpoint."""

    @property
    def restart_count(self) -> int:
        """Restarts of the job so far."""
        return self._membership.memory.restart_count

    @property
    def fatal_incident(self) -> Incident | None:
        """What ended the job, if it was a failure."""
        verdict = self._membership.verdict
        return verdict.judgement.incident if verdict is not None and verdict.judgement is not None else None

    def run(self) -> None:
        """Loop until the job has ended; `state` then holds the exit code and the reason."""
        self._watcher.add(self._inbox.fileno(), self._inbox)
        self._watcher.add(self._mailbox.fileno(), self._mailbox)
        self._membership.connect()
        while self.state.phase is not Phase.ENDED or self._is_awaited():
            for source in self._watcher.wait(self._wait_s()):
                self._take(source)
            self._read_levels()
        self._rounds.discard()

    def _is_awaited(self) -> bool:
        """Other agents have yet to read the verdict from the store that ends with this one."""
        return self._membership.is_closing and not self._is_hurried

    def _wait_s(self) -> float:
        own = (self.state.deadline, self._health.wanted_at)
        deadlines = (*own, *self._hangs.wanted_at, *self._membership.wanted_at)
        now = self._clock()
        return min([_LONGEST_WAIT_S, *(at - now for at in deadlines if at is not None)])

    def _take(self, source: object) -> None:
        if source is self._inbox:
            for number in self._inbox.read():
                self._take_signal(number)
        elif source is self._mailbox:
            self._take_notes(self._mailbox.take())
        elif isinstance(source, Standby):
            worker = next((one for one in self._rounds.workers if one.standby is source), None)
            if worker is None:
                self._pool.read(source)
            else:
                self._read_worker(worker)
            if source.has_hung_up:  # it would be readable for ever
                self._watcher.remove(source.control.fileno())

    def _take_notes(self, notes: Sequence[Note]) -> None:
        """What helper threads have left for the agent."""
        from_others: list[exchange.Note] = []
        for note in notes:
            if isinstance(note, ControlRequest):
                self._take_request(note)
            elif isinstance(note, events.Event):
                self._record(note)
            elif isinstance(note, tuple):
                self._hangs.take(note[0], note[1], self.state.round_number)
            elif isinstance(note, Unreachable):
                self._take_unreachable(note)
            elif isinstance(note, (health.Checked, health.MemoryAwaited)):
                self._take_health(note)
            else:
                from_others.append(note)
        for event in self._membership.take(from_others, self.state.connect_by):
            if self.state.phase is not Phase.ENDED:
                self._hear(event)

    def _take_unreachable(self, note: Unreachable) -> None:
        """Ranks that have made progress do without the store."""
        is_about_this = self.state.phase is Phase.RUNNING and note.round_number == self.state.round_number
        if is_about_this and not self._progressed:
            self._advance(node_state.Unreached(note.reason))

    def _take_health(self, note: health.Note) -> None:
        for event in self._health.take(note):
            self._record(event)
        if reason := self._health.reason_to_stop:
            self._advance(node_state.Unhealthy(reason))

    def _hear(self, event: node_state.Event) -> None:
        """The host agent's word, and another node's."""
        if isinstance(event, node_state.Ordered) and self.state.is_running(event.sequence):
            order = event.order
            if not self._membership.is_alone:
                name, number = order.kind.value, self.state.round_number
                self._record(events.RoundStopOrdered(number, name, order.node, order.reason))
            if order.kind is StopKind.STALL:
                self._advance(
                    self._hangs.rule_standstill(order.reason, self.state.round_number, self._clock())
                )
                return
        self._advance(event)

    def _take_request(self, request: ControlRequest) -> None:
        """A worker wants something of the job; acted on at once."""
        round_number, action = self.state.round_number, request.action
        request = replace(request, description=self._rounds.mask(request.description))
        name = action.name.title().replace("_", "")  # as nvidia-resiliency-ext writes it
        what = events.RequestReceived(round_number, request.global_rank, name, request.description)
        self._record(what, durable=True)
        if self.state.phase is Phase.ENDED:
            return
        if action is WorkloadAction.REPORT_FAULT:
            report = FaultReport.parse(request.global_rank, request.description)
            if report is not None:
                self._advance(node_state.Reported(report))
        elif (code := _REQUESTED_CODES.get(action)) is not None:
            is_for_node = action is WorkloadAction.EXCLUDE_THIS_NODE
            self._advance(node_state.StopRequested(code, sentence(what), is_for_node))

    def _take_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            ours = {worker.pid for worker in self._rounds.workers} | self._pool.pids
            process.reap_orphans(ours | self._rounds.abandoned_pids)
        elif number == signal.SIGWINCH:
            self._rounds.follow_window_size()
        elif number in self._inbox.passed_on:
            self._record(self._rounds.pass_on(number))
        elif self.state.phase is Phase.ENDED:
            self._is_hurried = True
        else:
            self._advance(node_state.Signalled(number))
            deadline = self.state.deadline
            grace_s = 0.0 if deadline is None else max(0.0, deadline - self._clock())
            self._record(events.SignalReceived(number.name, grace_s, self.state.signal_count), durable=True)

    def _read_worker(self, worker: Worker) -> None:
        try:
            messages = worker.standby.read()
        except ControlError:
            messages = []  # garbage from a worker is no reason to end it; it is just not listened to any more
            self._watcher.remove(worker.standby.control.fileno())
        for message in messages:
            if isinstance(message, Progress):
                self._note_progress(worker, message)

    def _note_progress(self, worker: Worker, message: Progress) -> None:
        page = worker.page.read()
        since_start_s = (page.first_progress_at or 0.0) - (page.main_started_at or 0.0)
        self._record(
            events.WorkerProgressed(
                self.state.round_number, worker.rank, page.reported_step, max(0.0, since_start_s)
            )
        )
        if not self._progressed:
            self._progressed_at = self._clock()
        self._progressed.add(worker.local_rank)
        self._pool.learn(message.modules)
        account = self._aftermath.recovered()
        if account is not None:
            self._record(account, durable=True)

    def _read_levels(self) -> None:
        """What holds now, whatever woke the loop."""
        self.turned_at = now = self._clock()
        is_stopping = self.state.phase is Phase.STOPPING
        for worker in self._rounds.poll(now, is_stopping):
            self._note_exit(worker)
        self._account.look(self.state, now)
        if self.state.phase is Phase.STOPPING and self._is_all_gone():
            self._record(
                events.RoundStopped(
                    self.state.round_number, self.state.stopped_by, self._clock() - self.state.stop_began_at
                )
            )
            self._advance(node_state.AllGone())
        if (hung := self._hangs.look(self.state, now)) is not None:
            self._advance(hung)
        self._hangs.shorten_grace(self.state, now)
        if self.state.phase is not Phase.ENDED:
            self._advance(node_state.Woke())
        else:  # it only serves the others' store
            self._pool.close()
        self._membership.turn(now)
        self._joining.turn(self.state, now)
        if self.state.phase is Phase.RUNNING:
            self._membership.tell_standstill(self._hangs.standstill, self.state.round_number)
            if self._rounds.has_saved():
                self._membership.tell_saved(self.state.round_number)
        self._pool.sweep()
        if self._is_moving(now):
            if self._membership.has_restarts:
                self._pool.refill()
            self._scout(now)

    def _scout(self, now: float) -> None:
        if now >= self._scout_at:
            self._scout_at = now + _SCOUT_EVERY_S
            self._rounds.scout()

    def _is_moving(self, now: float) -> bool:
        if self.state.phase is not Phase.RUNNING or not self._progressed:
            return False
        has_all = len(self._progressed) == self.state.local_world_size
        return has_all or now - self._progressed_at >= _MOVES_AFTER_S

    def _is_all_gone(self) -> bool:
        if any(worker.exit_code is None for worker in self._rounds.workers):
            return False
        return not self._rounds.remains(self._pool.pids)

    def _note_exit(self, worker: Worker) -> None:
        exit_code = worker.exit_code or 0
        self._read_worker(worker)
        self._pool.forget(worker.standby)
        if self.state.phase is Phase.RUNNING or self.state.phase is Phase.STOPPING:
            self._advance(node_state.RankExited(worker.local_rank, worker.rank, exit_code))
        self._record(exited_event(worker, self.state.round_number))

    def _advance(self, event: node_state.Event) -> None:
        self.state, actions = advance(self.state, event, self._clock(), self._graces)
        self._health.follow(self.state)
        for action in actions:
            match action:
                case node_state.StartRound():
                    self._start_round()
                case node_state.TellStop(kind, reason, exit_code):
                    self._membership.tell_stop(self.state, kind, reason, exit_code)
                case node_state.EndHung(local_ranks):
                    for local_rank in local_ranks:
                        self._rounds.end(local_rank, self._termination_signal)
                case node_state.Ask(signum):
                    self._hangs.rest()
                    self._note_swept(self._rounds.ask(signum, self._pool.pids), "detached; asked to end")
                case node_state.Kill():
                    self._note_swept(
                        self._rounds.kill(self._pool.pids), "still there after the grace; SIGKILL"
                    )
                case node_state.JoinNext():
                    self._joining.want(self.state, self._hangs.verdict, self._clock())
                case node_state.Reconnect():
                    self._membership.connect()
                case node_state.Depart():
                    self._depart()
                case node_state.GiveUp():
                    self._name_unkillable()

    def _start_round(self) -> None:
        plan = self._membership.plan
        assert plan is not None
        self._progressed = set()
        self._hangs.forget()
        self._membership.begin_round()
        self._aftermath.begin_round(plan, self._membership.judgement, self._clock())
        try:
            self._rounds.open(plan, self._membership.run_id)
        except OSError as error:
            self._record(events.RoundFailed(self.state.round_number, str(error)))
            self._advance(node_state.StartFailed(str(error)))
        else:
            self._hangs.watch_round(self._clock())

    def _note_swept(self, strays: Sequence[tuple[int, str]], how: str) -> None:
        for pid, command in strays:
            self._record(events.ProcessSwept(self.state.round_number, pid, command, how))

    def _name_unkillable(self) -> None:
        ranks = {worker.pid: worker.rank for worker in self._rounds.workers}
        for pid in self._rounds.remains(self._pool.pids):
            self._record(
                events.WorkerUnkillable(
                    self.state.round_number, ranks.get(pid, -1), pid, process.state_of(pid)
                ),
                durable=True,
            )

    def _depart(self) -> None:
        """Say what failed here, if anything did, and go."""
        ending = self.state.ending
        assert ending is not None
        is_over = all(worker.exit_code is not None for worker in self._rounds.workers)
        if self.state.cause is Cause.FAILURE and is_over:
            evidence = self._aftermath.close_round(self.state, self._hangs.verdict, self._clock())
            if evidence is not None:
                self._membership.judge_alone(evidence, ending.exit_code, ending.reason)
        self._membership.leave(ending.reason, ending.is_excluded)

    def close(self) -> None:
        """Let nothing behind: standbys, workers of a round that did not end by itself, descriptors."""
        self._health.close()
        self._membership.close()
        self._pool.close()
        self._rounds.kill(set())
        self._rounds.discard()
        for pid in set(children(os.getpid())) - self._rounds.abandoned_pids:
            process.kill_descendant(pid, signal.SIGKILL, os.getpid())

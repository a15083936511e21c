"""A whole job in simulated time: real machines and memberships; simulated workers, network and faults.

`SimulatedJob.play` runs one history of faults to the end of all agents and checks, at every turn, what must
hold whatever happens. It raises `AssertionError` with the account of the history when something does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random

from ftrun.launcher import exchange as ex
from ftrun.launcher import node_state, policy
from ftrun.launcher.config import RestartConfig
from ftrun.launcher.host_state import Event as HostEvent
from ftrun.launcher.hosting import Hosting
from ftrun.launcher.judgements import own_exit_code
from ftrun.launcher.membership import Membership, Self
from ftrun.launcher.memory import count_incidents, count_restarts
from ftrun.launcher.messages import Agent, JobPlan, Publication, StopKind, Verdict
from ftrun.launcher.node_state import Cause, Graces, Phase
from ftrun.launcher.quorum import Rules, plan_of
from ftrun.launcher.rendezvous import IllegalEvent, advance, begin
from ftrun.launcher.rounds import Offer
from ftrun.monitor import events, liveness
from ftrun.monitor.incident import Ailment, Evidence, RankExit
from tests.support.simulated_store import (
    KEEP_ALIVE_S,
    LOST_AFTER_S,
    Endpoint,
    Line,
    SimulatedExchange,
    Timeline,
)

GRACES = Graces(
    after_failure_s=3.0, after_signal_s=6.0, after_success_s=4.0, kill_timeout_s=3.0, reconnect_s=30.0
)
RESTARTS = RestartConfig(backoff_initial=0.25, backoff_max=5.0)
CHECKPOINT_EVERY_S = 3.0
SIGKILL, SIGTERM = 9, 15


class Kind(Enum):
    """What may happen to a job; `value_s` of the fault is how long, where it takes time."""

    FAIL = "a worker is killed"
    FINISH = "the workers of a node exit 0 before the others"
    START_FAILS = "the system will not start the workers of a node the next time"
    KILL = "an agent is killed, and its workers with it"
    RESTART = "an agent is killed, if it lives, and started again after a while"
    FREEZE = "an agent stands still for a while"
    PAUSE = "the loop of an agent stands still for a while, its threads do not"
    CUT = "a node is cut off for a while"
    SLOW = "messages of a node are slow for a while"
    SIGNAL = "an agent gets SIGTERM"
    REQUEST = "a script asks for the end of the job"
    EXCLUDE = "a script asks that its node be left out"
    ADD = "another node comes"
    APART = "a node cannot reach where the workers of the round meet"
    SICK = "the health checks of a node fail for a while"
    STUBBORN = "the workers of a node act on nothing but SIGKILL for a while"
    STUCK = "a worker of a node survives SIGKILL"
    MOVE = "the host agent is killed, and another node takes over its address after a while"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens `after_s` after the one before, to the living agent at `place` (modulo)."""

    after_s: float
    kind: Kind
    place: int = 0
    value_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job is like."""

    nodes: int = 3
    slots: tuple[int, ...] = (1,)
    """Of each node in turn."""
    min_nodes: int = 1
    max_nodes: int = 3
    min_ranks: int = 0
    spares: int = 0
    grow: str = "never"
    max_restarts: int = 3
    work_s: float = 10.0
    """Time that all ranks together must run."""
    echo_s: float | None = 1.0
    """When the ranks of other nodes fail after one is gone; None = they wait for it for ever."""
    stall_s: float | None = 20.0
    """When a node whose ranks do not move says so; None = never."""
    has_progress: bool = True
    seed: int = 0

    def rules(self) -> Rules:
        """What the host agent goes by."""
        return Rules(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            min_ranks=self.min_ranks,
            spares=self.spares,
            grow=self.grow,
            last_call_s=5.0,
            join_timeout_s=40.0,
            keep_alive_interval_s=KEEP_ALIVE_S,
            lost_after_s=LOST_AFTER_S,
            close_timeout_s=10.0,
            max_restarts=self.max_restarts,
        )


class CheckedHosting(Hosting):
    """The host agent's part, with what must hold after each of its turns."""

    def hear(self, happened: Sequence[HostEvent], now: float) -> None:
        """Nothing is left undone, and nothing is wanted at a time that has passed."""
        super().hear(happened, now)
        if happened:
            settled = self._state
            super().hear((), now)
            is_settled = self._state is settled or self._state == settled
            assert is_settled, "a second turn at once still changes something"
        wanted_at = self.wanted_at
        assert wanted_at is None or wanted_at > now, f"wanted at {wanted_at}, which is not after {now}"


@dataclass(slots=True)
class Worker:
    """One rank's process."""

    exit_code: int | None = None
    is_seen: bool = False
    was_asked: bool = False


@dataclass(slots=True)
class Training:
    """A round's ranks as a whole."""

    name: tuple[str, int]
    """Epoch of its store, and sequence number."""
    plan: JobPlan
    started: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    """Agents whose ranks all ended well, by themselves."""
    whole_since: float | None = None
    broken_at: float | None = None
    has_progressed: bool = False
    moved_at: float = 0.0


class SimulatedAgent:
    """Does what `ftrun.launcher.agent` does, with workers that are only told of."""

    def __init__(self, job: SimulatedJob, node: str, slots: int, rank_hint: int | None) -> None:
        self.job = job
        self.agent = Agent(node, f"{node}.{job.count_agent()}")
        self.slots = slots
        self.line = job.lines[node]
        self.exchange = SimulatedExchange(self.agent, self.line, job.endpoint, job.timeline, self._post)
        me = Self(
            agent=self.agent,
            slots=slots,
            rank_hint=rank_hint,
            address=node,
            endpoint="sim",
            reconnect_s=GRACES.reconnect_s,
            max_restarts=job.setting.max_restarts,
        )
        self.membership = Membership(
            me,
            self.exchange,
            lambda now: CheckedHosting(job.setting.rules(), self.exchange, job.decide, self._record, now),
            lambda avoided: Offer(1000, False, ()),
            self._record,
            lambda: job.timeline.now,
        )
        self.state = begin(slots, job.timeline.now, 30.0)
        self.is_alive = True
        self.is_paused = False
        self.is_stubborn = False
        self.ailments: tuple[Ailment, ...] = ()
        self.sentence: node_state.Sentenced | None = None
        """What it heard first of the end of the job, or of its part in it."""
        self.has_stuck = False
        self.failing_starts = 0
        self.has_saved = False
        self.workers: dict[int, Worker] = {}
        self.training: Training | None = None
        self._evidence: Evidence | None = None
        self._is_open = False
        self._hang: liveness.Verdict | None = None
        self._inbox: list[Callable[[], None]] = []
        self._notes: list[ex.Note] = []
        self._wake_at: float | None = None
        self._due_at: float | None = None
        self.phases: list[tuple[float, Phase]] = []
        """What it went through, and when."""
        self.membership.connect()
        self.wake()

    @property
    def is_running(self) -> bool:
        """Its ranks run, as far as it knows, and it could act if it knew better."""
        stands_still = self.is_paused or self.line.is_frozen
        return self.is_alive and not stands_still and self.state.phase is Phase.RUNNING

    def _record(self, event: events.Event, durable: bool = False) -> None:
        self.job.tell(self.agent.incarnation, event)

    def _post(self, note: ex.Note) -> None:
        self._notes.append(note)
        self.wake()

    def do(self, what: Callable[[], None]) -> None:
        """At its next turn, such as acting on a signal."""
        self._inbox.append(what)
        self.wake()

    def wake(self) -> None:
        """Something has come."""
        if self._due_at != self.job.timeline.now:
            self._due_at = self.job.timeline.now
            self.job.timeline.at(self.job.timeline.now, self._turn)

    def _turn(self) -> None:
        self._due_at = None
        if not self.is_alive or self.is_paused or self.line.is_frozen:
            return
        now = self.job.timeline.now
        notes, self._notes = self._notes, []
        for event in self.membership.take(notes, self.state.connect_by):
            if self.state.phase is not Phase.ENDED:
                self._hear(event)
        inbox, self._inbox = self._inbox, []
        for what in inbox:
            if self.state.phase is not Phase.ENDED:
                what()
        self._read_levels(now)
        self.job.check_worlds()
        if self.state.phase is Phase.ENDED and not self.membership.is_closing:
            self._exit()
        elif not self._notes:
            self._plan_wake(now)

    def _plan_wake(self, now: float) -> None:
        deadlines = [self.state.deadline, *self.membership.wanted_at, self._standstill_at()]
        wanted = [at for at in deadlines if at is not None]
        assert all(at > now for at in wanted), f"{self.agent.incarnation} would spin: {deadlines} at {now}"
        if wanted and (self._wake_at is None or self._wake_at <= now or min(wanted) < self._wake_at):
            self._wake_at = min(wanted)
            self.job.timeline.at(self._wake_at, self._turn)

    def _hear(self, event: node_state.Event) -> None:
        if isinstance(event, node_state.Sentenced) and self.sentence is None:
            self.sentence = event
        if isinstance(event, node_state.Ordered) and event.order.kind is StopKind.STALL:
            is_meant = self.state.phase is Phase.RUNNING and event.sequence == self.state.sequence - 1
            if is_meant:
                reason = event.order.reason
                rule = liveness.Rule.STALL
                self._hang = liveness.Verdict(rule, None, (), 1.0, 1.0, "timeouts.stall", reason)
                self.advance(node_state.Hung((), reason))
                return
        self.advance(event)

    def _read_levels(self, now: float) -> None:
        for local_rank, worker in self.workers.items():
            if worker.exit_code is not None and not worker.is_seen:
                worker.is_seen = True
                if self.state.phase in (Phase.RUNNING, Phase.STOPPING):
                    rank = self._rank_of(local_rank)
                    self.advance(node_state.RankExited(local_rank, rank, worker.exit_code))
        is_gone = all(worker.exit_code is not None for worker in self.workers.values())
        if self.state.phase is Phase.STOPPING and is_gone:
            self.advance(node_state.AllGone())
        if self.state.phase is not Phase.ENDED:
            self.advance(node_state.Woke())
        self.membership.turn(now)
        if self.state.phase is Phase.RUNNING:
            at = self._standstill_at(is_next=False)
            is_still = at is not None and now >= at
            limit_s = self.job.setting.stall_s or 0.0
            still = liveness.Verdict(liveness.Rule.STALL, None, (), limit_s, limit_s, "", "no rank moves")
            self.membership.tell_standstill(still if is_still else None, self.state.round_number)
            if self.has_saved:
                self.membership.tell_saved(self.state.round_number)
        self.has_saved = False

    def _standstill_at(self, is_next: bool = True) -> float | None:
        """When it is to be said that nothing moves here."""
        limit_s, training = self.job.setting.stall_s, self.training
        if limit_s is None or training is None or self.state.phase is not Phase.RUNNING:
            return None
        if training.whole_since is not None:
            return None
        at = training.moved_at + limit_s
        return None if is_next and at <= self.job.timeline.now else at

    def advance(self, event: node_state.Event) -> None:
        """Let the node's machine take an event, and do what it wants done."""
        before = self.state
        self.state, actions = advance(self.state, event, self.job.timeline.now, GRACES)
        if self.state.phase is not before.phase:
            self.phases.append((self.job.timeline.now, self.state.phase))
        if self.state is not before:
            self.job.tell(self.agent.incarnation, event, self.state.phase.value, actions)
        for action in actions:
            match action:
                case node_state.StartRound():
                    self._start_round()
                case node_state.TellStop(kind, reason, exit_code):
                    self.membership.tell_stop(self.state, kind, reason, exit_code)
                case node_state.EndHung(local_ranks):
                    for local_rank in local_ranks:
                        self.end_worker(local_rank, -SIGKILL)
                case node_state.Ask(signum):
                    self._ask(signum)
                case node_state.Kill():
                    self._kill_workers()
                case node_state.JoinNext():
                    self.membership.join(self.state, self._close_round(), self.ailments)
                case node_state.Reconnect():
                    self.membership.connect()
                case node_state.Depart():
                    self._depart()
                case node_state.GiveUp():
                    assert self.has_stuck or self.is_stubborn, "gave up"

    def _start_round(self) -> None:
        plan = self.membership.plan
        assert plan is not None
        assert self.exchange.store is not None
        assert plan.round_number == self.state.round_number, "the plan is that of another round"
        self._hang = None
        self._evidence, self._is_open = None, True
        self.membership.begin_round()
        self.training = self.job.join_training(self, self.exchange.store.epoch, self.state.sequence - 1)
        self.workers = {}
        assert plan.ranks.local_world_size == self.slots
        if self.failing_starts:
            self.failing_starts -= 1
            self.advance(node_state.StartFailed("no more processes"))
            return
        self.workers = {local_rank: Worker() for local_rank in range(self.slots)}
        self.job.note_start(self)

    def _close_round(self) -> Evidence | None:
        if self._is_open and self.training is not None:
            self._is_open = False
            self._evidence = Evidence(
                node=self.agent.node,
                round_number=self.training.plan.memory.round_number,
                exits=tuple(
                    RankExit(self._rank_of(number), number, 7, worker.exit_code or 0, 1.0, worker.was_asked)
                    for number, worker in self.workers.items()
                ),
                has_progressed=self.training.has_progressed,
                hang=self._hang,
                start_failure=self.state.start_failure,
                unreachable=self.state.unreachable,
                unhealthy=self.state.unhealthy,
                health=self.ailments,
            )
        return self._evidence

    def _rank_of(self, local_rank: int) -> int:
        assert self.training is not None
        part = plan_of(self.training.plan, self.agent)
        assert part is not None
        return part.ranks.rank_of(local_rank)

    def end_worker(self, local_rank: int, exit_code: int) -> None:
        """A rank's process ends."""
        worker = self.workers.get(local_rank)
        is_stuck = self.has_stuck and local_rank == 0
        if worker is not None and worker.exit_code is None and not (is_stuck and worker.was_asked):
            worker.exit_code = exit_code
            if self.training is not None:
                self.job.note_end(self.training)
                if all(one.exit_code == 0 for one in self.workers.values()):
                    self.training.finished.add(self.agent.incarnation)
            self.wake()

    def _ask(self, signum: int) -> None:
        for local_rank, worker in self.workers.items():
            if worker.exit_code is None:
                worker.was_asked = True
                delay_s = self.job.random.uniform(0.0, 1.0)
                if not self.is_stubborn:
                    self.job.timeline.after(delay_s, self.ending(local_rank, worker, -signum))

    def ending(self, local_rank: int, worker: Worker, exit_code: int) -> Callable[[], None]:
        """Ends this very process, if it has not ended when that is done."""

        def end() -> None:
            if self.workers.get(local_rank) is worker:
                self.end_worker(local_rank, exit_code)

        return end

    def _kill_workers(self) -> None:
        for local_rank, worker in self.workers.items():
            worker.was_asked = worker.was_asked or worker.exit_code is None
            self.end_worker(local_rank, -SIGKILL)

    def _depart(self) -> None:
        ending = self.state.ending
        assert ending is not None
        if self.state.cause is Cause.FAILURE and (evidence := self._close_round()) is not None:
            self.membership.judge_alone(evidence, ending.exit_code, ending.reason)
        self.membership.leave(ending.reason, ending.is_excluded)

    def _exit(self) -> None:
        self.membership.close()
        self._die()
        self.job.tell(self.agent.incarnation, "exits with", self.state.exit_code, self.state.end_reason)

    def kill(self) -> None:
        """SIGKILL: its workers die with it, and nothing more is said."""
        self.exchange.disconnect()
        self._die()

    def _die(self) -> None:
        self.is_alive = False
        self.has_stuck = False
        for local_rank in self.workers:
            self.end_worker(local_rank, -SIGKILL)


class SimulatedJob:
    """All agents of a job, and what happens to them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.random = Random(setting.seed)
        self.timeline = Timeline()
        self.endpoint = Endpoint("n0")
        self.lines: dict[str, Line] = {}
        self.agents: list[SimulatedAgent] = []
        self.story: list[tuple[float, tuple[object, ...]]] = []
        self.remaining_s = setting.work_s
        self.trainings: dict[tuple[str, int], Training] = {}
        self.decide = partial(policy.decide, max_restarts=setting.max_restarts, config=RESTARTS)
        self._agents_begun = 0
        self._to_come = 0
        self._checked: set[tuple[str, int]] = set()

    def tell(self, *what: object) -> None:
        """A line of the account."""
        self.story.append((self.timeline.now, what))

    def account(self, last: int = 120) -> str:
        """What has happened, for a person."""
        return "\n".join(f"{at:8.3f} {' '.join(map(str, what))}" for at, what in self.story[-last:])

    def count_agent(self) -> int:
        """Makes incarnations differ."""
        self._agents_begun += 1
        return self._agents_begun

    @property
    def living(self) -> list[SimulatedAgent]:
        """In the order of their nodes' names, the host agent's first."""
        return sorted(
            (one for one in self.agents if one.is_alive), key=lambda one: self._place(one.agent.node)
        )

    def _place(self, node: str) -> tuple[bool, int]:
        return node != self.endpoint.node, int(node[1:])

    @property
    def plans(self) -> list[JobPlan]:
        """All that were published, by store and in order."""
        return [plan for plan in self.publications if isinstance(plan, JobPlan)]

    @property
    def verdicts(self) -> list[Verdict]:
        """All that were published."""
        return [verdict for verdict in self.publications if isinstance(verdict, Verdict)]

    @property
    def publications(self) -> list[Publication]:
        """Of all host agents."""
        return [one for store in self.endpoint.stores for one in store.plans.values()]

    def agent_of(self, node: str) -> SimulatedAgent:
        """The last that ran on a node."""
        return next(one for one in reversed(self.agents) if one.agent.node == node)

    def nodes_of(self, plan: JobPlan) -> list[str]:
        """In group-rank order."""
        return [seat.agent.node for seat in plan.seats]

    def exits(self) -> dict[str, int | None]:
        """Exit code of each agent by incarnation; None for one that was killed."""
        return {
            one.agent.incarnation: one.state.exit_code if one.state.phase is Phase.ENDED else None
            for one in self.agents
        }

    def start(self, node: str) -> SimulatedAgent:
        """Start an agent on a node on which none runs."""
        place = int(node[1:])
        self.lines.setdefault(node, Line(self.random))
        self.lines[node].is_frozen = False
        slots = self.setting.slots[place % len(self.setting.slots)]
        agent = SimulatedAgent(self, node, slots, None)
        self.tell(agent.agent.incarnation, "starts")
        self.agents.append(agent)
        return agent

    def play(self, faults: Sequence[Fault], limit_s: float = 400.0) -> SimulatedJob:
        """Run to the end of all agents, at most `limit_s` after the last fault is over.

        Raises:
            AssertionError: something happened that may not be.
        """
        try:
            self._play(faults, limit_s)
        except (AssertionError, IllegalEvent, LookupError, ValueError) as error:
            raise AssertionError(f"{error!r}\n{self.setting}\n{list(faults)}\n{self.account()}") from error
        return self

    def _play(self, faults: Sequence[Fault], limit_s: float) -> None:
        for place in range(self.setting.nodes):
            self._to_come += 1
            self.timeline.after(self.random.uniform(0.0, 1.0), partial(self._come, f"n{place}"))
        at, ends_at = 0.0, 0.0
        for fault in faults:
            at += fault.after_s
            ends_at = max(ends_at, at + fault.value_s)
            self._to_come += 1
            self.timeline.at(at, partial(self._strike, fault))
        while (self._to_come or self.living) and self.timeline.step():
            assert self.timeline.now <= ends_at + limit_s, "somebody waits for ever"
        self._check_end()

    def _come(self, node: str) -> None:
        self._to_come -= 1
        if not any(one.agent.node == node for one in self.living):
            self.start(node)

    def _later(self, delay_s: float, what: Callable[[], None]) -> None:
        def then() -> None:
            self._to_come -= 1
            what()

        self._to_come += 1
        self.timeline.after(delay_s, then)

    def _strike(self, fault: Fault) -> None:
        self._to_come -= 1
        self.tell("FAULT", fault)
        if fault.kind is Kind.ADD:
            self.start(f"n{self._next_node()}")
            return
        if fault.kind is Kind.RESTART:
            self._restart(fault)
            return
        living = self.living
        if living:
            self._hit(living[fault.place % len(living)], fault)

    def _next_node(self) -> int:
        return max([self.setting.nodes - 1, *(int(node[1:]) for node in self.lines)]) + 1

    def _restart(self, fault: Fault) -> None:
        nodes = sorted(self.lines, key=self._place)
        if nodes:
            node = nodes[fault.place % len(nodes)]
            for one in self.living:
                if one.agent.node == node:
                    one.kill()
            self._later(fault.value_s, lambda: self._start_if_absent(node))

    def _start_if_absent(self, node: str) -> None:
        if not any(one.agent.node == node for one in self.living):
            self.start(node)

    def _hit(self, agent: SimulatedAgent, fault: Fault) -> None:
        line = agent.line
        match fault.kind:
            case Kind.FAIL:
                agent.end_worker(agent.slots - 1, -SIGKILL)
            case Kind.FINISH:
                self._finish_early(agent)
            case Kind.START_FAILS:
                agent.failing_starts += max(1, round(fault.value_s))
            case Kind.KILL:
                agent.kill()
            case Kind.MOVE:
                self._move(fault.value_s)
            case Kind.FREEZE:
                line.is_frozen = True
                self._later(fault.value_s, lambda: self._thaw(agent))
            case Kind.PAUSE:
                agent.is_paused = True
                self._later(fault.value_s, lambda: self._unpause(agent))
            case Kind.CUT:
                self._cut(agent, fault.value_s)
            case Kind.SLOW:
                line.slow_s = 2.0
                self._later(fault.value_s, lambda: setattr(line, "slow_s", 0.0))
            case Kind.SIGNAL:
                agent.do(lambda: agent.advance(node_state.Signalled(SIGTERM)))
            case Kind.REQUEST:
                agent.do(lambda: agent.advance(node_state.StopRequested(93, "asked")))
            case Kind.EXCLUDE:
                agent.do(lambda: agent.advance(node_state.StopRequested(94, "bad", is_for_node=True)))
            case Kind.SICK:
                agent.ailments = (Ailment("gpu.lost", "gpu 0", "it does not answer", is_fatal=True),)
                agent.do(lambda: self._find_sick(agent))
                self._later(fault.value_s, lambda: setattr(agent, "ailments", ()))
            case Kind.APART:
                agent.do(lambda: self._set_apart(agent))
            case Kind.STUBBORN:
                agent.is_stubborn = True
                self._later(fault.value_s, lambda: setattr(agent, "is_stubborn", False))
            case Kind.STUCK:
                agent.has_stuck = bool(agent.workers)

    def _find_sick(self, agent: SimulatedAgent) -> None:
        if agent.state.phase is Phase.RUNNING:
            agent.advance(node_state.Unhealthy("gpu 0 does not answer"))

    def _set_apart(self, agent: SimulatedAgent) -> None:
        if agent.state.phase is Phase.RUNNING:
            agent.advance(node_state.Unreached("it cannot be reached"))

    def _finish_early(self, agent: SimulatedAgent) -> None:
        if self.setting.stall_s is None and self.setting.echo_s is None:
            if agent.training is not None:
                self._finish(agent.training)  # nobody would ever know that the others wait for its ranks
            return
        for local_rank in agent.workers:
            agent.end_worker(local_rank, 0)

    def _thaw(self, agent: SimulatedAgent) -> None:
        if agent.is_alive:
            agent.line.is_frozen = False
            agent.exchange.resume()
            agent.wake()

    def _unpause(self, agent: SimulatedAgent) -> None:
        agent.is_paused = False
        agent.wake()

    def _cut(self, agent: SimulatedAgent, value_s: float) -> None:
        agent.line.is_cut = True

        def heal() -> None:
            agent.line.is_cut = False
            if agent.is_alive:
                agent.exchange.resume()

        self._later(value_s, heal)

    def _move(self, value_s: float) -> None:
        for one in self.living:
            if one.agent.node == self.endpoint.node:
                one.kill()
        self.endpoint.node = f"n{self._next_node()}"
        self.lines[self.endpoint.node] = Line(self.random)
        node = self.endpoint.node
        self._later(value_s, lambda: self._start_if_absent(node))

    def join_training(self, agent: SimulatedAgent, epoch: str, sequence: int) -> Training:
        """The round that an agent starts; its plan is the one that the store has."""
        name = (epoch, sequence)
        if name not in self.trainings:
            store = next(store for store in self.endpoint.stores if store.epoch == epoch)
            plan = store.plans[sequence]
            assert isinstance(plan, JobPlan)
            self._check_plan(plan)
            self.trainings[name] = Training(name, plan, moved_at=self.timeline.now)
        training = self.trainings[name]
        assert plan_of(training.plan, agent.agent) == agent.membership.plan, "not the plan that the store has"
        return training

    def note_start(self, agent: SimulatedAgent) -> None:
        """The workers of one node run; once all do, they train."""
        training = agent.training
        assert training is not None
        training.started.add(agent.agent.incarnation)
        training.moved_at = self.timeline.now
        if training.broken_at is not None:
            self._echo(agent, training)
        elif len(training.started) == len(training.plan.seats):
            training.whole_since = self.timeline.now
            training.has_progressed = self.setting.has_progress
            self.timeline.after(self.remaining_s, partial(self._finish, training))
            self.timeline.after(CHECKPOINT_EVERY_S, partial(self._save, training))

    def note_end(self, training: Training) -> None:
        """A rank of a round has ended, or is cut off: the others cannot go on."""
        if training.broken_at is not None:
            return
        now = training.broken_at = self.timeline.now
        training.moved_at = now
        if training.whole_since is not None:
            self.remaining_s = max(0.5, self.remaining_s - (now - training.whole_since))
            training.whole_since = None
        for agent in self._agents_of(training):
            self._echo(agent, training)

    def _echo(self, agent: SimulatedAgent, training: Training) -> None:
        if self.setting.echo_s is not None:
            delay_s = self.random.uniform(0.0, self.setting.echo_s)
            for local_rank, worker in agent.workers.items():
                self.timeline.after(delay_s, agent.ending(local_rank, worker, 1))

    def _agents_of(self, training: Training) -> list[SimulatedAgent]:
        return [one for one in self.agents if one.is_alive and one.training is training]

    def _finish(self, training: Training) -> None:
        if training.broken_at is not None or training.whole_since is None:
            return
        self.remaining_s = 0.5
        training.whole_since, training.broken_at = None, self.timeline.now
        training.moved_at = self.timeline.now
        for agent in self._agents_of(training):
            for local_rank, worker in agent.workers.items():
                self.timeline.after(self.random.uniform(0.0, 0.3), agent.ending(local_rank, worker, 0))

    def _save(self, training: Training) -> None:
        if training.whole_since is not None:
            agent = self._agents_of(training)[0]
            agent.has_saved = True
            agent.wake()
            self.timeline.after(CHECKPOINT_EVERY_S, partial(self._save, training))

    def _check_plan(self, plan: JobPlan) -> None:
        rules, nodes = self.setting.rules(), [seat.agent.node for seat in plan.seats]
        assert len(set(nodes)) == len(nodes), f"a node has two seats: {nodes}"
        assert rules.min_nodes <= len(nodes) <= rules.max_nodes, nodes
        assert sum(seat.slots for seat in plan.seats) >= rules.min_ranks
        assert not set(nodes) & set(plan.memory.excluded), "an excluded node has a seat"
        assert not set(nodes) & set(plan.spares)
        parts = [plan_of(plan, seat.agent) for seat in plan.seats]
        ranks = [
            part.ranks.first_rank + local_rank
            for part in parts
            if part is not None
            for local_rank in range(part.ranks.local_world_size)
        ]
        assert ranks == list(range(sum(seat.slots for seat in plan.seats))), f"ranks have gaps: {ranks}"
        assert len({part.restart_count for part in parts if part is not None}) == 1
        counted = count_restarts(plan.memory)
        assert counted <= self.setting.max_restarts, f"{counted} restarts"
        ages_s = sum(past.after_s for past in plan.memory.history) + plan.memory.since_incident_s
        assert ages_s <= self.timeline.now + 1e-6, "failures are said to be older than the job"
        for seat in plan.seats:
            begun = [one for one in self.trainings.values() if seat.agent.incarnation in one.started]
            earlier = [one.plan.memory for one in begun]
            assert all(memory.round_number < plan.memory.round_number for memory in earlier), "went back"
            assert all(memory.restart_count <= plan.memory.restart_count for memory in earlier), "forgotten"
            known = [count_incidents(memory) for memory in earlier]
            assert all(count <= count_incidents(plan.memory) for count in known), "forgotten"

    def check_worlds(self) -> None:
        """There are never two complete worlds, but for the moment in which the loss of a store is noticed."""
        complete = {}
        for agent in self.agents:
            training = agent.training
            if training is None or not agent.is_running:
                continue
            complete.setdefault(training.name, []).append(agent)
        whole = [
            name for name, members in complete.items() if len(members) == len(self.trainings[name].plan.seats)
        ]
        if len(whole) > 1:
            epochs = {epoch for epoch, _ in whole}
            gone = [store for store in self.endpoint.stores if store.epoch in epochs and not store.is_up]
            seen = [store for store in gone if self.timeline.now < store.down_at + LOST_AFTER_S]
            assert len(epochs) == len(whole), f"two complete worlds of one host agent: {whole}"
            assert len(seen) >= len(whole) - 1, f"two complete worlds: {whole}"

    def _check_end(self) -> None:
        """All who learnt of a verdict of one host agent end with it, and success is the whole world's."""
        for one in self.agents:
            if one.sentence is not None and one.state.phase is Phase.ENDED and one.state.ending is None:
                assert one.state.exit_code == one.sentence.exit_code, "ended otherwise than it had heard"
                self._check_account(one)
        for store in self.endpoint.stores:
            verdicts = [one for one in store.plans.values() if isinstance(one, Verdict)]
            assert len(verdicts) <= 1
            for verdict in verdicts:
                self._check_verdict(store.epoch, verdict)

    def _check_account(self, agent: SimulatedAgent) -> None:
        """What it shows at its end is why it has ended, also if it has served the store since."""
        verdict = agent.membership.verdict
        if verdict is not None:
            shown = own_exit_code(verdict, agent.agent.node)
            assert shown == agent.state.exit_code, "shows another end than its own"

    def _check_verdict(self, epoch: str, verdict: Verdict) -> None:
        last = max((name[1] for name in self.trainings if name[0] == epoch), default=None)
        if verdict.exit_code == 0 and last is not None:
            training = self.trainings[(epoch, last)]
            seated = {seat.agent.incarnation for seat in training.plan.seats}
            assert seated <= training.finished, "success is not that of all nodes"

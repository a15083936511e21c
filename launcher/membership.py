"""This node's dealings with the host agent: joins, stops, verdicts; the host agent's part too if it is here.

Turns what comes into events of `ftrun.launcher.node_state` and acts on what that machine wants said. Decides
nothing about the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ftrun.launcher import exchange as ex
from ftrun.launcher import exit_codes, host_state, node_state
from ftrun.launcher.hangs import Record
from ftrun.launcher.hosting import Hosting
from ftrun.launcher.judgements import judgement_events, own_exit_code
from ftrun.launcher.memory import brief, combine, count_restarts, exclude, exclude_gpus, find_incident_at
from ftrun.launcher.message_bounds import bound_evidence
from ftrun.launcher.messages import (
    Agent,
    Awaited,
    Bye,
    Exclusion,
    JobPlan,
    Join,
    Judgement,
    Leave,
    Memory,
    Moving,
    Publication,
    Quiet,
    Saved,
    StopKind,
    StopOrder,
    Verdict,
)
from ftrun.launcher.model import Action, Decision, Plan
from ftrun.launcher.quorum import plan_of
from ftrun.launcher.rounds import Offer
from ftrun.monitor import events, liveness
from ftrun.monitor.diagnosis import diagnose
from ftrun.monitor.incident import Ailment, Evidence

_LAST_WORDS_S = 2.0
"""Longest wait at the end for what was said to reach the store."""


@dataclass(frozen=True, slots=True)
class Self:
    """Who this node is in the job."""

    agent: Agent
    slots: int
    rank_hint: int | None
    address: str
    """Where other nodes reach it, as far as that is known before there is a connection."""
    endpoint: str
    """Where the rendezvous is, for people; "" for one node alone."""
    reconnect_s: float
    max_restarts: int
    is_address_given: bool = False
    """With --local-addr."""


class Membership:
    """One agent among those of its job; `begin_hosting` makes the host agent's part if it falls to this."""

    def __init__(
        self,
        me: Self,
        exchange: ex.Exchange,
        begin_hosting: Callable[[float], Hosting],
        offer: Callable[[Collection[str]], Offer],
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        self._me = me
        self._exchange = exchange
        self._begin_hosting = begin_hosting
        self._offer = offer
        self._record = record
        self._clock = clock
        self._hosting: Hosting | None = None
        self._is_standing_still = False
        self._is_out = False
        """Its part in the job has ended before the job."""
        self._is_told_to_go = False
        """Not even the store that it serves may keep it."""
        self._joined: Join | None = None
        self._order: StopOrder | None = None
        self._host_node = ""
        """Where the host agent runs, as long as it is another."""
        self._lost_host = ""
        self._address = me.address
        self.run_id = ""
        """The job's id, as the host agent has it."""
        self._of_host: Memory | None = None
        """What the host agent of this connection has published last."""
        self.memory = Memory()
        self._incident_at = clock()
        self.plan: Plan | None = None
        """This node's part in the round that was closed last; None if it has none."""
        self.judgement: Judgement | None = None
        """Of the failure that the last publication followed."""
        self.verdict: Verdict | None = None
        """How the job ended, or this node's part in it, where it failed."""

    @property
    def excluded_gpus(self) -> frozenset[str]:
        """UUIDs of this node's GPUs that its workers may not use any more."""
        node = self._me.agent.node
        return frozenset(one.gpu for one in self.memory.excluded_gpus if one.node == node)

    @property
    def is_alone(self) -> bool:
        """The job is this node's only."""
        return not self._me.endpoint

    @property
    def has_restarts(self) -> bool:
        """Another failure may be followed by a restart."""
        return count_restarts(self.memory) < self._me.max_restarts

    @property
    def wanted_at(self) -> tuple[float | None, float | None]:
        """When `turn` is wanted (CLOCK_MONOTONIC, seconds)."""
        return self._exchange.wanted_at, None if self._hosting is None else self._hosting.wanted_at

    @property
    def is_closing(self) -> bool:
        """This is the host agent, and others have yet to take note of the verdict.

        One whose node was left out of the job goes on for the others, whose store it serves.
        """
        if self._hosting is None:
            return False
        if self._is_out and not self._is_told_to_go:
            return self._hosting.has_others(self._me.agent, self._me.reconnect_s, self._clock())
        return self._hosting.is_closing

    def connect(self) -> None:
        """Look for the host agent's store, again if it was lost."""
        self._exchange.connect()

    def turn(self, now: float) -> None:
        """Time has passed."""
        self._exchange.check(now)
        if self._hosting is not None:
            self._hosting.hear((), now)

    def take(self, notes: Sequence[ex.Note], connect_by: float | None) -> Iterator[node_state.Event]:
        """What came from the store, oldest first, as events of this node.

        Each is to be acted on before the next is asked for: several rounds may have passed meanwhile, and
        `plan` is that of the last event. `connect_by` is when the search for the store is given up
        (CLOCK_MONOTONIC, seconds).
        """
        for_host: list[host_state.Event] = []
        for note in notes:
            match note:
                case ex.Received() | ex.Beats():
                    for_host.append(note)
                case ex.Stopped(sequence, order):
                    for_host.append(note)
                    self._note_order(order)
                    yield node_state.Ordered(sequence, order)
                case ex.Published(sequence, publication):
                    yield self._take_publication(sequence, publication)
                case ex.Connected():
                    yield self._take_connection(note)
                case ex.Lost(reason):
                    yield self._take_loss(reason)
                case ex.Mismatch(reason):
                    yield node_state.Sentenced(exit_codes.NO_RENDEZVOUS, reason)
                case ex.Looking():
                    yield node_state.Looking()
                case Awaited(sentence, remaining_s):
                    self._record(events.RendezvousAwaited(sentence, remaining_s))
                case ex.StoodStill():
                    # Who waits for a plan would never hear that it was given up; to others a stop was sent.
                    if self._joined is not None:
                        self._exchange.send(self._joined)
                case ex.Waiting(reason):
                    left_s = 0.0 if connect_by is None else connect_by - self._clock()
                    self._record(events.StoreAwaited(reason, left_s))
                case ex.Degraded(reason):
                    self._record(events.StoreDegraded(reason))
        if for_host and self._hosting is not None:
            self._hosting.hear(for_host, self._clock())

    def _note_order(self, order: StopOrder) -> None:
        """For the next host agent, if the one that knows leaves with its store."""
        self._order = order
        if order.kind is StopKind.LEAVE and order.exit_code == exit_codes.NODE_UNHEALTHY:
            self.memory = exclude(self.memory, order.node)

    def _take_connection(self, connected: ex.Connected) -> node_state.Event:
        self.run_id = connected.hello.run_id
        self._host_node = "" if connected.is_host else connected.hello.node
        if connected.address and not self._me.is_address_given:
            self._address = connected.address
        if not self.is_alone:
            self._record(events.StoreConnected(self._me.endpoint, connected.is_host))
        if connected.is_host:
            self._hosting = self._begin_hosting(self._clock())
        self._of_host = None
        if connected.plan is not None:
            self._take_memory(connected.plan.memory)
            excluded = self._find_place(connected.plan)
            if excluded is not None:
                return excluded
        return node_state.Connected(connected.sequence)

    def _take_memory(self, theirs: Memory) -> None:
        """What the host agent has published; a new plan has settled the end of the round before."""
        if theirs.round_number > self.memory.round_number:
            self._order, self._lost_host = None, ""
        memory = combine(theirs, self.memory)
        self._incident_at = find_incident_at(memory, self.memory, self._incident_at, theirs, self._clock())
        self._of_host, self.memory = theirs, memory

    def _find_place(self, plan: JobPlan) -> node_state.Sentenced | None:
        """Tell if this node is a spare; how its part in the job ends if it may not be one."""
        node, memory = self._me.agent.node, plan.memory
        if node in memory.excluded:
            self._is_out = True
            return node_state.Sentenced(exit_codes.NODE_UNHEALTHY, f"node {node} was excluded from the job")
        if node not in memory.nodes and not self._is_out:
            self._record(events.NodeParked(memory.round_number, memory.nodes))
        return None

    def _take_loss(self, reason: str) -> node_state.Event:
        self._record(events.StoreLost(reason, self._me.reconnect_s), durable=True)
        self._lost_host = self._host_node or self._lost_host
        self._joined = None
        self._hosting = None
        self._exchange.disconnect()
        return node_state.Disconnected(reason)

    def _take_publication(self, sequence: int, publication: Publication) -> node_state.Event:
        self._joined = None
        if isinstance(publication, Exclusion):
            return self._take_exclusion(sequence, publication)
        self.judgement = publication.judgement
        if self._hosting is None and publication.judgement is not None:
            self._journal(publication.judgement)
        if isinstance(publication, Verdict):
            if not self._is_out:
                self.verdict = publication
            self._exchange.send(Bye(self._me.agent))
            code = own_exit_code(publication, self._me.agent.node)
            return node_state.Sentenced(code, publication.reason)
        return self._take_plan(sequence, publication)

    def _take_exclusion(self, sequence: int, exclusion: Exclusion) -> node_state.Event:
        for one in exclusion.unfit:
            if one.is_excluded:
                self.memory = exclude(self.memory, one.agent.node)
        self.memory = exclude_gpus(self.memory, exclusion.gpus)
        reason = next((one.reason for one in exclusion.unfit if one.agent == self._me.agent), "")
        if not reason:  # another round is open, which this node has yet to join
            return node_state.Planned(sequence, self.memory.round_number, has_seat=False)
        self._is_out = True
        if self._hosting is None and exclusion.judgement is not None:
            self._journal(exclusion.judgement)
        code, restarts = exit_codes.NODE_UNHEALTHY, self.memory.restart_count
        self.verdict = Verdict(code, reason, exclusion.judgement, restarts)
        return node_state.Sentenced(code, reason)

    def _take_plan(self, sequence: int, plan: JobPlan) -> node_state.Event:
        self._take_memory(plan.memory)
        self.plan = plan_of(plan, self._me.agent)
        excluded = self._find_place(plan)
        if excluded is not None:
            return excluded
        slots = None if self.plan is None else self.plan.ranks.local_world_size
        return node_state.Planned(sequence, plan.memory.round_number, self.plan is not None, slots)

    def join(
        self,
        state: node_state.State,
        evidence: Evidence | None,
        unhealthy: Sequence[Ailment] = (),
        slots: int | None = None,
        gpus: Sequence[str] = (),
    ) -> None:
        """Offer this node for the open round, with all its slots or fewer.

        `unhealthy` says why it should not take part; of `gpus`, one for each slot, it could do without one.

        Raises:
            PortBusyError: the port asked for with --master-port is taken.
        """
        offer = self._offer(self.memory.quarantined)
        if evidence is not None and not self.is_alone:
            evidence = bound_evidence(evidence)
        memory = brief(self.memory) if self.memory == self._of_host else self.memory
        self._joined = Join(
            agent=self._me.agent,
            slots=self._me.slots if slots is None else slots,
            address=self._address,
            port=offer.port,
            rank_hint=self._me.rank_hint,
            outcome=state.outcome,
            evidence=evidence,
            memory=replace(memory, since_incident_s=max(0.0, self._clock() - self._incident_at)),
            has_checkpoint_dir=offer.has_checkpoint_dir,
            checkpoints=offer.checkpoints,
            is_resume_expected=offer.is_resume_expected,
            is_checkpoint_dir_empty=offer.is_checkpoint_dir_empty,
            sequence=state.sequence,
            request=state.request,
            order=self._order,
            lost_host=self._lost_host,
            unhealthy=tuple(unhealthy),
            gpus=tuple(gpus),
        )
        self._exchange.send(self._joined)

    def update_health(self, unhealthy: Sequence[Ailment]) -> None:
        """What is wrong with this node now, should that have changed since it joined the open round."""
        if self._joined is not None and self._joined.unhealthy != tuple(unhealthy):
            self._joined = replace(self._joined, unhealthy=tuple(unhealthy))
            self._exchange.send(self._joined)

    def judge_alone(self, evidence: Evidence, exit_code: int, reason: str) -> None:
        """What failed here while this node was about to leave: nobody else will say it."""
        incident = diagnose([evidence], stop_reason=reason)
        decision = Decision(Action.STOP, f"{incident.reasons[0]}; {reason}", exit_code=exit_code)
        judgement = Judgement(incident, decision)
        self.verdict = Verdict(exit_code, decision.reason, judgement, self.memory.restart_count)
        self._journal(judgement)

    def _journal(self, judgement: Judgement) -> None:
        restarts = self.memory.restart_count
        for event in judgement_events(judgement, restarts, self._me.max_restarts):
            self._record(event, durable=isinstance(event, events.RestartDecided))

    def begin_round(self) -> None:
        """The workers of a round are about to start."""
        self._is_standing_still = False

    def tell_stop(self, state: node_state.State, kind: StopKind, reason: str, exit_code: int) -> None:
        """Let all nodes stop the round that runs."""
        order = StopOrder(kind, self._me.agent.node, reason, exit_code)
        self._exchange.order_stop(state.sequence - 1, order)

    def tell_standstill(self, verdict: liveness.Verdict | None, round_number: int) -> None:
        """No rank of this node moves (`verdict`), or one does (None); said when it changes."""
        if (verdict is not None) == self._is_standing_still:
            return
        self._is_standing_still = verdict is not None
        if verdict is None:
            self._exchange.send(Moving(self._me.agent, round_number))
        else:
            quiet = Quiet(self._me.agent, round_number, verdict.silent_s, verdict.limit_s, verdict.sentence)
            self._exchange.send(quiet)

    def tell_saved(self, round_number: int) -> None:
        """A checkpoint of the round is whole."""
        self._exchange.send(Saved(self._me.agent, round_number))

    def leave(self, reason: str, is_excluded: bool) -> None:
        """Take this node out of the job; its workers are gone.

        If it is excluded, others may go on with the store that is served here.
        """
        self._is_out = self._is_out or is_excluded
        self._is_told_to_go = not is_excluded
        self._exchange.send(Leave(self._me.agent, reason, is_excluded))

    def close(self) -> None:
        """Let what was said reach the store, then go; ends the store if it is served here."""
        self._exchange.close(_LAST_WORDS_S)

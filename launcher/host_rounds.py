"""What the host agent makes of who is there: stops a round, judges how it ended, closes the next. Pure.

Each function looks at the levels of a `HostState`, never at which event has changed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ftrun.launcher import exit_codes
from ftrun.launcher.assessment import assess
from ftrun.launcher.checkpoint_quarantine import begin_from
from ftrun.launcher.checkpoint_trust import choose_resume, doubt
from ftrun.launcher.exclusion import exclude, leave_out, tell_withheld, without_restart_alone
from ftrun.launcher.fitness import judge_fitness
from ftrun.launcher.host_state import Decide, Do, HostState, Order, Presence, Publish, Stage, Step, Tell
from ftrun.launcher.host_waits import tell, too_few
from ftrun.launcher.judgements import judgement_events
from ftrun.launcher.memory import remember
from ftrun.launcher.messages import (
    JobPlan,
    Join,
    Judgement,
    Outcome,
    Seat,
    StopKind,
    StopOrder,
    Unfit,
    Verdict,
)
from ftrun.launcher.model import Action, Decision
from ftrun.launcher.quorum import (
    choose_seats,
    has_quorum,
    is_world_full,
    keep_size,
    may_grow,
)
from ftrun.launcher.ranks import first_ranks
from ftrun.monitor.diagnosis import LostNode, asked_to_stop, diagnose
from ftrun.monitor.incident import Incident, IncidentKind


def follow(state: HostState, now: float, decide: Decide) -> Step:
    """What the levels call for, whatever has changed."""
    actions: tuple[Do, ...] = ()
    if state.stage is Stage.RUNNING:
        state, actions = _watch_round(state, now, decide)
    if state.stage is Stage.FORMING:
        state, formed = _form(state, now, decide)
        actions += formed
    if state.stage is Stage.CLOSING and (not state.present or now >= state.closes_at):
        state = replace(state, stage=Stage.DONE)
    return state, actions


def _watch_round(state: HostState, now: float, decide: Decide) -> Step:
    assert state.plan is not None
    ordered: tuple[Do, ...] = ()
    if state.order is None and (order := _find_order(state)) is not None:
        state = replace(state, order=order)
        ordered = (Order(state.sequence - 1, order),)
    if state.away:
        return state, ordered
    state, settled = _settle(state, _joins_of_seats(state), now, decide)
    return state, (*ordered, *settled)


def _joins_of_seats(state: HostState) -> list[Join]:
    """Of the last round's nodes that came back from it, in group-rank order."""
    assert state.plan is not None
    joins = (state.back.get(seat.agent.incarnation) for seat in state.plan.seats)
    return [join for join in joins if join is not None]


def _find_order(state: HostState) -> StopOrder | None:
    """Why the running round must end now, if it must."""
    assert state.plan is not None
    if state.gone:
        first = state.gone[0]
        kind = StopKind.LEAVE if first.is_left else StopKind.NODE_LOST
        return StopOrder(kind, first.node, f"node {first.node} is gone: {first.reason}")
    broken = next((join for join in state.back.values() if join.outcome is not Outcome.SUCCEEDED), None)
    if broken is not None:
        # Its own order is on its way, or was lost with a connection.
        node = broken.agent.node
        return StopOrder(StopKind.FAILURE, node, f"node {node} is back and its ranks have not finished")
    if state.quiet and state.away <= state.quiet.keys():
        longest = max(state.quiet.values(), key=lambda quiet: quiet.limit_s)
        return StopOrder(StopKind.STALL, longest.agent.node, f"{longest.sentence}{_name_done(state)}")
    if _is_time_to_grow(state):
        nodes = ", ".join(one.agent.node for one in _waiting(state))
        return StopOrder(StopKind.GROW, nodes, f"more nodes have joined: {nodes}")
    return None


def _name_done(state: HostState) -> str:
    """Nodes for whose ranks the others may wait for ever."""
    nodes = ", ".join(sorted(join.agent.node for join in state.back.values()))
    return f"; all ranks of node {nodes} had ended before, with exit code 0" if nodes else ""


def _waiting(state: HostState) -> list[Presence]:
    """Nodes that have joined the open round and have no part in the running one."""
    assert state.plan is not None
    if len(state.present) + len(state.gone) <= len(state.plan.seats):
        return []
    seated = {seat.agent.incarnation for seat in state.plan.seats}
    return [
        one
        for key, one in state.present.items()
        if one.join is not None
        and not one.join.unhealthy
        and key not in seated
        and one.agent.node not in state.memory.excluded
    ]


def can_grow(state: HostState) -> bool:
    """Whether nodes wait that would make the running world larger."""
    assert state.plan is not None
    return may_grow(state.rules, len(state.plan.seats), len(_waiting(state)))


def _is_time_to_grow(state: HostState) -> bool:
    if state.rules.grow == "never" or state.back or not can_grow(state):
        return False  # nor when the round is about to end
    return state.rules.grow == "immediately" or state.has_saved


def _settle(state: HostState, joins: Sequence[Join], now: float, decide: Decide) -> Step:
    """Everyone who can be back is: what the round came to, and what follows."""
    order = state.order
    if (request := _request(joins)) is not None:
        return _obey(state, request, joins, now)
    if not state.gone and all(join.outcome is Outcome.SUCCEEDED for join in joins):
        return _close(state, Verdict(exit_codes.OK, "all ranks finished"), now)
    if order is not None and order.kind is StopKind.REQUEST:
        return _obey(state, order, joins, now)
    assert state.plan is not None
    incident = _diagnose(state.plan.memory.round_number, joins, state.gone, order)
    if order is not None and order.kind is StopKind.GROW and incident.kind is IncidentKind.UNKNOWN:
        return _open(state, now, 0.0), ()
    return _judge(state, incident, now, without_restart_alone(state.rules, joins, decide))


def _obey(state: HostState, request: StopOrder, joins: Sequence[Join], now: float) -> Step:
    """End the job as its script has asked; the journal says why, as of any other end."""
    assert state.plan is not None
    evidences = [join.evidence for join in joins if join.evidence is not None]
    incident = asked_to_stop(evidences, request.reason, request.node)
    incident = replace(incident, round_number=state.plan.memory.round_number)
    decision = Decision(Action.STOP, request.reason, exit_code=request.exit_code)
    journal = judgement_events(
        Judgement(incident, decision), state.memory.restart_count, state.rules.max_restarts
    )
    state, closed = _close(state, Verdict(request.exit_code, request.reason), now)
    return state, (*(Tell(event) for event in journal), *closed)


def _request(joins: Sequence[Join]) -> StopOrder | None:
    """What a script has asked for while its round was being stopped for another reason."""
    return next((join.request for join in joins if join.request is not None), None)


def _diagnose(
    round_number: int,
    joins: Sequence[Join],
    gone: Sequence[LostNode],
    order: StopOrder | None,
    otherwise: str = "the round ended on all nodes, and none knows why",
) -> Incident:
    evidences = [join.evidence for join in joins if join.evidence is not None]
    incident = diagnose(
        [evidence for evidence in evidences if evidence.round_number == round_number],
        gone,
        first_node=order.node if order is not None else "",
        stop_reason=order.reason if order is not None else otherwise,
    )
    return replace(incident, round_number=round_number)


def _judge(state: HostState, incident: Incident, now: float, decide: Decide) -> Step:
    state, seen_as, doubts = doubt(state, incident)
    state, case = assess(state, incident, seen_as, now)
    decision = decide(case)
    judgement = Judgement(incident, decision)
    journal = judgement_events(judgement, state.memory.restart_count, state.rules.max_restarts)
    told: tuple[Do, ...] = (*(Tell(event) for event in journal), *doubts)
    if decision.action is Action.STOP:
        state, closed = _close(state, Verdict(decision.exit_code, decision.reason, judgement), now)
        return state, (*told, *closed)
    memory = remember(state.memory, replace(case.now, is_counted=decision.is_counted))
    state = _open(replace(state, memory=memory, judgement=judgement), now, decision.delay_s)
    state, left_out = leave_out(state, judgement, now)
    return state, (*told, *left_out)


def _open(state: HostState, now: float, delay_s: float) -> HostState:
    return replace(
        state,
        stage=Stage.FORMING,
        opened_at=now,
        not_before=now + delay_s,
        last_call_at=None,
        told_at=None,
        told="",
    )


def _form(state: HostState, now: float, decide: Decide) -> Step:
    """Close the open round if it can be closed, end the job if it never will be."""
    rules = state.rules
    candidates = [
        one.join
        for one in state.present.values()
        if one.join is not None and one.agent.node not in state.memory.excluded
    ]
    if (request := _request(candidates)) is not None:
        return _close(state, Verdict(request.exit_code, request.reason), now)
    if not has_quorum(rules, candidates):
        state = replace(state, last_call_at=None)
        if now >= state.opened_at + rules.join_timeout_s:
            return _close(state, Verdict(exit_codes.NO_RENDEZVOUS, too_few(state, candidates)), now)
        return tell(state, candidates, now)
    if state.last_call_at is None:
        state = replace(state, last_call_at=now)
    if now >= state.not_before > state.opened_at:
        state = replace(state, not_before=state.opened_at)
    if now < state.not_before or not _is_complete(state, candidates, now):
        return tell(state, candidates, now)
    if state.plan is None and state.memory.round_number >= 0 and state.judgement is None:
        return _settle_inherited(state, candidates, now, decide)
    fitness = judge_fitness(candidates, rules.max_excluded_fraction)
    state, told = tell_withheld(state, fitness)
    unfit = [Unfit(agent, reason) for agent, reason in fitness.unfit.items()]
    state, published = exclude(state, unfit, now) if unfit else _publish(state, candidates, now)
    return state, (*told, *published)


def _is_complete(state: HostState, candidates: Sequence[Join], now: float) -> bool:
    """Whether nobody is worth waiting for any more."""
    rules = state.rules
    assert state.last_call_at is not None
    if now >= state.last_call_at + rules.last_call_s:
        return True
    if _is_anybody_awaited(state):
        return False
    if state.plan is not None:
        return True  # every living node of the last round is back: that is what opened this one
    known = set(state.memory.nodes) - set(state.memory.excluded)
    known -= {order.node for order in _inherited_orders(candidates) if order.kind is StopKind.LEAVE}
    known -= {join.lost_host for join in candidates}
    are_back = known <= {join.agent.node for join in candidates}
    if is_world_full(rules, len(candidates), len(state.memory.nodes)):
        # Nodes of the last round may have yet to see that its host agent is gone, and to end their workers.
        had_time = state.judgement is not None or now >= state.opened_at + rules.lost_after_s
        return are_back or had_time
    return bool(known) and are_back


def _is_anybody_awaited(state: HostState) -> bool:
    """Whether one that was asked to join again has yet to do so, and is there."""
    return any(key in state.awaited and one.join is None for key, one in state.present.items())


def _inherited_orders(joins: Iterable[Join]) -> list[StopOrder]:
    """Why nodes have stopped the round of another host agent."""
    return [join.order for join in joins if join.order is not None]


def _settle_inherited(state: HostState, candidates: Sequence[Join], now: float, decide: Decide) -> Step:
    """What a round came to that another host agent had closed, which is gone, and what follows."""
    memory = state.memory
    back = {
        join.agent.node: join
        for join in candidates
        if join.evidence is not None and join.evidence.round_number == memory.round_number
    }
    ends = [back[node].outcome for node in memory.nodes if node in back]
    if len(ends) == len(memory.nodes) and all(end is Outcome.SUCCEEDED for end in ends):
        return _close(state, Verdict(exit_codes.OK, "all ranks finished"), now)
    order = next(iter(_inherited_orders(back.values())), None)
    reason = "the host agent was lost with its store, or was started again"
    leaver, left = (order.node, order.reason) if order and order.kind is StopKind.LEAVE else ("", "")
    gone = [
        LostNode(node, first, slots, left if node == leaver else reason, node == leaver)
        for node, first, slots in zip(memory.nodes, first_ranks(memory.slots), memory.slots, strict=True)
        if node not in back
    ]
    incident = _diagnose(memory.round_number, list(back.values()), gone, order, reason)
    last_call_at = state.last_call_at
    state, judged = _judge(state, incident, now, decide)
    if state.stage is not Stage.FORMING:
        return state, judged
    state = replace(state, last_call_at=last_call_at)  # those who have not come by now had their time
    state, formed = _form(state, now, decide)
    return state, (*judged, *formed)


def _publish(state: HostState, candidates: Sequence[Join], now: float) -> Step:
    rules, memory = state.rules, state.memory
    chosen = choose_seats(rules, candidates, memory.nodes)
    resume, obstacle, told = choose_resume(state, chosen)
    if obstacle:
        state, closed = _close(state, Verdict(exit_codes.FUTILE, obstacle, state.judgement), now)
        return state, (*told, *closed)
    judgement = state.judgement
    is_free = memory.round_number < 0 or (judgement is not None and not judgement.decision.is_counted)
    memory = replace(
        begin_from(memory, resume),
        round_number=memory.round_number + 1,
        restart_count=memory.restart_count + (0 if is_free else 1),
        nodes=tuple(join.agent.node for join in chosen),
        slots=tuple(join.slots for join in chosen),
        since_incident_s=max(0.0, now - state.incident_at),
    )
    seated = {join.agent for join in chosen}
    plan = JobPlan(
        seats=tuple(Seat(join.agent, join.slots) for join in chosen),
        spares=tuple(join.agent.node for join in candidates if join.agent not in seated),
        master_addr=rules.master_address([join.address for join in chosen]),
        master_port=chosen[0].port,
        memory=memory,
        is_resume_known=any(join.has_checkpoint_dir for join in chosen),
        judgement=judgement,
    )
    present = {key: replace(one, join=None) for key, one in state.present.items()}
    published = Publish(state.sequence, plan)
    state = replace(
        state,
        rules=keep_size(rules, memory.slots),
        stage=Stage.RUNNING,
        sequence=state.sequence + 1,
        present=present,
        plan=plan,
        has_begun_from_nothing=_is_nothing_there(chosen),
        away=frozenset(join.agent.incarnation for join in chosen),
        back={},
        gone=(),
        order=None,
        quiet={},
        has_saved=False,
        awaited=frozenset(),
        memory=memory,
        judgement=None,
    )
    return state, (*told, published)


def _is_nothing_there(chosen: Sequence[Join]) -> bool:
    looking = [join for join in chosen if join.has_checkpoint_dir]
    return bool(looking) and all(join.is_checkpoint_dir_empty for join in looking)


def _close(state: HostState, verdict: Verdict, now: float) -> Step:
    verdict = replace(verdict, restart_count=state.memory.restart_count)
    published = Publish(state.sequence, verdict)
    return replace(state, stage=Stage.CLOSING, closes_at=now + state.rules.close_timeout_s), (published,)

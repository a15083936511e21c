"""What the host agent takes out of a job: nodes that are not healthy, and what fails often. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftrun.launcher import exit_codes
from ftrun.launcher.blame import gpu_of
from ftrun.launcher.fitness import Fitness, judge_fitness, most_excluded
from ftrun.launcher.host_state import Decide, HostState, Publish, Step, Tell
from ftrun.launcher.memory import exclude as exclude_node
from ftrun.launcher.memory import exclude_gpus
from ftrun.launcher.messages import ExcludedGpu, Exclusion, Join, Judgement, Unfit
from ftrun.launcher.model import Action, Case, Decision, Leeway
from ftrun.launcher.quorum import Rules, has_quorum
from ftrun.monitor import events
from ftrun.monitor.incident import Incident


def tell_withheld(state: HostState, fitness: Fitness) -> Step:
    """Name each check that too many nodes fail, once."""
    told = tuple(
        Tell(events.ExclusionSuspended(check, nodes))
        for check, nodes in fitness.withheld.items()
        if check not in state.withheld
    )
    return replace(state, withheld=frozenset(fitness.withheld)), told


def exclude(state: HostState, unfit: Sequence[Unfit], now: float, gpus: tuple[ExcludedGpu, ...] = ()) -> Step:
    """Let nodes go; the others join again, some without a GPU, and the round is closed once they have."""
    gone = {one.agent.incarnation for one in unfit}
    stay = {key: one for key, one in state.present.items() if key not in gone}
    told = (Tell(events.NodeExcluded(one.agent.node, one.reason)) for one in unfit)
    published = Publish(state.sequence, Exclusion(tuple(unfit), state.judgement, gpus))
    state = replace(
        state,
        sequence=state.sequence + 1,
        present={key: replace(one, join=None) for key, one in stay.items()},
        incarnations={one.agent.node: key for key, one in stay.items()},
        fenced=state.fenced | gone,
        awaited=frozenset(key for key, one in stay.items() if one.join is not None),
        last_call_at=None,
        told_at=now,
    )
    return state, (*told, published)


def find_leeway(state: HostState, incident: Incident) -> Leeway:
    """Whether the job can do without the culprit's node, or without its GPU alone."""
    rules, node, gpu = state.rules, incident.node, gpu_of(incident)
    excluded = set(state.memory.excluded)
    joins = [one.join for one in state.present.values() if one.join is not None]
    joins = [join for join in joins if join.agent.node not in excluded]
    others = [join for join in joins if join.agent.node != node]
    touched = excluded | {one.node for one in state.memory.excluded_gpus} | {node}
    count = len({one.agent.node for one in state.present.values()} | excluded | {node})
    most = most_excluded(rules.max_excluded_fraction, count)
    obstacle = ""
    if len(touched) > most:
        obstacle = f"no more than {most} of {count} nodes may be left out (health.max_excluded_fraction)"
    elif not has_quorum(rules, others):
        obstacle = "there is no spare, and the world may not be smaller"
    own = next((join for join in joins if join.agent.node == node and gpu in join.gpus), None)
    gpu_obstacle = "GPUs are not left out alone (world.shrink)"
    if own is not None and len(touched) <= most:
        rest = replace(own, slots=own.slots - own.gpus.count(gpu))
        is_enough = rest.slots > 0 and has_quorum(rules, (*others, rest))
        gpu_obstacle = "" if is_enough else "the world may not be smaller"
    return Leeway(obstacle, gpu_obstacle, rules.is_alone)


def leave_out(state: HostState, judgement: Judgement, now: float) -> Step:
    """Take out of the job what the decision names; whoever it is, is not taken back by another host agent."""
    node, gpu = judgement.decision.excluded_node, judgement.decision.excluded_gpu
    if gpu:
        gpus = (ExcludedGpu(judgement.incident.node, gpu),)
        return exclude(replace(state, memory=exclude_gpus(state.memory, gpus)), (), now, gpus)
    if not node:
        return state, ()
    state = replace(state, memory=exclude_node(state.memory, node))
    agents = [one.agent for one in state.present.values() if one.agent.node == node]
    reason = f"node {node} fails again and again (restart.exclude_after): {judgement.incident.reasons[0]}"
    unfit = [Unfit(agent, reason, is_excluded=True) for agent in agents]
    return exclude(state, unfit, now) if unfit else (state, ())


def without_restart_alone(rules: Rules, joins: Sequence[Join], decide: Decide) -> Decide:
    """`decide`, for a job that never has a second node: one that is not healthy is not restarted on."""
    unfit = judge_fitness(joins, rules.max_excluded_fraction).unfit
    if not rules.is_alone or not unfit:
        return decide
    [why] = unfit.values()

    def decide_alone(case: Case) -> Decision:
        incident, decision = case.incident, decide(case)
        if decision.action is Action.STOP:
            return decision
        since = "this node is not healthy" if incident.kind.is_of_hardware else why
        reason = f"{incident.reasons[0]}; no restart here, since {since}"
        return Decision(Action.STOP, reason, exit_code=exit_codes.NODE_UNHEALTHY)

    return decide_alone

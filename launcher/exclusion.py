"""What the host agent does about nodes that are not healthy enough for the round that is formed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftrun.launcher import exit_codes
from ftrun.launcher.fitness import Fitness, judge_fitness
from ftrun.launcher.host_state import Decide, HostState, Publish, Step, Tell
from ftrun.launcher.messages import Exclusion, Join, Unfit
from ftrun.launcher.model import Action, Decision, PastIncident
from ftrun.launcher.quorum import Rules
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


def exclude(state: HostState, fitness: Fitness, now: float) -> Step:
    """Let nodes go that are not healthy; the others join again, and the round is closed once they have."""
    gone = {agent.incarnation for agent in fitness.unfit}
    stay = {key: one for key, one in state.present.items() if key not in gone}
    told = (Tell(events.NodeExcluded(agent.node, reason)) for agent, reason in fitness.unfit.items())
    unfit = tuple(Unfit(agent, reason) for agent, reason in fitness.unfit.items())
    published = Publish(state.sequence, Exclusion(unfit, state.judgement))
    state = replace(
        state,
        sequence=state.sequence + 1,
        present={key: replace(one, join=None) for key, one in stay.items()},
        incarnations={one.agent.node: key for key, one in stay.items()},
        awaited=frozenset(key for key, one in stay.items() if one.join is not None),
        last_call_at=None,
        told_at=now,
    )
    return state, (*told, published)


def without_restart_alone(rules: Rules, joins: Sequence[Join], decide: Decide) -> Decide:
    """`decide`, for a job that never has a second node: one that is not healthy is not restarted on."""
    unfit = judge_fitness(joins, rules.max_excluded_fraction).unfit
    if not rules.is_alone or not unfit:
        return decide
    [why] = unfit.values()

    def decide_alone(incident: Incident, history: Sequence[PastIncident]) -> Decision:
        decision = decide(incident, history)
        if decision.action is Action.STOP:
            return decision
        since = "this node is not healthy" if incident.kind.is_of_hardware else why
        reason = f"{incident.reasons[0]}; no restart here, since {since}"
        return Decision(Action.STOP, reason, exit_code=exit_codes.NODE_UNHEALTHY)

    return decide_alone

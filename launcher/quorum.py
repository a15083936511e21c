"""Which of the nodes that have joined take part in a round, and in which order. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ftrun.launcher.checkpoint_quarantine import TrustRules
from ftrun.launcher.messages import Agent, JobPlan, Join, Seat
from ftrun.launcher.model import Plan
from ftrun.launcher.nodes import sort_key
from ftrun.launcher.ranks import assign, first_ranks


@dataclass(frozen=True, slots=True)
class Rules:
    """What the job asks of its nodes, and how long it waits for them."""

    min_nodes: int
    max_nodes: int
    min_ranks: int = 0
    may_shrink: bool = True
    """The job goes on with fewer nodes and ranks than it had, down to these (`world.shrink`)."""
    spares: int = 0
    """Nodes that are kept out of the world as long as it has `min_nodes`, `min_ranks` and as many nodes as in
    the last round without them."""
    grow: str = "at_checkpoint"
    """When a round is ended because more nodes have come: at_checkpoint, immediately or never."""
    last_call_s: float = 30.0
    """How long the first round waits for more nodes once it has enough."""
    join_timeout_s: float = 600.0
    """How long a round waits for enough nodes."""
    keep_alive_interval_s: float = 1.0
    lost_after_s: float = 5.0
    """An agent that has been silent for longer is lost."""
    close_timeout_s: float = 30.0
    """How long the host agent waits for the others to take note of the verdict."""
    max_excluded_fraction: float = 0.2
    """Of the nodes that have joined: if more fail one health check at once, none is left out for it."""
    min_progress: int = 1
    """Steps more than ever before that a round must bring to have moved on (`restart.max_no_progress`)."""
    max_restarts: int = 0
    """For the journal; `ftrun.launcher.policy` decides."""
    endpoint_host: str = ""
    """Name or address under which all agents have reached the host agent's store."""
    trust: TrustRules = field(default_factory=TrustRules)

    @property
    def is_alone(self) -> bool:
        """The job never has more than one node."""
        return self.max_nodes + self.spares == 1

    def master_address(self, addresses: Sequence[str]) -> str:
        """MASTER_ADDR: the first node's own address.

        A node whose name resolves to a loopback address, as Debian's /etc/hosts has it, is known to the
        others by the endpoint's name.
        """
        own = addresses[0]
        if is_loopback(own) and self.endpoint_host and not all(map(is_loopback, addresses)):
            return self.endpoint_host
        return own


def is_loopback(address: str) -> bool:
    """Whether an address or name means the machine that uses it."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def keep_size(rules: Rules, slots: Sequence[int]) -> Rules:
    """The rules once the world has nodes with so many slots: if it may not shrink, it never has fewer."""
    if rules.may_shrink:
        return rules
    nodes, ranks = max(rules.min_nodes, len(slots)), max(rules.min_ranks, sum(slots))
    return replace(rules, min_nodes=nodes, min_ranks=ranks)


def world_nodes(rules: Rules, available: int, before: int = 0) -> int:
    """How many of `available` nodes take part: up to `max_nodes`, with `spares` kept back; 0 if too few.

    Those that are kept back take the places of lost ones: the world had `before` nodes, and keeps as many.
    """
    if available < rules.min_nodes:
        return 0
    return min(rules.max_nodes, max(rules.min_nodes, min(before, available), available - rules.spares))


def is_world_full(rules: Rules, available: int, before: int = 0) -> bool:
    """Whether more nodes would not make the world larger."""
    return world_nodes(rules, available, before) == rules.max_nodes


def may_grow(rules: Rules, seated: int, waiting: int) -> bool:
    """Whether the nodes that wait would make the world larger."""
    return world_nodes(rules, seated + waiting, seated) > seated


def has_quorum(rules: Rules, joins: Collection[Join]) -> bool:
    """Whether there are enough nodes, and enough ranks on those that could take part."""
    if not world_nodes(rules, len(joins)):
        return False
    largest = sorted((join.slots for join in joins), reverse=True)
    return sum(largest[: rules.max_nodes]) >= rules.min_ranks


def choose_seats(rules: Rules, joins: Collection[Join], last_nodes: Collection[str]) -> tuple[Join, ...]:
    """The nodes of the next round in group-rank order; empty if there are not enough nodes or ranks.

    Nodes of the last round come first: one that waits for a place displaces them, or is no spare any more,
    only if there would be too few ranks otherwise.
    """
    last = set(last_nodes)
    preferred = sorted(joins, key=lambda join: (join.agent.node not in last, _order(join)))
    largest = sorted(preferred, key=lambda join: -join.slots)
    fewest = world_nodes(rules, len(preferred), len(last))
    counts = range(fewest, min(rules.max_nodes, len(preferred)) + 1) if fewest else range(0)
    for order in (preferred, largest):
        for count in counts:
            if sum(join.slots for join in order[:count]) >= rules.min_ranks:
                return tuple(sorted(order[:count], key=_order))
    return ()


def find_first_ranks(seats: Sequence[Seat]) -> tuple[int, ...]:
    """Global rank of each seat's first worker."""
    return first_ranks([seat.slots for seat in seats])


def _order(join: Join) -> tuple[object, str]:
    return sort_key(join.rank_hint, join.agent.node), join.agent.incarnation


def plan_of(plan: JobPlan, agent: Agent) -> Plan | None:
    """One agent's part in a round; None if it has none."""
    ranks = assign([seat.slots for seat in plan.seats])
    mine = next((ranks[place] for place, seat in enumerate(plan.seats) if seat.agent == agent), None)
    if mine is None:
        return None
    memory = plan.memory
    return Plan(
        memory.round_number,
        memory.restart_count,
        mine,
        plan.master_addr,
        plan.master_port,
        memory.resume.path if memory.resume is not None else None,
        memory.resume.step if memory.resume is not None else None,
        plan.is_resume_known,
        memory.nodes,
        plan.spares,
    )

"""The journal's words for nodes that come and go, and for the host agent's store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from ftrun.monitor.event import Event, Reason, Round

Node: TypeAlias = Annotated[str, "Name of the node."]


@dataclass(frozen=True, slots=True)
class StoreConnected(Event):
    """The agent has found the host agent's store, or serves it."""

    kind: ClassVar[str] = "store.connected"
    endpoint: Annotated[str, "Where the store is."]
    is_host: Annotated[bool, "This agent is the host agent."]


@dataclass(frozen=True, slots=True)
class StoreAwaited(Event):
    """The agent looks for the host agent's store and does not find it yet."""

    kind: ClassVar[str] = "store.awaited"
    reason: Reason
    remaining_s: Annotated[float, "Seconds until it gives up."]


@dataclass(frozen=True, slots=True)
class StoreLost(Event):
    """The host agent's store does not answer any more; the workers are stopped and the agent looks for it."""

    kind: ClassVar[str] = "store.lost"
    reason: Reason
    remaining_s: Annotated[float, "Seconds until it gives up."]


@dataclass(frozen=True, slots=True)
class StoreDegraded(Event):
    """Something about the host agent's store is odd; the job goes on."""

    kind: ClassVar[str] = "store.degraded"
    reason: Reason


@dataclass(frozen=True, slots=True)
class NodeJoined(Event):
    """An agent that was not there before has joined; journalled by the host agent."""

    kind: ClassVar[str] = "node.joined"
    name: Node
    slots: Annotated[int, "Workers that it offers."]
    address: Annotated[str, "Where the other nodes reach it."]


@dataclass(frozen=True, slots=True)
class NodeLost(Event):
    """A node is gone without a word; journalled by the host agent."""

    kind: ClassVar[str] = "node.lost"
    name: Node
    reason: Reason


@dataclass(frozen=True, slots=True)
class NodeLeft(Event):
    """A node has said that it leaves; journalled by the host agent."""

    kind: ClassVar[str] = "node.left"
    name: Node
    reason: Reason


@dataclass(frozen=True, slots=True)
class NodeRefused(Event):
    """An agent that cannot take part: of another job or version, or of a machine whose name another one has.

    Journalled by the host agent.
    """

    kind: ClassVar[str] = "node.refused"
    name: Node
    reason: Reason


@dataclass(frozen=True, slots=True)
class NodeParked(Event):
    """This node has joined and has no part in the round: it waits as a spare, its workers ready."""

    kind: ClassVar[str] = "node.parked"
    round: Round
    nodes: Annotated[tuple[str, ...], "Nodes of the round, in group-rank order."]


@dataclass(frozen=True, slots=True)
class RendezvousAwaited(Event):
    """The host agent waits for nodes; journalled when that changes, not more often than every few seconds."""

    kind: ClassVar[str] = "rendezvous.awaited"
    awaited: Annotated[str, "What is missing and what is there."]
    remaining_s: Annotated[float, "Seconds until the job is given up."]


@dataclass(frozen=True, slots=True)
class RoundStopOrdered(Event):
    """All nodes were told to stop the round."""

    kind: ClassVar[str] = "round.stop_ordered"
    round: Round
    cause: Annotated[str, "Kind of the order: failure, stall, leave, node_lost, grow or request."]
    by: Annotated[str, "Node that gave it."]
    reason: Reason

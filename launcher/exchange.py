"""What an agent exchanges with the host agent, whatever carries it; and the exchange of one node alone.

`ftrun.launcher.store_exchange` has the one over a c10d Store. An exchange decides nothing about the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ftrun.launcher.messages import Agent, Awaited, Hello, JobPlan, Message, Publication, StopKind, StopOrder


@dataclass(frozen=True, slots=True)
class Connected:
    """The job's store is there, and this agent has announced itself."""

    hello: Hello
    """The host agent's."""
    sequence: int
    """Of the round that is open for joining."""
    is_host: bool
    """This agent serves the store."""
    address: str = ""
    """This agent's own on the way to the store; "" if it is a loopback address, or not known."""
    plan: JobPlan | None = None
    """Of the last round that this host agent has closed; None before the first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The store is not there yet; told once per change of the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Looking:
    """The search for the store begins: all that it needs is imported."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """This agent cannot take part and does not look any further."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The store failed or fell silent; nothing more comes until `connect` is called again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """The plan of a round, or the job's verdict."""

    sequence: int
    publication: Publication


@dataclass(frozen=True, slots=True)
class Stopped:
    """A round ends now: the first order that was given for it."""

    sequence: int
    order: StopOrder


@dataclass(frozen=True, slots=True)
class Received:
    """A message to the host agent; comes to that one only."""

    message: Message


@dataclass(frozen=True, slots=True)
class Beats:
    """The keep-alive counters of the agents that are watched; comes to the host agent only."""

    seen: Mapping[str, int]
    """By incarnation; without those that have never sent one."""


@dataclass(frozen=True, slots=True)
class StoodStill:
    """This process, or its machine, has missed keep-alives: the host agent may have given it up."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """Something odd that a person should know; the exchange goes on."""

    reason: str


Note: TypeAlias = (
    Connected
    | Looking
    | Waiting
    | Mismatch
    | Lost
    | Published
    | Stopped
    | Received
    | Beats
    | StoodStill
    | Degraded
    | Awaited
)
"""What an exchange tells its agent, in the order in which it happened."""

Post: TypeAlias = Callable[[Note], None]
"""Takes a note from any thread; never waits."""


class Exchange(Protocol):
    """All methods are called on the agent's thread, and none but `close` waits for anything."""

    @property
    def wanted_at(self) -> float | None:
        """When `check` is wanted (CLOCK_MONOTONIC, seconds)."""

    def connect(self) -> None:
        """Look for the store in the background until told otherwise."""

    def disconnect(self) -> None:
        """Drop the connection and what has not been sent yet; no further note comes from it."""

    def send(self, message: Message) -> None:
        """Put a message into the host agent's inbox, in order.

        Raises:
            MessageError: it cannot be written as JSON.
        """

    def order_stop(self, sequence: int, order: StopOrder) -> None:
        """Stop a round on all nodes; the first order of a round counts."""

    def publish(self, sequence: int, publication: Publication) -> None:
        """Close the round and open the next one; ends the round before if nobody has. Host agent only."""

    def tell_awaited(self, sequence: int, awaited: Awaited) -> None:
        """Let those who have joined the open round know what it waits for. Host agent only."""

    def watch_beats(self, agents: Collection[Agent]) -> None:
        """Report the keep-alives of these agents from now on, and of no others. Host agent only."""

    def check(self, now: float) -> None:
        """Post `Lost` if the store has been silent for too long."""

    def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s`, and disconnect for good; ends a served store."""


class LocalExchange:
    """One node alone, which is its own host agent: everything comes straight back, and there are no beats."""

    def __init__(self, hello: Hello, agent: Agent, post: Post) -> None:
        self._hello = hello
        self._agent = agent
        self._post = post
        self._open = 0
        self._stopped: set[int] = set()

    @property
    def wanted_at(self) -> float | None:
        """Never: nothing can fall silent."""
        return None

    def connect(self) -> None:
        """Connected at once."""
        self._post(Connected(self._hello, self._open, is_host=True))

    def disconnect(self) -> None:
        """Nothing is under way."""

    def send(self, message: Message) -> None:
        """Received as it is."""
        self._post(Received(message))

    def order_stop(self, sequence: int, order: StopOrder) -> None:
        """Stopped, unless the round was already."""
        if sequence not in self._stopped:
            self._stopped.add(sequence)
            self._post(Stopped(sequence, order))

    def publish(self, sequence: int, publication: Publication) -> None:
        """Published, after the end of the round before."""
        if sequence > 0:
            self.order_stop(sequence - 1, over(self._agent))
        self._open = sequence + 1
        self._post(Published(sequence, publication))

    def tell_awaited(self, sequence: int, awaited: Awaited) -> None:
        """Nobody else waits."""

    def watch_beats(self, agents: Collection[Agent]) -> None:
        """An agent that runs this is alive."""

    def check(self, now: float) -> None:
        """Nothing can fall silent."""

    def close(self, timeout_s: float) -> None:
        """Nothing is left to send."""


def over(agent: Agent) -> StopOrder:
    """The host agent's order for a round that has ended everywhere by itself."""
    return StopOrder(StopKind.OVER, agent.node, "the round has ended on all nodes")

"""Simulated time, and exchanges over a simulated store: one key space per host agent, as over a c10d store.

Keys behave as `ftrun.launcher.exchange` says: plan/<k> and stop/<k> are written once, the inbox keeps the
order of each sender, keep-alives are counters. What is slow, cut or frozen is an agent's `Line`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

from ftrun.launcher import exchange as ex
from ftrun.launcher.messages import Agent, Awaited, Hello, JobPlan, Message, Publication, StopOrder, Verdict

KEEP_ALIVE_S = 1.0
LOST_AFTER_S = 5.0
SILENT_S = 4.3
"""A member gives up sooner than the host agent does: by an interval, with a second look."""
RETRY_S = 0.5
RETRANSMIT_S = 1.0


class Timeline:
    """What happens when, in simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something then, after all that was planned for the same time before."""
        self._count += 1
        heapq.heappush(self._heap, (max(self.now, when), self._count, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something that much later."""
        self.at(self.now + delay_s, action)

    def step(self) -> bool:
        """Do what comes next; False if nothing does."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True


@dataclass(slots=True)
class Line:
    """What stands between an agent and the others."""

    random: Random
    is_cut: bool = False
    is_frozen: bool = False
    """The whole process, its threads and the store that it serves."""
    slow_s: float = 0.0

    def latency_s(self) -> float:
        """Of one message."""
        return self.random.uniform(0.0005, 0.01) + self.slow_s * self.random.random()


@dataclass(slots=True)
class Store:
    """What one host agent serves."""

    epoch: str
    hello: Hello
    host: SimulatedExchange
    is_up: bool = True
    down_at: float = 0.0
    over_at: float | None = None
    """When the verdict was published."""
    open: int = 0
    plans: dict[int, Publication] = field(default_factory=dict)
    stops: dict[int, StopOrder] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    clients: list[SimulatedExchange] = field(default_factory=list)

    def notify(self) -> None:
        """Blocking waits return."""
        for client in self.clients:
            client.wake_waiter()


@dataclass(slots=True)
class Endpoint:
    """Where agents look for the host agent: whoever runs on `node` serves the store."""

    node: str
    store: Store | None = None
    stores: list[Store] = field(default_factory=list)
    """All there ever were."""


class SimulatedExchange:
    """One agent's exchange; `post` takes its notes."""

    def __init__(
        self, agent: Agent, line: Line, endpoint: Endpoint, timeline: Timeline, post: ex.Post
    ) -> None:
        self._agent = agent
        self.line = line
        self._endpoint = endpoint
        self._timeline = timeline
        self._post = post
        self.store: Store | None = None
        self._generation = 0
        """Of the connection; what is under way for an older one has no effect on this agent."""
        self._is_lost = False
        self._is_over = False
        self._cursor = 0
        self._has_plan = False
        """Of the round that the cursor stands at: it is the round's stop that is waited for."""
        self._outbox: list[Callable[[Store], None]] = []
        self._is_sending = False
        self._beat_at = self._reply_at = 0.0
        self._watched: tuple[str, ...] = ()

    @property
    def wanted_at(self) -> float | None:
        """When silence has lasted for too long."""
        return None if self.store is None or self._is_lost else self._reply_at + SILENT_S

    def _reaches(self, store: Store | None) -> bool:
        """A request from here would be answered."""
        if store is None or not store.is_up or self.line.is_frozen:
            return False
        far = store.host.line
        return store.host is self or not (self.line.is_cut or far.is_cut or far.is_frozen)

    def connect(self) -> None:
        """Look for the store until it is found."""
        self._generation += 1
        self._post(ex.Looking())
        self._look(self._generation)

    def _look(self, generation: int) -> None:
        if generation != self._generation:
            return
        if self._agent.node == self._endpoint.node and not self.line.is_frozen:
            self._serve()
        elif self._reaches(self._endpoint.store):
            self._timeline.after(self.line.latency_s(), lambda: self._attach(generation))
        else:
            self._timeline.after(RETRY_S, lambda: self._look(generation))

    def _serve(self) -> None:
        epoch = f"epoch{len(self._endpoint.stores)}"
        store = Store(epoch, Hello("job", epoch, "1", "same", "job", self._agent.node), self)
        self._endpoint.store = store
        self._endpoint.stores.append(store)
        self._attach(self._generation)

    def _attach(self, generation: int) -> None:
        store = self._endpoint.store
        if generation != self._generation:
            return
        if not self._reaches(store):
            self._look(generation)
            return
        assert store is not None
        self.store, self._is_lost, self._is_over = store, False, False
        self._cursor, self._has_plan = store.open, False
        self._is_sending, self._outbox = False, []
        self._beat_at = self._reply_at = self._timeline.now
        store.clients.append(self)
        store.beats[self._agent.incarnation] = store.beats.get(self._agent.incarnation, 0) + 1
        last = store.plans.get(store.open - 1)
        plan = last if isinstance(last, JobPlan) else None
        self._post(ex.Connected(store.hello, store.open, is_host=store.host is self, plan=plan))
        if isinstance(last, Verdict):  # nothing follows it
            self._is_over = True
            self._post(ex.Published(store.open - 1, last))
        self._timeline.after(KEEP_ALIVE_S, lambda: self._tick(generation))
        self.wake_waiter()

    def disconnect(self) -> None:
        """Forget all that was under way; a served store goes."""
        self._generation += 1
        store, self.store = self.store, None
        self._outbox = []
        if store is None:
            return
        store.clients = [client for client in store.clients if client is not self]
        if store.host is self:
            store.is_up, store.down_at = False, self._timeline.now
            if self._endpoint.store is store:
                self._endpoint.store = None
            for client in store.clients:
                self._timeline.after(client.line.latency_s(), client.note_reset)

    def note_reset(self) -> None:
        """The store's process has ended, which the network tells whom it reaches."""
        if self.store is not None and not self.store.is_up and not (self.line.is_cut or self.line.is_frozen):
            self._lose("connection reset by peer")

    def _lose(self, reason: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._post(ex.Lost(reason))

    def check(self, now: float) -> None:
        """Silence is a loss."""
        if self.wanted_at is not None and now >= self.wanted_at:
            self._lose(f"silent for {now - self._reply_at:.1f} s")

    def _tick(self, generation: int) -> None:
        """The keep-alive, and what the threads of an exchange do when they run again."""
        if generation != self._generation or self._is_lost:
            return
        self._timeline.after(KEEP_ALIVE_S, lambda: self._tick(generation))
        self.resume()

    def resume(self) -> None:
        """All threads go on as far as they can."""
        now = self._timeline.now
        self.note_reset()
        if self._is_lost or not self._reaches(self.store):
            return
        assert self.store is not None
        if now - self._beat_at > LOST_AFTER_S:
            # The host agent has missed it for as long, and may have forgotten what was said.
            self._lose(f"away for {now - self._beat_at:.1f} s")
            return
        self._beat_at = self._reply_at = now
        self.store.beats[self._agent.incarnation] += 1
        self._drain(self._generation)
        self._pump()
        if self.store.host is self and self._watched:
            seen = {key: self.store.beats[key] for key in self._watched if key in self.store.beats}
            self._post(ex.Beats(seen))

    def wake_waiter(self) -> None:
        """A key may have been set."""
        generation = self._generation
        self._timeline.after(self.line.latency_s(), lambda: self._drain(generation))

    def _drain(self, generation: int) -> None:
        while generation == self._generation and not (self._is_lost or self._is_over):
            store = self.store
            if not self._reaches(store):
                return
            assert store is not None
            if not self._has_plan and self._cursor in store.plans:
                publication = store.plans[self._cursor]
                self._has_plan, self._is_over = True, isinstance(publication, Verdict)
                self._post(ex.Published(self._cursor, publication))
            elif self._has_plan and self._cursor in store.stops:
                self._post(ex.Stopped(self._cursor, store.stops[self._cursor]))
                self._has_plan, self._cursor = False, self._cursor + 1
            else:
                return
            self._reply_at = self._timeline.now

    def send(self, message: Message) -> None:
        """Into the host agent's inbox."""
        self._say(lambda store: store.host.receive(message))

    def receive(self, message: Message) -> None:
        """The inbox reader of the host agent has it."""
        self._post(ex.Received(message))

    def order_stop(self, sequence: int, order: StopOrder) -> None:
        """The first order counts."""

        def arrive(store: Store) -> None:
            if store.stops.setdefault(sequence, order) is order:
                store.notify()

        self._say(arrive)

    def _say(self, arrive: Callable[[Store], None]) -> None:
        if self.store is not None and not self._is_lost:
            self._outbox.append(arrive)
            self._pump()

    def _pump(self) -> None:
        """One request at a time, each of which waits for its answer."""
        if self._is_sending or self._is_lost or not self._outbox or not self._reaches(self.store):
            return
        self._is_sending = True
        arrive, store, generation = self._outbox.pop(0), self.store, self._generation
        assert store is not None
        self._timeline.after(self.line.latency_s(), lambda: self._arrive(arrive, store, generation))

    def _arrive(self, arrive: Callable[[Store], None], store: Store, generation: int) -> None:
        """What is on its way arrives even when its sender is gone, if need be as soon as it can."""
        if not store.is_up:
            return
        far = store.host.line
        if store.host is not self and (self.line.is_cut or far.is_cut or far.is_frozen):
            self._timeline.after(RETRANSMIT_S, lambda: self._arrive(arrive, store, generation))
            return
        arrive(store)
        if generation == self._generation:
            self._is_sending = False
            self._reply_at = self._timeline.now
            self._pump()

    def publish(self, sequence: int, publication: Publication) -> None:
        """Written once; opens the next round, which after a verdict never comes."""
        store = self.store
        if store is None:
            return
        assert store.host is self
        assert sequence not in store.plans, "one publication per round"
        assert sequence == store.open, f"round {sequence} is published while {store.open} is open"
        if sequence > 0:
            store.stops.setdefault(sequence - 1, ex.over(self._agent))
        store.plans[sequence] = publication
        if isinstance(publication, Verdict):
            store.over_at = self._timeline.now
        store.open = sequence + 1
        store.notify()

    def tell_awaited(self, sequence: int, awaited: Awaited) -> None:
        """For people; no agent acts on it."""

    def watch_beats(self, agents: Collection[Agent]) -> None:
        """Whose counters are reported."""
        self._watched = tuple(agent.incarnation for agent in agents)

    def close(self, timeout_s: float) -> None:
        """What is left goes on its way if it can."""
        store = self.store
        if store is not None and self._reaches(store) and not self._is_lost:
            at_s = 0.0
            for arrive in self._outbox:
                at_s += self.line.latency_s()
                self._timeline.after(at_s, self._sealed(arrive, store))
        self.disconnect()

    def _sealed(self, arrive: Callable[[Store], None], store: Store) -> Callable[[], None]:
        return lambda: self._arrive(arrive, store, -1)

"""Runs the host agent's part of the rendezvous: hears, lets `ftrun.launcher.host` decide, publishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ftrun.launcher import host
from ftrun.launcher.checkpoint_quarantine import SetAside
from ftrun.launcher.exchange import Exchange
from ftrun.launcher.hangs import Record
from ftrun.launcher.host_state import Decide, Event, HostState, Order, Publish, Stage, Tell, Watch
from ftrun.launcher.message_bounds import bound_incident
from ftrun.launcher.messages import Agent, Awaited, Publication
from ftrun.launcher.quorum import Rules
from ftrun.monitor import events


class Hosting:
    """One host agent's rendezvous, from when its store is there."""

    def __init__(
        self,
        rules: Rules,
        exchange: Exchange,
        decide: Decide,
        record: Record,
        now: float,
        set_aside: Callable[[SetAside], None] = lambda order: None,
    ) -> None:
        self._set_aside = set_aside
        self._exchange = exchange
        self._decide = decide
        self._record = record
        self._state = HostState(rules, opened_at=now, incident_at=now)

    @property
    def wanted_at(self) -> float | None:
        """When `hear` is wanted though nothing has come (CLOCK_MONOTONIC, seconds)."""
        return host.deadline(self._state)

    @property
    def is_closing(self) -> bool:
        """The verdict is out, and others have yet to take note of it."""
        return self._state.stage is Stage.CLOSING

    def has_others(self, me: Agent, patience_s: float, now: float) -> bool:
        """Whether the job has other agents: they are there, or were lost no longer ago than `patience_s`."""
        state = self._state
        if state.stage is Stage.DONE:
            return False
        there = {one.agent.node for key, one in state.present.items() if key != me.incarnation}
        lost = {node for node, at in state.lost.items() if now - at < patience_s}
        return bool((there | lost) - set(state.memory.excluded))

    def hear(self, happened: Sequence[Event], now: float) -> None:
        """Take what has come, possibly nothing, and do what follows from it."""
        self._state, actions = host.advance(self._state, happened, now, self._decide)
        for action in actions:
            match action:
                case Publish(sequence, publication):
                    self._exchange.publish(sequence, _bounded(publication))
                case Order(sequence, order):
                    self._exchange.order_stop(sequence, order)
                case Watch(agents):
                    self._exchange.watch_beats(agents)
                case SetAside():
                    self._set_aside(action)
                case Tell(event):
                    self._record(event, durable=isinstance(event, events.RestartDecided))
                    if isinstance(event, events.RendezvousAwaited):
                        awaited = Awaited(event.awaited, event.remaining_s)
                        self._exchange.tell_awaited(self._state.sequence, awaited)


def _bounded(publication: Publication) -> Publication:
    """Short enough for every agent of a large job to read."""
    judgement = publication.judgement
    if judgement is None:
        return publication
    incident = bound_incident(judgement.incident)
    return replace(publication, judgement=replace(judgement, incident=incident))

"""The exchange of one node alone: everything comes straight back, in order."""

from __future__ import annotations

from ftrun.launcher.exchange import (
    Connected,
    Exchange,
    LocalExchange,
    Note,
    Published,
    Received,
    Stopped,
)
from ftrun.launcher.messages import Agent, Bye, Hello, JobPlan, Memory, Seat, StopKind, StopOrder, Verdict

AGENT = Agent("node0", "a1")
HELLO = Hello("job", "e1", "1.0", "f1", "train.py", "n0")
PLAN = JobPlan((Seat(AGENT, 2),), (), "127.0.0.1", 4000, Memory(0))
FAILURE = StopOrder(StopKind.FAILURE, "node0", "rank 1 failed")


def alone() -> tuple[Exchange, list[Note]]:
    notes: list[Note] = []
    return LocalExchange(HELLO, AGENT, notes.append), notes


def test_lone_agent_is_connected_at_once_as_its_own_host() -> None:
    """No thread, no store, nothing to wait for."""
    exchange, notes = alone()
    exchange.connect()
    assert notes == [Connected(HELLO, 0, is_host=True)]
    assert exchange.wanted_at is None


def test_what_is_sent_is_received() -> None:
    """The host agent's part of the same process gets the very object."""
    exchange, notes = alone()
    exchange.send(Bye(AGENT))
    assert notes == [Received(Bye(AGENT))]


def test_first_stop_order_of_a_round_counts() -> None:
    """A second failure of a round that is being stopped changes nothing."""
    exchange, notes = alone()
    exchange.order_stop(0, FAILURE)
    exchange.order_stop(0, StopOrder(StopKind.STALL, "node0", "later"))
    assert notes == [Stopped(0, FAILURE)]


def test_publication_ends_the_round_before_if_nobody_has() -> None:
    """A round has always ended before the next one begins, and the first has none before it."""
    exchange, notes = alone()
    exchange.publish(0, PLAN)
    exchange.publish(1, PLAN)
    exchange.order_stop(1, FAILURE)
    exchange.publish(2, Verdict(1, "no restart is left"))
    kinds = [note.order.kind for note in notes if isinstance(note, Stopped)]
    assert kinds == [StopKind.OVER, StopKind.FAILURE]
    assert [type(note) for note in notes] == [Published, Stopped, Published, Stopped, Published]


def test_reconnecting_goes_on_with_the_open_round() -> None:
    """The sequence numbers are the exchange's, for as long as it lives."""
    exchange, notes = alone()
    exchange.publish(0, PLAN)
    exchange.disconnect()
    exchange.connect()
    assert notes[-1] == Connected(HELLO, 1, is_host=True)

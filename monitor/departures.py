"""Whether an agent that cannot be looked at is gone, by what the other journals of its run say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ftrun.monitor import events as ev
from ftrun.monitor.records import Record

FAREWELL_S = 60.0
"""How long after the job's end an agent's own last line may still come: NFS shows what another machine has
written up to 60 s later (acregmax and acdirmax, nfs(5))."""
_LEFT_OUT = 94
_FIRST_OF_SIGNALS = 128


def is_verdict(exit_code: int | None) -> bool:
    """Whether an agent that ended so ended with the whole job, and not since its own node was to leave."""
    return exit_code is not None and 0 <= exit_code < _FIRST_OF_SIGNALS and exit_code != _LEFT_OUT


@dataclass(slots=True)
class Witness:
    """What one journal says of the nodes of its run; of its last life alone. Times are UTC epoch."""

    run_id: str = ""
    began_ts: float = 0.0
    gone: dict[str, float] = field(default_factory=dict)
    """Nodes that were lost or have left and did not come back, and when."""
    round: int | None = None
    """The last that was closed."""
    members: frozenset[str] = frozenset()
    """Those who have a part in it, and its spares."""
    closed_ts: float = 0.0
    ended_ts: float | None = None
    """When the job was over."""

    def take(self, record: Record) -> None:
        """The next record of the same life."""
        match record.event:
            case ev.NodeLost() | ev.NodeLeft() as event:
                self.gone[event.name] = record.ts
            case ev.NodeJoined() as event:
                self.gone.pop(event.name, None)
            case ev.RoundClosed() as event:
                self.round, self.closed_ts = event.round, record.ts
                self.members = frozenset((*event.nodes, *event.spares))
            case ev.RunEnded() as event if is_verdict(event.exit_code):
                self.ended_ts = record.ts


def take_on(witness: Witness, record: Record) -> Witness:
    """With the next record of the journal: the same one, or that of the life which begins with it."""
    if isinstance(record.event, ev.RunStarted):
        return Witness(record.event.run_id, record.ts)
    witness.take(record)
    return witness


def is_gone(
    node: str, last_round: int | None, own: Witness, others: Iterable[Witness], now_ts: float
) -> bool:
    """Whether another journal says that the agent which wrote `own` is not there any more.

    What was written before that agent began is about one before it. Clocks of two machines are compared for
    that alone, where what may lie between is a new start by hand or by a scheduler.

    Args:
        node: its node.
        last_round: the last that it had a part in or was a spare of; None if there was none.
        own: of its journal.
        others: of the journals of the same directory.
        now_ts: UTC epoch.
    """
    return bool(own.run_id) and any(
        _says_gone(one, node, last_round, own.began_ts, now_ts)
        for one in others
        if one is not own and one.run_id == own.run_id
    )


def _says_gone(one: Witness, node: str, last_round: int | None, began_ts: float, now_ts: float) -> bool:
    if one.gone.get(node, -1.0) >= began_ts:
        return True
    is_later = one.round is not None and last_round is not None and one.round > last_round
    if is_later and node not in one.members and one.closed_ts >= began_ts:
        return True
    return one.ended_ts is not None and began_ts <= one.ended_ts <= now_ts - FAREWELL_S

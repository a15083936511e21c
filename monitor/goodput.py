"""The goodput ledger: every second of a run on every node in exactly one bucket. Pure.

What each bucket means, and where the two figures come from, is in docs/goodput.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ftrun.monitor.history import Run


class Bucket(str, Enum):
    """What a second of a node was spent on. A string too, as which it has a fast hash."""

    PRODUCTIVE = "productive"
    REDONE = "redone"
    CHECKPOINT = "checkpoint"
    DETECTING = "detecting"
    STOPPING = "stopping"
    HEALTH = "health"
    PAUSING = "pausing"
    WAITING = "waiting"
    RENDEZVOUS = "rendezvous"
    STARTING = "starting"
    LOADING = "loading"
    DOWN = "down"
    SPARE = "spare"
    ABSENT = "absent"
    UNTOLD = "untold"

    @property
    def is_active(self) -> bool:
        """All workers of the node are up and training moves."""
        return self in _ACTIVE

    @property
    def is_asked_for(self) -> bool:
        """The job had a place for the node: its seconds count for goodput."""
        return self not in _NOT_ASKED_FOR


_ACTIVE = frozenset({Bucket.PRODUCTIVE, Bucket.REDONE, Bucket.CHECKPOINT})
_NOT_ASKED_FOR = frozenset({Bucket.SPARE, Bucket.ABSENT, Bucket.UNTOLD})

MEANINGS: Mapping[Bucket, str] = {
    Bucket.PRODUCTIVE: "training steps that counted in the end",
    Bucket.REDONE: "training steps that were lost with a failure and done again",
    Bucket.CHECKPOINT: "training stood still for a checkpoint",
    Bucket.DETECTING: "training had stopped, and nobody knew yet",
    Bucket.STOPPING: "the workers were being ended",
    Bucket.HEALTH: "waiting for the health of the node, or for memory of its GPUs",
    Bucket.PAUSING: "the pause before a restart when nothing progresses",
    Bucket.WAITING: "waiting for other nodes",
    Bucket.RENDEZVOUS: "agreeing on the next round",
    Bucket.STARTING: "workers were started and did their imports",
    Bucket.LOADING: "the script ran, up to its first step: set-up, loading, the step itself",
    Bucket.DOWN: "no agent on a node that had a place in the job",
    Bucket.SPARE: "a spare node, waiting for a place",
    Bucket.ABSENT: "not part of the job yet, or replaced by another node",
    Bucket.UNTOLD: "a part of the node's journal is missing",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A time of a node with one bucket, on the run's common time."""

    began: float
    ended: float
    bucket: Bucket
    round_number: int | None
    """The round that it is part of, or that it led to; None if there is none."""

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.ended - self.began


Seconds = Mapping[Bucket, float]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The seconds of a run."""

    by_node: Mapping[str, Seconds]
    total: Seconds
    """Over all nodes: node-seconds."""
    fault_down_s: float | None
    """Node-seconds between a failure and the first step after it; None for a job without a step."""

    @property
    def asked_s(self) -> float:
        """Node-seconds for which the job had a place."""
        return sum(seconds for bucket, seconds in self.total.items() if bucket.is_asked_for)

    @property
    def training(self) -> float | None:
        """Training goodput, 0 to 1; None before anything has happened."""
        return self.total[Bucket.PRODUCTIVE] / self.asked_s if self.asked_s > 0 else None

    @property
    def infrastructure(self) -> float | None:
        """Infrastructure goodput, 0 to 1; None before the first step."""
        if self.fault_down_s is None or self.asked_s <= 0:
            return None
        return 1 - self.fault_down_s / self.asked_s


def make_ledger(run: Run, segments: Mapping[str, Sequence[Segment]]) -> Ledger:
    """The ledger of a run; `segments` are those of each node (`ftrun.monitor.node_times`)."""
    by_node = {}
    total = dict.fromkeys(Bucket, 0.0)
    down_s = 0.0
    first, last = _window(run)
    has_stepped = any(one.progressed is not None for one in run.rounds)
    for node, of_node in segments.items():
        seconds = dict.fromkeys(Bucket, 0.0)
        for one in of_node:
            seconds[one.bucket] += one.ended - one.began
            if one.bucket not in _ACTIVE and one.bucket not in _NOT_ASKED_FOR:
                down_s += max(0.0, min(one.ended, last) - max(one.began, first))
        by_node[node] = seconds
        for bucket, spent_s in seconds.items():
            total[bucket] += spent_s
    return Ledger(by_node, total, down_s if has_stepped else None)


def _window(run: Run) -> tuple[float, float]:
    """From the job's first step to its end; empty if there was no step."""
    first = next((one.progressed for one in run.rounds if one.progressed is not None), run.ended)
    last = run.rounds[-1] if run.rounds else None
    if last is not None and last.is_success and last.stop_began is not None:
        return first, last.stop_began
    return first, run.ended

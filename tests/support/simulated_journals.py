"""Journals of jobs that never ran, of which every second is known: what a ledger must find in them.

A job is a row of `Part`s, each a round and how it ended. Clocks of the nodes differ by any amount; all that
is journalled is made by the real events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ftrun.monitor import events as ev
from ftrun.monitor.events import Event
from ftrun.monitor.goodput import Bucket
from ftrun.monitor.life_fold import fold
from ftrun.monitor.lines import Line
from ftrun.monitor.lives import Life
from ftrun.monitor.records import Record, to_json

EPOCH = 1.7e9


@dataclass(frozen=True)
class Part:
    """A round: seconds of its phases, one after the other, and how it ends."""

    rendezvous_s: float = 0.1
    start_s: float = 1.0
    load_s: float = 2.0
    steps: int = 10
    """0: it ends before its first step."""
    step_s: float = 0.5
    kept: int = 10
    """Steps that the next round need not do again."""
    silent_s: float = 0.0
    """Before a hang is seen; 0: it is no hang."""
    stop_s: float = 0.3
    kind: str = "killed"
    culprit: int = 0


@dataclass
class Journals:
    """What the agents have written, and what their time really went into (node-seconds)."""

    lines: dict[str, list[str]] = field(default_factory=dict)
    truth: dict[Bucket, float] = field(default_factory=lambda: dict.fromkeys(Bucket, 0.0))
    wall_s: float = 0.0

    def lives(self) -> list[tuple[Life, ...]]:
        """As they are read."""
        return [read(lines) for lines in self.lines.values()]


def read(lines: Sequence[str]) -> tuple[Life, ...]:
    """The lives in a journal."""
    return fold([decoded for line in lines for decoded in _decode(line)]).lives()


def _decode(line: str) -> list[Line]:
    decoded = json.loads(line)
    return [decoded] if isinstance(decoded, dict) else []


class Simulation:
    """Writes the journals of one job, in the order of time."""

    def __init__(self, nodes: Sequence[str], ranks: int, offsets: Mapping[str, float] | None = None) -> None:
        self.journals = Journals({node: [] for node in nodes})
        self._nodes = tuple(nodes)
        self._ranks = ranks
        self._offsets = offsets or {}
        self._now = 0.0
        self._done = 0
        self._reached = 0
        self._restarts = 0

    def say(self, node: str, event: Event, after_s: float = 0.0) -> None:
        """Let an agent journal it now, or somewhat later."""
        t = self._now + after_s
        record = Record(EPOCH + t, self._offsets.get(node, 1000.0) + t, node, event)
        self.journals.lines[node].append(to_json(record))

    def say_all(self, event: Event) -> None:
        """Let all agents journal it now."""
        for node in self._nodes:
            self.say(node, event)

    def spend(self, bucket: Bucket, seconds: float) -> None:
        """Let time pass on all nodes."""
        self._now += seconds
        self.journals.truth[bucket] += seconds * len(self._nodes)

    def begin(self, node_script: str = "train.py") -> None:
        """All agents start."""
        self.say_all(ev.RunStarted("sim", node_script, 0, self._ranks, "given", 1, "0.1.0", "3.11"))

    def run(self, parts: Sequence[Part]) -> Journals:
        """The whole job; the last part ends well."""
        self.begin()
        for number, part in enumerate(parts):
            self._round(number, part, is_last=number == len(parts) - 1)
        self.say_all(ev.RunEnded(0, "all ranks finished", self._restarts, self._now))
        self.journals.wall_s = self._now
        return self.journals

    def _round(self, number: int, part: Part, is_last: bool) -> None:
        self.spend(Bucket.RENDEZVOUS, part.rendezvous_s)
        base = self._done
        resume = (f"/c/step-{base}", base) if base else (None, None)
        world = len(self._nodes) * self._ranks
        self.say_all(
            ev.RoundClosed(number, world, self._restarts, "h", 20000 + number, *resume, self._nodes, ())
        )
        for node, rank in self._workers():
            self.say(node, ev.WorkerStarted(number, rank, rank % self._ranks, 100 + rank, False, "first"))
        self.spend(Bucket.STARTING, part.start_s)
        kept = part.steps if is_last else min(part.kept, part.steps)
        if part.steps:
            self.spend(Bucket.LOADING, part.load_s)
            for node, rank in self._workers():
                self.say(node, ev.WorkerProgressed(number, rank, None, part.load_s))
            if number:
                redone = max(0, self._reached - base)
                self.say_all(ev.RecoveryCompleted(number, "killed", 0, None, 0.1, 0.1, 0.1, 0.3, redone))
            self.spend(Bucket.PRODUCTIVE, kept * part.step_s)
            if kept:
                path, step = f"/c/step-{base + kept}", base + kept
                self.say(self._nodes[0], ev.CheckpointSaved(number, 0, path, step, None))
            self.spend(Bucket.REDONE, (part.steps - kept) * part.step_s)
        self._end(number, part, is_last)
        self._reached, self._done = base + part.steps, base + kept

    def _end(self, number: int, part: Part, is_last: bool) -> None:
        if part.silent_s and not is_last:
            self.spend(Bucket.DETECTING, part.silent_s)
            self.say_all(
                ev.HangDetected(number, "stall", None, (), part.silent_s, part.silent_s, "stall", "no sign")
            )
        self.spend(Bucket.STOPPING, 0.0 if is_last else part.stop_s)
        for node, rank in self._workers():
            code = 0 if is_last else -9
            self.say(
                node,
                ev.WorkerExited(number, rank, rank % self._ranks, 100 + rank, code, None, False, part.steps),
            )
        if part.steps:
            silent_s = 0.0 if is_last else part.stop_s + part.silent_s
            step = self._done + part.steps
            self.say_all(ev.ProgressObserved(number, part.steps, step, silent_s))
        cause = "success" if is_last else "failure"
        self.say_all(ev.RoundStopped(number, cause, 0.0 if is_last else part.stop_s))
        if not is_last:
            self._restarts += 1
            reasons = (f"rank {part.culprit} failed",)
            self.say_all(
                ev.IncidentDiagnosed(
                    number, part.kind, part.culprit, 0, 100 + part.culprit, -9, reasons, part.kind,
                    part.steps > 0, (),
                )
            )  # fmt: skip
            self.say_all(ev.RestartDecided(number, "restart", "restart", 0.0, self._restarts, 99))

    def _workers(self) -> list[tuple[str, int]]:
        return [
            (node, place * self._ranks + local_rank)
            for place, node in enumerate(self._nodes)
            for local_rank in range(self._ranks)
        ]

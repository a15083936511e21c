"""Everything about one incident: how each rank of its round ended, and what all nodes said around it. Pure.

Made from a second look at the journals, since a run's history keeps only sums of what ranks did.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from ftrun.monitor import events as ev
from ftrun.monitor.evidence_row import EvidenceRow, read_row
from ftrun.monitor.history import Incident, Run
from ftrun.monitor.lines import Line, number, text, texts, whole, wholes
from ftrun.monitor.lives import Stretch
from ftrun.monitor.report import IncidentRow, incident_row

_BEFORE_S = 3.0
_AFTER_S = 1.0
"""Of what was said before the failure and after the recovery, so much is of interest."""
_MOST_SAID = 60

_OF_WORKERS = {
    event_type.kind
    for event_type in (
        ev.WorkerStarted, ev.WorkerProgressed, ev.WorkerExited, ev.StandbyStarted, ev.StandbyReadied,
        ev.StandbyDiscarded, ev.PreloadLearned, ev.PreloadReduced, ev.TimeoutsObserved, ev.ProgressObserved,
        ev.IncidentDiagnosed, ev.RestartDecided, ev.EnvironmentDefaulted, ev.LogLocated,
        ev.EvidenceGathered,
    )
}  # fmt: skip
"""What the account of an incident says in another place, or what says nothing about one."""


@dataclass(frozen=True, slots=True)
class ExitRow:
    """How a rank of the round ended."""

    rank: Annotated[int, "Global rank."]
    node: Annotated[str, "Its node."]
    local_rank: Annotated[int, "Rank on its node."]
    pid: Annotated[int, "Process id on its node."]
    exit_code: Annotated[int, "0 to 255, or -n for death by signal n."]
    signal_name: Annotated[str, "Name of that signal; empty for an ordinary exit."]
    is_stopped_by_agent: Annotated[bool, "The agent had already begun to stop the group."]
    is_culprit: Annotated[bool, "It is the root cause; the others are its echoes or were stopped."]
    steps: Annotated[int, "Steps that it had done in the round."]
    ts: Annotated[float, "When the agent saw it: UTC epoch, seconds."]
    since_start_s: Annotated[float | None, "Seconds since it began to run the script; null if not known."]
    last_step: Annotated[int | None, "The script's own step number; null if it reports none."]
    beat_age_s: Annotated[float | None, "Seconds since its last step or heartbeat; null if none."]
    sections: Annotated[tuple[str, ...], "What the script was in, by its sections, outermost first."]


@dataclass(frozen=True, slots=True)
class SaidRow:
    """What an agent journalled."""

    ts: Annotated[float, "When: UTC epoch, seconds."]
    node: Annotated[str, "Whose agent."]
    event: Annotated[str, "Kind of the event (docs/events.md)."]
    sentence: Annotated[str, "The event in words."]


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What was decided, and what the policy had to weigh."""

    action: Annotated[str, "restart or stop."]
    reason: Annotated[str, "Its reason, as a sentence."]
    delay_s: Annotated[float, "Pause before the restart, seconds."]
    restart_count: Annotated[int, "Restarts of the job, this one included."]
    max_restarts: Annotated[int | None, "Restarts allowed."]
    has_progressed: Annotated[bool, "Some rank had made progress in the round."]
    fingerprint: Annotated[str, "Equal for two failures that are the same."]
    same_before: Annotated[int, "Earlier incidents with that fingerprint."]
    confidence: Annotated[float | None, "How sure the cause is, from 0 to 1; null if not told."]


@dataclass(frozen=True, slots=True)
class PartsOfRecovery:
    """Seconds from the failure to the next step of all ranks; null is unknown."""

    detect_s: Annotated[float | None, "Until an agent saw it."]
    stop_s: Annotated[float | None, "Until the last worker of the round was gone."]
    start_s: Annotated[float | None, "Until the new workers ran the script."]
    first_step_s: Annotated[float | None, "Until their first step was done."]


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file that belongs to the incident."""

    what: Annotated[str, "stderr, error, or stacks, with the rank."]
    path: Annotated[str, "Where it is, on the rank's node."]
    tail: Annotated[tuple[str, ...], "Its last lines; none if it cannot be read here."]


@dataclass(frozen=True, slots=True)
class Detail:
    """Everything that `ftctl show INCIDENT` says."""

    schema: Annotated[int, "Version of this form, now 1."]
    run: Annotated[str, "Name of the run."]
    incident: Annotated[IncidentRow, "The incident in a line."]
    reasons: Annotated[tuple[str, ...], "All that is known of the cause, the most important first."]
    policy: Annotated[PolicyView, "What was decided, and why."]
    recovery: Annotated[PartsOfRecovery, "How long it took."]
    exits: Annotated[tuple[ExitRow, ...], "Each rank: the culprit, those that failed with it, those stopped."]
    evidence: Annotated[tuple[EvidenceRow, ...], "What each node took down; none by older versions."]
    said: Annotated[tuple[SaidRow, ...], "What the agents journalled around it, in the order of time."]
    files: Annotated[tuple[TextFile, ...], "Ends of logs, error files and stacks."]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of one journal that matters, and how its clock lies to the run's common time."""

    node: str
    began_at: float
    ended_at: float
    offset: float
    round_number: int
    """Of the incident."""
    from_ts: float
    """Begin of what was said around it, on the common time."""
    until_ts: float


def wanted_of(run: Run, incident: Incident) -> tuple[Wanted, ...]:
    """For each life of the run in which the incident's round could have been."""
    after = next((one for one in run.rounds if one.number == incident.next_round), None)
    until = incident.seen + _BEFORE_S
    if after is not None:
        until = (after.progressed or after.stopped or after.closed) + _AFTER_S
    lives = ((node.name, one) for node in run.nodes for one in node.presences)
    return tuple(
        Wanted(
            name,
            one.life.began_at,
            one.life.last_at,
            one.placed.offset,
            incident.round_number,
            incident.seen - (incident.detect_s or 0.0) - _BEFORE_S,
            until,
        )
        for name, one in lives
        if one.ended >= incident.seen - (incident.detect_s or 0.0) - _BEFORE_S and one.began <= until
    )


class Gathering:
    """What the journals say of the incident: give it each line that may be about it, with its part."""

    def __init__(self, incident: Incident, to_sentence: Callable[[str], str]) -> None:
        self._incident = incident
        self._to_sentence = to_sentence
        self._exits: list[ExitRow] = []
        self._said: dict[tuple[str, str], SaidRow] = {}
        self._evidence: dict[str, EvidenceRow] = {}
        self.stacks: dict[tuple[str, int], str] = {}
        """Files with stacks, by node and rank."""

    def take_of_round(self, line: Line, at: float, wanted: Wanted) -> None:
        """Take a line about the incident's round."""
        kind = text(line, "event")
        if kind == ev.WorkerExited.kind:
            self._exits.append(self._exit(line, wanted.node, at + wanted.offset))
        if kind == ev.EvidenceGathered.kind:
            self._evidence[wanted.node] = read_row(line, wanted.node)
        if kind == ev.StacksSaved.kind:
            for rank, path in zip(wholes(line, "ranks"), texts(line, "files"), strict=False):
                self.stacks[wanted.node, rank] = path

    def take_of_time(self, line: Line, at: float, wanted: Wanted) -> None:
        """Take a line that was written around the incident."""
        kind = text(line, "event")
        if kind not in _OF_WORKERS:
            sentence = self._to_sentence(json.dumps(line))
            # All nodes journal the same word of the host agent.
            self._said.setdefault((kind, sentence), SaidRow(at + wanted.offset, wanted.node, kind, sentence))

    def _exit(self, line: Line, node: str, ts: float) -> ExitRow:
        rank, pid = whole(line, "rank"), whole(line, "pid")
        return ExitRow(
            rank=-1 if rank is None else rank,
            node=node,
            local_rank=whole(line, "local_rank") or 0,
            pid=pid or 0,
            exit_code=whole(line, "exit_code") or 0,
            signal_name=text(line, "signal_name"),
            is_stopped_by_agent=line.get("is_stopped_by_agent") is True,
            is_culprit=rank == self._incident.culprit_rank and pid == self._incident.culprit_pid,
            steps=whole(line, "steps") or 0,
            ts=ts,
            since_start_s=number(line, "since_start_s"),
            last_step=whole(line, "last_step"),
            beat_age_s=number(line, "beat_age_s"),
            sections=texts(line, "sections"),
        )

    def exits(self) -> tuple[ExitRow, ...]:
        """The culprit, then what failed by itself, then what was stopped; each in the order of time."""
        return tuple(
            sorted(
                self._exits,
                key=lambda one: (
                    not one.is_culprit,
                    one.is_stopped_by_agent or one.exit_code == 0,
                    one.ts,
                    one.rank,
                ),
            )
        )

    def evidence(self) -> tuple[EvidenceRow, ...]:
        """The culprit's node first, then by name."""
        culprits = {one.node for one in self._exits if one.is_culprit}
        return tuple(sorted(self._evidence.values(), key=lambda one: (one.node not in culprits, one.node)))

    def said(self) -> tuple[SaidRow, ...]:
        """In the order of time; of very much, the beginning."""
        return tuple(sorted(self._said.values(), key=lambda one: one.ts)[:_MOST_SAID])


class Sorter:
    """Gives each line of one node's journal to the incidents that it is about; there may be many of both."""

    def __init__(self, parts: Iterable[tuple[Gathering, Wanted]]) -> None:
        self._by_round: dict[int, list[tuple[Gathering, Wanted]]] = {}
        windows = []
        for gathering, part in parts:
            self._by_round.setdefault(part.round_number, []).append((gathering, part))
            window = Stretch(part.from_ts - part.offset, part.until_ts - part.offset)
            windows.append((window, gathering, part))
        self._windows = sorted(windows, key=lambda one: one[0].began_at)
        self._starts = [window.began_at for window, _, _ in self._windows]
        self._latest = [*accumulate((window.ended_at for window, _, _ in self._windows), max)]
        """The latest end of a window and of all that begin before it."""

    @property
    def rounds(self) -> Collection[int]:
        """Of which exits are wanted."""
        return self._by_round.keys()

    def take(self, lines: Iterable[Line]) -> None:
        """Take lines of the journal."""
        for line in lines:
            at = number(line, "at")
            if at is None:
                continue
            for gathering, part in self._by_round.get(_round_of(line), ()):
                if part.began_at <= at <= part.ended_at:
                    gathering.take_of_round(line, at, part)
            place = bisect_right(self._starts, at)
            while place and self._latest[place - 1] >= at:
                place -= 1
                window, gathering, part = self._windows[place]
                if at <= window.ended_at and part.began_at <= at <= part.ended_at:
                    gathering.take_of_time(line, at, part)


def _round_of(line: Line) -> int:
    round_number = whole(line, "round")
    return -1 if round_number is None else round_number


def make_detail(
    run_name: str, run: Run, incident: Incident, gathering: Gathering, files: Sequence[TextFile]
) -> Detail:
    """The account of the incident."""
    same = [one for one in run.incidents if one.fingerprint == incident.fingerprint]
    return Detail(
        schema=1,
        run=run_name,
        incident=incident_row(incident),
        reasons=incident.reasons,
        policy=PolicyView(
            action=incident.action,
            reason=incident.decision_reason,
            delay_s=incident.delay_s,
            restart_count=incident.restart_count,
            max_restarts=incident.max_restarts,
            has_progressed=incident.has_progressed,
            fingerprint=incident.fingerprint,
            same_before=sum(one.number < incident.number for one in same),
            confidence=incident.confidence,
        ),
        recovery=PartsOfRecovery(incident.detect_s, incident.stop_s, incident.start_s, incident.first_step_s),
        exits=gathering.exits(),
        evidence=gathering.evidence(),
        said=gathering.said(),
        files=tuple(files),
    )

"""The report of a run as data: what happened, what it cost, how long recoveries took, what to change. Pure.

Made from `history.Run` and the goodput ledger; shown by `ftrun.monitor.report_text`, and given to programs
as JSON (`ftrun.monitor.plain`). The fields are documented in docs/report.md, which is generated from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ftrun.monitor.advice import Advice, advise
from ftrun.monitor.goodput import Bucket, Ledger, Seconds, make_ledger
from ftrun.monitor.history import Incident, Outcome, Run, State
from ftrun.monitor.incident import IncidentKind
from ftrun.monitor.node_times import segments_of

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes; new fields do not raise it."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a line."""

    name: Annotated[str, "How to ask for the run: what RUN is in `ftctl report RUN`."]
    run_id: Annotated[str, "Id of the run (--rdzv-id, or a random one)."]
    directory: Annotated[str, "Its run directory."]
    script: Annotated[str, "Training script, module or program."]
    state: Annotated[str, "running, ended, killed (agents gone without a word) or unknown."]
    exit_code: Annotated[int | None, "Exit code of the job; null if it has not ended."]
    end_reason: Annotated[str, "Why it ended; empty if it has not."]
    began_ts: Annotated[float, "When it began: UTC epoch, seconds."]
    ended_ts: Annotated[float, "When it ended; now, if it runs; the last that is known, if no end is."]
    wall_s: Annotated[float, "Seconds between the two."]
    nodes: Annotated[int, "Nodes that had a part in it."]
    ranks: Annotated[int, "Ranks of its largest round."]
    rounds: Annotated[int, "Rounds that were closed."]
    restarts: Annotated[int, "Restarts that count against the budget."]
    max_restarts: Annotated[int | None, "Restarts allowed; null if no incident has told."]
    incidents: Annotated[int, "Incidents."]
    kinds: Annotated[tuple[str, ...], "Their kinds, the most frequent first."]
    training_goodput: Annotated[float | None, "From 0 to 1; null if nothing was measured."]
    infrastructure_goodput: Annotated[float | None, "From 0 to 1; null before the first step."]


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident in a line."""

    number: Annotated[int, "From 1: what INCIDENT is in `ftctl show INCIDENT`."]
    ts: Annotated[float, "When it was seen: UTC epoch, seconds."]
    round: Annotated[int, "Round that it ended."]
    kind: Annotated[str, "What happened."]
    node: Annotated[str, "Node of the culprit; empty if unknown."]
    rank: Annotated[int, "Global rank of the culprit; -1 if no rank is to blame."]
    reason: Annotated[str, "In one sentence."]
    action: Annotated[str, "What was decided: restart or stop."]
    outcome: Annotated[
        str, "recovered, failed_restart (the next round made no step), ended (the job) or pending."
    ]
    detect_s: Annotated[float | None, "Seconds from the failure until it was seen; null if unknown."]
    recover_s: Annotated[float | None, "Seconds from then to the next step of all ranks; null if none came."]
    steps_lost: Annotated[int | None, "Steps done again; null if unknown."]
    checkpoint_age_s: Annotated[float | None, "Age of the checkpoint that was gone back to; null if unknown."]


@dataclass(frozen=True, slots=True)
class GoodputFigures:
    """What the time was spent on, in node-seconds."""

    training: Annotated[float | None, "Training goodput, 0 to 1."]
    infrastructure: Annotated[float | None, "Infrastructure goodput, 0 to 1; null before the first step."]
    asked_s: Annotated[float, "Node-seconds for which the job had a place: all but spare, absent and untold."]
    buckets_s: Annotated[Mapping[str, float], "Node-seconds by bucket; their sum is wall time times nodes."]
    steps: Annotated[int | None, "Steps that counted in the end; null if unknown."]
    steps_redone: Annotated[int, "Steps that were done again, as far as is known."]
    step_s: Annotated[float | None, "Mean seconds of a step; null if unknown."]


@dataclass(frozen=True, slots=True)
class KindRow:
    """Recoveries from one kind of incident."""

    kind: Annotated[str, "Kind of the incidents."]
    count: Annotated[int, "Recoveries."]
    median_s: Annotated[float, "Median of their seconds."]
    max_s: Annotated[float, "The longest, seconds."]


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """How long recoveries took, from when a failure was seen to the next step of all ranks."""

    count: Annotated[int, "Recoveries."]
    failed_restarts: Annotated[int, "Restarts whose round made no step."]
    median_s: Annotated[float | None, "Median of their seconds; null if there was none."]
    p90_s: Annotated[float | None, "90th percentile, by nearest rank."]
    max_s: Annotated[float | None, "The longest."]
    by_kind: Annotated[tuple[KindRow, ...], "The same by kind, the most frequent first."]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the run."""

    node: Annotated[str, "Its name."]
    state: Annotated[str, "State of its last agent: running, ended, killed or unknown."]
    incidents: Annotated[int, "Incidents whose culprit was on it."]
    buckets_s: Annotated[Mapping[str, float], "Its seconds by bucket."]


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """What to change."""

    rule: Annotated[str, "Name of the rule that says so."]
    text: Annotated[str, "What was seen, and what to do."]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `ftctl report` says."""

    schema: Annotated[int, "Version of this form, now 1."]
    run: Annotated[RunRow, "The run."]
    incidents: Annotated[tuple[IncidentRow, ...], "In the order of time."]
    goodput: Annotated[GoodputFigures, "What the time was spent on."]
    recovery: Annotated[RecoveryFigures, "How long recoveries took."]
    advice: Annotated[tuple[AdviceRow, ...], "What to change, the most useful first."]
    nodes: Annotated[tuple[NodeRow, ...], "Each node, by name."]
    gaps: Annotated[tuple[str, ...], "What the journals do not say, as sentences."]


def make_report(run: Run, name: str, directory: str) -> Report:
    """The report of a run; `name` is how people ask for it."""
    ledger = make_ledger(run, segments_of(run))
    return Report(
        schema=SCHEMA_VERSION,
        run=_run_row(run, ledger, name, directory),
        incidents=tuple(map(incident_row, run.incidents)),
        goodput=_goodput(run, ledger),
        recovery=_recovery(run.incidents),
        advice=tuple(map(_advice_row, advise(run, ledger))),
        nodes=_node_rows(run, ledger),
        gaps=run.gaps,
    )


def make_run_row(run: Run, name: str, directory: str) -> RunRow:
    """The run in a line."""
    return _run_row(run, make_ledger(run, segments_of(run)), name, directory)


def _run_row(run: Run, ledger: Ledger, name: str, directory: str) -> RunRow:
    kinds = [one.kind for one in run.incidents]
    return RunRow(
        name=name,
        run_id=run.run_id,
        directory=directory,
        script=run.script,
        state=run.state.value,
        exit_code=run.exit_code,
        end_reason=run.end_reason,
        began_ts=run.began,
        ended_ts=run.ended,
        wall_s=run.wall_s,
        nodes=sum(node.has_worked for node in run.nodes),
        ranks=max((one.world_size for one in run.rounds), default=0),
        rounds=len(run.rounds),
        restarts=run.restart_count,
        max_restarts=run.max_restarts,
        incidents=len(kinds),
        kinds=tuple(sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind))),
        training_goodput=ledger.training,
        infrastructure_goodput=ledger.infrastructure,
    )


def incident_row(one: Incident) -> IncidentRow:
    """The incident in a line."""
    return IncidentRow(
        number=one.number,
        ts=one.seen,
        round=one.round_number,
        kind=one.kind,
        node=one.node,
        rank=-1 if _is_of_node(one.kind) else one.culprit_rank,
        reason=one.reasons[0] if one.reasons else one.decision_reason,
        action=one.action,
        outcome=one.outcome.value,
        detect_s=one.detect_s,
        recover_s=one.recover_s,
        steps_lost=one.steps_lost,
        checkpoint_age_s=one.checkpoint_age_s,
    )


def _is_of_node(kind: str) -> bool:
    try:
        return IncidentKind(kind).is_of_node
    except ValueError:
        return False


def _goodput(run: Run, ledger: Ledger) -> GoodputFigures:
    counted = [work.counted for work in run.work]
    known = [steps for steps in counted if steps is not None]
    steps = sum(work.steps or 0 for work in run.work)
    active_s = ledger.total[Bucket.PRODUCTIVE] + ledger.total[Bucket.REDONE]
    nodes = max((len(one.shifts) for one in run.rounds), default=0)
    return GoodputFigures(
        training=ledger.training,
        infrastructure=ledger.infrastructure,
        asked_s=ledger.asked_s,
        buckets_s=_named(ledger.total),
        steps=sum(known) if known and len(known) == len(counted) else None,
        steps_redone=sum(work.lost for work in run.work),
        step_s=active_s / nodes / steps if steps and nodes else None,
    )


def _named(seconds: Seconds) -> Mapping[str, float]:
    return {bucket.value: spent for bucket, spent in seconds.items()}


def _recovery(incidents: Sequence[Incident]) -> RecoveryFigures:
    by_kind: dict[str, list[float]] = {}
    for one in incidents:
        if one.outcome is Outcome.RECOVERED and one.recover_s is not None:
            by_kind.setdefault(one.kind, []).append(one.recover_s)
    times = sorted(seconds for of_kind in by_kind.values() for seconds in of_kind)
    rows = [
        KindRow(kind, len(of_kind), percentile(sorted(of_kind), 0.5) or 0.0, max(of_kind))
        for kind, of_kind in by_kind.items()
    ]
    return RecoveryFigures(
        count=len(times),
        failed_restarts=sum(one.outcome is Outcome.FAILED_RESTART for one in incidents),
        median_s=percentile(times, 0.5),
        p90_s=percentile(times, 0.9),
        max_s=times[-1] if times else None,
        by_kind=tuple(sorted(rows, key=lambda row: (-row.count, row.kind))),
    )


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Of seconds in ascending order, by nearest rank: a time that was really seen; None if there is none."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None


def _advice_row(advice: Advice) -> AdviceRow:
    return AdviceRow(advice.rule, advice.text)


def _node_rows(run: Run, ledger: Ledger) -> tuple[NodeRow, ...]:
    return tuple(
        NodeRow(
            node=node.name,
            state=(node.presences[-1].state if node.presences else State.UNKNOWN).value,
            incidents=sum(one.node == node.name for one in run.incidents),
            buckets_s=_named(ledger.by_node[node.name]),
        )
        for node in run.nodes
    )

"""The report of a run as a page: all that stands on it, in order, as people read it. Pure.

`ftrun.monitor.report_html` draws the charts and puts it all into HTML. The page is for those who were not
there: what happened and what to change come first, evidence is folded below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ftrun.monitor.detail import Detail, TextFile
from ftrun.monitor.detail_text import cost_of, how_it_ended, signs_of, weighed
from ftrun.monitor.durations import percent, plural, short
from ftrun.monitor.evidence_row import sentences
from ftrun.monitor.goodput import MEANINGS, Ledger, make_ledger
from ftrun.monitor.history import Incident, Run
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.rank_lists import list_ranks
from ftrun.monitor.report import IncidentRow, NodeRow, Report, percentile
from ftrun.monitor.report_charts import PHASES, Chart, goodput_chart, parts_of, phases_chart, recoveries_chart
from ftrun.monitor.report_steps import steps_chart
from ftrun.monitor.report_text import When, back_in, summarise, whose
from ftrun.monitor.report_timeline import timeline_chart

_MOST_CARDS = 50
_MOST_RANKS = 20_000
"""Ranks whose ends are kept for all cards together: two incidents of 8,000 ranks, or 50 of 400."""
_MOST_LINES = 1000
"""Rows of a table: a browser still finds its way in so many."""
_SHOWN_EXITS = 24
_SHOWN_NODES = 16
_OPEN_NODES = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name."""

    value: str
    name: str


@dataclass(frozen=True, slots=True)
class BucketLine:
    """What a part of the time went into."""

    name: str
    share: str
    seconds: str
    meaning: str


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """How long a part of recoveries took."""

    name: str
    median: str
    p90: str
    longest: str


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident in the table."""

    number: int
    time: str
    kind: str
    whose: str
    reason: str
    back_in: str
    steps_lost: str
    has_card: bool


@dataclass(frozen=True, slots=True)
class ExitLine:
    """How a rank ended."""

    rank: int
    node: str
    pid: int
    ended_by: str
    steps: int
    after: str
    role: str
    signs: str
    """What it had last shown of its work; "" if nothing is known."""


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What a node took down when the round had ended there."""

    node: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """All about one incident."""

    number: int
    title: str
    why: tuple[str, ...]
    cost: str
    decision: str
    weighed: str
    exits: tuple[ExitLine, ...]
    more_exits: str
    evidence: tuple[NodeEvidence, ...]
    said: tuple[str, ...]
    files: tuple[TextFile, ...]


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node in the table."""

    name: str
    state: str
    incidents: int
    seconds: tuple[str, ...]
    """Of productive, redone, down and all others."""


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    name: str
    state: str
    """For the colour of its sign: good, bad or open."""
    summary: tuple[str, ...]
    tiles: tuple[Tile, ...]
    advice: tuple[str, ...]
    charts: tuple[Chart, ...]
    buckets: tuple[BucketLine, ...]
    phases: tuple[PhaseLine, ...]
    incidents: tuple[IncidentLine, ...]
    left_out: str
    """What of the incidents is not on the page; "" if all is."""
    cards: tuple[Card, ...]
    nodes: tuple[NodeLine, ...]
    are_nodes_open: bool
    more_nodes: str
    gaps: tuple[str, ...]
    origin: str


def worth_a_card(run: Run) -> tuple[Incident, ...]:
    """The incidents of which all evidence is shown: as many of the latest as a page can hold."""
    sizes = {one.number: one.world_size for one in run.rounds}
    chosen: list[Incident] = []
    ranks = 0
    for one in reversed(run.incidents):
        ranks += sizes.get(one.round_number, 0)
        if chosen and (len(chosen) == _MOST_CARDS or ranks > _MOST_RANKS):
            break
        chosen.append(one)
    return tuple(reversed(chosen))


def make_page(report: Report, run: Run, details: Sequence[Detail], when: When) -> Page:
    """The page; `details` are those of the incidents that are `worth_a_card`."""
    segments = segments_of(run)
    ledger = make_ledger(run, segments)
    charts = (
        goodput_chart(ledger),
        timeline_chart(run, segments),
        steps_chart(run, segments),
        recoveries_chart(run.incidents),
        phases_chart(run.incidents),
    )
    carded = {one.incident.number for one in details}
    shown = report.incidents[-_MOST_LINES:]
    return Page(
        name=report.run.name,
        state=_state(report),
        summary=tuple(summarise(report)),
        tiles=tuple(_tiles(report)),
        advice=tuple(one.text for one in report.advice),
        charts=tuple(chart for chart in charts if chart is not None),
        buckets=tuple(_buckets(ledger)),
        phases=tuple(_phases(run.incidents)),
        incidents=tuple(_incident(one, when, one.number in carded) for one in shown),
        left_out=_left_out(report, len(shown), len(details)),
        cards=tuple(_card(one, when) for one in details),
        nodes=tuple(map(_node, report.nodes[:_MOST_LINES])),
        are_nodes_open=len(report.nodes) <= _OPEN_NODES,
        more_nodes=_more(len(report.nodes) - _MOST_LINES, "node"),
        gaps=report.gaps,
        origin=f"{report.run.directory}, written by ftrun {run.version or 'of an unknown version'}",
    )


def _state(report: Report) -> str:
    if report.run.state != "ended":
        return "open" if report.run.state == "running" else "bad"
    return "good" if report.run.exit_code == 0 else "bad"


def _tiles(report: Report) -> Iterable[Tile]:
    figures, recovery = report.goodput, report.recovery
    yield Tile(percent(figures.training), "training goodput")
    yield Tile(percent(figures.infrastructure), "infrastructure goodput")
    yield Tile(f"{len(report.incidents)}", "incident" if len(report.incidents) == 1 else "incidents")
    yield Tile(short(recovery.median_s), "median recovery")
    yield Tile(short(recovery.max_s), "longest recovery")
    yield Tile(f"{figures.steps_redone}", "steps done again")


def _buckets(ledger: Ledger) -> Iterable[BucketLine]:
    for bucket, seconds in ledger.total.items():
        if seconds > 0:
            asked = bucket.is_asked_for and ledger.asked_s > 0
            share = percent(seconds / ledger.asked_s) if asked else "-"
            yield BucketLine(bucket.value, share, short(seconds), MEANINGS[bucket])


def _phases(incidents: Sequence[Incident]) -> Iterable[PhaseLine]:
    recovered = [one for one in incidents if one.recover_s is not None]
    times = [*zip(*map(parts_of, recovered), strict=True)] if recovered else []
    wholes = [one.recover_s for one in recovered]
    for name, seconds in zip((*PHASES, "seen to first step"), [*times, wholes], strict=False):
        known = sorted(one for one in seconds if one is not None)
        if known:
            median, p90 = (short(percentile(known, part)) for part in (0.5, 0.9))
            yield PhaseLine(name, median, p90, short(known[-1]))


def _incident(one: IncidentRow, when: When, has_card: bool) -> IncidentLine:
    return IncidentLine(
        number=one.number,
        time=when(one.ts),
        kind=one.kind,
        whose=whose(one),
        reason=one.reason,
        back_in=back_in(one),
        steps_lost="-" if one.steps_lost is None else f"{one.steps_lost}",
        has_card=has_card,
    )


def _left_out(report: Report, rows: int, cards: int) -> str:
    total = len(report.incidents)
    told = f" The first {total - rows} are not in the table." if rows < total else ""
    if cards < total:
        told += (
            f" All evidence is shown of the last {cards}; of another one: ftctl show NUMBER {report.run.name}"
        )
    return told.strip()


def _card(detail: Detail, when: When) -> Card:
    one, policy = detail.incident, detail.policy
    first = detail.exits[0].ts if detail.exits else 0.0
    sure = policy.confidence
    doubt = "" if sure is None or sure >= 1 else f" ({percent(sure)} sure)"
    rest = detail.exits[_SHOWN_EXITS:]
    return Card(
        number=one.number,
        title=f"{one.kind}{doubt}, {whose(one)}, round {one.round}, {when(one.ts)}",
        why=detail.reasons,
        cost=cost_of(detail),
        decision=f"{policy.action or 'not recorded'}: {policy.reason}",
        weighed=weighed(policy),
        exits=tuple(
            ExitLine(
                row.rank, row.node, row.pid, how, row.steps, f"{row.ts - first:+.3f} s", role, signs_of(row)
            )
            for row in detail.exits[:_SHOWN_EXITS]
            for how, role in [how_it_ended(row)]
        ),
        more_exits=f"and {plural(len(rest), 'rank')} more: {list_ranks(row.rank for row in rest)}"
        if rest
        else "",
        evidence=tuple(
            NodeEvidence(row.node, tuple(sentences(row))) for row in detail.evidence[:_SHOWN_NODES]
        ),
        said=tuple(f"{when(row.ts)} {row.node}: {row.sentence}" for row in detail.said),
        files=detail.files,
    )


def _node(row: NodeRow) -> NodeLine:
    told = [row.buckets_s[name] for name in ("productive", "redone", "down")]
    other = sum(row.buckets_s.values()) - sum(told)
    return NodeLine(row.node, row.state, row.incidents, tuple(short(seconds) for seconds in (*told, other)))


def _more(count: int, word: str) -> str:
    return f"and {plural(count, word)} more" if count > 0 else ""

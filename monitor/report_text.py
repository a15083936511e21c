"""The report for a terminal of 80 columns: what, why, cost, what to do, on the first screen. Pure.

Plain ASCII, so that it can be piped, mailed and read over any connection.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from ftrun.monitor.durations import percent, plural, short
from ftrun.monitor.report import IncidentRow, Report, RunRow

WIDTH = 80
SHOWN_INCIDENTS = 5
SHOWN_ADVICE = 3
"""So many fit on the first screen with everything else."""
KEY_WIDTH = 9
_LEAST_SHARE = 0.0005
_UNIT = re.compile(r"(\d) (%|(?:s|min|h|d)\b)")
_WORDS = {"ended": "job ended", "failed_restart": "failed", "pending": "not yet"}

When: TypeAlias = Callable[[float], str]
"""UTC epoch to local time, as people write it; long ago with its date."""


def render(report: Report, when: When, is_whole: bool = False) -> str:
    """All of the report; with `is_whole`, also every incident and every node."""
    parts = [
        list(_summary(report)),
        list(_incidents(report.incidents, when, is_whole)),
        list(_advice(report, is_whole)),
        list(_figures(report)),
        list(_nodes(report)) if is_whole else [],
        [line for gap in report.gaps for line in keyed("unknown" if gap == report.gaps[0] else "", gap)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _summary(report: Report) -> Iterator[str]:
    for number, sentence in enumerate(summarise(report)):
        yield from wrap(sentence if number else f"{report.run.name}: {sentence}")


def summarise(report: Report) -> Iterator[str]:
    """What ran and how it ended, what incidents there were, whose, and what they cost: a sentence each."""
    run = report.run
    yield describe_run(run)
    if run.exit_code and run.end_reason:
        yield f"why it ended: {run.end_reason}"
    if not report.incidents:
        yield "no incidents"
        return
    kinds = Counter(one.kind for one in report.incidents)
    told = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.most_common())
    yield f"{plural(len(report.incidents), 'incident')}: {told}; {_ends(report.incidents)}"
    yield _whose(report) + _cost(report)


def describe_run(run: RunRow) -> str:
    """What ran where, and how it ended."""
    script = run.script.rpartition("/")[2] or "unknown script"
    where = f"{plural(run.nodes, 'node')}, {plural(run.ranks, 'rank')}"
    return f"{script} on {where}; {describe_state(run)}"


def describe_state(run: RunRow) -> str:
    """How the run is, and since when."""
    lasted = short(run.wall_s)
    if run.state == "ended":
        return f"ended with exit code {run.exit_code} after {lasted}"
    if run.state == "running":
        return f"running for {lasted}"
    if run.state == "killed":
        return f"killed without a word, {lasted} after it began or later"
    return f"no end is recorded; the last word came after {lasted}"


def _ends(incidents: Sequence[IncidentRow]) -> str:
    ends = Counter(one.outcome for one in incidents)
    if ends["recovered"] == len(incidents):
        return "recovered from" if len(incidents) == 1 else "recovered from all"
    words = {
        "recovered": "recovered from",
        "failed_restart": "not cured by a restart",
        "pending": "under way",
        "ended": "ended the job",
    }
    return ", ".join(f"{ends[end]} {told}" for end, told in words.items() if ends[end])


def _whose(report: Report) -> str:
    nodes = Counter(one.node for one in report.incidents if one.node)
    if len(report.nodes) < 2 or not nodes:
        return ""
    told = ", ".join(f"{node} ({count})" for node, count in nodes.most_common(4))
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return f"begun on: {told}{more}; "


def _cost(report: Report) -> str:
    figures = report.goodput
    if figures.infrastructure is None or not figures.asked_s:
        return f"no step was ever made: all of {short(report.run.wall_s)} is lost"
    share = 1 - figures.infrastructure + figures.buckets_s["redone"] / figures.asked_s
    redone = figures.steps_redone
    steps = f", {plural(redone, 'step')} done again" if redone else ""
    return f"cost: {short(share * report.run.wall_s)} ({percent(share)}){steps}"


def _incidents(incidents: Sequence[IncidentRow], when: When, is_whole: bool) -> Iterator[str]:
    if not incidents:
        return
    shown = incidents if is_whole else incidents[-SHOWN_INCIDENTS:]
    times = [when(one.ts) for one in shown]
    width = max(map(len, times))
    yield f"{'#':>3}  {'time':<{width}}  {'kind':<20} {'back in':>10} {'lost':>6}  whose"
    for one, time in zip(shown, times, strict=True):
        lost = "-" if one.steps_lost is None else str(one.steps_lost)
        yield cut(
            f"{one.number:>3}  {time:<{width}}  {one.kind:<20} {back_in(one):>10} {lost:>6}  {whose(one)}",
            WIDTH,
        )
        yield cut(f"     {one.reason}", WIDTH)
    if len(shown) < len(incidents):
        yield f"     ({len(incidents) - len(shown)} earlier ones: --all)"


def back_in(one: IncidentRow) -> str:
    """How soon training went on after an incident, or why it did not."""
    return short(one.recover_s) if one.recover_s is not None else _WORDS.get(one.outcome, "-")


def whose(one: IncidentRow) -> str:
    """The culprit of an incident."""
    rank = "" if one.rank < 0 else f"rank {one.rank}"
    return ", ".join(part for part in (rank, one.node) if part) or "unknown"


def _figures(report: Report) -> Iterator[str]:
    figures, recovery = report.goodput, report.recovery
    of = f"{plural(report.run.nodes, 'node')} x {short(report.run.wall_s)}"
    yield from keyed(
        "goodput",
        f"training {percent(figures.training)}, infrastructure {percent(figures.infrastructure)} of {of}",
    )
    yield from keyed("", _shares(report))
    if recovery.count:
        few = f"{plural(recovery.count, 'recovery', 'recoveries')}"
        spread = (
            f"median {short(recovery.median_s)}, p90 {short(recovery.p90_s)}, max {short(recovery.max_s)}"
        )
        failed = f"; {plural(recovery.failed_restarts, 'failed restart')}" if recovery.failed_restarts else ""
        yield from keyed("recovery", f"{spread} ({few}{failed})")
    elif recovery.failed_restarts:
        yield from keyed("recovery", f"none; {plural(recovery.failed_restarts, 'failed restart')}")
    if recovery.count and len(recovery.by_kind) < recovery.count:
        kinds = (f"{row.kind} {short(row.median_s)} ({row.count})" for row in recovery.by_kind)
        yield from keyed("", f"median by kind: {', '.join(kinds)}")


def _shares(report: Report) -> str:
    figures = report.goodput
    shares = [
        (seconds / figures.asked_s if figures.asked_s else 0.0, bucket)
        for bucket, seconds in figures.buckets_s.items()
        if bucket not in ("spare", "absent", "untold")
    ]
    told = [
        f"{bucket} {percent(share)}"
        for share, bucket in sorted(shares, reverse=True)
        if share >= _LEAST_SHARE
    ]
    spare_s = figures.buckets_s["spare"]
    return ", ".join(told) + (f"; besides, spares waited {short(spare_s)}" if spare_s else "")


def _advice(report: Report, is_whole: bool) -> Iterator[str]:
    shown = report.advice if is_whole else report.advice[:SHOWN_ADVICE]
    for number, one in enumerate(shown):
        yield from keyed("" if number else "to do", f"* {one.text}", indent=2)
    if report.incidents:
        more = len(report.advice) - len(shown)
        rest = f"; {more} more with --all" if more else ""
        last = report.incidents[-1].number
        yield from keyed("" if shown else "to do", f"* ftctl show {last}: all about the last incident{rest}")


def _nodes(report: Report) -> Iterator[str]:
    yield f"{'node':<28} {'state':<8} {'incidents':>9} {'productive':>11} {'redone':>9} {'other':>9}"
    for row in report.nodes:
        productive, redone = row.buckets_s["productive"], row.buckets_s["redone"]
        other = sum(row.buckets_s.values()) - productive - redone
        seconds = f"{productive:>9.1f} s {redone:>7.1f} s {other:>7.1f} s"
        yield f"{cut(row.node, 28):<28} {row.state:<8} {row.incidents:>9} {seconds}"


def cut(text: str, width: int) -> str:
    """At most so many characters, all on one line."""
    line = " ".join(text.splitlines())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def wrap(text: str, width: int = WIDTH, indent: int = 2) -> list[str]:
    """Lines of at most that width; a number stays with its unit."""
    bound = _UNIT.sub("\\1\0\\2", text)
    return [line.replace("\0", " ") for line in textwrap.wrap(bound, width, subsequent_indent=" " * indent)]


def keyed(key: str, text: str, indent: int = 0) -> Iterator[str]:
    """Lines with a key at the left of the first."""
    for number, line in enumerate(wrap(text, WIDTH - KEY_WIDTH, indent)):
        yield f"{key if number == 0 else '':<{KEY_WIDTH}}{line}"

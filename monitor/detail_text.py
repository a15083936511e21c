"""The account of one incident for a terminal of 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ftrun.monitor.detail import Detail, ExitRow, PolicyView, TextFile
from ftrun.monitor.durations import percent, plural, short
from ftrun.monitor.evidence_row import EvidenceRow, sentences
from ftrun.monitor.rank_lists import list_ranks
from ftrun.monitor.report_text import WIDTH, When, cut, keyed, whose, wrap

_SHOWN_EXITS = 12
_SHOWN_NODES = 4
_TAB = "\t"


def render(detail: Detail, when: When) -> str:
    """All of it."""
    parts = [
        list(_head(detail, when)),
        list(_policy(detail)),
        list(_exits(detail.exits, when)),
        list(_evidence(detail.evidence)),
        list(_said(detail, when)),
        *([*_file(one)] for one in detail.files),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _head(detail: Detail, when: When) -> Iterator[str]:
    one = detail.incident
    sure = detail.policy.confidence
    doubt = "" if sure is None or sure >= 1 else f", {percent(sure)} sure"
    yield from wrap(
        f"incident {one.number} of {detail.run}: {one.kind}{doubt}, {whose(one)}, round {one.round}, "
        f"{when(one.ts)}"
    )
    yield ""
    for number, reason in enumerate(detail.reasons):
        yield from keyed("" if number else "why", f"* {reason}", indent=2)
    yield from keyed("cost", cost_of(detail))


def cost_of(detail: Detail) -> str:
    """When it was seen, how long training stood still, and what had to be done again."""
    one, parts = detail.incident, detail.recovery
    if one.recover_s is None:
        words = {
            "ended": "it ended the job",
            "failed_restart": "the restart after it made no step",
            "pending": "training does not move again yet",
        }
        back = words.get(one.outcome, one.outcome)
    else:
        names = (("stop", parts.stop_s), ("start", parts.start_s), ("first step", parts.first_step_s))
        told = ", ".join(f"{name} {short(seconds)}" for name, seconds in names if seconds is not None)
        back = f"training again {short(one.recover_s)} after it was seen" + (f" ({told})" if told else "")
    seen = "" if parts.detect_s is None else f"seen {short(parts.detect_s)} after it happened; "
    steps = "" if one.steps_lost is None else f"; {plural(one.steps_lost, 'step')} done again"
    age = "" if one.checkpoint_age_s is None else f"; the checkpoint was {short(one.checkpoint_age_s)} old"
    return f"{seen}{back}{steps}{age}"


def _policy(detail: Detail) -> Iterator[str]:
    policy = detail.policy
    yield from keyed("decision", f"{policy.action or 'not recorded'}: {policy.reason}")
    yield from keyed("weighed", weighed(policy))


def weighed(policy: PolicyView) -> str:
    """What the policy had to go by."""
    allowed = policy.max_restarts
    budget = "" if allowed is None else f"restart {policy.restart_count} of {allowed}; "
    progress = "the round had made progress" if policy.has_progressed else "the round had made no progress"
    before = policy.same_before
    same = f"{plural(before, 'earlier incident')} like it" if before else "the first of its kind"
    pause = f"; pause of {short(policy.delay_s)}" if policy.delay_s else ""
    return f"{budget}{progress}; {same}{pause}"


def _exits(exits: Sequence[ExitRow], when: When) -> Iterator[str]:
    if not exits:
        return
    first = exits[0].ts
    yield f"{'rank':>5} {'node':<20} {'pid':>8} {'ended by':<12} {'steps':>7} {'after':>9}"
    for one in exits[:_SHOWN_EXITS]:
        how, role = how_it_ended(one)
        after = f"{one.ts - first:+.3f} s"
        node = cut(one.node, 20)
        yield f"{one.rank:>5} {node:<20} {one.pid:>8} {how:<12} {one.steps:>7} {after:>9}  {role}"
    if rest := exits[_SHOWN_EXITS:]:
        yield from wrap(f"and {plural(len(rest), 'rank')} more: {list_ranks(one.rank for one in rest)}")
    for one in exits[:_SHOWN_EXITS]:
        signs = signs_of(one)
        if signs and (one.is_culprit or not one.is_stopped_by_agent):
            yield from wrap(f"rank {one.rank}: {signs}")


def signs_of(one: ExitRow) -> str:
    """What a rank had last shown of its work, and when it ended; "" if nothing is known."""
    known = []
    if one.since_start_s is not None:
        known.append(f"ended {short(one.since_start_s)} after it began")
    if one.last_step is not None:
        known.append(f"last at step {one.last_step}")
    if one.beat_age_s is not None:
        known.append(f"{short(one.beat_age_s)} after its last sign of progress")
    if one.sections:
        known.append(f"in section {' / '.join(one.sections)}")
    return ", ".join(known)


def _evidence(rows: Sequence[EvidenceRow]) -> Iterator[str]:
    for row in rows[:_SHOWN_NODES]:
        yield f"evidence of node {row.node}"
        for sentence in sentences(row):
            yield from (f"  {line}" for line in wrap(f"* {sentence}", WIDTH - 2, 2))
    if rest := rows[_SHOWN_NODES:]:
        yield f"and of {plural(len(rest), 'node')} more"


def how_it_ended(one: ExitRow) -> tuple[str, str]:
    """Signal or exit code of a rank, and its part in the incident."""
    role = "root cause" if one.is_culprit else ("stopped" if one.is_stopped_by_agent else "by itself")
    return one.signal_name or f"exit {one.exit_code}", role


def _said(detail: Detail, when: When) -> Iterator[str]:
    if not detail.said:
        return
    yield "what the agents said"
    for one in detail.said:
        yield from (f"  {line}" for line in wrap(f"{when(one.ts)} {one.node}: {one.sentence}", WIDTH - 2, 9))


def _file(one: TextFile) -> Iterator[str]:
    yield from wrap(f"{one.what}: {one.path}")
    if not one.tail:
        yield "  (empty, or not to be read from here)"
    for line in one.tail:
        yield f"  | {''.join(char if char.isprintable() or char == _TAB else '?' for char in line)}"

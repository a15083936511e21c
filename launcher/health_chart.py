"""What a node's health checks say over the whole job: what has changed, what is fatal, and for whom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ftrun.healthchecks.result import Result, Status, Subject, is_known
from ftrun.launcher.message_bounds import MAX_AILMENTS, shorten_ailment
from ftrun.monitor.events import HealthChanged
from ftrun.monitor.hardware import RECENT_S
from ftrun.monitor.incident import Ailment

STOPPING_CHECKS = frozenset({"gpu.lost", "gpu.reset", "gpu.ecc"})
"""Checks whose failure on a GPU that a worker uses ends a round that runs: nothing can be computed there any
more, or not correctly. For anything else a job that makes progress is worth more than what might come."""
_TO_CONFIRM = 2
"""Checks in a row that must agree on that: one reading may be wrong, and nothing is worse than ending a
healthy job."""
_MAX_STRIKES = 3
"""Times that a GPU may fail in one job, well in between. A fault that only shows under load passes all checks
of an idle GPU (NVIDIA/NVSentinel#695), and each time costs a restart; gpud gives up after two reboots."""
_WELL = (Status.HEALTHY, Status.SKIPPED)
_XID = "gpu.xid"
_GRAVEST_FIRST = (Status.UNHEALTHY, Status.UNKNOWN, Status.DEGRADED, Status.HEALTHY, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a check says of a subject."""

    result: Result
    since: float
    """When it was first found so: the same status with the same words (CLOCK_MONOTONIC, seconds)."""
    status_since: float
    """When it was first found with this status."""
    times: int = 1
    """Checks in a row that gave this status."""
    strikes: int = 0
    """Times that it was found unhealthy by several checks in a row, and well before."""
    last_bad: Result | None = None
    """What was found the last time that it was unhealthy."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What all checks said last. Replaced, never changed in place."""

    entries: Mapping[tuple[str, str], Entry] = field(default_factory=dict)
    """By check and kind and name of the subject."""
    devices: tuple[str, ...] | None = None
    """UUIDs of the devices that CUDA numbers 0, 1, ..; None if that is not known."""
    gpus: tuple[str, ...] | None = None
    """UUID of the GPU that each of them is a MIG part of, whom results are about; None if they are GPUs."""
    slot_count: int = 0
    """Workers of the node if no GPU is left out; worker k uses the GPU with number k."""
    slots: tuple[int, ...] = ()
    """Those of the round's workers, by local rank."""


def take_in(chart: Chart, results: Iterable[Result], now: float) -> tuple[Chart, tuple[HealthChanged, ...]]:
    """The chart after one more check, and what is to be journalled of it: one event per change.

    A check that was not made this time still says what it did. To be well and not to be checkable are one.
    """
    found = _gravest(results)
    entries = _without_nameless(chart.entries, found)
    changes = []
    for result in found:
        key = _key(result)
        before = entries.get(key)
        entries[key] = _follow(before, result, now)
        if _is_change(before, result):
            changes.append(_change(before, result))
    return replace(chart, entries=entries), tuple(changes)


def _without_nameless(
    entries: Mapping[tuple[str, str], Entry], results: Sequence[Result]
) -> dict[tuple[str, str], Entry]:
    """The entries but those of GPUs that could not say who they are, and can now: they have another name."""
    named = {one.subject.index for one in results if is_known(one.subject.name)} - {None}

    def is_of_past(subject: Subject) -> bool:
        return subject.index in named and not is_known(subject.name)

    return {key: entry for key, entry in entries.items() if not is_of_past(entry.result.subject)}


def _key(result: Result) -> tuple[str, str]:
    # The index of a GPU may change, or not be known any more.
    return result.check, f"{result.subject.kind} {result.subject.name}"


def _gravest(results: Iterable[Result]) -> list[Result]:
    """One per check and subject."""
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        key = _key(result)
        other = found.get(key)
        if other is None or _gravity(result) < _gravity(other):
            found[key] = result
    return list(found.values())


def _gravity(result: Result) -> int:
    return _GRAVEST_FIRST.index(result.status)


def _follow(before: Entry | None, result: Result, now: float) -> Entry:
    is_bad = result.status is Status.UNHEALTHY
    last_bad = result if is_bad else before.last_bad if before is not None else None
    if before is None or before.result.status is not result.status:
        return Entry(result, now, now, 1, before.strikes if before is not None else 0, last_bad)
    is_same = before.result.observed == result.observed
    times = before.times + 1
    strikes = before.strikes + (is_bad and times == _TO_CONFIRM)
    return Entry(result, before.since if is_same else now, before.status_since, times, strikes, last_bad)


def _is_change(before: Entry | None, result: Result) -> bool:
    if result.status in _WELL:
        return before is not None and before.result.status not in _WELL
    return before is None or before.result.status is not result.status


def _change(before: Entry | None, result: Result) -> HealthChanged:
    return HealthChanged(
        result.check,
        str(result.subject),
        result.status.value,
        before.result.status.value if before is not None else "",
        result.observed,
        result.expected,
        result.remedy,
        result.is_persistent,
    )


def find_fatal(chart: Chart) -> tuple[Ailment, ...]:
    """Why this node should not take part in a round with all its slots; a few only."""
    return tuple(_ailment(chart, _as_fatal(entry), entry.since) for entry in _fatal(chart)[:MAX_AILMENTS])


def find_sick_slots(chart: Chart) -> frozenset[int] | None:
    """Slots whose GPU is to blame for all that is fatal; None if something else is, too."""
    slots = [_slots_on(chart, entry.result) for entry in _fatal(chart)]
    return frozenset(chain.from_iterable(slots)) if all(slots) else None


def find_slots_of(chart: Chart, gpus: frozenset[str]) -> frozenset[int]:
    """Slots whose workers would use one of these GPUs or MIG devices (UUIDs).

    A MIG device shares the fate of its GPU, and by itself when it is gone.
    """
    devices = tuple(chart.devices or ())
    names = [{device, gpu} for device, gpu in zip(devices, chart.gpus or devices, strict=True)]
    slots = range(chart.slot_count) if names else ()
    return frozenset(slot for slot in slots if names[slot % len(names)] & gpus)


def _fatal(chart: Chart) -> list[Entry]:
    return [
        entry
        for entry in chart.entries.values()
        if entry.result.status is Status.UNHEALTHY or _is_out_for_good(entry)
    ]


def _as_fatal(entry: Entry) -> Entry:
    """With the reason, where that is not what was found last."""
    last = entry.last_bad
    if entry.result.status is Status.UNHEALTHY or last is None:
        return entry
    observed = f"has failed {entry.strikes} times in this job, last: {last.observed}"
    return replace(entry, result=replace(last, observed=observed))


def _is_out_for_good(entry: Entry) -> bool:
    return entry.strikes >= _MAX_STRIKES and entry.result.subject.kind == "gpu"


def find_ailments(chart: Chart, ended_at: float) -> tuple[Ailment, ...]:
    """What was wrong when a round began to end (CLOCK_MONOTONIC, seconds), the gravest first; a few only.

    Errors that the driver reported for a GPU are among them whatever they mean for it.
    """
    entries = chart.entries.values()
    found = [one for one in entries if _is_worth_telling(one, ended_at) and not _is_left_out(chart, one)]
    found.sort(key=lambda entry: (_gravity(entry.result), -len(_ranks(chart, entry.result)), -entry.since))
    return tuple(_ailment(chart, entry, ended_at) for entry in found[:MAX_AILMENTS])


def _is_worth_telling(entry: Entry, ended_at: float) -> bool:
    result = entry.result
    if result.status is Status.UNHEALTHY:
        return True
    is_xid = result.check == _XID and result.observed.startswith("Xid ")
    is_recent = ended_at - entry.since <= RECENT_S
    return is_recent and (result.status is Status.DEGRADED or is_xid) and not result.is_persistent


def _is_left_out(chart: Chart, entry: Entry) -> bool:
    """It is about a GPU without which the round began."""
    return bool(_slots_on(chart, entry.result)) and not _ranks(chart, entry.result)


def find_reason_to_stop(chart: Chart, began_at: float) -> str:
    """Why the workers that run since `began_at` cannot go on, as a sentence; "" if there is no proof of that.

    What was known before has not kept the node out of the round, and so does not end it either.
    """
    for entry in chart.entries.values():
        ranks = _stopped_ranks(chart, entry, began_at)
        if ranks and entry.times >= _TO_CONFIRM:
            whose = f"local rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            result = entry.result
            return f"the GPU of {whose} failed: {result.subject}: {result.observed} ({result.check})"
    return ""


def needs_second_look(chart: Chart, began_at: float) -> bool:
    """Whether the next check is wanted soon, because it may be the proof."""
    return any(
        _stopped_ranks(chart, entry, began_at) and entry.times < _TO_CONFIRM
        for entry in chart.entries.values()
    )


def _stopped_ranks(chart: Chart, entry: Entry, began_at: float) -> tuple[int, ...]:
    is_bad = entry.result.check in STOPPING_CHECKS and entry.result.status is Status.UNHEALTHY
    return _ranks(chart, entry.result) if is_bad and entry.status_since >= began_at else ()


def _ranks(chart: Chart, result: Result) -> tuple[int, ...]:
    """Local ranks of the round's workers on the GPU."""
    slots = _slots_on(chart, result)
    return tuple(rank for rank, slot in enumerate(chart.slots) if slot in slots)


def _slots_on(chart: Chart, result: Result) -> tuple[int, ...]:
    if result.subject.kind not in ("gpu", "nvlink"):
        return ()
    return tuple(sorted(find_slots_of(chart, frozenset({result.subject.name}))))


def _ailment(chart: Chart, entry: Entry, ended_at: float) -> Ailment:
    result = entry.result
    return shorten_ailment(
        Ailment(
            result.check,
            str(result.subject),
            result.observed,
            result.remedy,
            _ranks(chart, result),
            is_fatal=result.status is Status.UNHEALTHY,
            age_s=ended_at - entry.since,
        )
    )

"""How long each phase of a job has taken at most, and the timeouts that follow from it.

Pure. Merges what ranks and rounds have shown, describes it, and writes it as configuration to paste. How long
the job may be quiet while it runs is `stall_limits`'s question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ftrun.monitor.event import Event
from ftrun.monitor.hang_events import TimeoutsObserved
from ftrun.monitor.heartbeats import Observed
from ftrun.monitor.rank_signs import Signs
from ftrun.monitor.stall_limits import STALL_FLOOR_S, Learned

LEAST_TIMEOUT_S = 10.0
"""No suggested timeout is below it: pauses that a busy machine makes do not scale with a short step."""


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest that each phase has taken, seconds; None or absent if the phase was never completed."""

    initialisation_s: float | None = None
    """From the worker's start, or a client's initialisation, to the first progress or heartbeat."""
    step_gap_s: float | None = None
    """Between two signs of progress, or two heartbeats, of a rank."""
    sections: tuple[tuple[str, float], ...] = ()
    """Stay in a section, by its name, sorted."""
    out_of_section_s: float | None = None
    quiet_s: float | None = None
    """No sign from any rank, and then progress."""

    @classmethod
    def of_client(cls, observed: Observed) -> Longest:
        """What one rank's client of nvidia-resiliency-ext has shown."""
        return cls(
            initialisation_s=observed.initial,
            step_gap_s=observed.steady,
            sections=tuple(sorted(observed.sections.items())),
            out_of_section_s=observed.out_of_section,
        )

    @classmethod
    def of_job(cls, learned: Learned) -> Longest:
        """What the stall detector has seen of the whole job."""
        return cls(quiet_s=learned.longest_quiet_s if learned.gap_count else None)


def note(longest: Longest, before: Signs | None, after: Signs) -> Longest:
    """`longest` of a rank after another look at its signs; `before` is the look before in the same round.

    Right to within the time between two looks, and never too short.
    """
    return merge([longest, _progress_between(before, after), _sections_between(before, after)])


def _progress_between(before: Signs | None, after: Signs) -> Longest:
    if after.last_progress_at is None or (before and before.progress_count >= after.progress_count):
        return Longest()
    if before is None or before.last_progress_at is None:
        return Longest(initialisation_s=after.last_progress_at - after.started_at)
    return Longest(step_gap_s=after.last_progress_at - before.last_progress_at)


def _sections_between(before: Signs | None, after: Signs) -> Longest:
    """Sections of ftrun's own client that were left; ones that came and went between looks are not seen."""
    left = [] if before is None else [one for one in before.open_sections if one not in after.open_sections]
    return merge(Longest(sections=((one.name, after.at - one.opened_at),)) for one in left)


def merge(parts: Iterable[Longest]) -> Longest:
    """The longest of each phase over ranks, nodes or rounds."""
    merged = Longest()
    for part in parts:
        sections = dict(merged.sections)
        for name, seconds in part.sections:
            sections[name] = max(seconds, sections.get(name, 0.0))
        merged = Longest(
            _longer(merged.initialisation_s, part.initialisation_s),
            _longer(merged.step_gap_s, part.step_gap_s),
            tuple(sorted(sections.items())),
            _longer(merged.out_of_section_s, part.out_of_section_s),
            _longer(merged.quiet_s, part.quiet_s),
        )
    return merged


def to_event(longest: Longest, round_number: int) -> TimeoutsObserved:
    """What the journal keeps of it, at the end of that round."""
    return TimeoutsObserved(
        round_number,
        longest.initialisation_s,
        longest.step_gap_s,
        longest.out_of_section_s,
        longest.quiet_s,
        tuple(name for name, _ in longest.sections),
        tuple(seconds for _, seconds in longest.sections),
    )


def of_journal(events: Iterable[Event]) -> Longest:
    """The longest of each phase in the events of one run, of any of its nodes; other events do not matter."""
    return merge(
        Longest(
            event.initialisation_s,
            event.step_gap_s,
            tuple(zip(event.section_names, event.section_longest_s, strict=False)),
            event.out_of_section_s,
            event.quiet_s,
        )
        for event in events
        if isinstance(event, TimeoutsObserved)
    )


def _longer(one: float | None, other: float | None) -> float | None:
    known = [seconds for seconds in (one, other) if seconds is not None]
    return max(known, default=None)


def describe(longest: Longest) -> str:
    """The phases and their longest times as a table for a terminal, one phase a line."""
    rows = [
        (name, "not seen" if seconds is None else f"{seconds:.2f} s") for name, seconds in _phases(longest)
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {seconds}\n" for name, seconds in rows)


def _phases(longest: Longest) -> Iterator[tuple[str, float | None]]:
    yield "initialisation", longest.initialisation_s
    yield "step gap", longest.step_gap_s
    for name, seconds in longest.sections:
        yield f"section {_quoted(name)}", seconds
    yield "out of section", longest.out_of_section_s
    yield "quiet", longest.quiet_s


def suggest(longest: Longest, safety_factor: float = 5.0, stall_floor_s: float = STALL_FLOOR_S) -> str:
    """Configuration to paste, as YAML: each longest time times `safety_factor`, rounded up to whole seconds.

    Phases that were not seen are left out, so that they keep the value they have.
    """
    initial, steady = (
        _timeout(seconds, safety_factor) for seconds in (longest.initialisation_s, longest.step_gap_s)
    )
    if initial is not None and steady is not None:
        initial = max(initial, steady)  # a lower one would be refused
    sections = {name: _timeout(seconds, safety_factor) for name, seconds in longest.sections}
    lines = [
        *_key("initial_rank_heartbeat_timeout", initial, longest.initialisation_s),
        *_key("rank_heartbeat_timeout", steady, longest.step_gap_s),
        *_section_keys(sections, dict(longest.sections)),
        *_key(
            "rank_out_of_section_timeout",
            _timeout(longest.out_of_section_s, safety_factor),
            longest.out_of_section_s,
        ),
    ]
    text = "fault_tolerance:\n" + "".join(f"  {line}\n" for line in lines) if lines else ""
    if longest.quiet_s is not None:
        stall = _timeout(longest.quiet_s, safety_factor, stall_floor_s)
        text += "ftrun:\n  timeouts:\n"
        text += "".join(f"    {line}\n" for line in _key("stall", stall, longest.quiet_s))
    return text or "# Nothing was seen from which a timeout could follow.\n"


def _timeout(seconds: float | None, factor: float, least_s: float = LEAST_TIMEOUT_S) -> int | None:
    return None if seconds is None else math.ceil(max(least_s, factor * seconds))


def _key(name: str, timeout_s: int | None, seen_s: float | None) -> Iterator[str]:
    if timeout_s is not None and seen_s is not None:
        yield f"# Seconds. Longest seen: {seen_s:.2f}."
        yield f"{name}: {timeout_s}"


def _section_keys(timeouts: Mapping[str, int | None], seen: Mapping[str, float]) -> Iterator[str]:
    if timeouts:
        yield "rank_section_timeouts:"
    for name, timeout_s in timeouts.items():
        for line in _key(_quoted(name), timeout_s, seen[name]):
            yield f"  {line}"


def _quoted(name: str) -> str:
    """`name` as a double-quoted string of YAML 1.1 (section 5.7), on one line whatever it holds."""
    return f'"{"".join(map(_escaped, name))}"'


def _escaped(character: str) -> str:
    if character.isprintable() and character not in '"\\':
        return character
    return f"\\U{ord(character):08x}"

"""What the phases of a job have taken at most, and the configuration that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.monitor.hang_events import HeartbeatsDegraded
from ftrun.monitor.heartbeats import (
    Heartbeat,
    Init,
    Message,
    OpenSection,
    RankHeartbeats,
    Section,
    SectionAction,
    Timeouts,
    receive,
)
from ftrun.monitor.rank_signs import Signs
from ftrun.monitor.stall_limits import Learned
from ftrun.monitor.timeouts import Longest, describe, merge, note, of_journal, suggest, to_event


def look(at: float, count: int, last_at: float | None) -> Signs:
    return Signs(at=at, started_at=100.0, progress_count=count, last_progress_at=last_at)


LOOKS: dict[str, tuple[list[Signs], Longest]] = {
    "nothing yet": ([look(101, 0, None), look(200, 0, None)], Longest()),
    "first step": ([look(101, 0, None), look(131, 1, 130.5)], Longest(initialisation_s=30.5)),
    "already moving at the first look": ([look(131, 5, 130.5)], Longest(initialisation_s=30.5)),
    "steps": (
        [look(131, 1, 130), look(132, 2, 131.8), look(140, 3, 139.8), look(141, 4, 140)],
        Longest(30.0, 8.0),
    ),
    "several steps between two looks": ([look(131, 1, 130), look(133, 9, 132)], Longest(30.0, 2.0)),
    "no step between two looks": ([look(131, 1, 130), look(150, 1, 130)], Longest(30.0)),
    "a clock without progress": ([look(131, 3, None)], Longest()),
}


@pytest.mark.parametrize(("looks", "expected"), LOOKS.values(), ids=LOOKS.keys())
def test_looks_at_a_rank_are_noted(looks: list[Signs], expected: Longest) -> None:
    """Initialisation ends with the first progress; gaps are those between the looks that saw progress."""
    longest, before = Longest(), None
    for one in looks:
        longest, before = note(longest, before, one), one
    assert longest == expected


def test_own_sections_are_noted_when_they_are_left() -> None:
    """A section counts from when it was opened to the look that no longer found it."""
    inside = Signs(at=104.0, started_at=100.0, open_sections=(OpenSection("eval", 102.5),))
    again = Signs(at=111.0, started_at=100.0, open_sections=(OpenSection("eval", 110.5),))
    longest = note(Longest(), None, inside)
    assert longest == note(longest, inside, replace(inside, at=109.0)) == Longest()
    assert note(longest, inside, again) == Longest(sections=(("eval", 8.5),))


def test_client_of_nvrx_is_noted() -> None:
    """What a RankMonitorClient sends gives the same phases."""
    state = RankHeartbeats(timeouts=Timeouts.from_config(None, None, {"eval": None, "step": None}, None))
    history: list[tuple[float, Message]] = [
        (0.0, Init()),
        (4.0, Heartbeat()),
        (5.0, Section("step", SectionAction.OPEN)),
        (7.0, Section("step", SectionAction.CLOSE)),
        (10.0, Heartbeat()),
    ]
    for at, message in history:
        state, _ = receive(state, message, at)
    assert Longest.of_client(state.observed) == Longest(4.0, 6.0, (("step", 2.0),), 5.0)


def test_job_is_noted() -> None:
    """A quiet time is known once progress has followed progress."""
    assert Longest.of_job(Learned()) == Longest()
    assert Longest.of_job(Learned(3.5, gap_count=1)) == Longest(quiet_s=3.5)


def test_longest_of_all_is_kept() -> None:
    """Ranks and rounds are merged phase by phase, sections by name; unknown phases take nothing away."""
    merged = merge(
        [
            Longest(30.0, 2.0, (("eval", 9.0), ("step", 1.0))),
            Longest(None, 3.0, (("step", 4.0),), 0.5),
            Longest(20.0, None, (), None, 7.0),
        ]
    )
    assert merged == Longest(30.0, 3.0, (("eval", 9.0), ("step", 4.0)), 0.5, 7.0)
    assert merge([]) == Longest()


SECONDS = st.none() | st.floats(0.0, 1e5)
SECTIONS = st.dictionaries(st.text(max_size=8), st.floats(0.0, 1e5), max_size=4)
LONGEST = st.builds(
    Longest, SECONDS, SECONDS, SECTIONS.map(lambda found: tuple(sorted(found.items()))), SECONDS, SECONDS
)


@given(st.lists(LONGEST, max_size=4))
def test_order_of_merging_is_free(parts: list[Longest]) -> None:
    """Ranks and rounds may come in any order, and a part that is merged twice changes nothing."""
    assert merge(parts) == merge(reversed(parts)) == merge([merge(parts), *parts])


@given(LONGEST, LONGEST)
def test_journal_keeps_what_was_seen(first: Longest, second: Longest) -> None:
    """Events of several rounds and nodes give back the longest of each phase."""
    events = [to_event(first, 0), HeartbeatsDegraded("no directory for sockets"), to_event(second, 1)]
    assert of_journal(events) == merge([first, second])
    assert of_journal([]) == Longest()


@settings(max_examples=40)
@given(LONGEST, st.floats(1.0, 10.0))
def test_suggestion_is_valid_and_never_below_what_was_seen(longest: Longest, factor: float) -> None:
    """The text is YAML with each phase seen, no limit below its longest time, initial not below steady."""
    found = yaml.safe_load(suggest(longest, factor)) or {}
    limits = found.get("fault_tolerance", {})
    initial, steady = (
        limits.get(key) for key in ("initial_rank_heartbeat_timeout", "rank_heartbeat_timeout")
    )
    pairs = [
        (initial, longest.initialisation_s),
        (steady, longest.step_gap_s),
        (limits.get("rank_out_of_section_timeout"), longest.out_of_section_s),
        (found.get("ftrun", {}).get("timeouts", {}).get("stall"), longest.quiet_s),
    ]
    sections = limits.get("rank_section_timeouts", {})
    assert sections.keys() == dict(longest.sections).keys()
    pairs += [(sections[name], seconds) for name, seconds in longest.sections]
    for limit, seconds in pairs:
        assert (limit is None) == (seconds is None)
        if seconds is not None:
            assert limit >= max(10.0, factor * seconds)
    if initial is not None and steady is not None:
        assert initial >= steady


def test_suggestion_reads_well() -> None:
    """What is printed can be pasted, and says of each value where it comes from."""
    longest = Longest(41.2, 0.9, (("eval", 60.0), ("step", 2.5)), None, 4.0)
    assert suggest(longest) == (
        "fault_tolerance:\n"
        "  # Seconds. Longest seen: 41.20.\n"
        "  initial_rank_heartbeat_timeout: 206\n"
        "  # Seconds. Longest seen: 0.90.\n"
        "  rank_heartbeat_timeout: 10\n"
        "  rank_section_timeouts:\n"
        "    # Seconds. Longest seen: 60.00.\n"
        '    "eval": 300\n'
        "    # Seconds. Longest seen: 2.50.\n"
        '    "step": 13\n'
        "ftrun:\n"
        "  timeouts:\n"
        "    # Seconds. Longest seen: 4.00.\n"
        "    stall: 60\n"
    )


def test_nothing_seen_suggests_nothing() -> None:
    """Without observations there is a comment and no empty section, which would be an error in a file."""
    assert yaml.safe_load(suggest(Longest())) is None
    assert suggest(Longest()).startswith("# ")


def test_phases_are_described() -> None:
    """One phase a line, also those that were not seen."""
    assert describe(Longest(41.2, 0.9, (("eval", 60.0),))) == (
        "initialisation  41.20 s\n"
        "step gap        0.90 s\n"
        'section "eval"  60.00 s\n'
        "out of section  not seen\n"
        "quiet           not seen\n"
    )

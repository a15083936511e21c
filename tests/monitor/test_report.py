"""The report: what an outsider reads on the first screen, and the form that programs get."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from ftrun.monitor import comparison, plain, report_text
from ftrun.monitor.comparison import Comparison, compare
from ftrun.monitor.detail import Detail
from ftrun.monitor.durations import parse, percent, short
from ftrun.monitor.history import Pulse
from ftrun.monitor.merging import merge
from ftrun.monitor.report import IncidentRow, Report, make_report
from ftrun.monitor.report_text import SHOWN_INCIDENTS, WIDTH, render
from ftrun.monitor.runs_command import RunList
from ftrun.monitor.timeline import group
from tests.support.journals import JOURNALS, recorded, report_of, run_of
from tests.support.simulated_journals import Part, Simulation, read

DOCS = Path(__file__).parents[2] / "docs"


def when(ts: float) -> str:
    """A time that is the same on every machine."""
    return f"{int(ts) % 86400 // 3600:02}:{int(ts) % 3600 // 60:02}:{int(ts) % 60:02}"


def screen(report: Report, is_whole: bool = False) -> list[str]:
    return render(report, when, is_whole).splitlines()


def test_first_25_lines_answer_everything() -> None:
    """Five mixed faults on two nodes: how many, which kinds, whose, the total cost, and what to change."""
    first = "\n".join(screen(report_of("five_faults"))[:25])
    assert "5 incidents: killed, exception, stall, segfault, node_lost; recovered from all" in first
    assert "begun on: gpu-b (4), gpu-a (1); cost: " in first
    assert "35 steps done again" in first
    assert "raised ValueError: loss is nan" in first
    assert "to do    * no two incidents are alike" in first
    assert "4 of 5 incidents began on node gpu-b" in first


@pytest.mark.parametrize("name", recorded())
@pytest.mark.parametrize("is_whole", [False, True])
def test_report_fits_a_terminal_of_80_columns(name: str, is_whole: bool) -> None:
    """In plain ASCII, so that it can be mailed."""
    lines = screen(report_of(name), is_whole)
    assert max(map(len, lines)) <= WIDTH
    assert "\n".join(lines).isascii()


def test_report_of_a_run_without_incidents_is_short() -> None:
    """There is nothing to read at three in the morning."""
    [members] = group(Simulation(["a"], 2).run([Part(steps=100, step_s=1.0)]).lives())
    lines = screen(make_report(merge(members), "quiet", "/runs/quiet"))
    assert lines[:2] == [
        "quiet: train.py on 1 node, 2 ranks; ended with exit code 0 after 1 min 43 s",
        "no incidents",
    ]
    assert len(lines) < 8


def test_job_that_ended_badly_says_why_at_once() -> None:
    """The reason is on the second line."""
    lines = screen(report_of("import_error"))
    assert lines[0].endswith("ended with exit code 93 after 2.02 s")
    assert lines[1].startswith("why it ended: rank 1")


def test_of_many_incidents_the_last_are_shown() -> None:
    """Then the rest still fits on the screen; all of them are there on demand."""
    parts = [Part() for _ in range(40)]
    [members] = group(Simulation(["a", "b"], 2).run(parts).lives())
    report = make_report(merge(members), "many", "/runs/many")
    lines = screen(report)
    assert "     (34 earlier ones: --all)" in lines
    assert sum("rank 0 failed" in line for line in lines) == SHOWN_INCIDENTS
    assert next(place for place, line in enumerate(lines) if line.startswith("to do")) < 25
    assert sum("rank 0 failed" in line for line in screen(report, is_whole=True)) == 39


@pytest.mark.parametrize("name", recorded())
def test_report_can_be_made_at_any_moment(name: str) -> None:
    """Of journals that end anywhere, while the run goes on, or after its agents were killed."""
    texts = [path.read_text().splitlines() for path in sorted((JOURNALS / name).glob("*.jsonl"))]
    chooser = random.Random(name)
    for _ in range(25):
        lives = [read(lines[: chooser.randint(0, len(lines))]) for lines in texts]
        pulses = {node: chooser.choice(list(Pulse)) for node in ("gpu-a", "gpu-b", "gpu-c")}
        for members in group(lives):
            report = make_report(merge(members, 1796012000.0, pulses), name, "/runs")
            assert max(map(len, screen(report, is_whole=True))) <= WIDTH
            json.dumps(plain.to_plain(report), allow_nan=False)


def test_running_job_is_told_as_running() -> None:
    """With the time since it began."""
    [members] = group([read((JOURNALS / "killed_agent/gpu-a.jsonl").read_text().splitlines())])
    began = merge(members).began
    run = merge(members, began + 3600, {"gpu-a": Pulse.ALIVE})
    assert (
        screen(make_report(run, "r", "/r"))[0] == "r: faulty_training.py on 1 node, 2 ranks; running for 1 h"
    )


def test_recovery_times_are_a_distribution() -> None:
    """Median, 90th percentile and longest are times that were seen; failed restarts are counted."""
    recovery = report_of("five_faults").recovery
    times = sorted(one.recover_s for one in report_of("five_faults").incidents if one.recover_s is not None)
    assert (recovery.count, recovery.median_s, recovery.p90_s, recovery.max_s) == (
        5,
        times[2],
        times[4],
        times[4],
    )
    assert report_of("crash_loop").recovery.failed_restarts == 2


def test_numbers_stay_with_their_units() -> None:
    """No line ends between the two."""
    for name in recorded():
        assert not [line for line in screen(report_of(name), True) if line.lstrip().startswith(("% ", "%,"))]


def test_line_breaks_in_a_reason_make_no_second_line() -> None:
    """An exception's text may have any."""
    report = report_of("spare")
    row = dataclasses.replace(report.incidents[0], reason="first\nsecond\r\nthird")
    lines = screen(dataclasses.replace(report, incidents=(row,)))
    assert "     first second third" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.314, "0.31 s"), (9.99, "9.99 s"), (14.2, "14 s"), (59.6, "1 min"), (200, "3 min 20 s"),
     (7500, "2 h 5 min"), (86400 * 6 + 3 * 3600, "6 d 3 h"), (3599.7, "1 h")],
)  # fmt: skip
def test_times_are_short(seconds: float | None, text: str) -> None:
    """Two units at most."""
    assert short(seconds) == text


def test_parts_are_percent() -> None:
    """With one digit."""
    assert (percent(0.9123), percent(1.0), percent(None)) == ("91.2 %", "100.0 %", "unknown")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604800), ("2 w", 1209600)],
)
def test_lengths_of_time_are_understood(text: str, seconds: float) -> None:
    """As people type them."""
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "7 years", "-3d", "1h30m"])
def test_other_lengths_of_time_are_refused(text: str) -> None:
    """With examples of those that can be understood."""
    with pytest.raises(ValueError, match="7d"):
        parse(text)


def test_form_of_the_json_is_documented() -> None:
    """docs/report.md has the tables that the dataclasses make: `python -m ftrun.monitor.report_doc`."""
    page = (DOCS / "report.md").read_text()
    for form in (Report, RunList, Detail, Comparison):
        assert plain.document(form).strip() in page, form.__name__


def test_json_has_every_documented_field_and_no_other() -> None:
    """Also where something is missing."""
    found = plain.to_plain(report_of("five_faults"))
    assert isinstance(found, dict)
    assert found.keys() == {item.name for item in dataclasses.fields(Report)}
    [first, *_] = found["incidents"]  # type: ignore[misc]
    assert first.keys() == {item.name for item in dataclasses.fields(IncidentRow)}  # type: ignore[union-attr]


def test_two_runs_are_compared_by_what_was_set_and_what_came_of_it() -> None:
    """Settings that are the same are left out."""
    one, other = run_of("five_faults"), run_of("spare")
    one = dataclasses.replace(one, settings=(("stall", "3"), ("same", "1")))
    other = dataclasses.replace(other, settings=(("same", "1"), ("spares", "1")))
    found = compare(one, other, report_of("five_faults"), report_of("spare"))
    assert [(row.name, row.first, row.second) for row in found.settings] == [
        ("spares", None, "1"), ("stall", "3", None),
    ]  # fmt: skip
    assert found.are_settings_known
    figures = {row.name: (row.first, row.second) for row in found.figures}
    assert figures["incidents"] == (5, 1)
    assert figures["training goodput"] == (
        report_of("five_faults").goodput.training, report_of("spare").goodput.training,
    )  # fmt: skip
    assert not comparison.compare(
        run_of("spare"), other, report_of("spare"), report_of("spare")
    ).are_settings_known


def test_cut_keeps_the_width() -> None:
    """With dots where something is missing."""
    assert report_text.cut("abcdefgh", 6) == "abc..."
    assert report_text.cut("abcdef", 6) == "abcdef"

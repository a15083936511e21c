"""What stands on the report page: a row for each node, the steps as they went, no more than one can read."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.monitor import events as ev
from ftrun.monitor.event import JsonValue
from ftrun.monitor.goodput import Bucket, Segment
from ftrun.monitor.history import Run
from ftrun.monitor.merging import merge
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.report import make_report
from ftrun.monitor.report_html import draw
from ftrun.monitor.report_page import Page, make_page, worth_a_card
from ftrun.monitor.report_steps import Climb, climbs_of, split
from ftrun.monitor.report_timeline import MOST_ROWS, coarse
from ftrun.monitor.timeline import group
from tests.support.journals import recorded, run_of
from tests.support.simulated_journals import EPOCH, Journals, Part, Simulation, read


def page_of(run: Run, name: str = "run") -> Page:
    return make_page(make_report(run, name, f"/runs/{name}"), run, (), lambda ts: f"{ts:.0f}")


def merged(journals: Journals) -> Run:
    [members] = group(journals.lives())
    return merge(members)


def simulated(*parts: Part, nodes: Sequence[str] = ("a", "b")) -> Run:
    return merged(Simulation(nodes, 2).run(parts))


def rows_in(value: JsonValue) -> Iterator[Mapping[str, JsonValue]]:
    """All rows of data of a chart."""
    if isinstance(value, dict):
        values = value.get("values")
        if isinstance(values, list):
            yield from (row for row in values if isinstance(row, dict))
        for inner in value.values():
            yield from rows_in(inner)
    if isinstance(value, list):
        for inner in value:
            yield from rows_in(inner)


def rows_of(page: Page, chart: str) -> list[Mapping[str, JsonValue]]:
    [spec] = [one.spec for one in page.charts if one.name == chart]
    return list(rows_in(spec))


def length_ms(row: Mapping[str, JsonValue]) -> float:
    began, ended = row["from"], row["to"]
    assert isinstance(began, float)
    assert isinstance(ended, float)
    return ended - began


@pytest.mark.parametrize("name", recorded())
def test_page_tells_what_the_report_tells(name: str) -> None:
    """Every incident and node has its line; every second of every node is drawn."""
    run = run_of(name)
    page = page_of(run)
    assert [line.number for line in page.incidents] == [one.number for one in run.incidents]
    assert [line.name for line in page.nodes] == [node.name for node in run.nodes]
    drawn = [row for row in rows_of(page, "timeline") if "bucket" in row]
    for node in run.nodes:
        assert sum(length_ms(row) for row in drawn if row["row"] == node.name) == pytest.approx(
            run.wall_s * 1000, abs=len(drawn)
        )


def test_page_says_first_what_an_outsider_asks() -> None:
    """How it ended, which incidents, whose, what they cost; then what to change."""
    page = page_of(run_of("five_faults"), "five_faults")
    assert page.state == "good"
    assert page.summary == (
        "faulty_training.py on 2 nodes, 4 ranks; ended with exit code 0 after 2 min 45 s",
        "5 incidents: killed, exception, stall, segfault, node_lost; recovered from all",
        "begun on: gpu-b (4), gpu-a (1); cost: 1 min 53 s (68.7 %), 35 steps done again",
    )
    assert page.advice[0].startswith("no two incidents are alike")
    phases = ["detect", "stop", "start", "first step", "seen to first step"]
    assert [line.name for line in page.phases] == phases


def test_step_curve_falls_back_to_what_the_next_round_began_from() -> None:
    """The steps above that are drawn as done again."""
    run = simulated(Part(steps=10, kept=4, step_s=1.0), Part(steps=0), Part(steps=8, step_s=1.0))
    first, last = climbs_of(run, segments_of(run))
    assert first is not None
    assert last is not None
    assert (first.points[0][1], first.points[-1][1], first.counted_step) == (0, 10, 4)
    assert (last.points[0][1], last.points[-1][1], last.counted_step) == (4, 12, 12)
    kept, redone = split(first)
    assert [step for _, step in kept] == [0, 4]
    assert [step for _, step in redone] == [4, 10]
    assert kept[-1][0] - kept[0][0] == pytest.approx(4.0, abs=0.01)
    assert split(last) == (list(last.points), [])


def test_saves_give_the_step_curve_its_shape() -> None:
    """It goes through each; in the charts each is a mark (the last is the simulation's)."""
    journals = Simulation(("a", "b"), 2).run([Part(steps=10, kept=10, step_s=1.0)])
    for node in journals.lines:
        saves = [ev.CheckpointSaved(0, 0, f"/c/step-{step}", step, 0.0) for step in (2, 5)]
        times = (9.0, 10.0)
        journals.lines[node][2:2] = [
            to_json(Record(EPOCH + t, 1000.0 + t, node, save)) for t, save in zip(times, saves, strict=True)
        ]
    run = merged(journals)
    [climb] = climbs_of(run, segments_of(run))
    assert climb is not None
    assert [step for _, step in climb.points] == [0, 2, 5, 10]
    marks = [row for row in rows_of(page_of(run), "timeline") if row.get("row") == "(checkpoints)"]
    assert [row["from"] for row in marks][:2] == [(EPOCH + 9) * 1000, (EPOCH + 10) * 1000]
    assert len(marks) == 3


def test_round_whose_steps_are_not_known_leaves_a_gap() -> None:
    """An agent that was killed has not said how far it came; nothing is drawn across it."""
    journals = Simulation(("a",), 1).run([Part(), Part(), Part()])
    told = ("worker.exited", "progress.observed")
    journals.lines["a"] = [
        line
        for line in journals.lines["a"]
        if not ('"round":1' in line and any(f'"{kind}"' in line for kind in told))
    ]
    run = merged(journals)
    climbs = climbs_of(run, segments_of(run))
    assert [climb is None for climb in climbs] == [False, True, False]
    page = page_of(run)
    [chart] = [one for one in page.charts if one.name == "steps"]
    assert "leave a gap: those of 1 round." in chart.caption
    lines = {row["line"] for row in rows_of(page, "steps") if "line" in row}
    assert lines == {0, 1}


def test_node_without_a_journal_has_an_empty_row() -> None:
    """Others name it; what it did is not known."""
    journals = Simulation(("a", "b"), 1).run([Part(), Part()])
    del journals.lines["b"]
    page = page_of(merged(journals))
    [spec] = [one.spec for one in page.charts if one.name == "timeline"]
    assert "'b (no journal)'" in str(spec)
    assert not [row for row in rows_of(page, "timeline") if row.get("row") == "b (no journal)"]
    assert page.gaps == ("no journal here of node b: what these nodes did is not counted",)


def test_very_many_nodes_are_drawn_as_counts() -> None:
    """With a row for the one on which all incidents began."""
    nodes = [f"n{number}" for number in range(3 * MOST_ROWS)]
    run = simulated(Part(steps=50, kept=20, culprit=4), Part(steps=50), nodes=nodes)
    rows = rows_of(page_of(run), "timeline")
    assert {row["row"] for row in rows if "bucket" in row and "row" in row} == {"n2"}
    by_time: dict[JsonValue, float] = {}
    for row in rows:
        if "nodes" in row:
            assert isinstance(row["nodes"], float)
            by_time[str(row["from"])] = by_time.get(str(row["from"]), 0.0) + row["nodes"]
    assert by_time == {at: pytest.approx(len(nodes), abs=0.1) for at in by_time}
    assert by_time


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0.001, 50), st.sampled_from(list(Bucket))), min_size=1, max_size=60))
def test_coarse_row_is_as_long_as_the_fine_one(pieces: list[tuple[float, Bucket]]) -> None:
    """And has no two pieces of a bucket side by side, nor more than the chart has room for."""
    many = pieces * (5000 // len(pieces) + 1)
    began, row = 0.0, []
    for length, bucket in many:
        row.append(Segment(began, began + length, bucket, None))
        began += length
    run = dataclasses.replace(run_of("five_faults"), began=0.0, ended=began)
    drawn = coarse({"a": row}, run)["a"]
    assert len(drawn) <= 1000
    assert drawn[0].began == 0.0
    assert drawn[-1].ended == pytest.approx(began)
    for one, other in pairwise(drawn):
        assert one.ended == other.began
        assert one.bucket is not other.bucket


def test_evidence_is_shown_of_as_many_incidents_as_a_page_can_hold() -> None:
    """The latest ones; of very large jobs fewer, one at least."""
    parts = [Part(steps=1, kept=1)] * 60
    assert [one.number for one in worth_a_card(simulated(*parts))] == [*range(10, 60)]
    large = merged(Simulation(("a",), 1).run([Part(), Part(), Part()]))
    rounds = tuple(dataclasses.replace(one, world_size=30_000) for one in large.rounds)
    assert [one.number for one in worth_a_card(dataclasses.replace(large, rounds=rounds))] == [2]


def test_what_is_left_out_is_said() -> None:
    """And where to find it."""
    page = page_of(simulated(*[Part(steps=1, kept=1)] * 3))
    assert page.left_out == "All evidence is shown of the last 0; of another one: ftctl show NUMBER run"


def test_split_of_steps_that_all_counted_or_none() -> None:
    """Nothing is drawn twice."""
    points = ((0.0, 3.0), (5.0, 8.0))
    assert split(Climb(0, points, 8.0)) == (list(points), [])
    assert split(Climb(0, points, 3.0)) == ([], list(points))


def damage(lines: list[str], chooser: random.Random) -> list[str]:
    """Torn, with lines lost, numbers changed by bad memory, and a wall clock that was set."""
    lines = lines[: chooser.randint(1, len(lines))]
    lines = [line for line in lines if chooser.random() > 0.05]
    jump_s = chooser.choice((0.0, -86400.0, 3.2e7))
    place = chooser.randint(0, len(lines))
    found = []
    for number, line in enumerate(lines):
        fields = json.loads(line)
        if number >= place:
            fields["ts"] += jump_s
        if chooser.random() < 0.03:
            name = chooser.choice(list(fields))
            fields[name] = chooser.choice((None, -1, 1e300, "", [], 7, math.nan, {}))
        found.append(json.dumps(fields))
    return found


@pytest.mark.parametrize("seed", range(15))
def test_page_can_be_drawn_of_whatever_is_left_of_the_journals(seed: int) -> None:
    """No damage keeps it from being made, and no chart has a number that is none."""
    chooser = random.Random(seed)
    parts = [
        Part(
            steps=chooser.choice((0, 5, 20)), kept=chooser.choice((0, 5)), culprit=chooser.randrange(6),
            silent_s=chooser.choice((0.0, 10.0)),
        )
        for _ in range(chooser.randint(1, 6))
    ]  # fmt: skip
    journals = Simulation(("a", "b", "c"), 2, {"a": 5.0, "b": 9e5, "c": 0.0}).run(parts)
    kept = chooser.sample(list(journals.lines), chooser.randint(1, 3))
    lives = [read(damage(journals.lines[node], chooser)) for node in kept]
    for members in group([one for one in lives if one]):
        page = page_of(merge(members))
        for chart in page.charts:
            json.dumps(chart.spec, allow_nan=False)
            assert draw(chart.spec).startswith("<svg")

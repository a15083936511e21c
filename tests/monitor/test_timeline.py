"""Which lives are one run's, and how their clocks lie to each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.monitor import events as ev
from ftrun.monitor.merging import merge
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.timeline import group, place
from tests.support.journals import JOURNALS, lives_of
from tests.support.simulated_journals import Part, Simulation, read


def journal(node: str, *said: tuple[float, ev.Event], skew: float = 0.0, boot: float = 500.0) -> list[str]:
    """Lines of one node: seconds and events; its wall clock is wrong by `skew`."""
    return [to_json(Record(1e9 + t + skew, boot + t, node, event)) for t, event in said]


def started(run_id: str = "job") -> ev.RunStarted:
    return ev.RunStarted(run_id, "t.py", 0, 1, "given", 1, "0.1.0", "3.11")


def closed(number: int, port: int, *nodes: str) -> ev.RoundClosed:
    return ev.RoundClosed(number, len(nodes), number, "h", port, None, None, nodes, ())


def ended(code: int = 0) -> ev.RunEnded:
    return ev.RunEnded(code, "over", 0, 1.0)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1e8), min_size=2, max_size=5),
    st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5),
)
def test_clocks_are_aligned_by_rounds_whatever_they_say(boots: list[float], skews: list[float]) -> None:
    """Neither the time since boot nor a wall clock that is wrong by days changes who did what when."""
    nodes = [f"n{number}" for number in range(len(boots))]
    lives = []
    for node, boot, skew in zip(nodes, boots, skews, strict=False):
        said = [
            (0.0, started()),
            (1.0, closed(0, 5000, *nodes)),
            (9.0, closed(1, 5001, *nodes)),
            (20.0, ended()),
        ]
        lives.append(read(journal(node, *said, skew=skew, boot=boot)))
    [members] = group(lives)
    placed = place(members)
    assert [one.began for one in placed] == pytest.approx([placed[0].began] * len(nodes), abs=1e-5)
    assert merge(members).wall_s == pytest.approx(20, abs=1e-5)


def test_runs_of_one_id_after_another_are_apart() -> None:
    """The same directory, node and even port: a run that begins with round 0 again is another one."""
    one = [(0.0, started()), (1.0, closed(0, 29500, "a")), (2.0, ended(1))]
    again = [(100 + t, event) for t, event in one]
    lives = read(journal("a", *one, *again))
    assert [[life.began_at for life in members] for members in group([lives])] == [[500.0], [600.0]]


def test_agent_that_was_killed_and_came_back_is_in_the_same_run() -> None:
    """It goes on with the job's rounds; also if only its own journal is there."""
    said = [
        (0.0, started()),
        (1.0, closed(0, 5000, "a", "b")),
        (30.0, started()),
        (31.0, closed(1, 5001, "a", "b")),
    ]
    assert len(group([read(journal("a", *said))])) == 1


def test_late_joiner_of_a_later_run_is_not_in_the_run_before() -> None:
    """It began with a higher round than its last, but the run before had ended."""
    first = [(0.0, started()), (1.0, closed(0, 5000, "a", "b")), (2.0, ended(0))]
    host = [
        *first,
        (100.0, started()),
        (101.0, closed(0, 6000, "a", "c")),
        (200.0, closed(1, 6001, "a", "b")),
    ]
    joiner = [*first, (150.0, started()), (200.0, closed(1, 6001, "a", "b"))]
    groups = group([read(journal("a", *host)), read(journal("b", *joiner))])
    assert [sorted((life.node, life.began_at) for life in members) for members in groups] == [
        [("a", 500.0), ("b", 500.0)], [("a", 600.0), ("b", 650.0)],
    ]  # fmt: skip


def test_spare_without_a_round_belongs_to_what_ran_at_the_time() -> None:
    """Of two runs of one id, the one whose time it shares."""
    first = [(0.0, started()), (1.0, closed(0, 5000, "a", "b")), (50.0, ended())]
    second = [(100.0, started()), (101.0, closed(0, 6000, "a", "b")), (150.0, ended())]
    spare = [(110.0, started()), (111.0, ev.NodeParked(0, ("a", "b"))), (150.0, ended())]
    lives = [read(journal(node, *first, *second)) for node in ("a", "b")] + [read(journal("c", *spare))]
    assert [len(members) for members in group(lives)] == [2, 3]


def test_nodes_that_never_met_are_one_run_if_they_waited_together() -> None:
    """A rendezvous that did not form leaves journals without a round."""
    waits = [(0.0, started()), (60.0, ended(95))]
    lives = [read(journal("a", *waits)), read(journal("b", *waits, skew=2.0))]
    assert [len(members) for members in group(lives)] == [2]


def test_failed_starts_of_one_node_are_runs_of_their_own() -> None:
    """Each try of a scheduler is told apart."""
    said = [(0.0, started()), (1.0, ended(95)), (100.0, started()), (101.0, ended(95))]
    assert [len(members) for members in group([read(journal("a", *said))])] == [1, 1]


def test_recorded_clocks_agree_to_milliseconds() -> None:
    """On one machine all clocks are the same: the alignment by rounds must find nearly no difference."""
    [members] = group(lives_of(JOURNALS / "five_faults"))
    placed = place(members)
    offsets = [one.offset for one in placed]
    assert max(offsets) - min(offsets) < 0.1


def test_recordings_are_one_run_each() -> None:
    """Also with an agent that was killed and came back, and with a spare."""
    for path in Path(JOURNALS).iterdir():
        if path.is_dir():
            assert len(group(lives_of(path))) == 1, path.name


def test_thousand_nodes_are_one_run() -> None:
    """All of them share the first round."""
    nodes = [f"n{number:04}" for number in range(1000)]
    journals = Simulation(nodes, 1, {node: 1000.0 * n for n, node in enumerate(nodes)}).run([Part(), Part()])
    [members] = group(journals.lives())
    run = merge(members)
    assert (len(run.nodes), len(run.rounds), run.wall_s) == (
        1000,
        2,
        pytest.approx(journals.wall_s, abs=1e-3),
    )

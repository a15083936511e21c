"""Looking at a run while it goes on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.departures import FAREWELL_S, Witness, is_gone
from ftrun.monitor.page import Page, PageView
from ftrun.monitor.page_writer import PageError, PageWriter
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.watching import RunWatch

HERE = socket.gethostname()


@pytest.fixture
def page() -> Iterator[Page]:
    """One that this process has made, as an agent does."""
    made = Page.create()
    yield made
    made.close()


def started(run_id: str = "r1", pid: int = 0) -> ev.RunStarted:
    return ev.RunStarted(run_id, "train.py", 1, 1, "given", pid or os.getpid(), "0.1", "3.11")


def lines(*events: ev.Event, node: str = HERE, ts: float = 1000.0) -> str:
    """As the node's agent writes them."""
    return "".join(to_json(Record(ts + n, ts + n, node, event)) + "\n" for n, event in enumerate(events))


CLOSED = ev.RoundClosed(0, 1, 0, "h", 1, None, None, (HERE,), (), True)


def test_ranks_are_read_from_their_pages(tmp_path: Path, page: Page) -> None:
    """Only of an agent that is there: this process, which has the journal open."""
    worker = ev.WorkerStarted(0, 0, 0, 4242, True, "warm", page.path)
    journal = tmp_path / f"{HERE}.jsonl"
    journal.write_text(lines(started(), CLOSED, worker, ev.WorkerProgressed(0, 0, 1, 0.1)))
    writer = PageWriter.open(page.path)
    writer.mark_main_started()
    for _ in range(3):
        writer.mark_optimizer_step()
    watch = RunWatch("r1", tmp_path)
    with journal.open():
        [node] = watch.look().nodes
    assert node.is_live
    [rank] = node.ranks
    assert (rank.step, rank.steps, rank.state) == (3, 3, "training")
    assert rank.progress_age_s is not None
    [gone] = watch.look().nodes
    assert (gone.phase, gone.is_live, gone.ranks[0].steps) == ("killed", False, None)
    watch.close()


def test_lines_are_taken_as_they_come(tmp_path: Path) -> None:
    """One that is half written is waited for, and one that is damaged is passed over."""
    journal = tmp_path / f"{HERE}.jsonl"
    first, second = lines(started()), lines(CLOSED, ts=1001.0)
    watch = RunWatch("r1", tmp_path)
    with journal.open("a") as file:
        file.write(first + second[:40])
        file.flush()
        assert watch.look().nodes[0].phase == "joining"
        file.write(second[40:])
        file.flush()
        assert watch.look().nodes[0].phase == "running"
        file.write("{torn\n" + lines(ev.RunEnded(0, "all ranks finished", 0, 5.0), ts=1002.0))
    view = watch.look()
    assert (view.nodes[0].phase, view.is_over) == ("ended", True)


def test_earlier_runs_of_the_directory_are_left_out(tmp_path: Path) -> None:
    """Unless they go on."""
    ended = ev.RunEnded(0, "all ranks finished", 0, 5.0)
    (tmp_path / "old.jsonl").write_text(lines(started("r0"), ended, node="old"))
    (tmp_path / "elsewhere.jsonl").write_text(lines(started("r9"), CLOSED, node="elsewhere", ts=1500.0))
    (tmp_path / "new.jsonl").write_text(lines(started("r1"), CLOSED, node="new", ts=2000.0))
    nodes = RunWatch("x", tmp_path).look().nodes
    assert [(one.node, one.is_live) for one in nodes] == [("elsewhere", False), ("new", False)]


def test_long_journal_is_read_from_its_end(tmp_path: Path) -> None:
    """Its first line says whose it is, its last what holds now."""
    journal = tmp_path / f"{HERE}.jsonl"
    filler = lines(ev.PreloadLearned(7)) * 100_000
    journal.write_text(lines(started()) + filler + lines(CLOSED, ts=9000.0))
    assert journal.stat().st_size > 8 << 20
    [node] = RunWatch("r1", tmp_path).look().nodes
    assert (node.run_id, node.round) == ("r1", 0)


def test_second_life_of_a_long_journal(tmp_path: Path) -> None:
    """Its beginning, round and ranks lie in the part that is not read whole; the first life has ended."""
    journal = tmp_path / f"{HERE}.jsonl"
    ended = ev.RunEnded(1, "all 2 restarts are used up", 2, 5.0)
    worker = ev.WorkerStarted(3, 0, 0, 4242, True, "warm")
    located = ev.LogLocated("/logs", str(tmp_path))
    third = replace(CLOSED, round=3)
    filler = lines(ev.CheckpointSaved(3, 0, "/ckpt/1", 1, 1.0, 0.0, 1)) * 70_000
    journal.write_text(
        lines(started(pid=1), CLOSED, ended)
        + lines(started("r2"), located, third, worker, ts=2000.0)
        + filler
    )
    with journal.open("a") as file:
        file.write(lines(ev.WorkerProgressed(3, 0, 1, 0.1), ts=3000.0))
        file.flush()
        [node] = RunWatch("r2", tmp_path).look().nodes
    assert journal.stat().st_size > 9 << 20
    assert (node.run_id, node.phase, node.round, node.exit_code) == ("r2", "running", 3, None)
    assert [(one.rank, one.state) for one in node.ranks] == [(0, "training")]


@pytest.mark.parametrize("many", [1, 100_000], ids=["short", "long"])
def test_journal_whose_first_line_is_damaged(tmp_path: Path, many: int) -> None:
    """Whose run it is cannot be told; how it is can."""
    text = lines(started())[20:] + lines(CLOSED, ts=1001.0) + lines(ev.PreloadLearned(7)) * many
    (tmp_path / f"{HERE}.jsonl").write_text(text)
    [node] = RunWatch("r1", tmp_path).look().nodes
    assert (node.run_id, node.round, node.phase) == ("", 0, "running")


def test_line_across_two_blocks_is_read(tmp_path: Path) -> None:
    """Wherever the blocks of the skipped part end."""
    journal = tmp_path / f"{HERE}.jsonl"
    filler = lines(ev.PreloadLearned(7))
    first, closed = lines(started()), lines(CLOSED)
    before = filler * (((1 << 20) - len(first) - 1) // len(filler))
    assert (1 << 20) - len(first + before) < len(closed)
    journal.write_text(first + before + closed + filler * 110_000)
    assert journal.stat().st_size > 9 << 20
    [node] = RunWatch("r1", tmp_path).look().nodes
    assert (node.run_id, node.round) == ("r1", 0)


PAIR = replace(CLOSED, nodes=(HERE, "far"))
ALONE = replace(CLOSED, round=1)


@pytest.mark.parametrize(
    ("others", "phase"),
    [
        pytest.param([PAIR], "running", id="nothing is said of it"),
        pytest.param([PAIR, ev.NodeLost("far", "no keep-alive for 5.0 s")], "killed", id="lost"),
        pytest.param([PAIR, ev.NodeLeft("far", "stopped by a signal")], "killed", id="has left"),
        pytest.param([PAIR, ev.NodeLost("other", "no keep-alive")], "running", id="another is lost"),
        pytest.param([PAIR, ALONE], "killed", id="a later round is without it"),
        pytest.param([PAIR, replace(ALONE, spares=("far",))], "running", id="it is a spare"),
        pytest.param([PAIR, ev.RunEnded(0, "all ranks finished", 0, 5.0)], "killed", id="the job is over"),
        pytest.param([PAIR, ev.RunEnded(94, "left out", 0, 5.0)], "running", id="only the other is over"),
        pytest.param([PAIR, ev.RunEnded(143, "signal", 0, 5.0)], "running", id="the other was stopped"),
        pytest.param(
            [PAIR, ev.NodeLost("far", "no keep-alive"), ev.NodeJoined("far", 1, "::1")],
            "running",
            id="it has come back",
        ),
    ],
)
def test_node_elsewhere_is_over_when_the_others_say_so(
    tmp_path: Path, others: list[ev.Event], phase: str
) -> None:
    """Its agent cannot be looked at from here."""
    (tmp_path / "far.jsonl").write_text(lines(started(), PAIR, node="far", ts=1000.5))
    (tmp_path / f"{HERE}.jsonl").write_text(lines(started(), *others))
    nodes = {one.node: one for one in RunWatch("r1", tmp_path).look().nodes}
    assert nodes["far"].phase == phase


def test_view_ends_with_a_node_that_was_lost_elsewhere(tmp_path: Path) -> None:
    """Else `ftctl watch` would go on for ever."""
    (tmp_path / "far.jsonl").write_text(lines(started(), PAIR, node="far"))
    lost = ev.NodeLost("far", "no keep-alive for 5.0 s")
    ended = ev.RunEnded(0, "all ranks finished", 1, 5.0)
    (tmp_path / f"{HERE}.jsonl").write_text(lines(started(), PAIR, lost, ALONE, ended))
    assert RunWatch("r1", tmp_path).look().is_over


def test_word_of_an_earlier_try_says_nothing_of_the_next(tmp_path: Path) -> None:
    """A run of the same id that was started again in the same directory, with one node less."""
    ended = ev.RunEnded(1, "all 3 restarts are used up", 3, 5.0)
    seventh = replace(CLOSED, round=7, nodes=("old",))
    lost = ev.NodeLost("far", "no keep-alive for 5.0 s")
    (tmp_path / "old.jsonl").write_text(lines(started(), seventh, lost, ended, node="old"))
    (tmp_path / "far.jsonl").write_text(lines(started(), PAIR, node="far", ts=2000.0))
    nodes = {one.node: one for one in RunWatch("r1", tmp_path).look().nodes}
    assert nodes["far"].phase == "running"


def test_last_line_of_a_node_elsewhere_may_come_late() -> None:
    """A file system that is shared shows the end of one journal before that of the other."""
    own, other = Witness("r1", 10.0), Witness("r1", 10.0, ended_ts=50.0)
    assert not is_gone("far", 0, own, [own, other], 50.0 + FAREWELL_S - 1)
    assert is_gone("far", 0, own, [own, other], 50.0 + FAREWELL_S)


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/1/fd/0", "", "/proc/self/mem"])
def test_other_paths_are_not_opened(tmp_path: Path, path: str) -> None:
    """A journal is a text, and may say anything."""
    journal = tmp_path / f"{HERE}.jsonl"
    journal.write_text(lines(started(), CLOSED, ev.WorkerStarted(0, 0, 0, 4242, True, "warm", path)))
    with journal.open():
        [node] = RunWatch("r1", tmp_path).look().nodes
    assert (node.phase, node.is_live, node.ranks[0].steps) == ("running", False, None)


def test_view_of_a_page_cannot_be_written(page: Page) -> None:
    """Whoever watches does not disturb."""
    view = PageView.open(page.path)
    with pytest.raises(TypeError):
        PageWriter(view._memory).mark_optimizer_step()
    view.close()


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    """By its first bytes and its size."""
    (tmp_path / "x").write_bytes(b"\0" * 8192)
    with pytest.raises(PageError):
        PageView.open(str(tmp_path / "x"))

"""Looking at a run while it goes on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.monitor import events as ev
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

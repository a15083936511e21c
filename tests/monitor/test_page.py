"""The shared-memory page: what the worker marks is what the agent reads."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.monitor import page_writer as layout
from ftrun.monitor.page import Page, PageSnapshot
from ftrun.monitor.page_writer import PageError, PageWriter


@pytest.fixture
def page() -> Iterator[Page]:
    """A fresh page."""
    made = Page.create()
    yield made
    made.close()


def test_a_fresh_page_says_nothing(page: Page) -> None:
    """No progress, no steps."""
    assert page.read() == PageSnapshot()
    assert not page.read().has_progressed


def test_beats_and_steps_are_progress(page: Page) -> None:
    """The larger of both counts, and times go from first to last."""
    writer = PageWriter.open(page.path)
    before = time.monotonic()
    writer.mark_main_started()
    writer.mark_optimizer_step()
    writer.beat()
    writer.beat(0)
    writer.beat(step=17)
    after = time.monotonic()
    seen = page.read()
    assert (seen.steps, seen.reported_step, seen.checkpoints) == (3, 17, 0)
    assert seen.main_started_at is not None
    assert seen.first_progress_at is not None
    assert seen.last_progress_at is not None
    assert before <= seen.main_started_at <= seen.first_progress_at <= seen.last_progress_at <= after
    assert seen.has_progressed


def test_step_zero_is_a_step(page: Page) -> None:
    """It is not the same as none reported."""
    writer = PageWriter.open(page.path)
    writer.beat(0)
    writer.mark_checkpoint("/c", 0)
    assert (page.read().reported_step, page.read().checkpoint_step) == (0, 0)


def test_the_first_progress_calls_back_once(page: Page) -> None:
    """After it is on the page; and never for a page that had progress already."""
    seen: list[bool] = []
    writer = PageWriter.open(page.path)
    writer.on_first_progress = lambda: seen.append(page.read().has_progressed)
    writer.mark_main_started()
    assert seen == []
    writer.mark_optimizer_step()
    writer.beat()
    second = PageWriter.open(page.path)
    second.on_first_progress = lambda: seen.append(False)
    second.beat()
    assert seen == [True]


def test_a_second_writer_goes_on_counting(page: Page) -> None:
    """A script that is executed by another program finds what was counted before it."""
    PageWriter.open(page.path).beat()
    PageWriter.open(page.path).beat()
    assert page.read().steps == 2


def test_checkpoints_carry_path_and_step(page: Page) -> None:
    """The last one counts, whatever bytes its name has; a path that does not fit is only counted."""
    writer = PageWriter.open(page.path)
    writer.mark_checkpoint("/data/step-100", 100)
    writer.mark_checkpoint("/d/caf\udce9")
    seen = page.read()
    assert (seen.checkpoints, seen.checkpoint_step, seen.checkpoint_path) == (2, None, "/d/caf\udce9")
    assert seen.has_progressed
    writer.mark_checkpoint("/" + "x" * layout.PATH_CAPACITY, 3)
    seen = page.read()
    assert (seen.checkpoints, seen.checkpoint_step, seen.checkpoint_path) == (3, 3, None)


def test_a_half_written_path_is_not_read(page: Page) -> None:
    """A worker may be killed between two of its stores."""
    PageWriter.open(page.path).mark_checkpoint("/data/1", 1)
    with mmap.mmap(page.fd, layout.PAGE_BYTES) as memory:
        layout.UNSIGNED.pack_into(memory, layout.PATH_SEQUENCE, 3)
    seen = page.read()
    assert (seen.checkpoints, seen.checkpoint_step, seen.checkpoint_path) == (1, None, None)


def test_reset_forgets_everything_but_stays_a_page(page: Page) -> None:
    """It can be opened again."""
    PageWriter.open(page.path).beat(3)
    page.reset()
    assert page.read() == PageSnapshot()
    PageWriter.open(page.path).beat(4)
    assert page.read().reported_step == 4


def test_a_detached_writer_is_seen_by_nobody(page: Page) -> None:
    """What a forked child does from then on stays its own."""
    writer = PageWriter.open(page.path)
    writer.beat(1)
    writer.on_first_progress = pytest.fail
    writer.detach()
    writer.beat(2)
    writer.mark_optimizer_step()
    writer.mark_checkpoint("/c")
    assert (page.read().reported_step, page.read().steps, page.read().checkpoints) == (1, 1, 0)


@pytest.mark.parametrize("content", [b"", b"x" * layout.PAGE_BYTES, layout.HEADER])
def test_something_else_is_not_taken_for_a_page(content: bytes, tmp_path: Path) -> None:
    """Descriptor numbers are used again: what the path names now may be any file."""
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(PageError, match="not a page"):
        PageWriter.open(str(other))
    assert other.read_bytes() == content


def test_a_page_of_another_version_is_refused(page: Page) -> None:
    """Agent and worker may come from different installations."""
    os.pwrite(page.fd, layout.UNSIGNED.pack(99), 8)
    with pytest.raises(PageError):
        PageWriter.open(page.path)


def test_another_process_writes_by_the_path_alone(page: Page) -> None:
    """The page needs no inherited descriptor."""
    code = (
        "import sys; from ftrun.monitor.page_writer import PageWriter; PageWriter.open(sys.argv[1]).beat(5)"
    )
    subprocess.run([sys.executable, "-c", code, page.path], check=True, timeout=30)
    assert page.read().reported_step == 5


def test_closing_gives_the_descriptor_back() -> None:
    """Pages are made for each worker of each round."""
    page = Page.create()
    PageWriter.open(page.path)
    page.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(page.fd)


def test_a_beat_costs_well_under_a_microsecond(page: Page) -> None:
    """The best of many runs, since other processes share the processor; about 0.25 us on the slow side."""
    writer = PageWriter.open(page.path)
    best_s = min(timed(writer) for _ in range(50))
    assert best_s / 1000 < 1e-6


def timed(writer: PageWriter) -> float:
    started_at = time.perf_counter()
    for _ in range(1000):
        writer.beat()
    return time.perf_counter() - started_at

"""The shared-memory page: what the worker marks is what the agent reads."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
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


def test_a_save_tells_how_long_training_stood_still(page: Page) -> None:
    """As the script says, else since the last step; a save on another thread has not stopped the main one."""
    writer = PageWriter.open(page.path)
    writer.mark_checkpoint("/c", 0)
    assert page.read().checkpoint_blocking_s is None  # there was no step before it
    writer.mark_optimizer_step()
    moved_at = page.read().last_progress_at
    writer.mark_checkpoint("/c", 1)
    seen = page.read()
    assert moved_at is not None
    assert seen.checkpoint_at is not None
    assert seen.checkpoint_blocking_s == pytest.approx(seen.checkpoint_at - moved_at)
    thread = threading.Thread(target=writer.mark_checkpoint, args=("/c", 2))
    thread.start()
    thread.join()
    assert (page.read().checkpoint_step, page.read().checkpoint_blocking_s) == (2, None)
    writer.mark_checkpoint("/c", 3, blocking_s=12.5)
    assert page.read().checkpoint_blocking_s == 12.5


def test_a_half_written_path_is_not_read(page: Page) -> None:
    """A worker may be killed between two of its stores."""
    PageWriter.open(page.path).mark_checkpoint("/data/1", 1)
    with mmap.mmap(page.fd, layout.PAGE_BYTES) as memory:
        layout.UNSIGNED.pack_into(memory, layout.PATH_SEQUENCE, 3)
    seen = page.read()
    assert (seen.checkpoints, seen.checkpoint_step, seen.checkpoint_path) == (1, None, None)


def test_a_detached_writer_is_seen_by_nobody(page: Page) -> None:
    """What a forked child does from then on stays its own."""
    writer = PageWriter.open(page.path)
    writer.beat(1)
    writer.on_first_progress = pytest.fail
    writer.detach()
    writer.beat(2)
    writer.mark_optimizer_step()
    writer.mark_checkpoint("/c")
    writer.mark_sample(9, 9.0)
    writer.sections.open("child")
    seen = page.read()
    assert (seen.reported_step, seen.steps, seen.checkpoints) == (1, 1, 0)
    assert (seen.bytecode_changes, seen.sections) == (0, ())


def test_samples_are_read_as_they_were_written(page: Page) -> None:
    """Their time is the sampler's; once nobody samples any more, there is none."""
    writer = PageWriter.open(page.path)
    writer.mark_sampler(4711)
    before = time.monotonic()
    writer.mark_sample(3, 1.25)
    seen = page.read()
    assert (seen.bytecode_changes, seen.main_thread_cpu_s, seen.sampler_tid) == (3, 1.25, 4711)
    assert seen.sampler_at is not None
    assert before <= seen.sampler_at <= time.monotonic()
    assert not seen.has_progressed
    writer.mark_sampler(0)
    seen = page.read()
    assert (seen.sampler_at, seen.sampler_tid, seen.bytecode_changes) == (None, None, 3)


def names(page: Page) -> list[str]:
    return [section.name for section in page.read().sections]


def test_open_sections_are_shown_outermost_first(page: Page) -> None:
    """Each with the time of its opening; closing them in any order leaves the others."""
    table = PageWriter.open(page.path).sections
    before = time.monotonic()
    outer, inner, last = table.open("epoch"), table.open("eval"), table.open("eval")
    assert outer is not None
    assert inner is not None
    assert last is not None
    seen = page.read()
    assert names(page) == ["epoch", "eval", "eval"]
    times = [section.opened_at for section in seen.sections]
    assert before <= times[0] <= times[1] <= times[2] <= time.monotonic()
    assert (seen.sections_opened, seen.section_closed_at) == (3, None)
    table.close(inner)
    assert [section.opened_at for section in page.read().sections] == [times[0], times[2]]
    table.close(outer)
    table.close(last)
    seen = page.read()
    assert (seen.sections, seen.sections_opened) == ((), 3)
    assert seen.section_closed_at is not None
    assert times[2] <= seen.section_closed_at <= time.monotonic()


def test_deeper_sections_than_fit_are_counted_only(page: Page) -> None:
    """The outermost 16 are shown, and move up when others close."""
    table = PageWriter.open(page.path).sections
    opened = [table.open(str(depth)) for depth in range(layout.MAX_SECTIONS + 2)]
    assert names(page) == [str(depth) for depth in range(16)]
    assert page.read().sections_opened == 18
    assert opened[0] is not None
    table.close(opened[0])
    assert names(page) == [str(depth) for depth in range(1, 17)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", ""),
        ("x" * 40, "x" * 40),
        ("x" * 41, "x" * 40),
        ("x" * 39 + "\u00e9", "x" * 39),
        ("\ud800", "?"),
        ("nul\0inside", "nul\0inside"),
    ],
)
def test_a_sections_name_is_cut_to_forty_bytes(name: str, shown: str, page: Page) -> None:
    """At a whole character; whatever is in it, opening is no error."""
    assert PageWriter.open(page.path).sections.open(name) is not None
    assert names(page) == [shown]


def test_a_half_written_table_is_read_as_it_was_before(page: Page) -> None:
    """A worker may be stopped between two of its stores; the next write puts it right."""
    table = PageWriter.open(page.path).sections
    table.open("epoch")
    assert names(page) == ["epoch"]
    with mmap.mmap(page.fd, layout.PAGE_BYTES) as memory:
        layout.UNSIGNED.pack_into(memory, layout.SECTIONS_SEQUENCE, 5)
        layout.UNSIGNED.pack_into(memory, layout.SECTION_COUNT, 7)
    assert names(page) == ["epoch"]
    table.open("eval")
    assert names(page) == ["epoch", "eval"]


def test_another_process_does_not_disturb_open_sections(page: Page) -> None:
    """An evaluation run as a child with sections of its own: the parent's stay what is shown."""
    code = (
        "import os, sys; from ftrun.monitor.page_writer import PageWriter;"
        "table = PageWriter.open(sys.argv[1]).sections; print(table.open('child') is not None, flush=True)"
    )
    table = PageWriter.open(page.path).sections
    outer = table.open("parent")
    assert outer is not None
    command = [sys.executable, "-c", code, page.path]
    assert subprocess.check_output(command, timeout=30) == b"False\n"
    assert names(page) == ["parent"]
    table.close(outer)
    assert subprocess.check_output(command, timeout=30) == b"True\n"
    assert names(page) == ["child"]
    assert table.open("again") is not None, "the child has ended in its section, which is nobody's now"
    assert names(page) == ["again"]


def test_a_program_that_takes_the_process_over_is_in_no_section(page: Page) -> None:
    """What the one before it had open went with it."""
    PageWriter.open(page.path).sections.open("before")
    PageWriter.open(page.path)
    assert names(page) == []


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
    """The best of many runs, since other processes share the processor; about 0.3 us on the slow side."""
    writer = PageWriter.open(page.path)
    best_s = min(timed(writer) for _ in range(50))
    assert best_s / 1000 < 0.6e-6


def timed(writer: PageWriter) -> float:
    beat = writer.beat
    started_at = time.perf_counter()
    for _ in range(1000):
        beat()
    return time.perf_counter() - started_at

"""What a training script may import: it acts under ftrun, and is nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ftrun.monitor.page import Page


def run(code: str, **environment: str) -> str:
    """Standard output of `code` in a fresh interpreter."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FTRUN_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


ALL_CALLS = """
from ftrun.monitor import client
client.heartbeat(); client.heartbeat(5); client.checkpoint_saved("checkpoints/5", step=5)
with client.section("eval"): pass
assert not (client.request_stop("no reason") or client.exclude_this_node("no reason"))
print(client.is_running_under_ftrun(), client.resume_from())
"""


def test_outside_ftrun_all_calls_do_nothing() -> None:
    """A script that uses it also runs under torchrun."""
    assert run(ALL_CALLS) == "False None"


def test_a_page_that_cannot_be_opened_is_no_error() -> None:
    """For instance in a container of its own, where the agent's /proc is not seen."""
    assert run(ALL_CALLS, FTRUN_PAGE="/proc/1/fd/no-such-page") == "True None"


def test_under_ftrun_calls_reach_the_page() -> None:
    """Heartbeats, step numbers, and the checkpoint's absolute path."""
    page = Page.create()
    assert run(ALL_CALLS, FTRUN_PAGE=page.path, FTRUN_RESUME_FROM="/data/4") == "True /data/4"
    seen = page.read()
    assert (seen.steps, seen.reported_step, seen.checkpoint_step) == (2, 5, 5)
    assert (seen.sections, seen.sections_opened) == ((), 1)
    assert seen.checkpoint_path == os.path.abspath("checkpoints/5")
    page.close()


def test_an_empty_variable_means_from_the_beginning() -> None:
    """The agent may set it to nothing."""
    assert run(ALL_CALLS, FTRUN_RESUME_FROM="") == "False None"


def test_a_forked_child_does_not_beat_for_its_parent() -> None:
    """A data loader that calls a helper with a heartbeat in it must not hide a hang."""
    page = Page.create()
    code = """
import os
from ftrun.monitor import client
client.heartbeat(1)
child = os.fork()
if child == 0:
    client.heartbeat(2)
    client.section("child").__enter__()
    os._exit(0)
os.waitpid(child, 0)
"""
    run(code, FTRUN_PAGE=page.path)
    assert (page.read().steps, page.read().reported_step, page.read().sections_opened) == (1, 1, 0)
    page.close()


SECTIONS = """
import os, sys
from ftrun.monitor import client
from ftrun.monitor.page import Page
def shown():
    page = Page(os.open(os.environ["FTRUN_PAGE"], os.O_RDWR))
    return [section.name for section in page.read().sections]
with client.section("epoch"):
    evaluation = client.section("eval")
    with evaluation:
        with evaluation:
            print(shown())
    try:
        with client.section("saving"):
            raise OSError
    except OSError:
        print(shown())
def batches():
    with client.section("data"):
        yield 1
left = batches()
next(left)
print(shown())
del left
print(shown())
"""


def test_sections_lie_in_each_other_and_close_on_exceptions() -> None:
    """Also one that is entered twice, and one in a generator that nobody runs to its end."""
    page = Page.create()
    output = run(SECTIONS, FTRUN_PAGE=page.path)
    assert output.splitlines() == ["['epoch', 'eval', 'eval']", "['epoch']", "['data']", "[]"]
    assert page.read().sections_opened == 5
    page.close()


def test_a_beat_survives_a_step_that_is_no_plain_integer() -> None:
    """numpy's and a float's are taken as they are meant."""
    page = Page.create()
    code = (
        "import numpy; from ftrun.monitor import client as c; c.heartbeat(numpy.int64(7)); c.heartbeat(8.0)"
    )
    run(code, FTRUN_PAGE=page.path)
    assert (page.read().steps, page.read().reported_step) == (2, 8)
    page.close()


def test_importing_it_is_cheap_and_imports_no_torch(tmp_path: Path) -> None:
    """Under 10 ms at its best of five, once it is compiled; whatever is heavy stays out."""
    code = """
import sys, time
before = set(sys.modules)
started_at = time.perf_counter()
import ftrun.monitor.client
import_s = time.perf_counter() - started_at
heavy = {"torch", "numpy", "dataclasses", "json", "typing", "pickle", "socket", "ctypes"}
print(import_s, *heavy & (set(sys.modules) - before))
"""
    cache = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    runs = [run(code, **cache).split() for _ in range(6)]
    assert all(len(words) == 1 for words in runs), runs
    assert min(float(words[0]) for words in runs[1:]) < 0.010

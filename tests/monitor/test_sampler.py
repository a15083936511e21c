"""The sampling thread: what it tells of the main thread, and that nobody else notices it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftrun.monitor.page import Page, PageSnapshot
from ftrun.monitor.sampler import THREAD_NAME
from ftrun.monitor.stack_signal import STACKS_SIGNAL
from tests.support.waiting import until

INTERVAL_S = 0.02
DEADLINE_S = 30.0

START = f"""
import ctypes, os, signal, sys, threading, time
from ftrun.monitor.page import Page
from ftrun.monitor.page_writer import attached
from ftrun.monitor.sampler import Sampler
def start(interval_s={INTERVAL_S}):
    Sampler(attached(), interval_s).start()
    while not page().sampler_at: time.sleep(0.001)
def page():
    seen = Page(os.open(os.environ["FTRUN_PAGE"], os.O_RDWR))
    snapshot = seen.read(); seen.close()
    return snapshot
def say_ready(): os.write(1, b"ready\\n")
"""


@dataclass
class Sampled:
    """A process with a sampler, and its page."""

    process: subprocess.Popen[bytes]
    page: Page

    def wait_for(self, is_so: Callable[[PageSnapshot], bool]) -> PageSnapshot:
        """Until the page says so."""
        seen = self.page.read()

        def is_reached() -> bool:
            nonlocal seen
            seen = self.page.read()
            assert is_so(seen) or self.process.poll() is None, "it has ended"
            return is_so(seen)

        until(is_reached, lambda: seen, DEADLINE_S)
        return seen

    def moves_over(self, looks: int) -> int:
        """How much `bytecode_changes` grows over so many looks, after two that may see what was before."""
        begin = self.page.read()
        for count in range(looks + 2):
            last = self.page.read()
            self.wait_for(lambda seen, last=last: seen.sampler_at != last.sampler_at)  # type: ignore[misc]
            begin = self.page.read() if count == 1 else begin
        return self.page.read().bytecode_changes - begin.bytecode_changes

    def comes_to(self, is_so: Callable[[int], bool], looks: int = 10) -> None:
        """Until there are so many looks in a row over which it moves as it should.

        On a busy machine the code may not have come to its place yet, and the main thread may have had no
        processor from one look to the next.
        """
        moves: list[int] = []

        def is_reached() -> bool:
            moves.append(self.moves_over(looks))
            return is_so(moves[-1])

        until(is_reached, lambda: f"moves over {looks} looks each: {moves}", DEADLINE_S)


@contextmanager
def sampled(code: str, *options: str) -> Iterator[Sampled]:
    """Runs `code` after `START`; it begins to count once it has said that it is ready."""
    page = Page.create()
    process = subprocess.Popen(
        [sys.executable, *options, "-c", START + code],
        env={**os.environ, "FTRUN_PAGE": page.path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield Sampled(process, page)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        page.close()


def run(code: str, *options: str) -> tuple[str, PageSnapshot]:
    """Output of `code` after `START`, which must succeed without a word on stderr, and what its page says."""
    page = Page.create()
    done = subprocess.run(
        [sys.executable, *options, "-c", START + code],
        env={**os.environ, "FTRUN_PAGE": page.path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    seen = page.read()
    page.close()
    return done.stdout.strip(), seen


MOVING = {
    "a tight loop": "while True: pass",
    "a loop that is at the same call at every look": "while True: time.sleep(0.001)",
    "a loop that waits with a limit": (
        "lock = threading.Lock(); lock.acquire()\nwhile True: lock.acquire(timeout=0.001)"
    ),
    "a loop in a comprehension": "[None for _ in iter(int, 1)]",
    "a recursion that never ends": "def f(n):\n    f(n - 1) if n else None\nwhile True: f(50)",
}

STANDING = {
    "a sleep": "time.sleep(600)",
    "a lock that nobody releases": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a read from an empty pipe": "os.read(os.pipe()[0], 1)",
    "a C call that has released the GIL": "ctypes.CDLL(None).sleep(600)",
    "a wait for a thread that works": (
        "def work():\n    while True: pass\nthread = threading.Thread(target=work, daemon=True)\n"
        "thread.start(); thread.join()"
    ),
}


@pytest.mark.parametrize("code", MOVING.values(), ids=MOVING.keys())
def test_a_main_thread_that_runs_python_moves_at_every_look(code: str) -> None:
    """However little it does, and also if it is found at the same instruction each time."""
    with sampled(f"start(); say_ready()\n{code}") as process:
        process.comes_to(lambda moves: moves >= 9)  # One may be missed where looks come late and in a row.


@pytest.mark.parametrize("code", STANDING.values(), ids=STANDING.keys())
def test_a_main_thread_that_waits_does_not_move(code: str) -> None:
    """Not even while other threads run Python."""
    with sampled(f"start(); say_ready()\n{code}") as process:
        process.comes_to(lambda moves: moves == 0)


def test_while_the_gil_is_held_there_are_no_looks() -> None:
    """The last one's time stands still; CPU time of the main thread cannot be had either."""
    with sampled("start(); say_ready(); ctypes.PyDLL(None).sleep(600)") as process:
        process.wait_for(
            lambda seen: seen.sampler_at is not None and time.monotonic() - seen.sampler_at > 25 * INTERVAL_S
        )
        assert process.process.poll() is None


def test_the_main_threads_cpu_time_tells_spinning_from_sleeping() -> None:
    """Both are C calls without the GIL; neither moves."""
    spin = "import hashlib; data = bytes(1 << 20)\nstart(); say_ready()\nwhile True: hashlib.sha256(data)"
    with sampled(spin) as process:
        process.wait_for(lambda seen: seen.main_thread_cpu_s > 0.3)
    with sampled("start(); say_ready(); time.sleep(600)") as process:
        process.comes_to(lambda moves: moves == 0, 3)
        before = process.page.read().main_thread_cpu_s
        process.moves_over(10)
        assert process.page.read().main_thread_cpu_s - before < 0.002


def test_python_threads_do_not_list_it() -> None:
    """Scripts join all threads, and compare their number with one; the kernel knows it by its name."""
    code = """
start()
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
print(*sorted(open(f"/proc/self/task/{tid}/comm").read().strip() for tid in os.listdir("/proc/self/task")))
"""
    output, _ = run(code)
    listed, names = output.splitlines()
    assert listed == "1 ['MainThread']"
    assert THREAD_NAME in names.split()


ENDS = {
    "falls off its end": "",
    "sys.exit": "sys.exit(0)",
    "in the midst of threads": (
        "threading.Thread(target=time.sleep, args=(10,), daemon=True).start()\n"
        "threading.Thread(target=time.sleep, args=(0.05,)).start()"
    ),
    "with work at exit": "import atexit; atexit.register(time.sleep, 0.1)",
    "with a destructor that runs long": (
        "class D:\n    def __del__(self, time=time.time):\n        end = time() + 0.05\n"
        "        while time() < end: pass\nd = D()"
    ),
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS.keys())
def test_it_ends_with_the_script_and_without_a_word(code: str) -> None:
    """It keeps nothing alive, and the page then says that nobody looks any more."""
    for _ in range(3):
        _, seen = run(f"start(0.0005); time.sleep(0.02)\n{code}")
        assert (seen.sampler_at, seen.sampler_tid) == (None, None)


def test_a_hard_exit_is_no_trouble() -> None:
    """os._exit leaves the last look on the page."""
    _, seen = run("start(0.0005); time.sleep(0.02); os._exit(0)")
    assert seen.sampler_at is not None


FORK = """
counts = []
os.register_at_fork(before=lambda: counts.append(len(os.listdir("/proc/self/task"))))
start()
"""


def test_children_are_forked_without_it_and_write_nothing() -> None:
    """At the fork the process has the threads of the script alone: 3.12 warns of others, with reason."""
    code = (
        FORK
        + """
for _ in range(5):
    time.sleep(0.03)
    child = os.fork()
    if child == 0:
        is_alone = len(os.listdir("/proc/self/task")) == 1
        time.sleep(0.05)
        os._exit(0 if is_alone and len(os.listdir("/proc/self/task")) == 1 else 1)
    print(os.waitpid(child, 0)[1], end=" ")
print(counts)
"""
    )
    output, _ = run(code, "-W", "always")
    assert output == "0 0 0 0 0 [1, 1, 1, 1, 1]"


def test_it_goes_on_after_a_fork_in_the_parent() -> None:
    """Also after one from another thread, and one that fails in the child."""
    code = (
        FORK
        + """
import multiprocessing
context = multiprocessing.get_context("fork")
for _ in range(3):
    process = context.Process(target=sys.exit, args=(1,))
    process.start(); process.join()
thread = threading.Thread(target=lambda: os.waitpid(os.fork() or os._exit(0), 0))
thread.start(); thread.join()
say_ready()
while True: pass
"""
    )
    with sampled(code) as process:
        process.comes_to(lambda moves: moves >= 4, 5)


def test_forks_in_a_row_do_not_starve_it() -> None:
    """A look that is due comes before the end of the thread."""
    code = """
start(0.05)
end = time.monotonic() + 0.8
looks, forks = set(), 0
while time.monotonic() < end or forks < 10:
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    looks.add(page().sampler_at)
    forks += 1
print(len(looks))
"""
    output, _ = run(code)
    assert int(output) >= 5


def test_a_program_that_takes_its_place_has_no_sampler_thread() -> None:
    """The page cannot know of an exec, but /proc no longer has the thread that it names."""
    with sampled("start(); say_ready(); os.execv('/bin/sleep', ['sleep', '60'])") as process:
        tid = process.page.read().sampler_tid
        assert tid is not None
        thread = Path(f"/proc/{process.process.pid}/task/{tid}")
        until(lambda: not thread.exists(), lambda: "it is still there", DEADLINE_S)
        assert process.page.read().sampler_tid == tid


def test_signals_go_to_the_main_thread() -> None:
    """Here they would not wake it; only faults, and the signal for stacks, are let in."""
    with sampled("start(); say_ready(); time.sleep(600)") as process:
        tid = process.wait_for(lambda seen: seen.sampler_at is not None).sampler_tid
        lines = Path(f"/proc/{process.process.pid}/task/{tid}/status").read_text().splitlines()
        (blocked,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
        names = {number for number in range(1, 65) if blocked >> (number - 1) & 1}
        assert {1, 2, 10, 12, 15, 17} <= names
        assert not {4, 6, 7, 8, 11, int(STACKS_SIGNAL)} & names


def test_it_costs_less_than_a_thousandth_of_a_core() -> None:
    """CPU time of its thread as the kernel counts it, waking up included, for two looks a second."""
    with sampled("start(0.05); say_ready(); time.sleep(600)") as process:
        process.moves_over(2)
        costs = []
        for _ in range(5):
            before, begun = cpu_s(process), time.monotonic()
            process.moves_over(4)
            looks = (time.monotonic() - begun) / 0.05
            costs.append((cpu_s(process) - before) / looks)
        assert min(costs) * 2 < 0.001, costs  # others on this machine's processors only make it more


def cpu_s(process: Sampled) -> float:
    path = f"/proc/{process.process.pid}/task/{process.page.read().sampler_tid}/schedstat"
    return int(Path(path).read_text().split()[0]) / 1e9

"""What /proc tells of real processes: CPU time, I/O and states of a worker's threads and descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.monitor.heartbeats import OpenSection
from ftrun.monitor.page import PageSnapshot
from ftrun.monitor.rank_signs import Signs
from ftrun.monitor.signs import SignsReader, TreeReader, TreeReading

DEADLINE_S = 20.0

NAMED_THREAD = """
import ctypes, threading
def burn(name):
    if name:
        ctypes.CDLL(None).prctl(15, ctypes.create_string_buffer(name), 0, 0, 0)
    print("burning", flush=True)
    while True:
        pass
"""


@contextmanager
def running(program: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has written its first line; it and its whole session are gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def until(read: Callable[[], TreeReading], holds: Callable[[TreeReading], bool]) -> TreeReading:
    deadline = time.monotonic() + DEADLINE_S
    while not holds(reading := read()):
        assert time.monotonic() < deadline, f"still {reading}"
    return reading


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    assert process.stdout.readline()


def test_idle_process_shows_nothing() -> None:
    """A process that waits is alive, asleep, and none of its counters moves."""
    with running("print('up', flush=True); input()") as process:
        reader = TreeReader(process.pid)
        first = until(reader.read, lambda reading: reading.state == "S")
        assert (first.is_alive, first.process_count) == (True, 1)
        assert first.io_bytes is not None
        assert reader.read() == first


def test_main_thread_is_counted_apart() -> None:
    """CPU time of the main thread is no other thread's and no child's."""
    with running("print('up', flush=True)\nwhile True: pass") as process:
        reading = until(TreeReader(process.pid).read, lambda reading: reading.main_cpu_s > 0.3)
    assert (reading.other_threads_cpu_s, reading.children_cpu_s) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["", "tokenizers", "pt_main_thread"])
def test_other_thread_at_work_is_seen(name: str) -> None:
    """CPU time of a helper thread counts as its own kind."""
    program = f"{NAMED_THREAD}\nthreading.Thread(target=burn, args=({name.encode()!r},)).start()"
    with running(program) as process:
        until(TreeReader(process.pid).read, lambda reading: reading.other_threads_cpu_s > 0.2)


@pytest.mark.parametrize("name", ["NCCL Progress 1", "pt_nccl_watchdg", "pt_autograd_0", "cuda-EvtHandlr"])
def test_thread_that_spins_while_it_waits_is_left_out(name: str) -> None:
    """Threads of NCCL, CUDA and autograd use CPU in a hang as well, so theirs does not count."""
    program = f"{NAMED_THREAD}\nthreading.Thread(target=burn, args=({name.encode()!r},)).start()"
    with running(program) as process:
        reader = TreeReader(process.pid)
        before_s = _cpu_s(process.pid)
        until(reader.read, lambda _: _cpu_s(process.pid) - before_s > 0.3)
        assert reader.read().other_threads_cpu_s < 0.1


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_thread_that_has_ended_is_kept() -> None:
    """Work of a thread that has ended since stays counted, so that the counter only grows."""
    program = """
import threading, time
def burn():
    end = time.thread_time() + 0.3
    print("burning", flush=True)
    while time.thread_time() < end: pass
    input()
thread = threading.Thread(target=burn)
thread.start()
thread.join()
print("ended", flush=True)
input()
"""
    with running(program) as process:
        reader = TreeReader(process.pid)
        busy = until(reader.read, lambda reading: reading.other_threads_cpu_s >= 0.28)
        say(process, "end")
        after = until(reader.read, lambda _: len(os.listdir(f"/proc/{process.pid}/task")) == 1)
        assert after.other_threads_cpu_s >= busy.other_threads_cpu_s


def test_descendants_at_work_are_seen() -> None:
    """CPU time of children and grandchildren counts, while they run."""
    program = """
import subprocess, sys
inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
subprocess.Popen([sys.executable, "-c", inner])
print("up", flush=True)
input()
"""
    with running(program) as process:
        reading = until(
            TreeReader(process.pid).read,
            lambda reading: reading.children_cpu_s > 0.3 and reading.process_count == 3,
        )
    assert reading.other_threads_cpu_s == 0.0


def test_ended_children_are_kept() -> None:
    """CPU time and I/O of children that came and went between two readings are seen afterwards."""
    program = """
import subprocess, sys
print("up", flush=True)
input()
work = "import os, time\\nwhile time.process_time() < 0.3: os.write(1, bytes(4096))"
subprocess.run([sys.executable, "-c", work], stdout=open("/dev/null", "w"))
print("done", flush=True)
input()
"""
    with running(program) as process:
        reader = TreeReader(process.pid)
        before = reader.read()
        say(process, "go")
        after = reader.read()
        assert after.children_cpu_s - before.children_cpu_s >= 0.28
        assert (after.io_bytes or 0) - (before.io_bytes or 0) > 100_000
        assert after.process_count == 1


WAITS_FOR_CHILD = {
    "end": 'subprocess.run(["sleep", "600"])',
    "end, from C": 'os.system("sleep 600")',
    "output": 'subprocess.check_output(["sleep", "600"])',
    "output and errors": 'subprocess.run(["sleep", "600"], capture_output=True)',
    "a fork": "os.fork() or time.sleep(600); os.waitid(os.P_ALL, 0, os.WEXITED)",
}


@pytest.mark.parametrize("wait", WAITS_FOR_CHILD.values(), ids=WAITS_FOR_CHILD.keys())
def test_wait_for_a_child_is_seen(wait: str) -> None:
    """However the main thread waits for a child that itself shows nothing."""
    with running(f"import os, subprocess, time\nprint('up', flush=True)\n{wait}") as process:
        reading = until(TreeReader(process.pid).read, lambda reading: reading.is_waiting_for_child)
    assert reading.process_count >= 2


OTHER_WAITS = {
    "another thread": "threading.Event().wait()",
    "sleep": "time.sleep(600)",
    "a socket": "pair = socket.socketpair(); pair[0].recv(1)",
    "a poll": "pair = socket.socketpair(); poll = select.poll(); poll.register(pair[0], 1); poll.poll()",
}


@pytest.mark.parametrize("wait", OTHER_WAITS.values(), ids=OTHER_WAITS.keys())
def test_wait_beside_a_data_loader_is_no_wait_for_it(wait: str) -> None:
    """Its processes live as long as the job does, and tell nothing of what the main thread waits for."""
    program = f"""
import os, select, socket, threading, time
if os.fork() == 0:
    time.sleep(600)
print('up', flush=True)
{wait}
"""
    with running(program) as process:
        reader = TreeReader(process.pid)
        until(reader.read, lambda reading: reading.state == "S" and reading.process_count == 2)
        until(reader.read, lambda _: _wchan(process.pid) not in ("0", ""))
        assert not reader.read().is_waiting_for_child


def _wchan(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


def test_written_bytes_are_seen(tmp_path: Path) -> None:
    """What is written to a file, by the process or a child, counts."""
    program = """
import os, sys
print("up", flush=True)
for _ in range(2):
    input()
    with open(sys.argv[1], "ab") as file: file.write(bytes(1 << 20))
    print("written", flush=True)
    if os.fork() > 0:
        os.wait()
        input()
"""
    with running(program, str(tmp_path / "file")) as process:
        reader = TreeReader(process.pid)
        before = reader.read()
        say(process, "write")
        after = reader.read()
    assert before.io_bytes is not None
    assert after.io_bytes is not None
    assert after.io_bytes - before.io_bytes >= 1 << 20


def test_stopped_process_is_alive() -> None:
    """A stopped process is alive in state T, and goes on after SIGCONT."""
    with running("print('up', flush=True)\nwhile True: pass") as process:
        reader = TreeReader(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        stopped = until(reader.read, lambda reading: reading.state == "T")
        assert stopped.is_alive
        os.kill(process.pid, signal.SIGCONT)
        until(reader.read, lambda reading: reading.state == "R")


def test_ended_process_is_not_alive() -> None:
    """A zombie is not alive, nor is a process that was reaped."""
    with running("print('up', flush=True); input()") as process:
        reader = TreeReader(process.pid)
        assert reader.read().is_alive
        os.kill(process.pid, signal.SIGKILL)
        until(reader.read, lambda reading: not reading.is_alive)
        process.wait()
        assert reader.read() == TreeReading()


def test_vanishing_processes_are_tolerated() -> None:
    """Children and threads that come and go all the time break no reading."""
    program = """
import subprocess, threading
print("up", flush=True)
def churn():
    while True:
        threading.Thread(target=len, args=("",)).start()
        subprocess.Popen(["/bin/true"]).wait()
for _ in range(2):
    threading.Thread(target=churn).start()
"""
    with running(program) as process:
        reader = TreeReader(process.pid)
        deadline = time.monotonic() + 1.0
        previous = reader.read()
        while time.monotonic() < deadline:
            reading = reader.read()
            assert reading.is_alive
            assert reading.other_threads_cpu_s >= previous.other_threads_cpu_s
            previous = reading


def test_many_children_are_all_seen() -> None:
    """A list of children that is longer than one read gives is read to its end."""
    program = """
import contextlib, os
count = 0
with contextlib.suppress(BlockingIOError):
    while count < 900:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        count += 1
print("up")
print(count, flush=True)
os.read(0, 1)
"""
    with running(program) as process:
        assert process.stdout is not None
        if int(process.stdout.readline()) < 900:
            pytest.skip("this user may not have as many processes")
        assert TreeReader(process.pid).read().process_count == 901


def test_tree_of_50_costs_little() -> None:
    """One reading of 50 processes takes a few ms of CPU time: 1.7 ms on an idle machine, here with room."""
    program = """
import os
for _ in range(49):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
print("up", flush=True)
os.read(0, 1)
"""
    with running(program) as process:
        reader = TreeReader(process.pid)
        costs = []
        for _ in range(20):
            began = time.thread_time()
            assert reader.read().process_count == 50
            costs.append(time.thread_time() - began)
    assert min(costs) < 0.010, costs  # others on this machine's processors only make it more


SHOWN = PageSnapshot(
    steps=3, last_progress_at=0.5, checkpoints=1, bytecode_changes=8, sampler_at=0.9, section_closed_at=0.3,
    sections=(OpenSection("eval", 0.4),),
)  # fmt: skip
WAITING = "print('up', flush=True); input(); print('again', flush=True); input()"


def test_signs_hold_page_and_processes() -> None:
    """What the page shows is kept, heartbeats of other clients are added, and what /proc tells."""
    with running(WAITING) as process:
        tree = TreeReader(process.pid)
        until(tree.read, lambda reading: reading.state == "S")
        signs = SignsReader(process.pid, started_at=0.1).read(SHOWN, 1.0, heartbeat_count=5)
        reading = tree.read()
    assert signs == Signs(
        at=1.0,
        started_at=0.1,
        progress_count=9,
        last_progress_at=0.5,
        open_sections=(OpenSection("eval", 0.4),),
        section_closed_at=0.3,
        bytecode_changes=8,
        sampler_at=0.9,
        io_bytes=reading.io_bytes,
        main_cpu_s=reading.main_cpu_s,
        process_state="S",
    )


def test_script_that_uses_the_client_is_told_from_one_that_only_steps() -> None:
    """Heartbeats and sections make it one, optimizer steps do not."""
    for shown, has_client in (
        (PageSnapshot(steps=3), False),
        (PageSnapshot(steps=3, heartbeats=1), True),
        (PageSnapshot(steps=3, sections_opened=1), True),
    ):
        assert SignsReader(os.getpid(), 0.0).read(shown, 1.0).has_client is has_client


def test_processes_are_not_read_while_the_page_moves() -> None:
    """A rank that moves costs no reading of /proc; one that stands still is read, or when asked for."""
    with running(WAITING) as process:
        reader = SignsReader(process.pid, 0.0)
        first = reader.read(SHOWN, 1.0)
        say(process, "go")
        moved = reader.read(replace(SHOWN, bytecode_changes=9), 2.0)
        assert (moved.io_bytes, moved.process_state, moved.is_alive) == (first.io_bytes, "", True)
        still = reader.read(replace(SHOWN, bytecode_changes=9), 3.0)
        assert (still.io_bytes or 0) > (first.io_bytes or 0)
        assert still.process_state != ""
        full = reader.read(replace(SHOWN, bytecode_changes=10), 4.0, is_full=True)
        assert full.process_state != ""


def test_sampler_that_left_with_exec_is_none() -> None:
    """A process that has become another program has no sampler, instead of one that stands still."""
    with running(WAITING) as process:
        reader = SignsReader(process.pid, 0.0)
        assert reader.read(replace(SHOWN, sampler_tid=process.pid), 1.0).sampler_at == 0.9
        assert reader.read(replace(SHOWN, sampler_tid=os.getpid()), 2.0).sampler_at is None

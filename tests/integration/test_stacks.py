"""Stacks of workers: written whatever the worker is doing, and nobody dies of being asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.launcher import control
from ftrun.monitor.page import Page
from ftrun.monitor.stack_signal import STACKS_SIGNAL
from ftrun.monitor.stacks import Outcome, StackRequest, catches_stacks_signal, has_open, request_stacks
from tests.support.waiting import until
from tests.support.worker_harness import DEADLINE_S, spawn

TIMEOUT_S = 10.0


@contextmanager
def worker(code: str, directory: Path, stacks: str | None = None) -> Iterator[StackRequest]:
    """A worker that runs `code` and has written "ready" to its standard output."""
    (directory / "script.py").write_text(f"import os, sys, time, threading\n{code}")
    path = str(directory / "stacks.txt") if stacks is None else stacks
    page = Page.create()
    process, ours = spawn(["script.py"], directory)
    read, write = os.pipe()
    with ours:
        control.send(ours, control.Preload())
        variables: dict[str, str | None] = {"FTRUN_PAGE": page.path, "FTRUN_STACKS": path}
        control.send(ours, control.Activate(variables, ("script.py",)), (write, write))
        os.close(write)
        assert os.read(read, 5) == b"ready"
        yield StackRequest(process.pid, path)
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    os.close(read)
    page.close()


def state_of(process: StackRequest) -> str:
    """The main thread's state letter."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_state(process: StackRequest, letters: str) -> None:
    until(lambda: state_of(process) in letters, lambda: state_of(process))


BUSY = {
    "asleep": "os.write(1, b'ready'); time.sleep(600)",
    "in a Python loop": "os.write(1, b'ready')\nwhile True: pass",
    # Again and again: C's own `sleep` returns when the signal comes.
    "in C code that holds the GIL": (
        "import ctypes; sleep = ctypes.PyDLL(None).sleep; os.write(1, b'ready')\nwhile True: sleep(600)"
    ),
    "waiting for a lock": "os.write(1, b'ready'); lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "in C++ that waits for a peer": (
        "import torch.distributed as dist\n"
        "store = dist.TCPStore('127.0.0.1', 0, 1, True)\nos.write(1, b'ready'); store.get('never set')"
    ),
    "with the signal blocked in its main thread": (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "os.write(1, b'ready'); time.sleep(600)"
    ),
    "with most descriptors closed": "os.closerange(3, 500); os.write(1, b'ready'); time.sleep(600)",
}


@pytest.mark.parametrize("code", BUSY.values(), ids=BUSY.keys())
def test_a_workers_stacks_are_written_whatever_it_does(code: str, tmp_path: Path) -> None:
    """Down to the script's own line, and all of them, when the answer is "written"."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    with worker(f"def innermost():\n{body}\ninnermost()\n", tmp_path) as process:
        begun = time.monotonic()
        assert request_stacks([process], TIMEOUT_S) == {process.pid: Outcome.WRITTEN}
        assert time.monotonic() - begun < TIMEOUT_S / 2
        text = Path(process.path).read_text()
        assert "in innermost\n" in text
        assert text.rstrip().endswith("in <module>")
        assert Path(process.path).stat().st_mode & 0o777 == 0o600
        assert catches_stacks_signal(process.pid), "it lives"


def test_a_stopped_worker_is_continued_for_it(tmp_path: Path) -> None:
    """The stacks are those of where it stood."""
    with worker("os.write(1, b'ready')\nwhile True: time.sleep(0.01)", tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_for_state(process, "T")
        assert request_stacks([process], TIMEOUT_S) == {process.pid: Outcome.WRITTEN}
        wait_for_state(process, "RSD")


def test_a_long_dump_is_waited_for_to_its_end(tmp_path: Path) -> None:
    """Sixty threads with deep stacks; the main thread's comes last, and is there."""
    code = """
def deep(n):
    if n: return deep(n - 1)
    barrier.wait(); time.sleep(600)
barrier = threading.Barrier(61)
for _ in range(60): threading.Thread(target=deep, args=(80,), daemon=True).start()
barrier.wait()
def last_of_all():
    os.write(1, b'ready'); time.sleep(600)
last_of_all()
"""
    with worker(code, tmp_path) as process:
        for count in range(1, 6):
            assert request_stacks([process], TIMEOUT_S) == {process.pid: Outcome.WRITTEN}
            text = Path(process.path).read_text()
            assert text.count("in last_of_all\n") == count
            assert text.rstrip().endswith("in <module>")


def test_several_workers_are_asked_at_once(tmp_path: Path) -> None:
    """One that cannot answer costs the others nothing."""
    for name in "ab":
        (tmp_path / name).mkdir()
    sleeps = "os.write(1, b'ready'); time.sleep(600)"
    with worker(sleeps, tmp_path / "a") as first, worker(sleeps, tmp_path / "b") as second:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait(DEADLINE_S)
        requests = [first, StackRequest(gone.pid, "/nowhere"), second]
        assert request_stacks(requests, TIMEOUT_S) == {
            first.pid: Outcome.WRITTEN,
            gone.pid: Outcome.NOT_ASKED,
            second.pid: Outcome.WRITTEN,
        }


NOT_ASKED = {
    "it has closed every descriptor": "os.closerange(3, 65536)",
    "it has become another program": "os.write(1, b'ready'); os.execv('/bin/sleep', ['sleep', '600'])",
    "it has given the signal up": f"import signal; signal.signal({int(STACKS_SIGNAL)}, signal.SIG_DFL)",
}


@pytest.mark.parametrize("code", NOT_ASKED.values(), ids=NOT_ASKED.keys())
def test_a_worker_that_could_not_take_the_signal_is_left_alone(code: str, tmp_path: Path) -> None:
    """It would die of it, or write into a file of the script's own."""
    with worker(f"{code}\nos.write(1, b'ready'); time.sleep(600)", tmp_path) as process:
        until(
            lambda: not (catches_stacks_signal(process.pid) and has_open(process.pid, process.path)),
            lambda: "it could still take it",
        )
        assert request_stacks([process], TIMEOUT_S) == {process.pid: Outcome.NOT_ASKED}
        wait_for_state(process, "RSD")


def test_no_file_means_no_handler(tmp_path: Path) -> None:
    """Neither without the variable nor where the file cannot be made."""
    for path in ("", str(tmp_path / "missing" / "stacks.txt")):
        with worker("os.write(1, b'ready'); time.sleep(600)", tmp_path, path) as process:
            assert not catches_stacks_signal(process.pid)
            assert request_stacks([process], TIMEOUT_S) == {process.pid: Outcome.NOT_ASKED}


def test_a_process_that_never_answers_is_given_up_in_time(tmp_path: Path) -> None:
    """Here a debugger's stop: the file stays as it is, and the limit holds."""
    code = "os.write(1, b'ready'); time.sleep(600)"
    with worker(code, tmp_path) as process:
        tasks = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        tracer = subprocess.Popen(
            [sys.executable, "-c", TRACER, *map(str, tasks)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"attached\n":
            pytest.skip("ptrace is not allowed here")
        begun = time.monotonic()
        assert request_stacks([process], 0.3) == {process.pid: Outcome.SILENT}
        assert 0.3 <= time.monotonic() - begun < 5
        tracer.kill()
        tracer.communicate(timeout=DEADLINE_S)


TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
for task in map(int, sys.argv[1:]):
    for what in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(what, task, None, None) != 0:
            print("refused", flush=True)
            sys.exit()
    os.waitpid(task, WALL)
print("attached", flush=True)
sys.stdin.read()
"""

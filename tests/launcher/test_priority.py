"""Priorities of a process that is to be lowered and brought back with all its threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ftrun.launcher import priority

DEADLINE_S = 15.0
_IO_IDLE, _IO_NONE = 3, 0

THREE_THREADS = """
import os, sys, threading
for _ in range(2):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.write(1, b"up")
os.read(0, 1)
"""


@contextlib.contextmanager
def three_threads() -> Iterator[int]:
    """Pid of a process with three threads that do nothing."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-S", "-c", THREE_THREADS], **pipes) as child:
        try:
            assert child.stdout is not None
            assert select.select([child.stdout], [], [], DEADLINE_S)[0]
            assert child.stdout.read(2) == b"up"
            yield child.pid
        finally:
            child.send_signal(signal.SIGKILL)


def niceness_of_threads(pid: int) -> list[int]:
    return [os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir(f"/proc/{pid}/task")]


def io_class_of(pid: int) -> int:
    """The I/O class of ioprio_get(2)."""
    number = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
    return int(ctypes.CDLL(None).syscall(number, 1, pid)) >> 13


needs_the_way_back = pytest.mark.skipif(
    not priority.can_go_back(os.getpriority(os.PRIO_PROCESS, 0)),
    reason="this user may lower a priority and not raise it again (no CAP_SYS_NICE, RLIMIT_NICE too low)",
)


@needs_the_way_back
def test_lowered_process_is_last_for_cpu_and_disk() -> None:
    """A standby that loads must not be noticed by training."""
    with three_threads() as pid:
        priority.lower(pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        assert io_class_of(pid) == _IO_IDLE


@needs_the_way_back
def test_restore_brings_every_thread_back() -> None:
    """Niceness belongs to threads, and libraries have started some by the time of the activation."""
    with three_threads() as pid:
        for tid in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(tid), 19)
        priority.lower(pid)
        priority.restore(pid)
        assert niceness_of_threads(pid) == [os.getpriority(os.PRIO_PROCESS, 0)] * 3
        assert io_class_of(pid) == _IO_NONE


def test_process_that_is_gone_is_no_error() -> None:
    """A standby may die at any moment; the pool sees that by itself."""
    nobody = 1 << 22  # above any pid_max
    priority.lower(nobody)
    priority.restore(nobody)


AS_ORDINARY_USER = """
import os, resource, sys
from ftrun.launcher import priority
try:
    resource.setrlimit(resource.RLIMIT_NICE, ({limit}, {limit}))
except ValueError:
    sys.exit("may not set the limit")
priority.can_go_back(0)  # loads what the user below may have no right to read
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
"""


def as_ordinary_user(limit: int, program: str) -> list[str]:
    """Words that `program` prints without any capability and with this RLIMIT_NICE."""
    result = subprocess.run(
        [sys.executable, "-c", AS_ORDINARY_USER.format(limit=limit) + program],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    if "may not set the limit" in result.stderr:
        pytest.skip("RLIMIT_NICE can only be raised with CAP_SYS_RESOURCE")
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_user_without_the_right_to_go_back_is_not_lowered() -> None:
    """An ordinary user's standbys keep their CPU priority: training would be stuck at the lowest."""
    program = """
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
priority.lower(child)
print(priority.can_go_back(0), os.getpriority(os.PRIO_PROCESS, child) == os.getpriority(os.PRIO_PROCESS, 0))
os.kill(child, 9)
"""
    assert as_ordinary_user(0, program) == ["False", "True"]


@pytest.mark.parametrize(("limit", "niceness", "expected"), [(20, 0, True), (19, 0, False), (15, 5, True)])
def test_limit_on_niceness_decides_for_an_ordinary_user(limit: int, niceness: int, expected: bool) -> None:
    """RLIMIT_NICE n allows nice values down to 20 - n (getrlimit(2))."""
    assert as_ordinary_user(limit, f"print(priority.can_go_back({niceness}))") == [str(expected)]

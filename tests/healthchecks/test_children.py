"""Commands under a deadline that holds, whatever they do."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.healthchecks import children
from ftrun.healthchecks.children import run_child, running_pids
from tests.support.waiting import until

START_S = 2.0
"""A deadline by which a command has begun and written, on a busy machine too."""


@pytest.fixture(autouse=True)
def nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither descriptors nor children are left, however long a busy machine takes to end one."""
    monkeypatch.setattr(children, "DEATH_S", 20.0)
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_output_and_exit_code() -> None:
    """Stdout and stderr together; the working directory is no place of the user's."""
    ended = run_child(["sh", "-c", "pwd; echo two >&2; exit 3"], 10)
    assert (ended.output, ended.exit_code, ended.has_hung, ended.survivor) == ("/\ntwo\n", 3, False, None)


def test_death_by_signal() -> None:
    """As `subprocess` has it."""
    assert run_child(["sh", "-c", "kill -11 $$"], 10).exit_code == -11


def test_command_that_hangs_is_killed() -> None:
    """With what it has started, and what it had said is kept."""
    started = time.monotonic()
    ended = run_child(["sh", "-c", "echo here; sleep 60 & sleep 60"], START_S)
    assert (ended.output, ended.exit_code, ended.has_hung, ended.survivor) == ("here\n", None, True, None)
    assert time.monotonic() - started < START_S + 30


def test_command_that_ignores_signals_is_killed() -> None:
    """It is never asked first."""
    assert run_child(["sh", "-c", "trap '' TERM INT; while :; do sleep 1; done"], 0.3).has_hung


def test_children_that_keep_the_output_open_do_not_delay() -> None:
    """The command's end counts, and they are ended."""
    started = time.monotonic()
    ended = run_child(["sh", "-c", "sleep 60 & echo $!"], 30)
    assert ended.exit_code == 0
    assert time.monotonic() - started < 10
    until(lambda: not _is_running(int(ended.output)), lambda: f"{ended.output} still runs")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_endless_output_is_cut() -> None:
    """Only its end is kept, and the deadline holds."""
    ended = run_child(["yes"], START_S, keep_bytes=100)
    assert (len(ended.output), ended.has_hung) == (100, True)


def test_output_larger_than_the_pipe_is_whole() -> None:
    """Nothing is lost between the last look and the end."""
    code = "import sys; sys.stdout.write('x' * 300000)"
    assert len(run_child([sys.executable, "-S", "-c", code], 20, keep_bytes=1 << 20).output) == 300000


def test_command_that_is_not_there() -> None:
    """That is the caller's to say."""
    with pytest.raises(FileNotFoundError):
        run_child(["/no/such/command"], 1)


def test_exit_code_that_somebody_else_took_is_unknown() -> None:
    """An agent reaps whatever ends below it, here the kernel does; "no such child" is not success."""
    code = (
        "import signal\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from ftrun.healthchecks.children import run_child\n"
        "print(run_child(['sh', '-c', 'echo said; sleep 0.3; exit 0'], 10))\n"
    )
    ended = run_child([sys.executable, "-c", code], 30)
    assert ended.output == "Ended(output='said\\n', exit_code=None, has_hung=False, survivor=None)\n"


def test_descriptors_above_1023_do_not_matter() -> None:
    """An agent of a large node has more."""
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1300:
        pytest.skip("this user may not have as many")
    code = (
        "import os, resource\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))\n"
        "held = [os.dup(0) for _ in range(1200)]\n"
        "from ftrun.healthchecks.children import run_child\n"
        "print(run_child(['echo', 'said'], 10).exit_code)\n"
    )
    assert run_child([sys.executable, "-c", code], 30).output == "0\n"


def test_running_children_are_known() -> None:
    """So that a sweep can leave them alone; afterwards there are none."""
    seen: list[frozenset[int]] = []
    thread = threading.Thread(target=lambda: run_child(["sleep", "60"], 1.0))
    thread.start()

    def is_known() -> bool:
        seen.append(running_pids())
        return bool(seen[-1])

    until(is_known, lambda: "no child is known")
    thread.join()
    assert (len(seen[-1]), running_pids()) == (1, frozenset())

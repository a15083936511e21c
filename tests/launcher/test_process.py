"""Processes of a node, with small real ones: end, reap, descendants that hide, signals they would survive."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ftrun.launcher import process
from ftrun.monitor.process_tree import children
from ftrun.monitor.signal_names import signal_name

DEADLINE_S = 15.0

GRANDCHILD = """
import os, sys
if os.fork() == 0:
    {setup}
    sys.stdout.write(f"{{os.getpid()}}\\n"); sys.stdout.flush()
    os.read(0, 1)
    os._exit(0)
{parent}
"""


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether `condition` comes true within the deadline."""
    give_up_at = time.monotonic() + DEADLINE_S
    tick = threading.Event()
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        tick.wait(0.005)
    return True


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], DEADLINE_S)[0])


class Child:
    """A Python child of this process in a session of its own, with pipes that only this helper knows."""

    def __init__(self, program: str) -> None:
        theirs_in, self.stdin = os.pipe()
        self.stdout, theirs_out = os.pipe()
        plumbing = f"import os; os.dup2({theirs_in}, 0); os.dup2({theirs_out}, 1)\n"
        argv = [sys.executable, "-S", "-c", plumbing + program]
        self.process = process.spawn(argv, os.environ, (theirs_in, theirs_out))
        os.close(theirs_in)
        os.close(theirs_out)

    def line(self) -> str:
        """The next thing that the child, or a child of it, writes."""
        assert is_readable(self.stdout), "the child wrote nothing"
        return os.read(self.stdout, 4096).decode()

    def close(self) -> None:
        """Kill it, with all that stayed in its group."""
        os.close(self.stdin)
        os.close(self.stdout)
        self.process.signal_group(signal.SIGKILL)
        if self.process.pidfd >= 0:
            assert is_readable(self.process.pidfd)
            self.process.reap()


@contextlib.contextmanager
def running(program: str) -> Iterator[Child]:
    child = Child(program)
    try:
        yield child
    finally:
        child.close()


def run_apart(program: str) -> str:
    """Output of `program` in a process of its own, since becoming a subreaper cannot be undone here."""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("program", "code"),
    [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 40)", -40)],
)
def test_end_is_seen_before_it_is_reaped(program: str, code: int) -> None:
    """The pid stays taken by a zombie until `reap`, so that its group can still be signalled safely."""
    with running(program) as child:
        assert is_readable(child.process.pidfd)
        assert child.process.poll() == code
        assert process.state_of(child.process.pid) == "Z"
        status = child.process.reap()
        assert status.code == code
        assert status.max_rss_bytes > 1024**2
        assert child.process.poll() == code
        assert process.state_of(child.process.pid) == ""


def test_running_process_has_no_exit_code() -> None:
    """`poll` answers at once."""
    with running("os.read(0, 1)") as child:
        assert child.process.poll() is None


def test_child_leads_its_own_session() -> None:
    """A signal to its group reaches what it started, and a terminal's Ctrl-C only the agent."""
    with running("os.write(1, str(os.getsid(0)).encode()); os.read(0, 1)") as child:
        assert int(child.line()) == child.process.pid


def test_released_process_that_still_runs_is_reaped_as_an_orphan() -> None:
    """Releasing waits for nothing; the loop's next SIGCHLD takes what is left."""
    with running("os.write(1, b'up'); os.read(0, 1)") as child:
        child.line()
        pid, pidfd = child.process.pid, child.process.pidfd
        child.process.signal(signal.SIGKILL)
        child.process.release()
        assert child.process.pidfd == -1
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pidfd)

        def is_reaped() -> bool:
            process.reap_orphans(())
            return process.state_of(pid) == ""

        assert eventually(is_reaped)
        child.process.signal(signal.SIGTERM)  # must reach nobody


def test_released_process_that_has_ended_is_reaped_at_once() -> None:
    """No zombie and no descriptor is left."""
    with running("os._exit(3)") as child:
        assert is_readable(child.process.pidfd)
        child.process.release()
        assert child.process.poll() == 3
        assert process.state_of(child.process.pid) == ""


def test_reaping_orphans_leaves_known_children_alone() -> None:
    """An ended worker's exit code is the agent's to take, not the sweep's."""
    with running("os._exit(5)") as child:
        assert is_readable(child.process.pidfd)
        process.reap_orphans({child.process.pid})
        assert child.process.reap().code == 5


def test_descendants_are_found_below_children() -> None:
    """Grandchildren count, and those below a process that is left out do not."""
    with running(GRANDCHILD.format(setup="", parent="os.wait()")) as child:
        grandchild = int(child.line())
        assert set(process.descendants(os.getpid())) >= {child.process.pid, grandchild}
        assert children(child.process.pid) == [grandchild]
        found = process.descendants(os.getpid(), without={child.process.pid})
        assert not {child.process.pid, grandchild} & set(found)


def test_zombie_is_no_descendant() -> None:
    """What has ended holds no port and needs no signal."""
    with running("os._exit(0)") as child:
        assert is_readable(child.process.pidfd)
        assert child.process.pid not in process.descendants(os.getpid())
        assert child.process.pid in children(os.getpid())


@pytest.mark.parametrize("setup", ["os.setsid()", "os.setsid(); os.fork() and os._exit(0)"])
def test_daemon_is_found_and_killed_after_its_parent_has_ended(setup: str) -> None:
    """A double fork into a session of its own does not get away from a subreaper."""
    program = f"""
import os, signal, sys
from ftrun.launcher import process
from ftrun.monitor.process_tree import children
process.become_subreaper()
reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        {setup}
        os.write(writing, b"%d" % os.getpid())
        signal.pause()
    os._exit(0)
daemon = int(os.read(reading, 100))
os.wait()
while children(os.getpid()) != [daemon]:
    process.reap_orphans({{daemon}})
assert process.descendants(os.getpid()) == [daemon]
process.kill_descendant(daemon, signal.SIGKILL, os.getpid())
assert os.waitpid(daemon, 0)[1] == signal.SIGKILL
assert process.descendants(os.getpid()) == []
print("gone")
"""
    assert run_apart(program) == "gone\n"


def test_process_that_is_no_descendant_is_not_signalled() -> None:
    """A pid that was given to somebody else meanwhile must not be killed."""
    with running("os.read(0, 1)") as child, running("os.read(0, 1)") as other:
        process.kill_descendant(other.process.pid, signal.SIGKILL, root=child.process.pid)
        process.kill_descendant(1, signal.SIGCONT, root=child.process.pid)
        assert other.process.poll() is None
        process.kill_descendant(other.process.pid, signal.SIGKILL, root=os.getpid())
        assert is_readable(other.process.pidfd)
        assert other.process.poll() == -9


@pytest.mark.parametrize(
    ("program", "survives"),
    [
        ("", False),
        ("import signal; signal.signal(signal.SIGUSR1, lambda *_: None)", True),
        ("import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)", True),
        ("import signal; signal.signal(signal.SIGUSR2, lambda *_: None)", False),
    ],
    ids=["default", "handler", "ignored", "handler of another"],
)
def test_it_is_known_whether_a_signal_would_kill(program: str, survives: bool) -> None:
    """The default action of SIGUSR1 is death: it is passed on only to those who expect it."""
    with running(f"{program}\nos.write(1, b'up'); os.read(0, 1)") as child:
        child.line()
        assert process.catches(child.process.pid, signal.SIGUSR1) is survives


def test_nothing_catches_a_signal_that_is_not_there_any_more() -> None:
    """A process that has ended is answered for as one that would not survive."""
    assert process.catches(1 << 22, signal.SIGUSR1) is False


@pytest.mark.parametrize(
    ("exit_code", "name"),
    [
        (0, None),
        (1, None),
        (255, None),
        (-9, "SIGKILL"),
        (-15, "SIGTERM"),
        (-34, "SIGRTMIN"),
        (-64, "SIGRTMAX"),
    ],
)
def test_signals_have_names(exit_code: int, name: str | None) -> None:
    """Ordinary exit codes name no signal."""
    assert signal_name(exit_code) == name


@pytest.mark.parametrize("number", [35, 40, 63, 33])
def test_signals_without_a_constant_are_named_by_number(number: int) -> None:
    """Real-time signals between the first and the last have no name in Python; that is no error."""
    assert str(number) in (signal_name(-number) or "")


def test_group_signal_reaches_grandchildren() -> None:
    """One call ends a worker with its data loaders."""
    with running(GRANDCHILD.format(setup="", parent="os.wait()")) as child:
        grandchild = int(child.line())
        child.process.signal_group(signal.SIGKILL)
        assert is_readable(child.process.pidfd)
        assert eventually(lambda: process.state_of(grandchild) in ("", "Z"))


def test_command_shows_the_script_and_no_secret() -> None:
    """The words after the first argument may hold a token, and belong to nobody's journal."""
    with running("os.execv('/bin/sleep', ['sleep', '60', '--token=x'][:2])") as child:
        assert eventually(lambda: process.command_of(child.process.pid) == "sleep 60")
    assert process.command_of(1 << 22) == "?"


def test_stopped_process_is_told_apart() -> None:
    """State T is what makes the agent send SIGCONT after SIGTERM."""
    with running("os.write(1, b'up'); os.read(0, 1)") as child:
        child.line()
        child.process.signal(signal.SIGSTOP)
        assert eventually(lambda: process.state_of(child.process.pid) == "T")


def test_children_of_other_threads_belong_to_no_round() -> None:
    """Health checks start theirs on threads; the sweep of a round cannot know all of them in time."""
    started: list[subprocess.Popen[bytes]] = []
    has_started, is_over = threading.Event(), threading.Event()

    def check() -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        has_started.set()
        is_over.wait(DEADLINE_S)

    thread = threading.Thread(target=check)
    thread.start()
    try:
        assert has_started.wait(DEADLINE_S)
        with running("input()") as child:
            found = process.descendants(os.getpid())
            assert child.process.pid in found
            assert started[0].pid not in found
    finally:
        is_over.set()
        thread.join(DEADLINE_S)
        for one in started:
            one.kill()
            one.wait(DEADLINE_S)

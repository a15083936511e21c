"""The output pump with real pipes, terminals and worker processes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.launcher.output import OutputPump
from ftrun.launcher.output_lines import StreamTarget
from ftrun.launcher.streams import Std
from tests.support.waiting import until

DEADLINE_S = 20.0


class Console:
    """A reader's end of the agent's stdout or stderr; reads with a deadline."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        self.seen = bytearray()

    def wait_for(self, text: bytes) -> bytes:
        """Read until the text has come; all that was read so far."""
        deadline = time.monotonic() + DEADLINE_S
        searched = 0
        while self.seen.find(text, searched) < 0:
            searched = max(0, len(self.seen) - len(text))
            ready, _, _ = select.select([self.read_fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come within {DEADLINE_S} s, only {self.seen[-2000:]!r}"
            self.seen += os.read(self.read_fd, 65536)
        return bytes(self.seen)

    def read_all(self) -> bytes:
        """Read what is there now."""
        while select.select([self.read_fd], [], [], 0)[0]:
            data = os.read(self.read_fd, 65536)
            if not data:
                break
            self.seen += data
        return bytes(self.seen)

    def close_reader(self) -> None:
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    def close(self) -> None:
        self.close_reader()
        os.close(self.write_fd)


class Rig:
    """A pump with consoles to look at; by its clock, which stands still, no worker ever makes a pause."""

    def __init__(self, stderr: Console | None = None, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.out = Console(*os.pipe())
        self.err = stderr or Console(*os.pipe())
        self.warnings: list[str] = []
        self.pump = OutputPump(self.warnings.append, self.out.write_fd, self.err.write_fd, clock)

    def start(self, code: str, *targets: StreamTarget) -> subprocess.Popen[bytes]:
        """Start a little worker with the streams that the targets describe; others are /dev/null."""
        fds = {target.stream: self.pump.open(target) for target in targets}
        worker = subprocess.Popen(
            [sys.executable, "-u", "-I", "-S", "-c", "import os, sys\n" + code],
            stdin=subprocess.PIPE,
            stdout=fds.get(Std.OUT, subprocess.DEVNULL),
            stderr=fds.get(Std.ERR, subprocess.DEVNULL),
        )
        for fd in fds.values():
            os.close(fd)
        return worker

    def run(self, code: str, *targets: StreamTarget) -> int:
        """Run a little worker to its end, and drain."""
        worker = self.start(code, *targets)
        worker.communicate(timeout=DEADLINE_S)
        assert self.pump.drain(DEADLINE_S)
        return worker.returncode

    def close(self) -> None:
        """A test that fails leaves text that nobody reads: the wait for it ends."""
        self.pump.close(lambda: True)
        self.out.close()
        self.err.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A pump whose consoles are pipes."""
    rig = Rig()
    yield rig
    rig.close()


def out(local_rank: int = 0, **changes: object) -> StreamTarget:
    return StreamTarget(local_rank=local_rank, stream=Std.OUT, **changes)  # type: ignore[arg-type]


def err(local_rank: int = 0, **changes: object) -> StreamTarget:
    fields: dict[str, object] = {"keep_tail": True, **changes}
    return StreamTarget(local_rank=local_rank, stream=Std.ERR, **fields)  # type: ignore[arg-type]


def teed(path: Path, local_rank: int = 0, **changes: object) -> StreamTarget:
    return out(local_rank, file=str(path), prefix=f"[default{local_rank}]:", **changes)


def count_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_plain_stdout_is_the_agents_own(rig: Rig) -> None:
    """Without tee, redirect or filter there is no pipe in between."""
    fd = rig.pump.open(out())
    try:
        assert os.path.sameopenfile(fd, rig.out.write_fd)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_stderr_is_passed_on_at_once_and_unchanged(rig: Rig) -> None:
    """Bytes arrive while the worker still runs, progress bars and broken text included."""
    data = b"\r 10%|#\r 20%|##\xff\n\x1b[31mred"
    worker = rig.start(f"os.write(2, {data!r}); sys.stdin.read()", err())
    assert rig.err.wait_for(b"red") == data
    worker.communicate(timeout=DEADLINE_S)
    assert rig.pump.drain(DEADLINE_S)
    assert rig.err.read_all() == data
    assert rig.pump.tail(0) == (" 20%|##\ufffd", "\x1b[31mred")


def test_tail_has_the_traceback_of_a_crash(rig: Rig) -> None:
    """The last stderr lines are kept per rank, also after the round was closed."""
    assert rig.run("raise ValueError('bad batch')", err(3)) == 1
    rig.pump.close_round()
    assert rig.pump.tail(3)[-1] == "ValueError: bad batch"
    assert rig.pump.tail(3)[0] == "Traceback (most recent call last):"
    assert rig.pump.tail(0) == ()


def test_teed_lines_are_whole_and_have_one_prefix(rig: Rig, tmp_path: Path) -> None:
    """Two ranks write lines in pieces and die by SIGKILL in the middle of one; nothing is mixed or lost."""
    code = """
for i in range(200):
    for piece in ("prog", "RANK ", str(i), "\\n"):
        os.write(1, piece.encode())
os.write(1, b"last words RANK")
os.kill(os.getpid(), 9)
"""
    workers = [
        rig.start(code.replace("RANK", str(rank)), teed(tmp_path / f"{rank}.log", rank)) for rank in (0, 1)
    ]
    for worker in workers:
        worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == -9
    assert rig.pump.drain(DEADLINE_S)
    console = rig.out.read_all()
    assert console.endswith(b"\n")
    for rank in (0, 1):
        lines = [f"prog{rank} {i}" for i in range(200)] + [f"last words {rank}"]
        prefix = f"[default{rank}]:"
        assert [line for line in console.decode().splitlines() if prefix in line] == [
            prefix + x for x in lines
        ]
        assert (tmp_path / f"{rank}.log").read_text() == "\n".join(lines)
    assert len(console.splitlines()) == 402


def test_a_pause_shows_what_has_no_newline_yet(tmp_path: Path) -> None:
    """Neither a prompt nor a progress bar waits for a newline; the file has the exact bytes."""
    code = "os.write(1, b'\\r10%\\r20%'); sys.stdin.readline(); os.write(1, b'\\r30%\\n')"
    with contextlib.closing(Rig(clock=time.monotonic)) as rig:
        worker = rig.start(code, teed(tmp_path / "log"))
        assert rig.out.wait_for(b"20%\n") == b"[default0]:10%\n[default0]:20%\n"
        worker.communicate(b"\n", timeout=DEADLINE_S)
        assert rig.pump.drain(DEADLINE_S)
        assert rig.out.read_all() == b"[default0]:10%\n[default0]:20%\n[default0]:30%\n"
        assert (tmp_path / "log").read_bytes() == b"\r10%\r20%\r30%\n"


def test_a_very_long_line_is_shown_in_parts(rig: Rig, tmp_path: Path) -> None:
    """A megabyte without a newline is complete in the file and on the console, each part with a prefix."""
    worker = rig.start(
        "sys.stdout.write('x' * 1_000_000); sys.stdout.write('end\\n')", teed(tmp_path / "log")
    )
    console = rig.out.wait_for(b"end\n")
    worker.communicate(timeout=DEADLINE_S)
    assert b"".join(re.findall(rb"^\[default0\]:(.*)\n", console, re.M)) == b"x" * 1_000_000 + b"end"
    assert (tmp_path / "log").stat().st_size == 1_000_004


def test_a_redirected_stream_is_the_file_itself(rig: Rig, tmp_path: Path) -> None:
    """No pipe, an existing file is appended to, and the tail is read from the file."""
    log = tmp_path / "stderr.log"
    log.write_text("before\n")
    code = "import stat; assert stat.S_ISREG(os.fstat(2).st_mode); sys.exit('a' * 9000 + '\\nthe end')"
    assert rig.run(code, err(file=str(log), to_console=False)) == 1
    assert log.read_text() == "before\n" + "a" * 9000 + "\nthe end\n"
    assert rig.pump.tail(0) == ("the end",)
    assert rig.err.read_all() == b""


def test_a_hidden_rank_is_not_shown_but_its_last_lines_are_known(rig: Rig) -> None:
    """--local-ranks-filter: stdout goes to /dev/null, stderr is read for its tail only."""
    code = "print('out'); print('why', file=sys.stderr)"
    assert rig.run(code, out(to_console=False), err(to_console=False)) == 0
    assert (rig.out.read_all(), rig.err.read_all()) == (b"", b"")
    assert rig.pump.tail(0) == ("why",)


def test_lines_that_match_a_filter_are_copied(rig: Rig, tmp_path: Path) -> None:
    """All ranks share the filtered file; each line in it has its prefix, with tee and without."""
    filtered = tmp_path / "filtered_stdout.log"
    changes = {"filters": ("apple", "pear"), "filtered_file": str(filtered)}
    code = "print('an apple'); print('a plum'); sys.stdout.write('a pear')"
    rig.run(code, teed(tmp_path / "0.log", 0, filtered_prefix="[default0]:", **changes))
    rig.run(code, out(1, filtered_prefix="[default1]:", **changes))
    rig.run(code, out(2, to_console=False, **changes))
    assert filtered.read_text() == "".join(
        f"[default{rank}]:{text}\n" for rank in (0, 1) for text in ("an apple", "a pear")
    )
    assert rig.out.read_all() == (
        b"[default0]:an apple\n[default0]:a plum\n[default0]:a pear\n" + b"an apple\na plum\na pear"
    )


def test_drain_does_not_wait_for_a_stray_process(rig: Rig, tmp_path: Path) -> None:
    """A child of the worker that still holds the pipe neither delays nor loses the worker's last text."""
    code = """
import subprocess
stray = subprocess.Popen(["sleep", "600"])
print(stray.pid)
os.write(1, b"last")
"""
    worker = rig.start(code, teed(tmp_path / "log"))
    assert worker.wait(DEADLINE_S) == 0
    assert worker.stdin is not None
    worker.stdin.close()
    began_at = time.monotonic()
    assert rig.pump.drain(DEADLINE_S)
    assert time.monotonic() - began_at < 5
    console = rig.out.read_all()
    assert console.endswith(b"[default0]:last\n")
    fds = count_fds()
    rig.pump.close_round()
    assert count_fds() == fds - 2
    os.kill(int(console.splitlines()[0].removeprefix(b"[default0]:")), 9)


def test_a_blocked_console_never_blocks_the_agent(rig: Rig, tmp_path: Path) -> None:
    """While nobody reads, every call returns in its time; when somebody reads again nothing is missing."""
    code = "sys.stdout.write(''.join(f'{i:07}\\n' for i in range(150_000)))"
    worker = rig.start(code, teed(tmp_path / "log"))
    until(lambda: not rig.pump.drain(0.05), lambda: "the console took everything")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.5)
    began_at = time.monotonic()
    os.close(rig.pump.open(err(1)))
    assert not rig.pump.drain(0.05)
    assert rig.pump.tail(1) == ()
    rig.pump.write(b"agent\n")
    assert rig.err.wait_for(b"agent\n")
    assert time.monotonic() - began_at < 5
    console = rig.out.wait_for(b"0149999\n")
    worker.communicate(timeout=DEADLINE_S)
    assert console == b"".join(b"[default0]:%07d\n" % i for i in range(150_000))


def test_a_closed_console_costs_no_log(rig: Rig, tmp_path: Path) -> None:
    """After `ftrun ... | head -1` has ended the pipe, files are complete and the worker is not disturbed."""
    rig.out.close_reader()
    for number in range(2):
        log = tmp_path / f"{number}.log"
        assert rig.run("for i in range(5000): print(i)", teed(log)) == 0
        assert len(log.read_text().splitlines()) == 5000
    assert rig.warnings == []


def test_a_full_disk_costs_one_warning(rig: Rig) -> None:
    """/dev/full stands for the disk: the console still has everything, and the worker's write succeeds."""
    for rank in (0, 1):
        assert rig.run("print('a'); print('b')", teed(Path("/dev/full"), rank)) == 0
    assert len(rig.out.read_all().splitlines()) == 4
    assert rig.warnings == [
        "cannot write /dev/full: No space left on device; "
        "this output is lost while that lasts, the job goes on"
    ]


def test_a_log_file_that_cannot_be_opened_sends_its_stream_to_the_console(rig: Rig, tmp_path: Path) -> None:
    """Redirected: to the console instead; teed: still on the console."""
    missing = tmp_path / "missing" / "log"
    assert rig.run("print('a')", out(file=str(missing), to_console=False)) == 0
    assert rig.run("print('b')", teed(missing, 1)) == 0
    assert rig.out.read_all() == b"a\n[default1]:b\n"
    assert [str(missing) in warning for warning in rig.warnings] == [True, True]


def test_the_agents_own_lines_do_not_cut_a_workers(rig: Rig, tmp_path: Path) -> None:
    """Text that the agent hands to the pump lands between lines."""
    worker = rig.start("for i in range(20_000): print('w' * 50)", teed(tmp_path / "log"))
    for _ in range(100):
        rig.pump.write(b"agent speaks\n", Std.OUT)
    console = rig.out.wait_for(b"agent speaks\n")
    while worker.poll() is None:
        console = rig.out.read_all()
    rig.pump.write(b"end\n", Std.OUT)
    console = rig.out.wait_for(b"end\n")
    assert set(console.splitlines()) == {b"agent speaks", b"[default0]:" + b"w" * 50, b"end"}


def window_size(fd: int) -> tuple[int, ...]:
    return struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))


def test_stderr_stays_a_terminal(tmp_path: Path) -> None:
    """Workers see a terminal of the console's size where the agent has one, and bytes are translated once."""
    read_fd, write_fd = pty.openpty()
    fcntl.ioctl(write_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    rig = Rig(Console(read_fd, write_fd))
    try:
        fd = rig.pump.open(err())
        assert window_size(fd) == (33, 101, 0, 0)
        fcntl.ioctl(write_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        rig.pump.copy_window_size()
        rig.pump.write(b"resized\n")
        rig.err.wait_for(b"resized\r\n")
        assert window_size(fd) == (40, 120, 0, 0)
        os.close(fd)
        rig.run(
            "print(os.isatty(2), os.get_terminal_size(2).columns, file=sys.stderr)\nsys.exit('bye')", err(1)
        )
        assert rig.err.wait_for(b"bye\r\n").endswith(b"\r\nTrue 120\r\nbye\r\n")
        assert rig.pump.tail(1) == ("True 120", "bye")
        teed_fd = rig.pump.open(teed(tmp_path / "log", 2))
        assert not os.isatty(teed_fd)
        os.close(teed_fd)
    finally:
        rig.close()


def test_a_thousand_rounds_leave_no_descriptor(rig: Rig, tmp_path: Path) -> None:
    """Neither streams at their end nor streams that someone still holds leak; all are close-on-exec."""
    held = []
    before = count_fds()
    for number in range(1000):
        fds = [
            rig.pump.open(teed(tmp_path / "log")),
            rig.pump.open(err()),
            rig.pump.open(err(1, file=str(tmp_path / "err"), to_console=False)),
            rig.pump.open(out(1)),
        ]
        assert not any(os.get_inheritable(fd) for fd in fds)
        os.write(fds[0], b"x\n")
        held = fds if number % 2 else []
        if not held:
            for fd in fds:
                os.close(fd)
        assert rig.pump.drain(DEADLINE_S)
        rig.pump.close_round()
        for fd in held:
            os.close(fd)
        rig.out.read_all()
    until(lambda: count_fds() == before, count_fds)  # the pump closes them in its own time
    assert rig.out.seen == b"[default0]:x\n" * 1000


def test_closing_the_pump_closes_all_of_it() -> None:
    """Also twice, and with streams still open; later calls do nothing."""
    before = count_fds()
    rig = Rig()
    fd = rig.pump.open(err())
    os.write(fd, b"partial")
    rig.pump.close()
    rig.pump.close()
    rig.pump.write(b"ignored")
    assert rig.err.read_all() == b"partial"
    os.close(fd)
    rig.close()
    assert count_fds() == before


def test_close_waits_for_a_slow_reader(rig: Rig, tmp_path: Path) -> None:
    """All output and the agent's last words arrive, though nobody reads before the pump is being closed."""
    fd = rig.pump.open(teed(tmp_path / "log"))
    lines = b"".join(b"%07d\n" % i for i in range(7_000))  # less than the pipe holds, more than the console
    os.write(fd, lines)
    os.close(fd)
    rig.pump.write(b"agent's last words\n", Std.OUT)
    reader = threading.Thread(target=rig.out.wait_for, args=(b"0006999\n",))
    asked = itertools.count()

    def is_too_long() -> bool:
        number = next(asked)
        if number == 20:  # by then a wait that has a bound of a second or two is over
            reader.start()
        return number > 200

    rig.pump.close(is_too_long)
    reader.join(DEADLINE_S)
    console = rig.out.read_all()
    assert b"agent's last words\n" in console
    assert console.count(b"[default0]:") == 7_000


def test_close_gives_up_on_a_blocked_console_when_told_to(rig: Rig) -> None:
    """A second stop signal ends the wait for a console that nobody reads."""
    rig.pump.write(b"x" * 200_000, Std.OUT)
    asked = iter((False, True))
    rig.pump.close(lambda: next(asked))
    assert next(asked, None) is None


def test_the_agents_last_words_are_kept_behind_any_backlog_of_the_workers(rig: Rig, tmp_path: Path) -> None:
    """The account of a failure follows what the pipes of many ranks held when the job ended."""
    lines = b"".join(b"%07d\n" % i for i in range(8_000))
    for rank in range(16):
        fd = rig.pump.open(teed(tmp_path / "log", rank))
        os.write(fd, lines)
        os.close(fd)
    assert not rig.pump.drain(0.05)
    rig.pump.write(b"account of the failure\n", Std.OUT)
    rig.out.wait_for(b"account of the failure\n")

"""Opens the workers' stdout and stderr: the console, a log file, or a pipe that the agent passes on.

Does not decide where files lie (`ftrun.launcher.logs`) and moves no bytes itself: that is the work of one
thread (`ftrun.launcher.output_loop`). It is the only writer to the console, so a console that blocks (a
stopped terminal, a reader that does not read) holds up that thread, in time the workers that write to it, and
never the agent.
"""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ftrun.launcher.output_lines import (
    TAIL_BYTES,
    LineAssembler,
    Route,
    StreamTarget,
    Tail,
    choose_route,
)
from ftrun.launcher.output_loop import Console, PumpLoop, Source
from ftrun.launcher.streams import Std

_CLOSE_S = 1.0
_LOOK_EVERY_S = 0.1
"""How often a wait for the console looks whether it is to be given up."""


class OutputPump:
    """The agent's side of the workers' output; its methods are for one thread, the agent's."""

    def __init__(
        self,
        on_warning: Callable[[str], None],
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            on_warning: called with one sentence, mostly on the pump's own thread: let it only append to a
                queue.
            stdout_fd: the agent's standard output; duplicated here.
            stderr_fd: the agent's standard error; duplicated here.
            clock: monotonic seconds.
        """
        self._warn = on_warning
        self._consoles = {Std.OUT: Console(stdout_fd), Std.ERR: Console(stderr_fd)}
        self._tails: dict[tuple[int, Std], Tail | str] = {}
        self._lock = threading.Lock()
        self._loop = PumpLoop(tuple(self._consoles.values()), on_warning, self._lock, clock)
        self._thread = threading.Thread(target=self._loop.run, name="ftrun-output", daemon=True)
        self._thread.start()

    def open(self, target: StreamTarget) -> int:
        """Open what the worker is to get as this stream; the caller closes it once it is sent.

        It is close-on-exec. A log file that cannot be opened costs a warning; its stream goes to the console.

        Raises:
            OSError: no pipe could be made, e.g. too many open files.
        """
        key = (target.local_rank, target.stream)
        self._tails.pop(key, None)
        route = choose_route(target)
        console = self._consoles[target.stream]
        if route is Route.PUMP:
            return self._open_pumped(target, console)
        if route is Route.FILE and target.file is not None:
            try:
                fd = os.open(target.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as error:
                self._warn(f"cannot open {target.file}: {error.strerror}; this output goes to the console")
                route = Route.INHERIT
            else:
                self._tails[key] = target.file
                return fd
        if route is Route.INHERIT and not console.is_gone:
            return os.dup(console.fd)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def _open_pumped(self, target: StreamTarget, console: Console) -> int:
        is_passed_on = target.to_console and target.prefix is None
        terminal = _open_terminal(console.fd) if is_passed_on and console.is_terminal else None
        read_fd, write_fd = terminal or os.pipe()
        os.set_blocking(read_fd, False)
        source = Source(target, read_fd, console if target.to_console else None)
        self._tails[target.local_rank, target.stream] = source.tail
        self._loop.post(partial(self._loop.add, source))
        return write_fd

    def tail(self, local_rank: int, stream: Std = Std.ERR) -> tuple[str, ...]:
        """Return the last lines of the stream's newest round, oldest first; `drain` makes them complete.

        Empty when nothing was written, or when the stream is not seen by the agent at all.
        """
        tail = self._tails.get((local_rank, stream))
        if tail is None:
            return ()
        if isinstance(tail, str):
            return _tail_of_file(tail)
        with self._lock:
            return tail.lines()

    def write(self, data: bytes, stream: Std = Std.ERR) -> None:
        """Put the agent's own whole lines among the workers', without waiting for the console."""
        self._loop.post(partial(self._loop.put, self._consoles[stream], data))

    def copy_window_size(self) -> None:
        """Pass the size of the console's window on to the workers' terminals, after SIGWINCH."""
        self._loop.post(partial(self._loop.for_each_terminal, copy_window_size))

    def drain(self, timeout_s: float) -> bool:
        """Pass on all that the workers, which have ended, have written, up to the last byte.

        Does not wait for the end of a stream, since a stray process may still hold it open.

        Returns:
            True when all of it is on the console and in the files; False if the console was too slow.
        """
        is_drained = threading.Event()
        self._loop.post(partial(self._loop.drain, is_drained))
        return is_drained.wait(timeout_s)

    def close_round(self) -> None:
        """Close all streams and files of the round; what was not drained is lost, the tails remain."""
        is_closed = threading.Event()
        self._loop.post(partial(self._loop.close_round, is_closed))
        is_closed.wait(_CLOSE_S)

    def close(self, should_give_up: Callable[[], bool] = lambda: False) -> None:
        """Pass on all that there is, then end the thread.

        Waits as long as the console is open, as a program that writes to it by itself would: a reader that is
        slow gets everything. With `should_give_up`, asked every 0.1 s, the wait ends and the rest is lost.
        """
        is_drained = threading.Event()
        self._loop.post(partial(self._loop.drain, is_drained))
        while self._thread.is_alive() and not is_drained.wait(_LOOK_EVERY_S) and not should_give_up():
            pass
        if self._thread.is_alive():
            self._loop.post(self._loop.stop)
            self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


def _open_terminal(console_fd: int) -> tuple[int, int] | None:
    """Make a terminal for a worker, so that its isatty() and colours stay as if it had the console itself.

    Raw, because the console behind it does the translation of newlines. None where there is no terminal left,
    or none at all (a container without /dev/pts); then a pipe has to do.
    """
    try:
        read_fd, write_fd = os.openpty()
    except OSError:
        return None
    tty.setraw(write_fd)
    copy_window_size(console_fd, read_fd)
    return read_fd, write_fd


def copy_window_size(from_fd: int, to_fd: int) -> None:
    """Give one terminal the size of another; nothing happens if one of them is gone."""
    with suppress(OSError):
        size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


def _tail_of_file(path: str) -> tuple[str, ...]:
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(start)
            data = file.read(TAIL_BYTES)
    except OSError:
        return ()
    if start:
        data = data.partition(b"\n")[2] or data
    assembler, tail = LineAssembler(), Tail()
    tail.add(assembler.feed(data) + assembler.flush())
    return tail.lines()


class ConsoleText(io.TextIOBase):
    """The agent's stderr as a text stream that never waits for the console."""

    def __init__(self, pump: OutputPump) -> None:
        self._pump = pump

    def write(self, text: str) -> int:
        """Queue `text`, which must be whole lines."""
        self._pump.write(text.encode(errors="surrogateescape"))
        return len(text)

"""The thread that moves the workers' output: reads their pipes, writes to the console and to log files.

Does not open what it reads (`ftrun.launcher.output`) and does not know what a line is
(`ftrun.launcher.output_lines`).

A teed line is held back until it is whole. Text without a terminator is shown as a line of its own when the
worker has written nothing more for half a second; a carriage return ends a line too, as in torchrun's tee:
progress bars move on. Files get the bytes as they were written, at once. A console that does not keep up
holds back the streams that go to it, as it would without the pump; nothing of theirs is dropped.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ftrun.launcher.output_lines import Line, LineAssembler, StreamTarget, Tail, prefix_lines

IDLE_FLUSH_S = 0.5
_READ_BYTES = 64 * 1024
_DRAIN_BYTES = 1024 * 1024
"""The most a pipe can hold (/proc/sys/fs/pipe-max-size); only a stray process writes more meanwhile."""
_BACKLOG_BYTES = 1024 * 1024
_OWN_TEXT_BYTES = 16 * 1024 * 1024
"""Beyond this backlog the agent's own text is dropped: a console that blocks for days must not fill the
memory. Far above what the workers' pipes can add to `_BACKLOG_BYTES` when they are drained at the end of a
job, so that the account of a failure is never lost behind them."""
_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET})
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})


class Console:
    """One of the agent's own output streams and what waits to be written to it."""

    def __init__(self, fd: int) -> None:
        try:
            # A duplicate, since both streams may be one descriptor and a selector takes each only once.
            self.fd = os.dup(fd)
        except OSError:
            self.fd = -1
        self.is_gone = self.fd < 0
        self.is_terminal = not self.is_gone and os.isatty(self.fd)
        self.pending = bytearray()
        self.is_registered = False
        self.is_full = False

    def put(self, data: bytes) -> None:
        """Queue bytes; they are dropped once the console is gone."""
        if not self.is_gone:
            self.pending += data

    def write_some(self) -> OSError | None:
        """Write what a writable pipe is sure to take, up to a line end if there is one; say what went wrong.

        The agent's own log may share the console: cut at line ends, it lands between lines.
        """
        cut = self.pending.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF
        try:
            written = os.write(self.fd, self.pending[:cut])
        except BlockingIOError:
            return None
        except OSError as error:
            self.is_gone = error.errno in _GONE
            self.pending.clear()
            return None if self.is_gone else error
        del self.pending[:written]
        return None


class Source:
    """One stream of one worker that the thread reads."""

    def __init__(self, target: StreamTarget, fd: int, console: Console | None) -> None:
        self.target = target
        self.fd = fd
        self.console = console
        self.lines = LineAssembler()
        self.tail = Tail()
        """Shared with the agent's thread, under the loop's lock."""
        self.prefix = None if target.prefix is None else target.prefix.encode()
        self.needles = tuple(text.encode() for text in target.filters) if target.has_filter else ()
        self.idle_at: float | None = None
        """When the held back piece of a teed line is to be shown; None when there is none."""

    def read(self) -> bytes | None:
        """Return what is there; b"" at the end of the stream, None if nothing is there now."""
        try:
            return os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:
                # How a terminal says that the last holder of its other side has closed it.
                return b""
            raise


class PumpLoop:
    """The loop of the thread; `post` is for the agent's thread, the rest runs on this one."""

    def __init__(
        self,
        consoles: tuple[Console, ...],
        on_warning: Callable[[str], None],
        tail_lock: threading.Lock,
        clock: Callable[[], float],
    ) -> None:
        self._consoles = consoles
        self._warn = on_warning
        self._tail_lock = tail_lock
        self._clock = clock
        # poll, because epoll refuses a console that is a regular file.
        self._selector = selectors.PollSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._commands: deque[Callable[[], None]] = deque()
        self._sources: set[Source] = set()
        self._files: dict[str, int] = {}
        self._drains: list[threading.Event] = []
        self._warned_errors: set[int | None] = set()
        self._is_stopped = False
        self._is_closed = False

    def post(self, command: Callable[[], None]) -> None:
        """Have the thread run a command after those posted before it; nothing happens once it is closed."""
        if self._is_closed:
            return
        self._commands.append(command)
        with suppress(BlockingIOError):  # then it is full of wake-ups already
            os.write(self._wake_write, b"\0")

    def run(self) -> None:
        """Work until stopped."""
        # Signals are for the agent's thread, whose wait they must interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        try:
            while not self._is_stopped:
                self._turn()
        finally:
            # Writers without a reader get EPIPE; with an open pipe that nobody reads they would hang.
            self._close_sources()

    def close(self) -> None:
        """Close the loop's own descriptors; from the agent's thread, when this one has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        self._selector.close()
        for fd in (self._wake_read, self._wake_write, *(console.fd for console in self._consoles)):
            if fd >= 0:
                os.close(fd)

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._idle_timeout_s()):
            if isinstance(key.data, Source):
                self._receive(key.data)
            elif isinstance(key.data, Console):
                self._write_console(key.data)
            else:
                os.read(self._wake_read, _READ_BYTES)
        while self._commands:
            self._commands.popleft()()
        self._show_idle()
        for console in self._consoles:
            self._balance(console)
        if self._drains and not any(console.pending for console in self._consoles):
            for is_drained in self._drains:
                is_drained.set()
            self._drains.clear()

    def add(self, source: Source) -> None:
        """Start to read a stream."""
        self._sources.add(source)
        self._open_file(source.target.file)
        if source.needles:
            self._open_file(source.target.filtered_file)
        if source.console is None or not source.console.is_full:
            self._selector.register(source.fd, selectors.EVENT_READ, source)

    def put(self, console: Console, data: bytes) -> None:
        """Write the agent's own text; dropped when too much already waits for a blocked console."""
        if len(console.pending) < _OWN_TEXT_BYTES:
            console.put(data)

    def for_each_terminal(self, action: Callable[[int, int], None]) -> None:
        """Call with (console, worker's terminal) for each stream that has one."""
        for source in self._sources:
            if source.console is not None and source.console.is_terminal and os.isatty(source.fd):
                action(source.console.fd, source.fd)

    def drain(self, is_drained: threading.Event) -> None:
        """Read what all streams hold; set the event when the console has it."""
        for source in tuple(self._sources):
            budget = _DRAIN_BYTES
            while source in self._sources and budget > 0:
                received = self._receive(source)
                if not received:
                    break
                budget -= received
            self._show(source, source.lines.flush())
            source.idle_at = None
        self._drains.append(is_drained)

    def close_round(self, is_closed: threading.Event) -> None:
        """Close the round's streams and files."""
        self._close_sources()
        self._warned_errors.clear()
        is_closed.set()

    def stop(self) -> None:
        """End the thread after this turn."""
        self._is_stopped = True

    def _receive(self, source: Source) -> int:
        """Read once and pass it on; the number of bytes."""
        try:
            data = source.read()
        except OSError as error:
            self._warn_once(error, f"cannot read the output of local rank {source.target.local_rank}")
            data = b""
        if data is None:
            return 0
        if not data:
            self._show(source, source.lines.flush())
            self._remove(source)
            return 0
        self._write_file(source.target.file, data)
        if source.console is not None and source.prefix is None:
            source.console.put(data)
        self._show(source, source.lines.feed(data))
        is_held_back = source.prefix is not None and source.lines.has_partial
        source.idle_at = self._clock() + IDLE_FLUSH_S if is_held_back else None
        return len(data)

    def _show(self, source: Source, lines: list[Line]) -> None:
        if not lines:
            return
        if source.console is not None and source.prefix is not None:
            source.console.put(prefix_lines(lines, source.prefix))
        matching = [line for line in lines if any(needle in line.text for needle in source.needles)]
        if matching:
            self._write_file(
                source.target.filtered_file, prefix_lines(matching, source.target.filtered_prefix.encode())
            )
        with self._tail_lock:
            source.tail.add(lines)

    def _show_idle(self) -> None:
        now = self._clock()
        for source in self._sources:
            if source.idle_at is not None and source.idle_at <= now:
                source.idle_at = None
                self._show(source, source.lines.flush())

    def _idle_timeout_s(self) -> float | None:
        idle_at = min((s.idle_at for s in self._sources if s.idle_at is not None), default=None)
        return None if idle_at is None else max(0.0, idle_at - self._clock())

    def _remove(self, source: Source) -> None:
        self._sources.discard(source)
        with suppress(KeyError):  # not registered while its console is full
            self._selector.unregister(source.fd)
        os.close(source.fd)

    def _close_sources(self) -> None:
        for source in tuple(self._sources):
            self._remove(source)
        for fd in self._files.values():
            with suppress(OSError):  # NFS reports a full disk here; it has been warned of where it mattered
                os.close(fd)
        self._files.clear()

    def _write_console(self, console: Console) -> None:
        error = console.write_some()
        if error is not None:
            self._warn_once(error, "cannot write to the console")

    def _balance(self, console: Console) -> None:
        """Wait for a console only while bytes wait for it, and for its streams only while it keeps up."""
        if bool(console.pending) != console.is_registered:
            if console.pending:
                self._selector.register(console.fd, selectors.EVENT_WRITE, console)
            else:
                self._selector.unregister(console.fd)
            console.is_registered = not console.is_registered
        is_full = len(console.pending) > (_BACKLOG_BYTES // 2 if console.is_full else _BACKLOG_BYTES)
        if is_full != console.is_full:
            console.is_full = is_full
            for source in self._sources:
                if source.console is not console:
                    continue
                if is_full:
                    self._selector.unregister(source.fd)
                else:
                    self._selector.register(source.fd, selectors.EVENT_READ, source)

    def _open_file(self, path: str | None) -> None:
        if path is None or path in self._files:
            return
        try:
            self._files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._warn_once(error, f"cannot open {path}")

    def _write_file(self, path: str | None, data: bytes) -> None:
        fd = self._files.get(path) if path is not None else None
        if fd is None:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError as error:
            self._warn_once(error, f"cannot write {path}")

    def _warn_once(self, error: OSError, what: str) -> None:
        """Warn once a round of each kind of error: a full disk hits the files of all ranks alike."""
        if error.errno not in self._warned_errors:
            self._warned_errors.add(error.errno)
            self._warn(f"{what}: {error.strerror}; this output is lost while that lasts, the job goes on")

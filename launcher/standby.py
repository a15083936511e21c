"""A standby: a worker process that has done its imports and waits to be told which rank to be.

How many there are, and what they preload, is `standby_pool`'s; what runs in them is `worker_main`'s.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftrun.launcher import priority, process
from ftrun.launcher.control import Activate, FrameReader, Message, Preload, Ready, pair, send

_BOOT = Path(__file__).with_name("worker_main.py")


class Standby:
    """A worker process before it has a rank. `modules` empty means that it starts cold."""

    __slots__ = ("_reader", "control", "has_hung_up", "modules", "origin", "process", "ready")

    def __init__(self, child: process.Process, control: socket.socket, modules: Sequence[str]) -> None:
        self.process = child
        self.control = control
        self.modules = tuple(modules)
        self.ready: Ready | None = None
        self.origin = ""
        """Why this process got the rank that it has; a sentence."""
        self.has_hung_up = False
        """Its end of the control socket is closed, as by a script that closes all descriptors or by exec."""
        self._reader = FrameReader()

    @property
    def pid(self) -> int:
        """Process id, the same after activation."""
        return self.process.pid

    def activate(self, message: Activate, stdout: int, stderr: int) -> None:
        """Tell it which rank to be; `stdout` and `stderr` stay the caller's to close.

        Raises:
            OSError: the process is gone.
            ControlError: it does not read.
        """
        priority.restore(self.pid)
        send(self.control, message, (stdout, stderr))

    def read(self) -> list[Message]:
        """Messages that have come over the control socket.

        Raises:
            ControlError: what came is not of the protocol.
        """
        try:
            data = self.control.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        self.has_hung_up = not data
        return self._reader.feed(data)

    def close(self) -> None:
        """Kill it."""
        self.control.close()
        self.process.signal_group(signal.SIGKILL)
        self.process.release()


def spawn(
    command: Sequence[str], environment: Mapping[str, str], modules: Sequence[str], is_for_later: bool = False
) -> Standby:
    """Start a standby that preloads `modules`; `command` (script and arguments) only makes it known to `ps`.

    `is_for_later`: no rank waits for it (`control.Preload`). Main thread only (see `process.spawn`).

    Raises:
        OSError: the system does not allow another process.
    """
    ours, theirs = pair()
    with theirs:
        argv = [sys.executable, "-u", str(_BOOT), str(theirs.fileno()), str(os.getpid()), "--", *command]
        try:
            child = process.spawn(argv, environment, (theirs.fileno(),))
        except OSError:
            ours.close()
            raise
    standby = Standby(child, ours, modules)
    send(ours, Preload(tuple(modules), is_for_later))
    return standby

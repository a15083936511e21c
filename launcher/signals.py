"""Signals to the agent as readable bytes: handlers do nothing, the loop reads a socket.

What a signal means is decided in `rendezvous`.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from types import FrameType

PASSED_ON = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""Given to the workers and followed by nothing, unless they are listed as ending the job: schedulers warn
with them (Slurm's --signal)."""


class SignalInbox:
    """Signals that arrived, in order, through `signal.set_wakeup_fd`. Main thread only.

    `ending` are those that end the job; the others of `PASSED_ON`, SIGCHLD and SIGWINCH arrive as well. A
    SIGHUP that was ignored when ftrun was started stays ignored, here and in the workers: `nohup` asks for
    that. A SIGINT that a shell ignores for its background jobs is handled all the same, as torchrun does.
    """

    def __init__(self, ending: Iterable[signal.Signals]) -> None:
        ending = frozenset(ending)
        self.passed_on = PASSED_ON - ending
        """Signals that are given to the workers and change nothing else."""
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        handled = {*ending, *PASSED_ON, signal.SIGCHLD, signal.SIGWINCH}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            handled.discard(signal.SIGHUP)
        self._previous = {number: signal.signal(number, _ignore) for number in handled}

    def fileno(self) -> int:
        """Readable when `read` has something."""
        return self._receiver.fileno()

    def read(self) -> list[signal.Signals]:
        """Signals since the last call, oldest first, SIGCHLD included."""
        try:
            return [signal.Signals(number) for number in self._receiver.recv(4096)]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Put the handlers back that were there before."""
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._receiver.close()
        self._sender.close()


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Installed only so that the wake-up descriptor gets the number."""

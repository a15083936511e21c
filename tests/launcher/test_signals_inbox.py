"""Signals to the agent become bytes that the loop reads."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from ftrun.launcher.signals import SignalInbox

DEADLINE_S = 10.0


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    inbox = SignalInbox({signal.SIGTERM, signal.SIGUSR1})
    yield inbox
    inbox.close()


def is_readable(inbox: SignalInbox, timeout_s: float = DEADLINE_S) -> bool:
    return bool(select.select([inbox.fileno()], [], [], timeout_s)[0])


def test_signals_are_read_in_the_order_they_came(inbox: SignalInbox) -> None:
    """None kills the process, none is merged with another of a different kind."""
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    assert is_readable(inbox)
    assert inbox.read() == [signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1]


def test_nothing_to_read_is_an_empty_list(inbox: SignalInbox) -> None:
    """Reading never waits, and what was read is gone."""
    assert inbox.read() == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert is_readable(inbox)
    inbox.read()
    assert inbox.read() == []
    assert not is_readable(inbox, 0)


def test_end_of_a_child_wakes_the_loop(inbox: SignalInbox) -> None:
    """SIGCHLD is always among the signals: adopted orphans have no pidfd to watch."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert is_readable(inbox)
    assert signal.SIGCHLD in inbox.read()
    os.waitpid(child, 0)


def test_wait_on_the_inbox_ends_when_a_signal_comes(inbox: SignalInbox) -> None:
    """A signal that comes in the middle of a wait is seen at once, not at the wait's end."""
    child = os.fork()
    if child == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)
    assert is_readable(inbox)
    os.waitpid(child, 0)
    assert signal.SIGUSR1 in inbox.read()


def test_more_signals_than_the_buffer_holds_do_no_harm(inbox: SignalInbox) -> None:
    """Signals beyond the socket's buffer are lost without a word on stderr; the loop reads levels anyway."""
    for _ in range(3000):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert is_readable(inbox)
    assert set(inbox.read()) == {signal.SIGUSR1}


def test_what_was_ignored_stays_ignored() -> None:
    """A job under nohup is not ended by its terminal's end; children are waited for all the same."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGCHLD)}
    inbox = SignalInbox({signal.SIGHUP, signal.SIGTERM})
    try:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        assert inbox.read() == []
    finally:
        inbox.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_close_puts_everything_back() -> None:
    """Handlers and wake-up descriptor are as before, and no descriptor is left."""
    before = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD))
    fds = len(os.listdir("/proc/self/fd"))
    SignalInbox({signal.SIGTERM}).close()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD)) == before
    assert len(os.listdir("/proc/self/fd")) == fds
    assert signal.set_wakeup_fd(-1) == -1

"""Messages from helper threads wake the loop and come in order."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from ftrun.launcher.mailbox import Mailbox

DEADLINE_S = 10.0


@pytest.fixture
def mailbox() -> Iterator[Mailbox[int]]:
    box: Mailbox[int] = Mailbox()
    yield box
    box.close()


def is_readable(mailbox: Mailbox[int], timeout_s: float = 0.0) -> bool:
    """Whether the loop would wake."""
    return select.select([mailbox], [], [], timeout_s)[0] == [mailbox]


def test_empty_mailbox_wakes_nobody(mailbox: Mailbox[int]) -> None:
    """And taking from it does not wait."""
    assert not is_readable(mailbox)
    assert mailbox.take() == []


def test_items_come_once_and_in_order(mailbox: Mailbox[int]) -> None:
    """The descriptor is readable until they are taken, and not any more then."""
    for item in range(3):
        mailbox.post(item)
    assert is_readable(mailbox)
    assert is_readable(mailbox)
    assert mailbox.take() == [0, 1, 2]
    assert not is_readable(mailbox)
    assert mailbox.take() == []
    mailbox.post(3)
    assert is_readable(mailbox)
    assert mailbox.take() == [3]


def test_post_from_another_thread_ends_a_wait(mailbox: Mailbox[int]) -> None:
    """That is what it is for."""
    thread = threading.Thread(target=mailbox.post, args=(7,))
    thread.start()
    assert is_readable(mailbox, DEADLINE_S)
    thread.join(DEADLINE_S)
    assert mailbox.take() == [7]


def test_nothing_is_lost_between_many_threads(mailbox: Mailbox[int]) -> None:
    """Each thread's items stay in their order."""
    senders, count = 4, 500
    threads = [
        threading.Thread(target=lambda first=first: [mailbox.post(first + i) for i in range(count)])
        for first in range(0, senders * 1000, 1000)
    ]
    for thread in threads:
        thread.start()
    found: list[int] = []
    while len(found) < senders * count:
        assert is_readable(mailbox, DEADLINE_S), len(found)
        found += mailbox.take()
    for thread in threads:
        thread.join(DEADLINE_S)
    for first in range(0, senders * 1000, 1000):
        assert [one for one in found if first <= one < first + 1000] == list(range(first, first + count))


def test_full_counter_does_not_make_the_sender_wait(mailbox: Mailbox[int]) -> None:
    """An agent that has not looked for very long stops nobody."""
    os.eventfd_write(mailbox.fileno(), 2**64 - 2)
    mailbox.post(1)
    assert is_readable(mailbox)
    assert mailbox.take() == [1]


def test_descriptor_is_not_inherited(mailbox: Mailbox[int]) -> None:
    """Workers get none of the agent's descriptors."""
    assert not os.get_inheritable(mailbox.fileno())

"""Threads that read what may hang."""

from __future__ import annotations

import threading
import time

from ftrun.healthchecks.lane import Lane
from tests.support.waiting import until


def test_a_reading_that_hangs_costs_its_time_and_no_more() -> None:
    """The next one is not begun before it has ended; what comes too late is for nobody."""
    gate, asked = threading.Event(), list[int]()

    def read(number: int) -> int:
        asked.append(number)
        assert number != 1 or gate.wait(20)
        return number

    lane = Lane("test", read)
    lane.ask(1)
    until(lambda: asked, lambda: "the reading has not begun")
    began = time.monotonic()
    assert lane.answer(0.05) is None
    assert time.monotonic() - began < 10
    assert lane.failure.startswith("no answer after ")
    lane.ask(2)
    assert lane.answer(0.0) is None
    assert asked == [1]
    gate.set()
    until(lambda: lane.answer(0.0) == 1 or not lane.is_busy, lambda: "the first reading has not ended")
    lane.ask(3)
    assert lane.answer(20) == 3
    assert asked == [1, 3]
    lane.close()


def test_a_reading_that_fails_is_told_and_the_next_one_works() -> None:
    """A mistake of ours must not end the checks for the rest of the job."""

    def read(number: int) -> int:
        return 10 // number

    lane = Lane("test", read)
    lane.ask(0)
    assert lane.answer(20) is None
    assert lane.failure.startswith("the reading failed: ZeroDivisionError")
    lane.ask(5)
    assert (lane.answer(20), lane.failure) == (2, "")
    lane.close()


def test_the_end_of_a_lane_is_not_waited_for_unless_asked() -> None:
    """`finish` runs on the lane's own thread, after the reading under way."""
    gate, ended_in = threading.Event(), list[str]()

    def read(_: int) -> bool:
        return gate.wait(20)

    lane = Lane("test", read, lambda: ended_in.append(threading.current_thread().name))
    lane.ask(1)
    lane.close()
    assert ended_in == []
    gate.set()
    lane.join(20)
    assert ended_in == ["ftrun-health-test"]

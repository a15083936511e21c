"""What is remembered of the readings of a source."""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.healthchecks.history import History


@dataclass(frozen=True)
class Look:
    taken_at: float


def kept(*times: float, window_s: float = 1000.0) -> list[float]:
    """When the readings were taken that remain of these."""
    history = History[Look](window_s)
    for time in times:
        history.add(Look(time))
    return [look.taken_at for look in history.recent]


def test_readings_of_one_moment_are_one_look() -> None:
    """Rounds that fail at once must not make a port be down "in four readings"."""
    assert kept(0, 30, 30.5, 31, 31.5) == [0, 30, 31.5]
    assert kept(0, 0.5, 1, 1.5) == [0, 1.5]
    assert kept(0, 1, 2, 3, 4) == [0, 2, 4]


def test_readings_at_the_usual_interval_all_stay() -> None:
    """The newest is there at once."""
    assert kept(0, 28, 61, 62) == [0, 28, 61, 62]


def test_what_is_older_than_the_window_goes_but_for_one() -> None:
    """The last one before it shows what a counter had when the window began."""
    assert kept(*range(0, 200, 20), window_s=50.0) == [120, 140, 160, 180]


def test_the_baseline_is_the_first_reading_however_old() -> None:
    """It is what the job began with."""
    history = History[Look](10.0)
    assert history.baseline is None
    for time in range(0, 500, 20):
        history.add(Look(time))
    assert history.baseline == Look(0)
    assert len(history.recent) == 2

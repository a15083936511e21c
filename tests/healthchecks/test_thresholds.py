"""Thresholds by name."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.thresholds import Thresholds, build, defaults, whole_numbers


def test_without_changes_everything_is_as_the_judges_have_it() -> None:
    """One place says what a threshold is by default."""
    assert build({}) == Thresholds()
    assert build({name: value for name, value in defaults().items() if value is not None}) == Thresholds()


def test_every_threshold_can_be_changed() -> None:
    """Each name reaches its own field and no other."""
    for name in defaults():
        assert build({name: 7}) != Thresholds(), name
        changed = {key for key, value in _values(build({name: 7})).items() if value != defaults()[key]}
        assert changed == {name}


def test_counters_have_a_limit_each() -> None:
    """Their limits are rows of a table rather than fields."""
    limits = build({"counters.symbol_error": 25}).counters.limits
    assert [limit.limit for limit in limits if limit.name == "symbol_error"] == [25]


def test_counts_stay_whole() -> None:
    """A number of readings is compared with a length."""
    assert {"gpu.max_hangs", "nic.down_readings", "storage.min_free_bytes"} <= whole_numbers()
    assert "gpu_speed.slowdown_window_s" not in whole_numbers()
    assert build({"gpu.max_hangs": 3.0}).gpu.max_hangs == 3
    assert isinstance(build({"gpu.max_hangs": 3.0}).gpu.max_hangs, int)


@pytest.mark.parametrize("name", ["gpu.max_hang", "hangs", "counters.limits", "disk.max"])
def test_unknown_names_are_errors(name: str) -> None:
    """A threshold that is not set because of a slip of the pen would be believed to hold."""
    with pytest.raises(KeyError):
        build({name: 1})


def _values(thresholds: Thresholds) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in defaults():
        group, _, item = name.partition(".")
        section = getattr(thresholds, group)
        if hasattr(section, item):
            found[name] = getattr(section, item)
        else:
            found[name] = next(limit.limit for limit in section.limits if limit.name == item)
    return found

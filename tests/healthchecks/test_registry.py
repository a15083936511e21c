"""The table of checks, and who judges them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ftrun.healthchecks.judging import JUDGES
from ftrun.healthchecks.registry import CHECKS, GROUPS, NAMES, Occasion, Severity, Source, severities
from ftrun.healthchecks.thresholds import defaults

OFF, WARN, FATAL = Severity.OFF, Severity.WARN, Severity.FATAL


def test_every_check_has_one_name_and_a_judge_of_its_source() -> None:
    """A check that nobody judges would be healthy for ever; external ones judge themselves."""
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    judged = {(name, judge.source) for judge in JUDGES for name in judge.checks}
    # What could not be read says so by itself.
    external = {(check.name, check.source) for check in CHECKS if check.source is Source.EXTERNAL}
    readings = {("nic.readings", Source.NETWORK)}
    assert judged | external | readings == {(check.name, check.source) for check in CHECKS}


def test_a_group_is_the_first_part_of_a_name() -> None:
    """So a configuration can speak of all checks of a kind."""
    assert GROUPS == ("gpu", "nvlink", "nic", "host", "storage", "external")
    assert not set(GROUPS) & set(NAMES)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, {"gpu.ecc": FATAL, "gpu.pcie_width": WARN}),
        ({"gpu.ecc": WARN}, {"gpu.ecc": WARN, "gpu.sram": FATAL}),
        ({"gpu": OFF}, {"gpu.ecc": OFF, "gpu.pcie_width": OFF, "nic.state": FATAL}),
        ({"gpu": WARN, "gpu.lost": FATAL}, {"gpu.ecc": WARN, "gpu.lost": FATAL}),
        ({"gpu": FATAL}, {"gpu.ecc": FATAL, "gpu.pcie_width": WARN}),
        ({"gpu.pcie_width": FATAL}, {"gpu.pcie_width": FATAL}),
    ],
)
def test_severity_is_the_check_s_own_then_its_group_s_then_the_default(
    choices: dict[str, Severity], expected: dict[str, Severity]
) -> None:
    """A group that is fatal leaves alone what warns by default."""
    found = severities(choices)
    assert set(found) == set(NAMES)
    assert {name: found[name] for name in expected} == expected


def test_what_takes_long_or_belongs_to_others_does_not_run_while_training_does() -> None:
    """The infoROM takes up to 100 ms for each GPU, and workers hold memory on purpose."""
    running = {check.name for check in CHECKS if Occasion.PERIODIC in check.occasions}
    assert set(NAMES) - running == {"gpu.inforom", "gpu.memory", "external.command", "external.nvhcd"}


def test_the_manual_names_every_check_and_every_threshold() -> None:
    """What can be configured can be looked up."""
    text = (Path(__file__).parents[2] / "docs/health.md").read_text(encoding="utf-8")
    expected = {"gpu.expected_count", "nvlink.expected_links", "nic.expected_nics"}
    assert [name for name in (*NAMES, *defaults()) if f"`{name}" not in text and name not in expected] == []

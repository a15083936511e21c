"""Two runs side by side: what was set differently, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from ftrun.monitor.goodput import Bucket
from ftrun.monitor.history import Run
from ftrun.monitor.report import Report


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting in which two runs differ."""

    name: Annotated[str, "Key of the configuration, or option of the command line."]
    first: Annotated[str | None, "Its value in the first run; null if it was the default."]
    second: Annotated[str | None, "Its value in the second."]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure of both runs."""

    name: Annotated[str, "What was measured; its unit is in the name."]
    first: Annotated[float | None, "In the first run; null if unknown."]
    second: Annotated[float | None, "In the second."]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that `ftctl compare` says."""

    schema: Annotated[int, "Version of this form, now 1."]
    first: Annotated[str, "Name of the first run."]
    second: Annotated[str, "Name of the second run."]
    settings: Annotated[tuple[SettingRow, ...], "Settings in which they differ."]
    are_settings_known: Annotated[bool, "Both journals say what was configured."]
    figures: Annotated[tuple[FigureRow, ...], "Goodput, recovery and size of both."]


def compare(first: Run, second: Run, one: Report, other: Report) -> Comparison:
    """The comparison of two runs with their reports."""
    return Comparison(
        schema=1,
        first=one.run.name,
        second=other.run.name,
        settings=tuple(_settings(first, second)),
        are_settings_known=bool(first.settings and second.settings),
        figures=tuple(_figures(one, other)),
    )


def _settings(first: Run, second: Run) -> Iterator[SettingRow]:
    left, right = (dict(run.settings) | _known_without(run) for run in (first, second))
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            yield SettingRow(name, left.get(name), right.get(name))


def _known_without(run: Run) -> dict[str, str]:
    """What the journal tells of how a run was started, also if it does not say what was configured."""
    largest = max(run.rounds, key=lambda one: one.world_size, default=None)
    known = {"script": run.script, "ftrun version": run.version}
    if largest is not None:
        known |= {"nodes": str(len(largest.nodes)), "ranks": str(largest.world_size)}
    if run.max_restarts is not None:
        known["max_restarts"] = str(run.max_restarts)
    return known


def _figures(one: Report, other: Report) -> Iterator[FigureRow]:
    for name, left, right in zip(_NAMES, _values(one), _values(other), strict=True):
        yield FigureRow(name, left, right)
    for bucket in (bucket.value for bucket in Bucket if bucket.is_asked_for):
        left, right = _part(one, bucket), _part(other, bucket)
        if left or right:
            yield FigureRow(f"part {bucket}", left, right)


_NAMES = (
    "training goodput", "infrastructure goodput", "wall_s", "step_s", "steps_redone", "incidents", "restarts",
    "failed restarts", "recovery median_s", "recovery p90_s", "recovery max_s",
)  # fmt: skip


def _values(report: Report) -> tuple[float | None, ...]:
    goodput, recovery = report.goodput, report.recovery
    return (
        goodput.training, goodput.infrastructure, report.run.wall_s, goodput.step_s, goodput.steps_redone,
        report.run.incidents, report.run.restarts, recovery.failed_restarts, recovery.median_s,
        recovery.p90_s, recovery.max_s,
    )  # fmt: skip


def _part(report: Report, bucket: str) -> float | None:
    asked_s = report.goodput.asked_s
    return report.goodput.buckets_s.get(bucket, 0.0) / asked_s if asked_s else None

"""The step curve: how far training had come at each time, what was lost, and what was done again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftrun.monitor.durations import plural
from ftrun.monitor.event import JsonValue
from ftrun.monitor.goodput import Bucket
from ftrun.monitor.history import Round, Run, Work
from ftrun.monitor.report_charts import WIDTH, Chart, Spec, data_of, ink, spec_of
from ftrun.monitor.report_timeline import Segments, apart, saves_of, spread, time_axis

_MOST_ROUNDS = 500
_MOST_SAVES = 400
_TRAINING = (Bucket.PRODUCTIVE, Bucket.REDONE, Bucket.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Climb:
    """The steps of one round over time."""

    round_number: int
    points: tuple[tuple[float, float], ...]
    """Time and step, from its first step to its last."""
    counted_step: float
    """Up to here they counted in the end; what is above was done again."""


def climbs_of(run: Run, segments: Segments) -> list[Climb | None]:
    """Of each round that made steps, in their order; None where it is not known how many."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for of_node in segments.values():
        for one in of_node:
            if one.round_number is not None and one.bucket in _TRAINING:
                spans.setdefault(one.round_number, []).append((one.began, one.ended))
    found: list[Climb | None] = []
    for of_run, work in zip(run.rounds, run.work, strict=True):
        own = [span for span in spans.get(of_run.number, ()) if span[0] >= of_run.closed]
        if not own or work.steps == 0:
            continue
        began, ended = min(own)[0], max(end for _, end in own)
        found.append(_climb(of_run, work, began, ended) if work.steps else None)
    return found


def _climb(one: Round, work: Work, began: float, ended: float) -> Climb:
    assert work.steps is not None
    end_step = work.base + work.steps
    saves = {
        save.step: of_node.presence.placed.time(save.at)
        for of_node in one.shifts
        for save in of_node.shift.saves
        if save.step is not None
    }
    points = [(began, float(work.base))]
    for step, at in sorted(saves.items()):
        if points[-1][1] < step < end_step and points[-1][0] < at < ended:
            points.append((at, float(step)))
    points.append((ended, float(end_step)))
    counted = work.steps if work.counted is None else work.counted
    return Climb(one.number, tuple(points), float(work.base + counted))


def split(climb: Climb) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """The part that counted and the part that was done again; either may be empty."""
    limit = climb.counted_step
    kept = [point for point in climb.points if point[1] <= limit]
    redone = [point for point in climb.points if point[1] > limit]
    if kept and redone:
        (t0, s0), (t1, s1) = kept[-1], redone[0]
        middle = (t0 + (t1 - t0) * (limit - s0) / (s1 - s0), limit)
        redone.insert(0, middle)
        if s0 < limit:
            kept.append(middle)
    return (kept if len(kept) > 1 else []), redone


def steps_chart(run: Run, segments: Segments) -> Chart | None:
    """Steps over time with rollbacks, checkpoints and incidents; None if no step is known."""
    climbs = climbs_of(run, segments)
    known = [one for one in climbs if one is not None]
    if not known:
        return None
    shown = spread(climbs, _MOST_ROUNDS)
    drawn = [split(one) for one in shown if one is not None]
    x = time_axis(run)
    y: Spec = {"field": "step", "type": "quantitative", "axis": {"title": None}}
    layers: list[JsonValue] = [
        _line(_fallbacks(shown), x, y, ink("detecting"), [3, 3]),
        _line([kept for kept, _ in drawn], x, y, ink("productive"), []),
        _line([redone for _, redone in drawn], x, y, ink("redone"), []),
        _saves(run, x, y),
        _numbers(run, known, x, y),
    ]
    caption = (
        "Steps that counted, steps that were done again (amber), rollbacks (dashed), checkpoints (diamonds), "
        "numbers of incidents."
    )
    if unknown := len(climbs) - len(known):
        caption += f" Steps that are not in the journals leave a gap: those of {plural(unknown, 'round')}."
    spec = spec_of(width=WIDTH, height=240, layer=layers)
    return Chart("steps", "How far training had come, in steps", caption, spec)


def _line(
    lines: Sequence[Sequence[tuple[float, float]]], x: Spec, y: Spec, colour: str, dash: list[JsonValue]
) -> Spec:
    rows: list[Spec] = [
        {"from": round(t * 1000, 1), "step": step, "line": number}
        for number, points in enumerate(lines)
        for t, step in points
    ]
    mark: Spec = {"type": "line", "color": colour, "strokeWidth": 2.5, "strokeDash": dash, "clip": True}
    encoding: Spec = {"x": x, "y": y, "detail": {"field": "line", "type": "nominal"}}
    return {"data": data_of(rows), "mark": mark, "encoding": encoding}


def _fallbacks(climbs: Sequence[Climb | None]) -> list[list[tuple[float, float]]]:
    """From the last step of a round to the first of the next, where both are known."""
    pairs = pairwise(climbs)
    return [[before.points[-1], after.points[0]] for before, after in pairs if before and after]


def _saves(run: Run, x: Spec, y: Spec) -> Spec:
    rows: list[Spec] = [
        {"from": round(at * 1000, 1), "step": step} for at, step in saves_of(run) if step is not None
    ]
    mark: Spec = {"type": "point", "shape": "diamond", "filled": True, "color": ink("checkpoint"), "size": 50}
    return {"data": data_of(spread(rows, _MOST_SAVES)), "mark": mark, "encoding": {"x": x, "y": y}}


def _numbers(run: Run, climbs: Sequence[Climb], x: Spec, y: Spec) -> Spec:
    """Where each incident ended the steps."""
    ends = {climb.round_number: climb.points[-1] for climb in climbs}
    rows: list[Spec] = [
        {"from": round(at * 1000, 1), "step": step, "number": f"{one.number}"}
        for one in run.incidents
        if one.round_number in ends
        for at, step in [ends[one.round_number]]
    ]
    mark: Spec = {
        "type": "text", "dy": -9, "fontSize": 10, "fontWeight": "bold", "color": ink("ink"), "clip": False,
    }  # fmt: skip
    encoding: Spec = {"x": x, "y": y, "text": {"field": "number", "type": "nominal"}}
    return {"data": data_of(apart(rows, run)), "mark": mark, "encoding": encoding}

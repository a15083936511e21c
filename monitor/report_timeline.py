"""The charts over time: what each node did in each round, and how far the steps had come. Pure.

Of a few nodes each has a row of its own; of very many it is drawn how many were in each state, with rows for
those on which incidents began. What is shorter than a pixel is never drawn by itself: a chart of a month with
a thousand restarts is as small as one of an hour.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from ftrun.monitor.event import JsonValue
from ftrun.monitor.goodput import Bucket, Segment
from ftrun.monitor.history import Run
from ftrun.monitor.report_charts import WIDTH, Chart, Spec, colours_of_buckets, data_of, ink, spec_of

Segments = Mapping[str, Sequence[Segment]]
_Row = TypeVar("_Row")

MOST_ROWS = 40
"""Nodes that have a row each: more do not fit on a screen."""
_ROWS_AMONG_MANY = 12
_MOST_PIECES = 4000
"""Drawn as they are; of more, each part of the width shows what lasted longest in it."""
_MOST_COARSE = 12_000
_AREA_BINS = 200
_LEAST_APART = 0.04
"""Of the width, between numbers: five digits are narrower."""
_MOST_MARKS = 400
_ROUNDS, _INCIDENTS, _SAVES = "(rounds)", "(incidents)", "(checkpoints)"
"""Rows that are no node's; a host name has no parentheses."""


def timeline_chart(run: Run, segments: Segments) -> Chart | None:
    """What each node did over time, with rounds, incidents and checkpoints; None if no time passed."""
    if run.wall_s <= 0:
        return None
    missing = sorted({name for one in run.rounds for name in one.nodes} - set(segments))
    is_large = len(segments) + len(missing) > MOST_ROWS
    shown = _notable(run, segments) if is_large else list(segments)
    absent = [] if is_large else missing
    lanes = [*shown, *(f"{name} (no journal)" for name in absent)]
    lanes = [_ROUNDS, *([_INCIDENTS] if run.incidents else []), *lanes]
    lanes += [_SAVES] if saves_of(run) else []
    rows = {name: segments[name] for name in shown}
    chart = _rows_spec(run, rows, lanes)
    caption = "Each row is a node; gaps are times that no journal tells of."
    if is_large:
        caption = (
            f"How many of the {len(segments)} nodes were in which state; below, a row for each of those on "
            "which most incidents began."
        )
        parts: list[JsonValue] = [_area_spec(run, segments), chart]
        spec = spec_of(vconcat=parts, bounds="flush", spacing=12)
    else:
        spec = spec_of(**chart)
    return Chart("timeline", "What happened when", caption, spec)


def _notable(run: Run, segments: Segments) -> list[str]:
    begun = Counter(one.node for one in run.incidents if one.node in segments)
    return [name for name, _ in begun.most_common(_ROWS_AMONG_MANY)]


def time_axis(run: Run, has_labels: bool = True) -> Spec:
    """Local time, as finely as the length of the run needs it."""
    style = "%H:%M:%S" if run.wall_s < 600 else "%H:%M" if run.wall_s < 86400 else "%m-%d %H:%M"
    domain: list[JsonValue] = [_ms(run.began), _ms(run.ended)]
    axis: Spec = {"title": None, "format": style, "grid": False, "labels": has_labels, "tickCount": 8}
    return {"field": "from", "type": "temporal", "scale": {"domain": domain, "nice": False}, "axis": axis}


def _ms(moment: float) -> float:
    return round(moment * 1000, 1)


def _rows_spec(run: Run, rows: Segments, lanes: Sequence[str]) -> Spec:
    y: Spec = {
        "field": "row", "type": "nominal", "scale": {"domain": list(lanes), "paddingInner": 0.25},
        "axis": {"title": None, "ticks": False, "domain": False, "labelOverlap": False},
    }  # fmt: skip
    x = time_axis(run)
    pieces: list[Spec] = [
        {"row": name, "from": _ms(one.began), "to": _ms(one.ended), "bucket": one.bucket.value}
        for name, of_node in coarse(rows, run).items()
        for one in of_node
        if one.bucket is not Bucket.UNTOLD
    ]
    layers: list[JsonValue] = [
        {
            "data": data_of(pieces), "mark": {"type": "bar", "clip": True},
            "encoding": {"x": x, "x2": {"field": "to"}, "y": y, "color": colours_of_buckets()},
        },
        *_round_layers(run, x, y),
        *_mark_layers(run, x, y),
    ]  # fmt: skip
    return {"width": WIDTH, "height": {"step": 22}, "layer": layers}


def _round_layers(run: Run, x: Spec, y: Spec) -> Iterator[Spec]:
    parity = {True: ink("round-even"), False: ink("round-odd")}
    rows: list[Spec] = [
        {
            "row": _ROUNDS, "from": _ms(run.rounds[place].closed), "to": _ms(_end(run, place)),
            "round": f"{run.rounds[place].number}", "colour": parity[place % 2 == 0],
        }
        for place in spread(list(range(len(run.rounds))), _MOST_MARKS)
    ]  # fmt: skip
    colour: Spec = {"field": "colour", "type": "nominal", "scale": None}
    encoding: Spec = {"x": x, "x2": {"field": "to"}, "y": y, "color": colour}
    yield {"data": data_of(rows), "mark": {"type": "bar", "clip": True}, "encoding": encoding}
    words: Spec = {"type": "text", "align": "left", "dx": 3, "fontSize": 10, "color": ink("ink")}
    named: Spec = {"x": x, "y": y, "text": {"field": "round", "type": "nominal"}}
    yield {"data": data_of(apart(rows, run)), "mark": words, "encoding": named}


def _end(run: Run, place: int) -> float:
    """When a round was over; if no journal says, when the next one was closed."""
    one = run.rounds[place]
    known = (t for t in (one.stopped, one.stop_began) if t is not None)
    following = run.rounds[place + 1].closed if place + 1 < len(run.rounds) else run.ended
    return next(known, following)


def _mark_layers(run: Run, x: Spec, y: Spec) -> Iterator[Spec]:
    incidents: list[Spec] = [
        {"row": _INCIDENTS, "from": _ms(one.seen), "number": f"{one.number}"} for one in run.incidents
    ]
    incidents = spread(incidents, _MOST_MARKS)
    place: Spec = {"x": x, "y": y}
    stroke: Spec = {"type": "tick", "thickness": 2, "color": ink("detecting"), "size": 16}
    yield {"data": data_of(incidents), "mark": stroke, "encoding": place}
    words: Spec = {
        "type": "text", "align": "left", "dx": 4, "fontSize": 10, "fontWeight": "bold", "color": ink("ink"),
    }  # fmt: skip
    number: Spec = {"field": "number", "type": "nominal"}
    yield {"data": data_of(apart(incidents, run)), "mark": words, "encoding": {**place, "text": number}}
    saves: list[Spec] = [{"row": _SAVES, "from": _ms(at)} for at, _ in saves_of(run)]
    mark: Spec = {"type": "point", "shape": "diamond", "filled": True, "color": ink("checkpoint"), "size": 40}
    yield {"data": data_of(spread(saves, _MOST_MARKS)), "mark": mark, "encoding": place}


def saves_of(run: Run) -> list[tuple[float, int | None]]:
    """When each checkpoint was wholly saved, and its step; one for all nodes that tell of it."""
    found: dict[tuple[object, object], tuple[float, int | None]] = {}
    for one in run.rounds:
        for of_node in one.shifts:
            for number, save in enumerate(of_node.shift.saves):
                at = of_node.presence.placed.time(save.at)
                key = one.key, (number, None) if save.step is None else save.step
                known = found.get(key)
                found[key] = (at if known is None else max(at, known[0]), save.step)
    return sorted(found.values(), key=lambda one: one[0])


def spread(rows: list[_Row], most: int) -> list[_Row]:
    """At most so many of them, evenly."""
    if len(rows) <= most:
        return rows
    return [rows[place * len(rows) // most] for place in range(most)]


def apart(rows: Sequence[Spec], run: Run) -> list[Spec]:
    """Those of the rows, in the order of time, whose numbers are not written over each other."""
    least_ms = _LEAST_APART * run.wall_s * 1000
    shown: list[Spec] = []
    latest = -math.inf
    for row in rows:
        at = row["from"]
        if isinstance(at, float) and at - latest >= least_ms:
            shown.append(row)
            latest = at
    return shown


def coarse(rows: Segments, run: Run) -> Segments:
    """The same if there are few pieces; else with pieces no shorter than a part of the chart's width."""
    if sum(map(len, rows.values())) <= _MOST_PIECES:
        return rows
    bins = max(100, min(WIDTH, _MOST_COARSE // len(rows)))
    return {name: list(_longest(of_node, run, bins)) for name, of_node in rows.items()}


def _longest(of_node: Sequence[Segment], run: Run, bins: int) -> Iterator[Segment]:
    """In each bin what lasted longest in it, equal neighbours as one."""
    width = run.wall_s / bins
    spent: list[dict[Bucket, float]] = [{} for _ in range(bins)]
    for bucket, place, seconds in _in_bins(of_node, run, bins):
        spent[place][bucket] = spent[place].get(bucket, 0.0) + seconds
    piece: Segment | None = None
    for place, of_bin in enumerate(spent):
        longest = max(of_bin.items(), key=lambda item: item[1], default=None)
        began, ended = run.began + place * width, run.began + (place + 1) * width
        if piece is not None and longest is not None and piece.bucket is longest[0]:
            piece = Segment(piece.began, ended, piece.bucket, None)
            continue
        if piece is not None:
            yield piece
        piece = None if longest is None else Segment(began, ended, longest[0], None)
    if piece is not None:
        yield piece


def _in_bins(segments: Sequence[Segment], run: Run, bins: int) -> Iterator[tuple[Bucket, int, float]]:
    """Bucket, bin and seconds in it."""
    width = run.wall_s / bins
    for one in segments:
        began, ended = one.began - run.began, one.ended - run.began
        first, last = (max(0, min(bins - 1, int(t / width))) for t in (began, ended))
        for place in range(first, last + 1):
            seconds = min(ended, (place + 1) * width) - max(began, place * width)
            if seconds > 0:
                yield one.bucket, place, seconds


def _area_spec(run: Run, segments: Segments) -> Spec:
    """How many nodes were in each bucket, over time."""
    width = run.wall_s / _AREA_BINS
    spent = {bucket: [0.0] * _AREA_BINS for bucket in Bucket}
    for of_node in segments.values():
        for bucket, place, seconds in _in_bins(of_node, run, _AREA_BINS):
            spent[bucket][place] += seconds / width
    rows: list[Spec] = [
        {"from": _ms(run.began + (place + 0.5) * width), "nodes": round(count, 2), "bucket": bucket.value}
        for bucket, counts in spent.items()
        if any(counts)
        for place, count in enumerate(counts)
    ]
    y: Spec = {
        "field": "nodes",
        "type": "quantitative",
        "stack": "zero",
        "axis": {"title": "nodes", "tickCount": 5},
    }
    encoding: Spec = {"x": time_axis(run, has_labels=False), "y": y, "color": colours_of_buckets()}
    return {
        "width": WIDTH,
        "height": 160,
        "data": data_of(rows),
        "mark": {"type": "area"},
        "encoding": encoding,
    }

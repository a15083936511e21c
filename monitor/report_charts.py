"""The charts of the report page as Vega-Lite specifications: data and how to draw it, not drawn yet. Pure.

Colours are names of the page's own (`var(--productive)`), so that one drawing serves light, dark and paper.
No expression is ever made from what a run says: names of nodes and kinds are data only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.monitor.event import JsonValue
from ftrun.monitor.goodput import Bucket, Ledger
from ftrun.monitor.history import Incident

Spec: TypeAlias = dict[str, JsonValue]

WIDTH = 960
"""Pixels of a plot: with labels as wide as the page, which scales it down where it is narrower."""
_LABEL_WIDTH = 110
"""Left of each plot, so that times stand below each other in all."""
_BAR = 18
_MOST_RECOVERIES = 30
"""Bars that still have a readable label each on one screen; of more, the latest."""
_FEWEST_FOR_BOXES = 4
"""Quartiles of fewer are no more than the times themselves."""
_LEAST_S = 0.01
"""The least that a logarithmic axis shows: shorter parts are at its edge."""

PHASES = ("detect", "stop", "start", "first step")
_PHASE_COLOURS = ("detecting", "stopping", "starting", "loading")


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing to be made, with words for those who cannot see it."""

    name: str
    """Of the drawing in the page."""
    title: str
    caption: str
    spec: Spec


def ink(name: str) -> str:
    """A colour of the page."""
    return f"var(--{name})"


def spec_of(**parts: JsonValue) -> Spec:
    """A specification with what all have in common."""
    axis: Spec = {
        "labelColor": ink("ink"), "titleColor": ink("ink"), "domainColor": ink("line"),
        "tickColor": ink("line"), "gridColor": ink("line"), "labelFontSize": 12, "titleFontSize": 12,
        "titleFontWeight": "normal", "labelLimit": _LABEL_WIDTH, "labelOverlap": True,
    }  # fmt: skip
    legend: Spec = {
        "labelColor": ink("ink"), "orient": "top", "title": None, "symbolType": "square",
    }  # fmt: skip
    config: Spec = {
        "background": None, "font": "sans-serif", "view": {"stroke": None}, "axis": axis, "legend": legend,
        "axisY": {"minExtent": _LABEL_WIDTH, "maxExtent": _LABEL_WIDTH}, "aria": False,
        "padding": {"left": 20, "right": 14, "top": 5, "bottom": 5},
    }  # fmt: skip
    return {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "config": config, **parts}


def data_of(rows: Sequence[Spec]) -> Spec:
    """Rows as inline data."""
    return {"values": list(rows)}


def colours_of_buckets() -> Spec:
    """The colour of each bucket, without a legend: the page has one for all charts."""
    names: list[JsonValue] = [bucket.value for bucket in Bucket]
    inks: list[JsonValue] = [ink(bucket.value) for bucket in Bucket]
    return {"field": "bucket", "type": "nominal", "scale": {"domain": names, "range": inks}, "legend": None}


def goodput_chart(ledger: Ledger) -> Chart | None:
    """One bar: what the node-seconds that the job asked for went into; None if there were none."""
    if ledger.asked_s <= 0:
        return None
    rows: list[Spec] = []
    begun = 0.0
    for bucket, seconds in ledger.total.items():
        if bucket.is_asked_for and seconds > 0:
            share = 100 * seconds / ledger.asked_s
            rows.append({"bucket": bucket.value, "from": begun, "to": begun + share})
            begun += share
    x: Spec = {
        "field": "from", "type": "quantitative", "scale": {"domain": [0, 100], "nice": False},
        "axis": {"title": "% of the node-seconds that the job had places for", "grid": False},
    }  # fmt: skip
    encoding: Spec = {"x": x, "x2": {"field": "to"}, "color": colours_of_buckets()}
    spec = spec_of(width=WIDTH, height=34, data=data_of(rows), mark="bar", encoding=encoding)
    return Chart("goodput", "Where the time went", "The colours are named in the table below.", spec)


def parts_of(incident: Incident) -> tuple[float | None, ...]:
    """Seconds of each of `PHASES`; None is unknown."""
    return (incident.detect_s, incident.stop_s, incident.start_s, incident.first_step_s)


def recoveries_chart(incidents: Sequence[Incident]) -> Chart | None:
    """A bar for each recovery, the parts of it one after the other; None if there was none."""
    recovered = [one for one in incidents if one.recover_s is not None]
    shown = recovered[-_MOST_RECOVERIES:]
    if not shown:
        return None
    rows: list[Spec] = [
        {"incident": f"{one.number} {one.kind}", "phase": phase, "s": seconds, "order": order}
        for one in shown
        for order, (phase, seconds) in enumerate(zip(PHASES, parts_of(one), strict=True))
        if seconds is not None
    ]
    y: Spec = {"field": "incident", "type": "nominal", "sort": None, "axis": {"title": None}}
    x: Spec = {"field": "s", "type": "quantitative", "axis": {"title": "seconds"}}
    colour: Spec = {"field": "phase", "type": "nominal", "scale": _phase_scale()}
    encoding: Spec = {"x": x, "y": y, "color": colour, "order": {"field": "order"}}
    spec = spec_of(width=WIDTH, height={"step": _BAR}, data=data_of(rows), mark="bar", encoding=encoding)
    left_out = len(recovered) - len(shown)
    caption = "From the failure to the next step of all ranks." + (
        f" The latest {len(shown)}; {left_out} earlier ones are in the table below." if left_out else ""
    )
    return Chart("recoveries", "How long each recovery took", caption, spec)


def phases_chart(incidents: Sequence[Incident]) -> Chart | None:
    """How long each part of a recovery took, over all of them; None if there were too few."""
    recovered = [one for one in incidents if one.recover_s is not None]
    if len(recovered) < _FEWEST_FOR_BOXES:
        return None
    rows: list[Spec] = [
        {"phase": phase, "s": max(seconds, _LEAST_S)}
        for one in recovered
        for phase, seconds in zip(PHASES, parts_of(one), strict=True)
        if seconds is not None
    ]
    y: Spec = {
        "field": "phase", "type": "nominal", "sort": None, "axis": {"title": None},
        "scale": {"domain": [*PHASES]},
    }  # fmt: skip
    x: Spec = {
        "field": "s", "type": "quantitative", "scale": {"type": "log"},
        "axis": {"title": "seconds (logarithmic)", "format": "~g"},
    }  # fmt: skip
    colour: Spec = {"field": "phase", "type": "nominal", "scale": _phase_scale(), "legend": None}
    line: Spec = {"color": ink("ink")}
    mark: Spec = {
        "type": "boxplot", "extent": "min-max", "rule": line, "median": {"color": ink("paper")}, "size": 12,
    }  # fmt: skip
    encoding: Spec = {"x": x, "y": y, "color": colour}
    spec = spec_of(width=WIDTH, height={"step": _BAR + 6}, data=data_of(rows), mark=mark, encoding=encoding)
    caption = "Least to most, the box from the first to the third quartile, with the median in it."
    return Chart("phases", "What recoveries spend their time on", caption, spec)


def _phase_scale() -> Spec:
    return {"domain": [*PHASES], "range": [ink(name) for name in _PHASE_COLOURS]}

"""Puts the report page into one HTML file that needs nothing else: charts drawn, all text escaped.

The one user of jinja2 and vl-convert (Vega-Lite as SVG, drawn here, not in the browser): the extra
`ftrun[report]`. The page has no script, and its policy forbids any, and everything from the network.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import jinja2
import vl_convert
from markupsafe import Markup

from ftrun.monitor.event import JsonValue
from ftrun.monitor.report_charts import Spec
from ftrun.monitor.report_page import Page

_TEMPLATES = Path(__file__).with_name("templates")
_VEGA_LITE = "v5.20"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def render(page: Page) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings = {chart.name: draw(chart.spec) for chart in page.charts}
    style = Markup((_TEMPLATES / "report.css").read_text())
    return environment.get_template("report.html").render(page=page, drawings=drawings, style=style)


def draw(spec: Spec) -> Markup:
    """A chart as an SVG element; vl-convert escapes what is text in it."""
    clean = {name: _printable_in(part) for name, part in spec.items()}
    return Markup(vl_convert.vegalite_to_svg(clean, vl_version=_VEGA_LITE, allowed_base_urls=[]))


def _finalize(value: object) -> object:
    return printable(value) if type(value) is str else value


def printable(text: str) -> str:
    """Without control characters and halves of surrogate pairs, which no HTML may have."""
    return "".join(char if char.isprintable() or char in "\n\t" else _REPLACEMENT for char in text)


def _printable_in(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable_in(item) for item in value]
    if isinstance(value, dict):
        return {name: _printable_in(item) for name, item in value.items()}
    return value


def write(text: str, path: Path) -> None:
    """Write the file whole or not at all; what it had held before is replaced.

    Raises:
        OSError: it cannot be written there.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise

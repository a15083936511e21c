"""`ftctl compare`: two runs side by side, so that what was tried before is not tried twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click

from ftrun.monitor.comparison import Comparison, FigureRow, compare
from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.durations import percent, short
from ftrun.monitor.report import make_report
from ftrun.monitor.report_text import cut
from ftrun.monitor.runs import read_run

_COLUMN = 22


@click.command(name="compare")
@click.argument("first")
@click.argument("second")
@json_option
def compare_runs(first: str, second: str, as_json: bool) -> None:
    """What was set differently in two runs, beside what came of it.

    FIRST and SECOND are as RUN for `ftctl report`.
    """
    with failing_politely():
        found = [read_run(wanted, os.environ, time.time()) for wanted in (first, second)]
    reports = [make_report(one.run, one.name, str(one.directory)) for one in found]
    account = compare(found[0].run, found[1].run, *reports)
    if as_json:
        echo_json(account)
    else:
        echo("\n".join(_lines(account)))


def _lines(account: Comparison) -> Iterator[str]:
    yield _row("", account.first, account.second)
    for setting in account.settings:
        yield _row(setting.name, setting.first or "(default)", setting.second or "(default)")
    if not account.settings:
        yield "no setting that is recorded differs"
    if not account.are_settings_known:
        yield "(not all settings are recorded in these journals)"
    yield ""
    for figure in account.figures:
        yield _row(
            figure.name.removesuffix("_s"), _shown(figure, figure.first), _shown(figure, figure.second)
        )


def _shown(figure: FigureRow, value: float | None) -> str:
    if value is None:
        return "-"
    if figure.name.endswith("goodput") or figure.name.startswith("part "):
        return percent(value)
    return short(value) if figure.name.endswith("_s") else f"{value:g}"


def _row(name: str, first: str, second: str) -> str:
    return f"{cut(name, 32):<32} {cut(first, _COLUMN):>{_COLUMN}}  {cut(second, _COLUMN):>{_COLUMN}}".rstrip()

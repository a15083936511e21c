"""`ftctl runs`: recent runs, a line each; finds past ones by what happened in them, removes old ones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import click

from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.durations import parse, plural, short
from ftrun.monitor.local_time import minute
from ftrun.monitor.report import RunRow, make_run_row
from ftrun.monitor.report_text import cut
from ftrun.monitor.run_directories import RunNotFoundError, usual_places
from ftrun.monitor.runs import Removable, find_removable, read_runs, remove, run_directories, written_ts

_DEFAULT_LIMIT = 20
_DEFAULT_AGE = "30d"
_NAME_WIDTH = 24


@dataclass(frozen=True, slots=True)
class RunList:
    """Everything that `ftctl runs` says."""

    schema: Annotated[int, "Version of this form, now 1."]
    runs: Annotated[tuple[RunRow, ...], "The run that has written its journal last comes first."]


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A length of time such as 7d, in seconds."""
    try:
        return None if value is None else parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


@click.command()
@click.argument("places", nargs=-1, type=click.Path(path_type=Path))
@click.option("--kind", multiple=True, help="Only runs with an incident of this kind; repeatable.")
@click.option(
    "--since",
    callback=_seconds,
    metavar="TIME",
    help="Only runs that were still there so long ago, e.g. 12h or 7d.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=_DEFAULT_LIMIT, show_default=True, help="At most so many."
)
@click.option("--prune", is_flag=True, help="Remove directories of old runs that are over, after a question.")
@click.option(
    "--older-than",
    callback=_seconds,
    metavar="TIME",
    default=_DEFAULT_AGE,
    show_default=True,
    help="What --prune calls old.",
)
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
@json_option
def runs(
    places: Sequence[Path],
    kind: Sequence[str],
    since: float | None,
    limit: int,
    prune: bool,
    older_than: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Recent runs: state, restarts, goodput.

    PLACES are run directories, or directories of such; without them, the runs that were not given a
    directory. --prune never removes anything from another place than the usual ones.
    """
    now = time.time()
    with failing_politely():
        if prune:
            _prune(now - older_than, now, yes)
            return
        from_ts = 0.0 if since is None else now - since
        found = tuple(islice(_rows(places or usual_places(os.environ), from_ts, set(kind), now), limit))
        if not found:
            _explain_nothing(places, kind, since)
    if as_json:
        echo_json(RunList(1, found))
    else:
        echo("\n".join(_lines(found)))


def _rows(places: Iterable[Path], from_ts: float, kinds: set[str], now: float) -> Iterator[RunRow]:
    for directory in run_directories(list(places)):
        if written_ts(directory) < from_ts:
            return
        for one in reversed(read_runs(directory, now)):
            row = make_run_row(one.run, one.name, str(directory))
            if row.ended_ts >= from_ts and (not kinds or kinds & set(row.kinds)):
                yield row


def _explain_nothing(places: Sequence[Path], kinds: Sequence[str], since: float | None) -> None:
    what = f" with an incident of kind {' or '.join(kinds)}" if kinds else ""
    when = "" if since is None else f" of the last {short(since)}"
    where = " or ".join(str(place) for place in places or usual_places(os.environ))
    raise RunNotFoundError(f"no run{what}{when} in {where}")


def _lines(rows: Sequence[RunRow]) -> Iterator[str]:
    yield f"{'run':<{_NAME_WIDTH}} {'began':<16} {'lasted':>11} {'state':<8} {'restarts':>8} {'goodput':>7}"
    for row in rows:
        goodput = "-" if row.training_goodput is None else f"{100 * row.training_goodput:.1f} %"
        state = f"exit {row.exit_code}" if row.state == "ended" else row.state
        is_long = len(row.name) > _NAME_WIDTH
        if is_long:
            yield row.name
        times = f"{minute(row.began_ts)} {short(row.wall_s):>11}"
        name = "" if is_long else row.name
        yield f"{name:<{_NAME_WIDTH}} {times} {state:<8} {row.restarts:>8} {goodput:>7}"
        if row.kinds:
            yield cut(f"    {plural(row.incidents, 'incident')}: {', '.join(row.kinds)}", 80)


def _prune(before_ts: float, now: float, is_sure: bool) -> None:
    found = find_removable(os.environ, before_ts, now)
    if not found:
        echo("nothing to remove")
        return
    for one in found:
        echo(f"{one.directory}  {_mebibytes(one)}")
    total = sum(one.size_bytes for one in found)
    what = f"{plural(len(found), 'directory', 'directories')}, {total / (1 << 20):.1f} MiB"
    if not is_sure:
        click.confirm(f"Remove {what}?", abort=True)
    for one in found:
        remove(one)
    echo(f"removed {what}")


def _mebibytes(one: Removable) -> str:
    return f"{one.size_bytes / (1 << 20):.1f} MiB"

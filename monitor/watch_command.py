"""`ftctl watch`: a run while it goes on, in the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.local_time import teller
from ftrun.monitor.run_directories import find_run
from ftrun.monitor.runs import name_of_directory
from ftrun.monitor.status import View
from ftrun.monitor.watch_view import Line, Size, plain, render
from ftrun.monitor.watching import RunWatch

if TYPE_CHECKING:
    from rich.text import Text

_PLAIN_WIDTH = 80
_STYLES = {
    "": "", "good": "green", "bad": "bold red", "doubtful": "yellow", "faint": "dim", "strong": "bold",
}  # fmt: skip


@click.command()
@click.argument("run", required=False)
@click.option("--once", is_flag=True, help="One look, and no more; as without a terminal.")
@click.option("--plain", "is_plain", is_flag=True, help="The same; needs no library.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@json_option
def watch(run: str | None, once: bool, is_plain: bool, interval: float, as_json: bool) -> None:
    """How RUN is now: each rank's step and when it made it, checkpoints, restarts, what was said last.

    RUN is as for `ftctl report`. The run does not notice: its journals and the pages of its ranks are read,
    nothing is asked. Ranks on other machines are shown as their journals have them. Ctrl-C ends it, and it
    ends with the run.
    """
    with failing_politely():
        directory = find_run(run, os.environ)
        watched = RunWatch(name_of_directory(directory), directory)
        with contextlib.closing(watched):
            if once or is_plain or as_json or not sys.stdout.isatty():
                view = watched.look()
                echo_json(view) if as_json else echo(plain(_lines(view, _PLAIN_WIDTH, None)))
                return
            _need_rich()
            with contextlib.suppress(KeyboardInterrupt):
                _show(watched, interval)


def _lines(view: View, width: int, height: int | None) -> tuple[Line, ...]:
    return render(view, Size(width, height), teller(view.ts))


def _need_rich() -> None:
    # Imported here: other commands and scripts do without.
    from importlib import util

    if util.find_spec("rich") is None:
        raise click.ClickException(
            "the live view needs rich; run pip install 'ftrun[report]', or give --plain for one look"
        )


def _show(watched: RunWatch, interval_s: float) -> None:
    """Until the run is over; then its last state stays on the terminal."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        for view in _looks(watched, interval_s):
            live.update(_text(_lines(view, console.width, console.height)), refresh=True)
    console.print(_text(_lines(view, console.width, None)), soft_wrap=True)


def _looks(watched: RunWatch, interval_s: float) -> Iterator[View]:
    while True:
        view = watched.look()
        yield view
        if view.is_over:
            return
        time.sleep(interval_s)


def _text(lines: tuple[Line, ...]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for place, line in enumerate(lines):
        text.append("\n" if place else "")
        for words, style in line:
            text.append(words, _STYLES[style])
    return text

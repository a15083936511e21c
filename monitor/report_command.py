"""`ftctl report`: what happened in a run, what it cost, and what to change."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from ftrun.monitor import report_text
from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.gathering import Tails, gather
from ftrun.monitor.local_time import teller
from ftrun.monitor.report import Report, make_report
from ftrun.monitor.runs import FoundRun, read_run

_TAILS = Tails(log_lines=100, stack_lines=200)
"""They are folded in the page: there is room for more than on a terminal."""


@click.command()
@click.argument("run", required=False)
@click.option("--all", "is_whole", is_flag=True, help="Every incident, all advice, every node.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all of it with charts and evidence into one web page that needs no network.",
)
@json_option
def report(run: str | None, is_whole: bool, html: Path | None, as_json: bool) -> None:
    """What happened in RUN, what it cost, and what to change; also while it runs.

    RUN is a run directory, or the id of a run that has not been given one; without it, the run that has
    written its journal last. If several runs had the same directory, it is the last, and RUN:1 the first.
    """
    if html is not None and (as_json or is_whole):
        raise click.UsageError("--html has everything in it: give it without --all and --json")
    with failing_politely():
        found = read_run(run, os.environ, time.time())
        account = make_report(found.run, found.name, str(found.directory))
        if html is not None:
            _write_page(found, account, html)
            echo(f"wrote {html}")
            return
    if as_json:
        echo_json(account)
    else:
        echo(report_text.render(account, teller(account.run.ended_ts), is_whole))


def _write_page(found: FoundRun, account: Report, path: Path) -> None:
    try:
        from ftrun.monitor import report_html
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--html needs {error.name}, which is not installed; pip install 'ftrun[report]' brings it"
        ) from error
    from ftrun.monitor.report_page import make_page, worth_a_card

    details = gather(found, worth_a_card(found.run), _TAILS)
    page = make_page(account, found.run, details, teller(account.run.ended_ts))
    report_html.write(report_html.render(page), path)

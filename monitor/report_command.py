"""`ftctl report`: what happened in a run, what it cost, and what to change."""

from __future__ import annotations

import os
import time

import click

from ftrun.monitor import report_text
from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.local_time import teller
from ftrun.monitor.report import make_report
from ftrun.monitor.runs import read_run


@click.command()
@click.argument("run", required=False)
@click.option("--all", "is_whole", is_flag=True, help="Every incident, all advice, every node.")
@json_option
def report(run: str | None, is_whole: bool, as_json: bool) -> None:
    """What happened in RUN, what it cost, and what to change; also while it runs.

    RUN is a run directory, or the id of a run that has not been given one; without it, the run that has
    written its journal last. If several runs had the same directory, it is the last, and RUN:1 the first.
    """
    with failing_politely():
        found = read_run(run, os.environ, time.time())
    account = make_report(found.run, found.name, str(found.directory))
    if as_json:
        echo_json(account)
    else:
        echo(report_text.render(account, teller(account.run.ended_ts), is_whole))

"""`ftctl show`: everything about one incident, with the ends of its ranks' files."""

from __future__ import annotations

import os
import time

import click

from ftrun.monitor import detail_text
from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.gathering import Tails, gather
from ftrun.monitor.local_time import teller
from ftrun.monitor.runs import read_run


@click.command()
@click.argument("incident", type=click.IntRange(min=1))
@click.argument("run", required=False)
@json_option
def show(incident: int, run: str | None, as_json: bool) -> None:
    """Everything about INCIDENT, a number of `ftctl report`: evidence of each rank, decision, logs, stacks.

    RUN is as for `ftctl report`.
    """
    with failing_politely():
        found = read_run(run, os.environ, time.time())
        known = found.run.incidents
        if incident > len(known):
            had = f"{len(known)} incident{'' if len(known) == 1 else 's'}"
            raise click.ClickException(f"{found.name} had {had}; there is no incident {incident}")
        [account] = gather(found, [known[incident - 1]], Tails())
    if as_json:
        echo_json(account)
    else:
        echo(detail_text.render(account, teller(found.run.ended)))

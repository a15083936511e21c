"""The `ftctl` command: what runs have left in their directories, told to a person; a module a command."""

from __future__ import annotations

import gc

import click

from ftrun.monitor.compare_command import compare_runs
from ftrun.monitor.report_command import report
from ftrun.monitor.runs_command import runs
from ftrun.monitor.show_command import show
from ftrun.monitor.timeouts_command import timeouts
from ftrun.monitor.watch_command import watch


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Looks at what runs of ftrun have left behind, and at the health of this node."""
    # A short life with very many objects that all stay: looking for cycles among them takes a fifth of it.
    gc.disable()
    context.call_on_close(gc.enable)


for _command in (runs, report, show, compare_runs, timeouts, watch):
    main.add_command(_command)

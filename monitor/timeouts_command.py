"""`ftctl timeouts`: the longest times that a run has shown, and limits that follow from them, to paste."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from ftrun.monitor.ctl_output import failing_politely
from ftrun.monitor.hang_events import TimeoutsObserved
from ftrun.monitor.journal import read
from ftrun.monitor.run_directories import find_run, journals_in
from ftrun.monitor.stall_limits import STALL_FLOOR_S
from ftrun.monitor.timeouts import LEAST_TIMEOUT_S, Longest, describe, of_journal, suggest

_SAFETY_FACTOR = 5.0  # the default of fault_tolerance.safety_factor


@click.command()
@click.argument("run", required=False)
@click.option(
    "--safety-factor",
    type=click.FloatRange(1, 1000),
    default=_SAFETY_FACTOR,
    show_default=True,
    help="Suggested limits are this times the longest time seen.",
)
def timeouts(run: str | None, safety_factor: float) -> None:
    """The longest time of each phase of RUN, and limits that follow from it.

    RUN is a run directory, or the id of a run that has not been given one; without it, the run that has
    written its journal last. All of the output is YAML that ftrun takes with --ft-config.
    """
    with failing_politely():
        directory = find_run(run, os.environ)
        observed = list(_observed_in(directory))
    if not observed:
        raise click.ClickException(
            f"{directory}: no round has ended yet; what a round has shown is written at its end"
        )
    longest = of_journal(observed)
    click.echo(_comment(f"Longest times in {directory}:\n{describe(longest)}"))
    if longest != Longest():
        least = f"at least {LEAST_TIMEOUT_S:g} s, stall {STALL_FLOOR_S:g} s"
        click.echo(_comment(f"Limits: these times the safety factor {safety_factor:g}, {least}."))
    click.echo(suggest(longest, safety_factor), nl=False)


def _observed_in(directory: Path) -> Iterator[TimeoutsObserved]:
    """Of all rounds and nodes of a run. What cannot be read is told on stderr."""
    for path in journals_in(directory):
        reading = read(path)
        yield from (record.event for record in reading if isinstance(record.event, TimeoutsObserved))
        if reading.skipped:
            click.echo(f"{path}: skipped {reading.skipped} damaged line(s)", err=True)


def _comment(text: str) -> str:
    """`text` as a comment of YAML, whatever characters a path in it has."""
    encoding = sys.stdout.encoding or "ascii"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    return textwrap.indent(shown.rstrip("\n"), "# ", lambda line: True)

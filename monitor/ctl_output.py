"""How every command of `ftctl` speaks: as text or JSON, and of its failures in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ftrun.monitor.plain import to_plain
from ftrun.monitor.run_directories import RunNotFoundError

json_option = click.option(
    "--json", "as_json", is_flag=True, help="For programs; docs/report.md has the form."
)


def echo(text: str) -> None:
    """Write to stdout, whatever it can encode; a newline is added if there is none."""
    encoding = sys.stdout.encoding or "ascii"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=not text.endswith("\n"))


def echo_json(value: object) -> None:
    """Write a dataclass, or several, as JSON."""
    echo(json.dumps(to_plain(value), indent=2))


@contextmanager
def failing_politely() -> Iterator[None]:
    """What cannot be found or read ends the command with a sentence and exit code 1."""
    try:
        yield
    except (RunNotFoundError, OSError) as error:
        raise click.ClickException(str(error)) from error

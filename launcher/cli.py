"""The `ftrun` command: from the command line to the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ftrun.launcher import exit_codes
from ftrun.launcher.launch import launch
from ftrun.launcher.options import HelpRequested, parse


def run(argv: Sequence[str]) -> int:
    """Run `ftrun argv...` and return its exit code."""
    try:
        return launch(parse(argv, os.environ))
    except HelpRequested as request:
        print(request.text)
        return exit_codes.OK
    except Exception as error:  # the agent's top frame: whatever it is, it gets an exit code and a message
        from ftrun.launcher.errors import explain  # not needed by a job that runs

        code, message = explain(error)
        print(message, file=sys.stderr)
        return code


def _fill_standard_streams() -> None:
    """Open /dev/null where a standard stream is closed: any later file would become it, and get its text."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(opened, True)
    # None where the stream was closed when Python started; print(file=None) would take the other one.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> None:
    """Entry point of the `ftrun` command."""
    _fill_standard_streams()
    sys.exit(run(sys.argv[1:]))

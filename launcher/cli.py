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


def main() -> None:
    """Entry point of the `ftrun` command."""
    sys.exit(run(sys.argv[1:]))

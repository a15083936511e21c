"""The `ftrun` command: from the command line to the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from ftrun.launcher import exit_codes
from ftrun.launcher.launch import launch
from ftrun.launcher.options import HelpRequested, parse


def run(argv: Sequence[str]) -> int:
    """Run `ftrun argv...` and return its exit code."""
    try:
        return launch(parse(argv, os.environ))
    except HelpRequested as request:
        _show(request.text)
        return exit_codes.OK
    except Exception as error:  # the agent's top frame: whatever it is, it gets an exit code and a message
        from ftrun.launcher.errors import explain  # not needed by a job that runs

        code, message = explain(error)
        print(message, file=sys.stderr)
        return code


def _show(text: str) -> None:
    """Write to stdout; a reader who has seen enough, such as `head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is flushed when this process ends


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


def leave(code: int) -> NoReturn:
    """End this process, at once if there are threads left.

    One that comes out of C++ (torch, asking a store that does not answer) while the interpreter ends is
    unwound by Python, at which C++ calls std::terminate: the exit code would be that of an abort.
    """
    if threading.active_count() == 1:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def main() -> None:
    """Entry point of the `ftrun` command."""
    _fill_standard_streams()
    leave(run(sys.argv[1:]))

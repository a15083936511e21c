"""What the workers run: from the command line to the words of an activation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ftrun.launcher.config import LaunchOptions

Kind = Literal["script", "module", "executable"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A program and its arguments, before macros are replaced (the same for every rank)."""

    kind: Kind
    argv: tuple[str, ...]
    cold_reason: str = ""
    """Why nothing can be preloaded for it; "" if something can."""

    def binary(self, own_python: str) -> str:
        """The program that a worker's process runs; `own_python` is the interpreter of this one."""
        return self.argv[0] if self.kind == "executable" else own_python


def entry_of(options: LaunchOptions, own_python: str, python_exec: str | None) -> Entry:
    """The program that `options` name.

    `python_exec` is torchrun's PYTHON_EXEC: another interpreter for the script, in which ftrun need not be
    installed, so it is executed as a program of its own.
    """
    command = (options.training_script, *options.training_script_args)
    if options.run_path:
        return Entry("script", command)
    if options.no_python:
        return Entry("executable", command, "the program is not Python (--no-python)")
    if python_exec and python_exec != own_python:
        dash_m = ("-m",) if options.is_module else ()
        reason = f"the script runs under another interpreter, {python_exec} (PYTHON_EXEC)"
        return Entry("executable", (python_exec, "-u", *dash_m, *command), reason)
    return Entry("module" if options.is_module else "script", command)

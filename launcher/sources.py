"""Reads Python source for `ftrun.launcher.preload`, which does no I/O itself."""

from __future__ import annotations

import os
import tokenize

_MAX_BYTES = 2 * 1024 * 1024


def read_source(path: str) -> str | None:
    """The text of a Python file in the encoding that it declares.

    None if there is no regular file of at most 2 MiB at `path`, or it is not text.
    """
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MAX_BYTES:
            return None
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None

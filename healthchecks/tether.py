"""Runs a command that ends with whoever started it. Judges nothing.

    python -I -S tether.py PARENT_PID COMMAND [ARGUMENT...]

The death signal (prctl(2)) stays set over the exec; a command of others would not set it itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
NOT_RUN = 127
"""Exit code when there is no such command, as shells have it."""


def main() -> int:
    """Become the command; returns only if that fails."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        return NOT_RUN
    # Python ignores both, and ignoring is inherited.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"cannot be run: {error.strerror}")
        return NOT_RUN


if __name__ == "__main__":
    sys.exit(main())

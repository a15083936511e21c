"""What a process's exit code says about a signal. Pure."""

from __future__ import annotations

import signal


def signal_name(exit_code: int) -> str | None:
    """Name of the signal behind a negative exit code, real-time signals included; None for other codes."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"

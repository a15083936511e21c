"""The `ftctl` command: all that `ftrun.monitor.ctl` has, and what needs the launcher's configuration."""

from __future__ import annotations

from ftrun.launcher.check_command import check
from ftrun.monitor.ctl import main

__all__ = ["main"]

main.add_command(check)

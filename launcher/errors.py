"""The one table from an exception that ends the agent to its exit code and message."""

from __future__ import annotations

import traceback

from ftrun.launcher import exit_codes
from ftrun.launcher.elastic_events import ElasticEventsError
from ftrun.launcher.launch_options import UsageError
from ftrun.launcher.logs import LogsError
from ftrun.launcher.ports import PortBusyError
from ftrun.launcher.slots import SlotsError
from ftrun.monitor.journal import JournalError

_EXIT_CODES: dict[type[Exception], int] = {
    UsageError: exit_codes.USAGE,
    SlotsError: exit_codes.USAGE,
    LogsError: exit_codes.USAGE,
    ElasticEventsError: exit_codes.USAGE,
    JournalError: exit_codes.USAGE,
    PortBusyError: exit_codes.NO_RENDEZVOUS,
}


def explain(error: Exception) -> tuple[int, str]:
    """Exit code and message for stderr; an exception that is not in the table is a bug of ftrun."""
    for kind, code in _EXIT_CODES.items():
        if isinstance(error, kind):
            return code, f"ftrun: error: {error}"
    trace = "".join(traceback.format_exception(error))
    return exit_codes.FAILED, f"ftrun: internal error, the job was stopped:\n{trace}"

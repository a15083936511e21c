"""From a configuration to the end of its job: spawns the worker processes first, then builds all the rest."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

from ftrun.launcher import process
from ftrun.launcher.config import Config
from ftrun.launcher.signals import SignalInbox
from ftrun.launcher.start import plan_start


def launch(config: Config) -> int:
    """Run the job of `config` to its end and return the exit code.

    Raises:
        UsageError, SlotsError, LogsError, ElasticEventsError, JournalError: it cannot be run as asked.
        PortBusyError: the port asked for is taken.
    """
    with ExitStack() as stack:
        inbox = SignalInbox(signal.Signals[name] for name in config.launch.signals_to_handle)
        stack.callback(inbox.close)
        process.become_subreaper()
        start = plan_start(config, os.environ)
        first = [start.spawn(start.modules) for _ in range(start.slots.count)]
        for one in first:
            stack.callback(one.process.signal, signal.SIGKILL)
        from ftrun.launcher.job import Job  # its imports take as long as the workers need to get going

        return Job(config, start, stack).run(inbox, first)

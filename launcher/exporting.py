"""Exports the metrics of this node if the configuration asks for it; what fails there is a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ftrun.launcher.account import Account
from ftrun.launcher.config import Config
from ftrun.launcher.ports import PortBusyError, listen
from ftrun.launcher.recorder import Recorder
from ftrun.monitor.events import MetricsDegraded, MetricsServed

if TYPE_CHECKING:
    from ftrun.monitor.exporter import Exporter

Post = Callable[["MetricsDegraded | MetricsServed"], None]


class Exporting:
    """The export of one run's metrics, from before its first event on; nothing if nobody wants it."""

    def __init__(self, config: Config, record: Recorder, run_id: str, node: str) -> None:
        self._config = config.ftrun.metrics
        self._exporter: Exporter | None = None
        if self._config.is_wanted:
            # Imported here because only runs with metrics need it.
            from ftrun.monitor.exporter import Exporter

            self._exporter = Exporter(run_id, node)
            record.add(self._exporter.observe)

    def start(self, account: Account, turned_at: Callable[[], float], post: Post) -> None:
        """Serve and write as asked for; a taken port is a warning.

        Args:
            account: knows what the ranks show.
            turned_at: when the agent's loop last turned (CLOCK_MONOTONIC, seconds).
            post: journals, from any thread.
        """
        config, exporter = self._config, self._exporter
        if exporter is None:
            return
        exporter.look_at(lambda: account.levels, turned_at)

        def warn(reason: str) -> None:
            post(MetricsDegraded(reason))

        if config.port is not None:
            try:
                port = exporter.serve(listen(config.host, config.port), warn)
            except (PortBusyError, OSError) as error:
                warn(f"they are not served on {config.host}:{config.port}: {error}")
            else:
                post(MetricsServed(config.host, port))
        exporter.begin(config.file, config.interval, warn)

    def close(self) -> None:
        """Say how the run ended, and close the port."""
        if self._exporter is not None:
            self._exporter.close()

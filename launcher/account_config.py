"""What a run tells of itself: the journal's pace, and metrics. Part of `ftrun.launcher.config`."""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.launcher import values as v
from ftrun.launcher.values import setting


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """The record of a run."""

    max_size: int | None = setting(
        10 * 1024**3,
        v.SIZE_OR_OFF,
        "bytes, or text such as 10GiB",
        "How large the run directory may be: log files of old rounds are removed first, which the journal "
        "says; null for no limit.",
    )
    progress_interval: float | None = setting(
        60.0,
        v.TIMEOUT,
        "seconds",
        "How often it is told how far training has come, in the journal and in a line on the terminal; null "
        "for never.",
    )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """For Prometheus; needs prometheus-client, which `pip install ftrun[metrics]` brings."""

    port: int | None = setting(
        None,
        v.PORT_OR_OFF,
        "port",
        "Port on which each agent serves /metrics and /status; 0 for any free one, null for none.",
    )
    host: str = setting(
        "127.0.0.1",
        v.TEXT,
        "address",
        "Address of that port; nothing of a run is shown to other machines unless asked for (0.0.0.0).",
    )
    file: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path",
        "File that each agent writes for node_exporter's textfile collector, a name ending in .prom; null "
        "for none.",
    )
    interval: float = setting(
        15.0, v.INTERVAL, "seconds", "How often it is written: about as often as Prometheus reads it."
    )

    @property
    def is_wanted(self) -> bool:
        """Somebody has asked for metrics."""
        return self.port is not None or self.file is not None

"""The export of metrics, when it is not asked for and when it is."""

from __future__ import annotations

import subprocess
import sys


def test_agent_without_metrics_does_not_import_what_they_need() -> None:
    """Nor what only the commands for people need; the workers wait for the agent's imports."""
    code = (
        "import sys, ftrun.launcher.job\n"
        "print({'prometheus_client', 'rich', 'http.server', 'ftrun.monitor.exporter'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"

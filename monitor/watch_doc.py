"""Makes the tables of docs/watch.md: `python -m ftrun.monitor.watch_doc` writes the page's last part.

What the fields are is said where they are; the page must have exactly what this prints.
"""

from __future__ import annotations

import sys

from ftrun.monitor.plain import document
from ftrun.monitor.status import View


def render() -> str:
    """The form of `ftctl watch --json`, and in it that of `/status`."""
    head = "## `ftctl watch --json`\n\n`/status` of an agent (docs/metrics.md) is a NodeStatus."
    return f"{head}\n\n{document(View)}"


if __name__ == "__main__":
    sys.stdout.write(render())

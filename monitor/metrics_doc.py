"""Makes the table of docs/metrics.md: `python -m ftrun.monitor.metrics_doc` writes the page's last part.

What a metric means is said where it is; the page must have exactly what this prints.
"""

from __future__ import annotations

import sys

from ftrun.monitor.metrics import COMMON_LABELS, METRICS


def render() -> str:
    """All metrics, one row each."""
    common = " and ".join(f"`{label}`" for label in COMMON_LABELS)
    head = [
        "## Every metric",
        "",
        f"Each has the labels {common} besides its own.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    rows = [
        f"| `{one.name}` | {one.kind.value} | {', '.join(one.labels) or '-'} | {one.meaning} |"
        for one in METRICS
    ]
    return "\n".join([*head, *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(render())

"""Makes the tables of docs/report.md: `python -m ftrun.monitor.report_doc` writes the page's second part.

What the fields are is said where they are; the page must have exactly what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ftrun.monitor.comparison import Comparison
from ftrun.monitor.detail import Detail
from ftrun.monitor.plain import document
from ftrun.monitor.report import Report
from ftrun.monitor.runs_command import RunList

_FORMS: Mapping[str, type] = {
    "`ftctl report --json`": Report,
    "`ftctl runs --json`": RunList,
    "`ftctl show INCIDENT --json`": Detail,
    "`ftctl compare FIRST SECOND --json`": Comparison,
}


def render() -> str:
    """All forms, each with those that it refers to."""
    return "\n".join(f"## {command}\n\n{document(form)}" for command, form in _FORMS.items())


if __name__ == "__main__":
    sys.stdout.write(render())

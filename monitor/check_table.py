"""Shows the results of health checks to a person. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ftrun.healthchecks.result import Result, Status, Subject, worst

_SHOWN = (Status.UNHEALTHY, Status.UNKNOWN, Status.DEGRADED)
_ORDER = (*_SHOWN, Status.HEALTHY, Status.SKIPPED)
_NO_DRIVER = ("gpu.driver", Status.SKIPPED)


def render_check(results: Sequence[Result], took_s: float, show_all: bool = False) -> str:
    """A line for each subject, what is not well with its remedy, and a summary; one line if there is little.

    Args:
        results: of one check of a node.
        took_s: how long it took, seconds.
        show_all: every result, also those that are healthy or skipped.
    """
    findings = [result for result in results if show_all or result.status in _SHOWN]
    if not show_all and worst(results) not in (Status.UNHEALTHY, Status.UNKNOWN) and _has_no_gpu(results):
        return f"no GPU on this machine; {_count(results)}\n"
    parts = [_table(_subject_rows(results)), _table(_finding_rows(findings)) if findings else ""]
    parts.append(f"{worst(results).value}: {_count(results)}, in {took_s:.2f} s\n")
    return "\n".join(part for part in parts if part)


def exit_code(results: Iterable[Result]) -> int:
    """0 healthy or nothing to check, 1 unhealthy, 2 could not tell."""
    return {Status.UNHEALTHY: 1, Status.UNKNOWN: 2}.get(worst(results), 0)


def _has_no_gpu(results: Sequence[Result]) -> bool:
    return any((result.check, result.status) == _NO_DRIVER for result in results)


def _count(results: Iterable[Result]) -> str:
    """ "1 unhealthy, 170 healthy, 3 skipped"."""
    counts = Counter(result.status for result in results)
    return ", ".join(f"{counts[status]} {status.value}" for status in _ORDER if counts[status]) or "nothing"


def _subject_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    by_subject: dict[Subject, list[Result]] = {}
    for result in results:
        by_subject.setdefault(result.subject, []).append(result)
    rows = [
        (worst(found).value, str(subject), _count(found))
        for subject, found in sorted(by_subject.items(), key=lambda item: _place(item[0]))
    ]
    return [("STATUS", "SUBJECT", "RESULTS"), *rows]


def _place(subject: Subject) -> tuple[int, int, str]:
    kinds = ("node", "gpu", "nvlink", "nic", "path")
    return kinds.index(subject.kind), -1 if subject.index is None else subject.index, subject.name


def _finding_rows(findings: Sequence[Result]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("STATUS", "CHECK", "SUBJECT", "OBSERVED")]
    for result in sorted(findings, key=lambda result: _ORDER.index(result.status)):
        since = " (since before this job)" if result.is_persistent and result.status in _SHOWN else ""
        rows.append(
            (result.status.value, result.check, str(result.subject), f"{_line(result.observed)}{since}")
        )
        if result.status in _SHOWN:
            rows += [
                ("", "", "", f"  {word}: {_line(text)}")
                for word, text in (("expected", result.expected), ("remedy", result.remedy))
                if text
            ]
    return rows


def _line(text: str) -> str:
    """One line, whatever a driver or a command has said."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the last one is as long as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = (
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines) + "\n"

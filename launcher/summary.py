"""The account of a failed job that is printed at its end, in the layout that torchrun's readers know. Pure.

The labels and the lines that tools search for are those of torch.distributed.elastic.multiprocessing.errors.
Unlike there, the root cause comes first, and ranks that the agent itself stopped are no failures.
"""

from __future__ import annotations

import datetime

from ftrun.monitor.incident import Incident, RankExit
from ftrun.monitor.signal_names import signal_name

NO_OTHER_FAILURES = "<NO_OTHER_FAILURES>"
_CHILD_FAILED_ERROR = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_NOT_AVAILABLE = "<N/A>"
_MAX_WIDTH = 60
_MAX_SHOWN_LINES = 20
"""Last stderr lines shown for a rank that left no traceback."""


def failure_summary(
    script: str,
    incident: Incident,
    *,
    binary: str,
    host: str,
    wall_offset_s: float,
    log_dir: str | None = None,
) -> str:
    """Several lines, without a newline at the end.

    `binary` is the program that each worker runs: the interpreter, or the user's own with --no-python.
    `wall_offset_s` is what turns this node's CLOCK_MONOTONIC into UTC epoch: now by the wall clock minus now
    by the other. Times are shown in local time, as torchrun does.
    """
    title = f"{script} FAILED"
    root = _failure(0, incident.culprit, host, wall_offset_s)
    why = [f"  cause     : {sentence}" for sentence in incident.reasons]
    failures = [exit for exit in incident.collateral if exit.exit_code != 0 and not exit.is_stopped_by_agent]
    ordered = sorted(failures, key=lambda exit: exit.failed_at)
    others = [
        line
        for index, exit in enumerate(ordered, start=1)
        for line in _failure(index, exit, host, wall_offset_s)
    ] or [f"  {NO_OTHER_FAILURES}"]
    stopped = _stopped(incident)
    body = ["Root Cause (first observed failure):", *root[:1], *why, *root[1:]]
    logs = [f"Logs: {log_dir}"] if log_dir is not None else []
    width = min(_MAX_WIDTH, max(map(len, [title, *body, *others])))
    border, rule = "=" * width, "-" * width
    tail = [rule, "Other failures:", *others, *stopped, *logs, border]
    return "\n".join([*_announcement(incident.culprit, binary), border, title, rule, *body, *tail])


def _announcement(exit: RankExit, binary: str) -> list[str]:
    """The two lines by which tools find torchrun's summary and the rank to blame."""
    where = f"local_rank: {exit.local_rank} (pid: {exit.pid}) of binary: {binary}"
    return [f"failed (exitcode: {exit.exit_code}) {where}", f"{_CHILD_FAILED_ERROR}:"]


def _failure(index: int, exit: RankExit, host: str, wall_offset_s: float) -> list[str]:
    when = datetime.datetime.fromtimestamp(exit.failed_at + wall_offset_s)
    name = signal_name(exit.exit_code)
    head = [
        f"[{index}]:",
        f"  time      : {when.isoformat('_', 'milliseconds')}",
        f"  host      : {host}",
        f"  rank      : {exit.rank} (local_rank: {exit.local_rank})",
        # Two blanks before the name, as torchrun has it.
        f"  exitcode  : {exit.exit_code} (pid: {exit.pid})" + (f"  ({name})" if name else ""),
        f"  error_file: {exit.error_file if exit.error is not None and exit.error_file else _NOT_AVAILABLE}",
    ]
    return [*head, *_explanation(exit)]


def _explanation(exit: RankExit) -> list[str]:
    """The traceback, else the exception's text, else the last stderr lines, else the signal."""
    error = exit.error
    if error is not None:
        text = error.traceback or ": ".join(part for part in (error.type_name, error.message) if part)
        return _labelled("traceback", text.rstrip("\n").split("\n"))
    if exit.stderr_tail:
        lines = (f"    {line.rstrip()}" for line in exit.stderr_tail[-_MAX_SHOWN_LINES:])
        return ["  traceback : none was recorded; the last lines of stderr:", *lines]
    if name := signal_name(exit.exit_code):
        return [f"  traceback : Signal {-exit.exit_code} ({name}) received by PID {exit.pid}"]
    return ["  traceback : none was recorded, and nothing was written to stderr"]


def _labelled(label: str, lines: list[str]) -> list[str]:
    return [f"  {label:<10}: {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _stopped(incident: Incident) -> list[str]:
    ranks = sorted(exit.rank for exit in incident.collateral if exit.is_stopped_by_agent)
    if not ranks:
        return []
    return [f"Stopped by the agent: rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"]

"""The account of a failed job that is printed at its end, in the layout that torchrun's readers know. Pure.

The labels and the lines that tools search for are those of torch.distributed.elastic.multiprocessing.errors.
Unlike there, the root cause comes first, ranks that the agent itself stopped are no failures, and the root
cause may be on another node, or be one.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from ftrun.monitor.incident import Incident, RankExit
from ftrun.monitor.rank_lists import name_ranks
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

    `binary` is the program that each worker runs: the interpreter, or the user's own with --no-python. `host`
    is this node; `wall_offset_s` is what turns its CLOCK_MONOTONIC into UTC epoch: now by the wall clock
    minus now by the other. What happened on another node is shown by what the incident says of that one.
    Times are shown in local time, as torchrun does.
    """
    hosts = _Hosts(incident, host, wall_offset_s)
    title = f"{script} FAILED"
    is_of_node = incident.kind.is_of_node
    root = _node(incident) if is_of_node else _failure(0, incident.culprit, hosts.of_culprit())
    why = [f"  cause     : {sentence}" for sentence in incident.reasons]
    failures = sorted((exit for exit in incident.collateral if exit.has_failed), key=hosts.order_of)
    others = [
        line for index, exit in enumerate(failures, start=1) for line in _failure(index, exit, hosts.of(exit))
    ] or [f"  {NO_OTHER_FAILURES}"]
    body = ["Root Cause (first observed failure):", *root[:1], *why, *root[1:]]
    left = [f"Not shown: {incident.left_out} more ranks"] if incident.left_out else []
    logs = [] if log_dir is None else [f"{'Logs' if incident.node == host else f'Logs on {host}'}: {log_dir}"]
    width = min(_MAX_WIDTH, max(map(len, [title, *body, *others])))
    border, rule = "=" * width, "-" * width
    tail = [rule, "Other failures:", *others, *_stopped(incident), *left, *logs, border]
    return "\n".join([*_announcement(incident, binary), border, title, rule, *body, *tail])


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Where each rank of an incident ran, and what its clock means."""

    incident: Incident
    own: str
    own_wall_offset_s: float

    def of_culprit(self) -> tuple[str, float | None]:
        """Name of its node, and what turns that node's times into UTC epoch; None if unknown."""
        return self._known(self.incident.node, self.incident.wall_offset_s)

    def of(self, exit: RankExit) -> tuple[str, float | None]:
        """The same for a rank of the collateral."""
        place = self._place(exit)
        if place < 0:
            return self.of_culprit()
        host = self.incident.hosts[place]
        return self._known(host.node, host.wall_offset_s)

    def order_of(self, exit: RankExit) -> tuple[int, float]:
        """By node, the culprit's first, and on each by time: times of two nodes are not comparable."""
        return self._place(exit), exit.failed_at

    def _place(self, exit: RankExit) -> int:
        places = (place for place, host in enumerate(self.incident.hosts) if exit.rank in host.ranks)
        return next(places, -1)

    def _known(self, node: str, wall_offset_s: float) -> tuple[str, float | None]:
        return node, self.own_wall_offset_s if node == self.own else wall_offset_s or None


def _announcement(incident: Incident, binary: str) -> list[str]:
    """The two lines by which tools find torchrun's summary and the rank to blame."""
    exit = incident.culprit
    where = (
        f"(exitcode: {exit.exit_code}) local_rank: {exit.local_rank} (pid: {exit.pid}) of binary: {binary}"
    )
    what = f": {incident.reasons[0]}" if incident.kind.is_of_node else f" {where}"
    return [f"failed{what}", f"{_CHILD_FAILED_ERROR}:"]


def _node(incident: Incident) -> list[str]:
    return ["[0]:", f"  host      : {incident.node or _NOT_AVAILABLE}"]


def _failure(index: int, exit: RankExit, where: tuple[str, float | None]) -> list[str]:
    host, wall_offset_s = where
    when = _NOT_AVAILABLE if wall_offset_s is None else _shown(exit.failed_at + wall_offset_s)
    name = signal_name(exit.exit_code)
    head = [
        f"[{index}]:",
        f"  time      : {when}",
        f"  host      : {host}",
        f"  rank      : {exit.rank} (local_rank: {exit.local_rank})",
        # Two blanks before the name, as torchrun has it.
        f"  exitcode  : {exit.exit_code} (pid: {exit.pid})" + (f"  ({name})" if name else ""),
        f"  error_file: {exit.error_file if exit.error is not None and exit.error_file else _NOT_AVAILABLE}",
    ]
    return [*head, *_explanation(exit)]


def _shown(ts: float) -> str:
    return datetime.datetime.fromtimestamp(ts).isoformat("_", "milliseconds")


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
    ranks = [exit.rank for exit in incident.collateral if exit.is_stopped_by_agent]
    return [f"Stopped by the agent: {name_ranks(ranks)}"] if ranks else []

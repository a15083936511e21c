"""Gathers the evidence of incidents: a second look at the journals, and at the files that they name.

What it comes to is `ftrun.monitor.detail`'s; here is where it lies.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftrun.monitor.detail import Detail, Gathering, Sorter, TextFile, make_detail, wanted_of
from ftrun.monitor.history import Incident, Run
from ftrun.monitor.journal_lines import lines_about, node_of
from ftrun.monitor.log import sentence
from ftrun.monitor.records import from_json
from ftrun.monitor.redaction import Redactor, secret_values
from ftrun.monitor.run_directories import journals_in
from ftrun.monitor.runs import FoundRun

_TAIL_BYTES = 1 << 14
_UNREADABLE = (OSError, ValueError)
"""A name from a damaged journal can be none that a file may have (it holds NUL): ValueError."""
_MOST_RANKS = 3
"""Whose files are shown: the culprit's and those of ranks that failed with it."""
_MOST_LINES = 1000


@dataclass(frozen=True, slots=True)
class Tails:
    """How many of the last lines of a file are shown."""

    log_lines: int = 20
    stack_lines: int = 40


def gather(found: FoundRun, incidents: Sequence[Incident], tails: Tails) -> list[Detail]:
    """The account of each of these incidents of a run.

    Raises:
        OSError: a journal cannot be read.
    """
    gatherings = [Gathering(one, _to_sentence) for one in incidents]
    parts = [
        (gathering, part)
        for gathering, incident in zip(gatherings, incidents, strict=True)
        for part in wanted_of(found.run, incident)
    ]
    for path in journals_in(found.directory):
        node = node_of(path)
        sorter = Sorter((gathering, part) for gathering, part in parts if part.node == node)
        if sorter.rounds:
            sorter.take(lines_about(path, sorter.rounds))
    return [
        make_detail(found.name, found.run, one, gathering, list(_files(found.run, one, gathering, tails)))
        for one, gathering in zip(incidents, gatherings, strict=True)
    ]


def _to_sentence(line: str) -> str:
    return sentence(from_json(line).event)


def _files(run: Run, incident: Incident, gathering: Gathering, tails: Tails) -> Iterator[TextFile]:
    failed = [one for one in gathering.exits() if one.is_culprit or not one.is_stopped_by_agent]
    log_dirs = {node.name: node.presences[-1].life.log_dir for node in run.nodes}
    evidence = {row.node: row.file for row in gathering.evidence()}
    # Here nobody knows the values of the job's secrets any more; what looks like one is masked.
    redactor = Redactor(secret_values(os.environ))
    for one in failed[:_MOST_RANKS]:
        base = Path(log_dirs.get(one.node) or os.devnull)
        directory = _rank_directory(base, incident.round_number, one.local_rank)
        if directory is None:
            continue
        if (error := directory / "error.json").exists():
            trace = _traceback(error, Path(evidence.get(one.node) or os.devnull), one.rank)
            shown = tuple(map(redactor.mask, trace[-tails.log_lines :]))
            yield TextFile(f"error of rank {one.rank}", str(error), shown)
        for name in ("stderr.log", "stdout.log"):
            if (log := directory / name).exists():
                shown = tuple(map(redactor.mask, _tail(log, tails.log_lines)))
                yield TextFile(f"{name[:6]} of rank {one.rank}", str(log), shown)
    culprits = [(node, rank) for node, rank in gathering.stacks if rank == incident.culprit_rank]
    others = [key for key in gathering.stacks if key not in culprits]
    for node, rank in [*culprits, *others][:_MOST_RANKS]:
        path = gathering.stacks[node, rank]
        yield TextFile(f"stacks of rank {rank}", path, _tail(Path(path), tails.stack_lines))


def _rank_directory(base: Path, round_number: int, local_rank: int) -> Path | None:
    """Where a rank's files of a round are; None if several agents have written below the same directory."""
    name = re.compile(rf"attempt_{round_number}(\.\d+)?")  # as ftrun.launcher.logs makes them
    found: list[Path] = []
    for directory in (base, base / "logs"):
        with suppress(*_UNREADABLE):
            attempts = [path for path in directory.iterdir() if name.fullmatch(path.name)]
            found += [path / str(local_rank) for path in attempts if (path / str(local_rank)).is_dir()]
    return found[0] if len(found) == 1 else None


def _tail(path: Path, lines: int) -> tuple[str, ...]:
    with suppress(*_UNREADABLE), path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return tuple(file.read().decode(errors="replace").splitlines()[-lines:])
    return ()


def _traceback(error_file: Path, evidence_file: Path, rank: int) -> list[str]:
    """The rank's traceback from its node's evidence, where secrets are masked; else from its error file.

    That is of torch elastic's format, or any text.
    """
    try:
        exits = json.loads(evidence_file.read_text(errors="replace"))["exits"]
        trace = next(exit["error"]["traceback"] for exit in exits if exit["rank"] == rank)
    except (*_UNREADABLE, ValueError, KeyError, TypeError, StopIteration):
        try:
            message = json.loads(error_file.read_text(errors="replace"))["message"]
            trace = message["extraInfo"]["py_callstack"]
        except (*_UNREADABLE, ValueError, KeyError, TypeError):
            return list(_tail(error_file, _MOST_LINES))
    return str(trace).splitlines()

"""`ftctl show`: everything about one incident, with the ends of its ranks' files."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from ftrun.monitor import detail_text
from ftrun.monitor.ctl_output import echo, echo_json, failing_politely, json_option
from ftrun.monitor.detail import Detail, Gathering, TextFile, Wanted, make_detail, wanted_of
from ftrun.monitor.history import Incident, Run
from ftrun.monitor.journal_lines import Lines
from ftrun.monitor.local_time import teller
from ftrun.monitor.log import sentence
from ftrun.monitor.records import from_json
from ftrun.monitor.run_directories import journals_in
from ftrun.monitor.runs import FoundRun, read_run

_TAIL_LINES = 20
_TAIL_BYTES = 1 << 14
_MOST_RANKS = 3
"""Whose files are shown: the culprit's and those of ranks that failed with it."""


@click.command()
@click.argument("incident", type=click.IntRange(min=1))
@click.argument("run", required=False)
@json_option
def show(incident: int, run: str | None, as_json: bool) -> None:
    """Everything about INCIDENT, a number of `ftctl report`: evidence of each rank, decision, logs, stacks.

    RUN is as for `ftctl report`.
    """
    with failing_politely():
        found = read_run(run, os.environ, time.time())
        known = found.run.incidents
        if incident > len(known):
            had = f"{len(known)} incident{'' if len(known) == 1 else 's'}"
            raise click.ClickException(f"{found.name} had {had}; there is no incident {incident}")
        account = gather(found, known[incident - 1])
    if as_json:
        echo_json(account)
    else:
        echo(detail_text.render(account, teller(found.run.ended)))


def gather(found: FoundRun, incident: Incident) -> Detail:
    """Look at the journals once more, and at the files that they name.

    Raises:
        OSError: a journal cannot be read.
    """
    gathering = Gathering(incident, _to_sentence)
    parts = wanted_of(found.run, incident)
    for path in journals_in(found.directory):
        for part in parts:
            if _is_of(path, part):
                gathering.take(Lines(path), part)
    files = list(_files(found.run, incident, gathering))
    return make_detail(found.name, found.run, incident, gathering, files)


def _is_of(path: Path, part: Wanted) -> bool:
    """Journals are named after their nodes; the first line tells."""
    first = next(iter(Lines(path)), {})
    return first.get("node") == part.node


def _to_sentence(line: str) -> str:
    return sentence(from_json(line).event)


def _files(run: Run, incident: Incident, gathering: Gathering) -> Iterator[TextFile]:
    failed = [one for one in gathering.exits() if one.is_culprit or not one.is_stopped_by_agent]
    log_dirs = {node.name: node.presences[-1].life.log_dir for node in run.nodes}
    for one in failed[:_MOST_RANKS]:
        base = Path(log_dirs.get(one.node) or os.devnull)
        directory = _rank_directory(base, incident.round_number, one.local_rank)
        if directory is None:
            continue
        if (error := directory / "error.json").exists():
            yield TextFile(f"error of rank {one.rank}", str(error), _traceback(error))
        for name in ("stderr.log", "stdout.log"):
            if (log := directory / name).exists():
                yield TextFile(f"{name[:6]} of rank {one.rank}", str(log), _tail(log))
    culprits = [(node, rank) for node, rank in gathering.stacks if rank == incident.culprit_rank]
    others = [key for key in gathering.stacks if key not in culprits]
    for node, rank in [*culprits, *others][:_MOST_RANKS]:
        path = gathering.stacks[node, rank]
        yield TextFile(f"stacks of rank {rank}", path, _tail(Path(path), _TAIL_LINES * 2))


def _rank_directory(base: Path, round_number: int, local_rank: int) -> Path | None:
    """Where a rank's files of a round are; None if several agents have written below the same directory."""
    name = re.compile(rf"attempt_{round_number}(\.\d+)?")  # as ftrun.launcher.logs makes them
    found: list[Path] = []
    for directory in (base, base / "logs"):
        with suppress(OSError):
            attempts = [path for path in directory.iterdir() if name.fullmatch(path.name)]
            found += [path / str(local_rank) for path in attempts if (path / str(local_rank)).is_dir()]
    return found[0] if len(found) == 1 else None


def _tail(path: Path, lines: int = _TAIL_LINES) -> tuple[str, ...]:
    with suppress(OSError), path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return tuple(file.read().decode(errors="replace").splitlines()[-lines:])
    return ()


def _traceback(path: Path) -> tuple[str, ...]:
    """Of an error file in torch elastic's format, the traceback; else its text."""
    try:
        message = json.loads(path.read_text(errors="replace"))["message"]
        trace = message["extraInfo"]["py_callstack"]
    except (OSError, ValueError, KeyError, TypeError):
        return _tail(path)
    return tuple(str(trace).splitlines()[-_TAIL_LINES:])

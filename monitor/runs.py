"""Finds runs, reads their journals, and sees whether they are still going on; removes old ones.

Places and names are `ftrun.monitor.run_directories`'; what the journals of a run come to is `merging`'s.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrun.monitor.history import Pulse, Run, State
from ftrun.monitor.journal_lines import feed
from ftrun.monitor.life_fold import LifeFold
from ftrun.monitor.lives import Life
from ftrun.monitor.merging import merge
from ftrun.monitor.run_directories import (
    RunNotFoundError,
    find_run,
    journals_in,
    size_bytes,
    usual_places,
)
from ftrun.monitor.shift_fold import Shared
from ftrun.monitor.timeline import group


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run, where it is, and how people ask for it."""

    name: str
    """The id of its directory; with ":1" and so on if later runs had the same directory."""
    directory: Path
    run: Run


def read_runs(directory: Path, now_ts: float) -> list[FoundRun]:
    """The runs that have journals in the directory, oldest first; usually one.

    Raises:
        OSError: a journal cannot be opened.
    """
    lives: list[Sequence[Life]] = []
    gaps: list[str] = []
    last: dict[str, tuple[Life, Path]] = {}
    shared: Shared = {}
    for path in journals_in(directory):
        fold = LifeFold(shared)
        skipped = feed(path, fold) + fold.skipped
        of_node = fold.lives()
        lives.append(of_node)
        if skipped:
            gaps.append(f"{path.name}: {skipped} damaged line{'s' if skipped > 1 else ''} skipped")
        if of_node:
            last[of_node[-1].node] = of_node[-1], path
    runs = [merge(members, now_ts, _pulses(members, last), gaps) for members in group(lives)]
    name = name_of_directory(directory)
    names = [f"{name}:{place}" for place in range(1, len(runs))] + [name]
    return [FoundRun(name, directory, run) for name, run in zip(names, runs, strict=False)]


def _pulses(members: Sequence[Life], last: Mapping[str, tuple[Life, Path]]) -> dict[str, Pulse]:
    """Of the agents of one run that have not said that they ended; `last` has each journal's last life."""
    pulses = {}
    for life in members:
        latest, path = last.get(life.node, (None, None))
        if life is latest and path is not None and not life.is_ended:
            pulses[life.node] = pulse_of(life, path)
        else:
            pulses[life.node] = Pulse.GONE
    return pulses


def name_of_directory(directory: Path) -> str:
    """How people ask for what is in it."""
    is_usual = directory.parent in usual_places(os.environ)
    return directory.name if is_usual else str(directory)


def read_run(wanted: str | None, environ: Mapping[str, str], now_ts: float) -> FoundRun:
    """The run that a person means.

    Args:
        wanted: as `run_directories.find_run` takes it, with ":1", ":2" and so on for an earlier run of the
            same directory; None for the newest of all.
        environ: of the process, for the usual places.
        now_ts: UTC epoch.

    Raises:
        RunNotFoundError: there is no such run, or its journals are empty.
        OSError: a journal cannot be read.
    """
    number = None
    try:
        directory = find_run(wanted, environ)
    except RunNotFoundError:
        base, _, digits = (wanted or "").rpartition(":")
        if not (base and digits.isdecimal()):
            raise
        directory, number = find_run(base, environ), int(digits)
    runs = read_runs(directory, now_ts)
    if not runs:
        raise RunNotFoundError(f"{directory}: its journals are empty")
    if number is None:
        return runs[-1]
    if not 1 <= number <= len(runs):
        raise RunNotFoundError(f"{directory} has {len(runs)} runs; there is no run {number}")
    return runs[number - 1]


def run_directories(places: Sequence[Path]) -> Iterator[Path]:
    """Below these places, or one of them itself: directories with journals, that written last first."""
    found: dict[Path, float] = {}
    for place in places:
        with contextlib.suppress(OSError):
            for path in (place, *place.iterdir()):
                with contextlib.suppress(OSError):
                    if path.is_dir() and path.stat().st_uid == os.geteuid():
                        found[path] = written_ts(path)
    yield from sorted((path for path, ts in found.items() if ts > 0), key=lambda path: -found[path])


def written_ts(directory: Path) -> float:
    """When a journal in the directory was last written (UTC epoch, seconds); 0 if there is none."""
    latest = 0.0
    with contextlib.suppress(OSError):
        for path in journals_in(directory):
            latest = max(latest, path.stat().st_mtime)
    return latest


def pulse_of(life: Life, journal: Path) -> Pulse:
    """Whether the agent is still there: its process is, and has the journal open."""
    return pulse_of_agent(life.node, life.agent_pid, journal)


def pulse_of_agent(node: str, agent_pid: int, journal: Path) -> Pulse:
    """The same of an agent by its node's name and its process id there; 0 if that is not known."""
    try:
        if _has_open(agent_pid, journal):
            return Pulse.ALIVE
    except PermissionError:
        return Pulse.UNKNOWN
    is_here = node.partition("#")[0] == socket.gethostname()
    return Pulse.GONE if is_here and agent_pid else Pulse.UNKNOWN


def _has_open(pid: int, path: Path) -> bool:
    try:
        wanted = path.stat()
        names = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return False
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False


@dataclass(frozen=True, slots=True)
class Removable:
    """A run directory that may be removed."""

    directory: Path
    size_bytes: int


def find_removable(environ: Mapping[str, str], before_ts: float, now_ts: float) -> list[Removable]:
    """Directories in the usual places, all of whose runs are over, and which were last written before then.

    A directory that the user has chosen (--ft-run-dir) may hold other things, and is never among them; nor is
    one of whose agents it is not known whether they are gone.
    """
    found = []
    for directory in run_directories([place for place in usual_places(environ) if place.is_dir()]):
        if directory.is_symlink() or directory.parent not in usual_places(environ):
            continue
        if written_ts(directory) < before_ts:
            states = {one.run.state for one in read_runs(directory, now_ts)}
            if states <= {State.ENDED, State.KILLED}:
                found.append(Removable(directory, size_bytes(directory)))
    return found


def remove(removable: Removable) -> None:
    """Remove the directory with all that is in it; symbolic links in it are not followed.

    Raises:
        OSError: something in it cannot be removed.
    """
    shutil.rmtree(removable.directory)

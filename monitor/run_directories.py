"""Where runs keep their journals unless they were told otherwise, and which of them is meant.

Knows places and names; what is in a journal is `ftrun.monitor.journal`'s.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_JOURNALS = "*.jsonl"
_PROBE = b"\0" * 4096
"""One block of most file systems; less may fit into a full one."""


class RunNotFoundError(Exception):
    """Nothing that could be meant has a journal."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where a run keeps its journal."""

    path: Path
    degraded: str = ""
    """Why it is not where it should be; "" if it is."""


def usual_places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Directories of run directories, the preferred one first (XDG Base Directory Specification).

    The second is for users without a home that can be written to, as containers often have none.
    """
    state_home = Path(environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    fallback = Path(tempfile.gettempdir()) / f"ftrun-{os.geteuid()}"
    return state_home / "ftrun", fallback / "ftrun"


def name_of(run_id: str) -> str:
    """The name of a run's directory in one of the usual places."""
    return re.sub(r"[^\w.+-]", "_", run_id)


def make_run_directory(run_id: str, environ: Mapping[str, str]) -> RunDirectory:
    """Make a run's directory in the first of the usual places in which a file can be written.

    Whatever keeps the preferred place from that (read-only, full, over its quota) must not keep the job from
    running. If no place is fit, the last is returned, and the journal will say what is wrong with it.
    """
    preferred, fallback = (place / name_of(run_id) for place in usual_places(environ))
    try:
        _try_to_write(preferred)
    except OSError as error:
        with suppress(OSError):
            _make_private(fallback)
        reason = f"{preferred} cannot be used: {error.strerror or error}; journal and logs are in {fallback}"
        return RunDirectory(fallback, reason)
    return RunDirectory(preferred)


def _make_private(directory: Path) -> None:
    """What is in it, tracebacks and output, is nobody else's business."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)


def _try_to_write(directory: Path) -> None:
    _make_private(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".probe-") as file:
            file.write(_PROBE)
    except OSError:
        with suppress(OSError):  # it holds an earlier run of the same name
            directory.rmdir()
        raise


def journals_in(directory: Path) -> list[Path]:
    """One journal per node, in the order of their names; none if this is no run directory."""
    return sorted(path for path in directory.glob(_JOURNALS) if path.is_file())


def find_run(run: str | None, environ: Mapping[str, str]) -> Path:
    """The directory of a run.

    Args:
        run: a run directory, or the id of a run in one of the usual places; None for the run of this user's
            that has written its journal last.
        environ: of the process, for the usual places.

    Raises:
        RunNotFoundError: there is no such run.
    """
    places = usual_places(environ)
    if run is not None:
        candidates = [Path(run), *(place / name_of(run) for place in places)]
        found = next((one for one in candidates if journals_in(one)), None)
        if found is None:
            raise RunNotFoundError(f"{run}: no journal ({_JOURNALS}) in {_listed(candidates)}")
        return found
    runs = [directory for place in places for directory in _own_directories(place)]
    newest = max(runs, key=_written_ts, default=None)
    if newest is None or not _written_ts(newest):
        raise RunNotFoundError(f"no run in {_listed(places)}; give its directory (--ft-run-dir of the run)")
    return newest


def _own_directories(place: Path) -> Iterator[Path]:
    """Below a directory that others may have made, only what this user has made can be trusted."""
    with suppress(OSError):
        for path in place.iterdir():
            with suppress(OSError):
                if path.is_dir() and path.stat().st_uid == os.geteuid():
                    yield path


def _written_ts(directory: Path) -> float:
    """When a journal in it was last written (UTC epoch, seconds); 0 if there is none."""
    latest = 0.0
    for path in journals_in(directory):
        with suppress(OSError):
            latest = max(latest, path.stat().st_mtime)
    return latest


def size_bytes(directory: Path) -> int:
    """Of all files in it; symbolic links are not followed."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _listed(paths: list[Path] | tuple[Path, ...]) -> str:
    return " or ".join(str(path) for path in paths)

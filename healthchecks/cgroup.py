"""What the cgroup of this process says of memory, OOM kills and tasks; versions 1 and 2, also side by side.

Reads only. Formats: Documentation/admin-guide/cgroup-v1/memory.rst, pids.rst, cgroup-v2.rst; and how short
memory is, Documentation/accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ftrun.healthchecks.pressure import Pressure, parse_pressure

_USAGE = {
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
    "memory.max": ("memory.current", "inactive_file"),
}
"""By the limit's file: the file with the use, and the key in memory.stat of cache that can be dropped."""


class OomCounter:
    """The OOM kills and the memory limit of the cgroup that the agent, and so its workers, run in.

    Reads cgroup v1 (memory.oom_control, kernel >= 4.13) and v2 (memory.events), also where both are mounted,
    and copes with paths as a container sees them: the path in /proc/self/cgroup may be the host's while the
    mount begins at the container's own group.
    """

    def __init__(self, proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc_root = proc_root
        self._cgroup_root = cgroup_root

    def read(self) -> int | None:
        """OOM kills in the cgroup since it was made; None if the kernel does not tell."""
        for _, directory, counter, _ in self._groups():
            count = _keyed_number(directory / counter, "oom_kill")
            if count is not None:
                return count
        if self._is_in_root_group():
            # The root group of v2 has no counter of its own; there the whole machine's is the same thing.
            return _keyed_number(self._proc_root / "vmstat", "oom_kill")
        return None

    def limit_bytes(self) -> int | None:
        """The lowest memory limit from the cgroup up to the mount, in bytes; None if none can be read."""
        limits = [
            limit
            for mount, directory, _, limit_file in self._groups()
            for level in _up_to(directory, mount)
            if (limit := _limit(level / limit_file)) is not None
        ]
        return min(limits, default=None)

    def headroom_bytes(self) -> int | None:
        """What may still be used before the tightest limit up to the mount is met; None without a limit.

        Page cache that is not in use counts as free: the kernel drops it first.
        """
        rooms = []
        for mount, directory, _, limit_file in self._groups():
            usage_file, cache_key = _USAGE[limit_file]
            for level in _up_to(directory, mount):
                limit, usage = _limit(level / limit_file), _limit(level / usage_file)
                if limit is not None and usage is not None:
                    rooms.append(limit - usage + (_keyed_number(level / "memory.stat", cache_key) or 0))
        return min(rooms, default=None)

    def memory_pressure(self) -> tuple[Pressure, bool] | None:
        """How short memory is, and whether that is the cgroup's own figure; None if the kernel tells none.

        Only version 2 has one of each cgroup: else it is the whole machine's.
        """
        for _, directory, _, limit_file in self._groups():
            if limit_file == "memory.max":
                found = parse_pressure(_text(directory / "memory.pressure"))
                if found is not None:
                    return found, True
        found = parse_pressure(_text(self._proc_root / "pressure/memory"))
        return None if found is None else (found, False)

    def _groups(self) -> Iterator[tuple[Path, Path, str, str]]:
        """Mount, the agent's directory below it, name of the counter file and of the limit file; v1 first."""
        for controllers, path in _memberships(self._proc_root):
            names = controllers.split(",")
            if "memory" in names:
                for mount in (self._cgroup_root / "memory", self._cgroup_root / controllers):
                    if (found := _locate(mount, path, "memory.oom_control")) is not None:
                        yield mount, found, "memory.oom_control", "memory.limit_in_bytes"
            elif controllers == "":
                for mount in (self._cgroup_root, self._cgroup_root / "unified"):
                    if (found := _locate(mount, path, "memory.events")) is not None:
                        yield mount, found, "memory.events", "memory.max"

    def _is_in_root_group(self) -> bool:
        try:
            controllers = (self._cgroup_root / "cgroup.controllers").read_text().split()
        except OSError:
            return False
        return "memory" in controllers and ("", "/") in _memberships(self._proc_root)


def read_tasks(
    proc_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> tuple[int, int] | None:
    """Processes and threads in use, and how many may be, in the tightest pids group up to the mount.

    None without a limit, or where it cannot be read.
    """
    found = []
    for controllers, path in _memberships(proc_root):
        if "pids" in controllers.split(",") or controllers == "":
            name = controllers or "unified"
            for mount in (cgroup_root / name, *([cgroup_root] if controllers == "" else [])):
                if (directory := _locate(mount, path, "pids.max")) is not None:
                    for level in _up_to(directory, mount):
                        found.append((_limit(level / "pids.current"), _limit(level / "pids.max")))
    known = [(used, most) for used, most in found if used is not None and most is not None]
    return min(known, key=lambda pair: pair[1] - pair[0], default=None)


def _memberships(proc_root: Path) -> list[tuple[str, str]]:
    """Controllers and path of each hierarchy, v1's before v2's, whose controllers are ""."""
    try:
        lines = (proc_root / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return sorted(((row[1], row[2]) for row in rows), key=lambda row: row[0] == "")


def _locate(mount: Path, path: str, file_name: str) -> Path | None:
    """The directory of the cgroup `path` below `mount`, found by its longest tail that is there."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for start in range(len(parts) + 1):
        directory = mount.joinpath(*parts[start:])
        if (directory / file_name).is_file():
            return directory
    return None


def _up_to(directory: Path, mount: Path) -> Iterator[Path]:
    yield directory
    while directory != mount:
        directory = directory.parent
        yield directory


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _keyed_number(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    values = (line.split()[1] for line in lines if line.startswith(f"{key} "))
    value = next(values, "")
    return int(value) if value.isdecimal() else None


def _limit(path: Path) -> int | None:
    """A limit in bytes; v2 writes "max" and v1 the largest multiple of a page below 2**63 for none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < 1 << 62 else None

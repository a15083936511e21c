"""Reads what the kernel says of a node: memory, pressure, limits, processes, mounts, clocks. Judges nothing.

Touches /proc, /sys and /dev/shm only, which do not hang; paths that may are `ftrun.healthchecks.paths`'s.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ftrun.healthchecks.cgroup import OomCounter, read_tasks
from ftrun.healthchecks.host_snapshots import HostSnapshot, Mount, Pressure, Sleeper
from ftrun.healthchecks.pressure import parse_pressure

_OCTAL = re.compile(r"\\([0-7]{3})")
_SLEEPING = {"D", "Z"}
_NOT_THERE = {errno.EOPNOTSUPP, errno.ENODEV}


class HostReader:
    """Reads one node again and again. The roots are for tests."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        shm: Path = Path("/dev/shm"),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._proc = proc
        self._sysfs = sysfs
        self._shm = shm
        self._clock = clock
        self._wall_clock = wall_clock

    def read(self) -> HostSnapshot:
        """Everything as it is now. Never raises OSError."""
        failures: list[str] = []
        snapshot = self._read_clocks()
        snapshot = self._add_memory(snapshot, failures)
        snapshot = self._add_limits(snapshot, failures)
        return replace(
            snapshot,
            cpu_pressure=self._read_pressure("cpu", failures),
            memory_pressure=self._read_pressure("memory", failures),
            io_pressure=self._read_pressure("io", failures),
            sleepers=tuple(self._read_sleepers()),
            mounts=tuple(_parse_mounts(self._read_text(self._proc / "self/mountinfo", failures))),
            lustre_health=self._read_text(self._sysfs / "fs/lustre/health_check", failures),
            failures=tuple(failures),
        )

    def _read_clocks(self) -> HostSnapshot:
        clock_source = "devices/system/clocksource/clocksource0/current_clocksource"
        return HostSnapshot(
            taken_at=self._clock(),
            wall_ts=self._wall_clock(),
            boot_id=self._read_text(self._proc / "sys/kernel/random/boot_id"),
            clock_source=self._read_text(self._sysfs / clock_source),
        )

    def _add_memory(self, snapshot: HostSnapshot, failures: list[str]) -> HostSnapshot:
        rows = (line.split() for line in self._read_text(self._proc / "meminfo", failures).splitlines())
        kibibytes = {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
        group = OomCounter(self._proc, self._sysfs / "fs/cgroup")
        shm_bytes, shm_free_bytes = self._read_shm(failures)
        return replace(
            snapshot,
            memory_total_bytes=_bytes(kibibytes.get("MemTotal:")),
            memory_available_bytes=_bytes(kibibytes.get("MemAvailable:")),
            memory_limit_bytes=group.limit_bytes(),
            memory_headroom_bytes=group.headroom_bytes(),
            oom_kills=group.read(),
            shm_bytes=shm_bytes,
            shm_free_bytes=shm_free_bytes,
        )

    def _add_limits(self, snapshot: HostSnapshot, failures: list[str]) -> HostSnapshot:
        files = self._read_text(self._proc / "sys/fs/file-nr", failures).split()
        tasks = read_tasks(self._proc, self._sysfs / "fs/cgroup")
        return replace(
            snapshot,
            locked_memory_limit_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
            open_files_limit=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
            open_files=_integer(files[0]) if files else None,
            open_files_max=_integer(files[2]) if len(files) > 2 else None,
            tasks=tasks[0] if tasks else None,
            tasks_max=tasks[1] if tasks else None,
        )

    def _read_shm(self, failures: list[str]) -> tuple[int | None, int | None]:
        try:
            space = os.statvfs(self._shm)
        except FileNotFoundError:
            return None, None
        except OSError as error:
            failures.append(f"{self._shm}: {error.strerror}")
            return None, None
        return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize

    def _read_pressure(self, name: str, failures: list[str]) -> Pressure | None:
        return parse_pressure(self._read_text(self._proc / "pressure" / name, failures))

    def _read_sleepers(self) -> Iterator[Sleeper]:
        try:
            pids = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        except OSError:
            return
        for pid in pids:
            try:
                with open(f"{self._proc}/{pid}/stat", "rb", buffering=0) as file:
                    line = file.read()
            except OSError:
                continue  # it has ended
            command, _, rest = line.partition(b"(")[2].rpartition(b")")
            words = rest.split()
            if len(words) > 19 and (state := words[0].decode()) in _SLEEPING:
                yield Sleeper(pid, int(words[19]), state, command.decode(errors="replace"))

    def _read_text(self, path: Path, failures: list[str] | None = None) -> str:
        """Content without the newline; "" if it cannot be read, which is a failure only for odd reasons."""
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read().decode(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return ""
        except OSError as error:
            if failures is not None and error.errno not in _NOT_THERE:
                failures.append(f"{path}: {error.strerror}")
            return ""


def _parse_mounts(text: str) -> Iterator[Mount]:
    """proc(5): "36 35 98:0 /top /point rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue"."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        own, device = before.split(), after.split()
        if len(own) >= 6 and len(device) >= 3:
            # A mount can be read-only by itself, or because its filesystem has become so after errors.
            is_read_only = "ro" in own[5].split(",") or "ro" in device[2].split(",")
            yield Mount(_unescape(own[4]), device[0], _unescape(device[1]), is_read_only)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _bytes(kibibytes: int | None) -> int | None:
    return None if kibibytes is None else kibibytes << 10


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value

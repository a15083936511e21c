"""Reads the state of paths that may hang, each in a child under a deadline. Judges nothing."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from ftrun.healthchecks import storage_probe
from ftrun.healthchecks.children import Survivor, run_child
from ftrun.healthchecks.host_snapshots import PathReading, StorageStep

PROBE_BYTES = 1 << 20
"""Enough to leave the cache of a network filesystem's client, little enough for before each round."""

# As a module it is compiled once, as a script each time.
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); import storage_probe; storage_probe.main()"


class PathReader:
    """Probes the job's paths again and again; a path whose probe cannot be killed gets no second one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, probe_bytes: int = PROBE_BYTES) -> None:
        self._clock = clock
        self._probe_bytes = probe_bytes
        self._stuck: dict[str, tuple[Survivor, StorageStep]] = {}

    def read(self, path: str, timeout_s: float, is_written: bool = True) -> PathReading:
        """Write to `path`, read it back and count its space, within `timeout_s` seconds.

        NVRx gives 5 s for each path. Never raises OSError.

        Args:
            path: a directory, which may still have to be made.
            timeout_s: seconds.
            is_written: False only reads what must be there, a file or a directory.
        """
        reading = self._read(path, timeout_s, self._probe_bytes if is_written else 0)
        return replace(reading, is_written=is_written)

    def _read(self, path: str, timeout_s: float, probe_bytes: int) -> PathReading:
        now = self._clock()
        if path in self._stuck:
            survivor, step = self._stuck[path]
            if survivor.is_alive():
                error = f"the probe before, pid {survivor.pid}, still hangs and cannot be killed"
                return PathReading(path, now, step, has_hung=True, is_abandoned=True, error=error)
            del self._stuck[path]
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, os.path.dirname(storage_probe.__file__)]
        argv += [str(os.getpid()), str(probe_bytes), os.path.abspath(path)]
        try:
            ended = run_child(argv, timeout_s)
        except OSError as error:
            reason = f"the probe cannot be started: {error.strerror}"
            return PathReading(path, now, StorageStep.START, error=reason)
        took_s = self._clock() - now
        step, found = _parse(ended.output)
        # Killed by somebody (a sweep, the OOM killer), or broken: that says nothing of the path.
        has_died = "error" not in found and not ended.has_hung and step is not StorageStep.DONE
        if ended.survivor is not None:
            self._stuck[path] = (ended.survivor, step)
        return PathReading(
            path=path,
            taken_at=now,
            step=StorageStep.START if has_died else step,
            directory=str(found.get("directory", "")),
            has_hung=ended.has_hung,
            is_abandoned=ended.survivor is not None,
            error=f"the probe died in '{step.value}': {ended.output[-200:]}"
            if has_died
            else str(found.get("error", "")),
            errno_name=str(found.get("errno_name", "")),
            took_s=took_s,
            total_bytes=_number(found, "total_bytes"),
            free_bytes=_number(found, "free_bytes"),
            total_inodes=_number(found, "total_inodes"),
            free_inodes=_number(found, "free_inodes"),
        )

    @property
    def stuck_pids(self) -> tuple[int, ...]:
        """Probes that have outlived SIGKILL."""
        return tuple(survivor.pid for survivor, _ in self._stuck.values() if survivor.is_alive())


def _parse(output: str) -> tuple[StorageStep, dict[str, object]]:
    """The last step that was begun, and everything that was found."""
    found: dict[str, object] = {}
    for line in output.splitlines():
        try:
            data = ast.literal_eval(line)
        except (ValueError, SyntaxError):
            continue  # the interpreter's own complaint, or a line cut off by the deadline
        if isinstance(data, dict):
            found.update(data)
    try:
        return StorageStep(found.get("step", StorageStep.START.value)), found
    except ValueError:
        return StorageStep.START, found


def _number(found: dict[str, object], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) else None

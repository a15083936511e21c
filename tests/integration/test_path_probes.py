"""Probes of paths on real filesystems: full, read-only, foreign, hanging."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.healthchecks.children import running_pids
from ftrun.healthchecks.host_snapshots import PathReading, StorageStep
from ftrun.healthchecks.paths import PROBE_BYTES, PathReader
from ftrun.healthchecks.reading import from_json, to_json
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.storage import judge_mounts, judge_path
from ftrun.healthchecks.system import HostReader
from tests.support.waiting import until

_libc = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_REMOUNT, _MNT_DETACH = 1, 32, 2
HUNG_FUSE = Path(__file__).parents[1] / "support/hung_fuse.py"


def _mount(path: Path, flags: int, options: str) -> bool:
    return bool(_libc.mount(b"none", str(path).encode(), b"tmpfs", flags, options.encode()) == 0)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    if not _mount(path, 0, "size=4m,mode=755"):
        pytest.skip(f"needs root to mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield path
    finally:
        _libc.umount2(str(path).encode(), _MNT_DETACH)


def read(path: Path) -> PathReading:
    return PathReader().read(str(path), 20.0)


def status(reading: PathReading, baseline: PathReading | None = None) -> Status:
    return judge_path([reading], baseline)[0].status


def test_healthy_path_is_left_as_it_was(tmp_path: Path) -> None:
    """Nothing stays behind, and what a killed probe left an hour ago is removed."""
    stale, fresh = tmp_path / ".ftrun-probe-a-1-x", tmp_path / ".ftrun-probe-a-2-x"
    for file in (stale, fresh, tmp_path / "mine"):
        file.touch()
    os.utime(stale, (time.time() - 7200,) * 2)
    reading = read(tmp_path)
    assert (reading.step, reading.error, status(reading)) == (StorageStep.DONE, "", Status.HEALTHY)
    assert sorted(os.listdir(tmp_path)) == [fresh.name, "mine"]
    assert (reading.total_bytes or 0) > (reading.free_bytes or 0) > PROBE_BYTES
    assert from_json(PathReading, to_json(reading)) == reading


def test_path_that_comes_later_is_probed_above(tmp_path: Path) -> None:
    """The script makes its checkpoint directory itself; links are followed."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    reading = read(tmp_path / "link/run/ckpt")
    assert (reading.directory, reading.step) == (str(tmp_path / "real"), StorageStep.DONE)


def test_full_filesystem(small: Path) -> None:
    """Fault, cleared, found cleared; the probe takes its own file away."""
    good = read(small)
    (small / "fill").write_bytes(bytes((4 << 20) - PROBE_BYTES // 2))
    full = read(small)
    assert (full.step, full.errno_name, status(full, good)) == (StorageStep.WRITE, "ENOSPC", Status.UNHEALTHY)
    assert os.listdir(small) == ["fill"]
    assert {result.check: result.status for result in judge_path([full], good)}[
        "storage.space"
    ] is Status.DEGRADED
    (small / "fill").unlink()
    assert status(read(small), good) is Status.HEALTHY


def test_filesystem_that_became_read_only(small: Path) -> None:
    """The probe and the mount table both tell, and both find it cleared."""
    before, start = HostReader().read(), read(small)
    assert _mount(small, _MS_REMOUNT | _MS_RDONLY, "")
    reading = read(small)
    assert (reading.errno_name, status(reading, start)) == ("EROFS", Status.UNHEALTHY)
    (result,) = judge_mounts(HostReader().read(), before, [str(small)], "node-a")
    assert (result.status, "read-only" in result.observed) == (Status.UNHEALTHY, True)
    assert _mount(small, _MS_REMOUNT, "")
    assert status(read(small), start) is Status.HEALTHY
    assert judge_mounts(HostReader().read(), before, [str(small)], "node-a")[0].status is Status.HEALTHY


def test_mount_that_is_gone(small: Path) -> None:
    """The empty directory below it can be written; only the mount table knows better."""
    before, start = HostReader().read(), read(small)
    assert _libc.umount2(str(small).encode(), _MNT_DETACH) == 0
    assert status(read(small), start) is Status.HEALTHY
    (result,) = judge_mounts(HostReader().read(), before, [str(small)], "node-a")
    assert (result.status, result.observed.endswith(f"tmpfs on {small} is gone")) == (Status.UNHEALTHY, True)


def test_missing_rights_only_warn_at_first(tmp_path: Path) -> None:
    """/proc takes no files from anybody."""
    reading = read(Path("/proc/here"))
    assert (reading.step, status(reading)) == (StorageStep.CREATE, Status.DEGRADED)
    file = tmp_path / "file"
    file.touch()
    reading = read(file)
    assert (reading.errno_name, status(reading)) == ("ENOTDIR", Status.DEGRADED)
    worked = replace(reading, step=StorageStep.DONE, error="", errno_name="")
    assert status(reading, worked) is Status.UNHEALTHY


def test_data_are_only_read(tmp_path: Path) -> None:
    """A directory or a file, also where nothing may be written; what is not there is an error."""
    (tmp_path / "data.bin").write_bytes(b"x" * 9000)
    reader = PathReader()
    tmp_path.chmod(0o500)
    for path in (tmp_path, tmp_path / "data.bin"):
        before = path.stat().st_mtime_ns
        reading = reader.read(str(path), 20.0, is_written=False)
        assert (reading.step, reading.error, reading.is_written) == (StorageStep.DONE, "", False)
        assert (reading.directory, path.stat().st_mtime_ns) == (str(tmp_path), before)
        assert reading.free_bytes is None  # how full a data set's disk is concerns nobody
    missing = reader.read(str(tmp_path / "none"), 20.0, is_written=False)
    assert (missing.step, missing.errno_name) == (StorageStep.FIND, "ENOENT")
    tmp_path.chmod(0o700)


def test_probe_that_is_killed_says_nothing_of_the_path(tmp_path: Path) -> None:
    """A sweep of the agent, or the OOM killer, may meet it."""
    reader, readings = PathReader(probe_bytes=1 << 28), list[PathReading]()
    thread = threading.Thread(target=lambda: readings.append(reader.read(str(tmp_path), 30.0)))
    thread.start()
    until(running_pids, lambda: "no probe was started")
    for pid in running_pids():
        os.kill(pid, signal.SIGKILL)
    thread.join()
    (reading,) = readings
    assert (reading.step, status(reading)) == (StorageStep.START, Status.UNKNOWN)
    assert reading.error.startswith("the probe died in")


_HANG = """
import sys, time
from ftrun.healthchecks.paths import PathReader
reader, path = PathReader(), sys.argv[1] + "/ckpt"
for _ in range(3):
    started = time.monotonic()
    reading = reader.read(path, 3.0)
    is_in_time = time.monotonic() - started < 9.0
    print(reading.step.value, reading.has_hung, reading.is_abandoned, is_in_time, flush=True)
print(len(reader.stuck_pids), reader.read("/tmp", 20).step.value, flush=True)
"""


def test_filesystem_that_never_answers(tmp_path: Path) -> None:
    """The probe survives SIGKILL; the caller does not wait for it, starts no second one, and can end."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    argv = [sys.executable, str(HUNG_FUSE), str(tmp_path), sys.executable, "-c", _HANG, str(tmp_path)]
    started = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if "mount" in done.stderr:
        pytest.skip(f"no FUSE mounts here: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["find True True True"] * 3 + ["1 done"], done.stderr
    assert time.monotonic() - started < 40

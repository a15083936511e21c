"""Reading a node's own state, from made-up trees and from this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.healthchecks.cgroup import read_tasks
from ftrun.healthchecks.host import judge_host
from ftrun.healthchecks.host_snapshots import HostSnapshot, Mount, Pressure, Sleeper
from ftrun.healthchecks.reading import from_json, to_json
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.system import HostReader

FILES = {
    "proc/meminfo": "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\nHugePages_Total: 0\n",
    "proc/pressure/memory": (
        "some avg10=1.50 avg60=2.50 avg300=0.00 total=9\nfull avg10=0.50 avg60=0.25 avg300=0.00 total=9\n"
    ),
    "proc/pressure/cpu": "some avg10=7.00 avg60=8.00 avg300=0.00 total=9\n",
    "proc/sys/fs/file-nr": "1504\t0\t98765\n",
    "proc/sys/kernel/random/boot_id": "0b1c\n",
    "proc/12/stat": "12 (nvidia-smi) D 1 12 12 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0 0\n",
    "proc/13/stat": "13 (a) b (c)) Z 1 13 13 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 778 0 0 0\n",
    "proc/14/stat": "14 (sh) S 1 14 14 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 779 0 0 0\n",
    "proc/15/other": "",
    "proc/self/mountinfo": (
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,errors=remount-ro\n"
        "28 27 0:44 / /my\\040data ro,relatime shared:7 master:1 - nfs4 server:/x rw,vers=4.2\n"
        "29 27 8:1 / /broken rw - ext4 /dev/sdb ro\n"
        "garbage\n"
    ),
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/memory.events": "oom_kill 2\n",
    "sys/fs/cgroup/job/memory.max": "4096\n",
    "sys/fs/cgroup/job/memory.current": "1024\n",
    "sys/fs/cgroup/job/memory.stat": "inactive_file 24\n",
    "sys/fs/cgroup/job/pids.max": "100\n",
    "sys/fs/cgroup/job/pids.current": "7\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/fs/lustre/health_check": "healthy\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def read(root: Path) -> HostSnapshot:
    return HostReader(root / "proc", root / "sys", root / "shm", lambda: 5.0, lambda: 6.0).read()


def test_everything_that_there_is(tmp_path: Path) -> None:
    """Numbers in bytes; mounts unescaped, read-only by themselves or because their filesystem is."""
    write(tmp_path, FILES)
    snapshot = read(tmp_path)
    assert (snapshot.taken_at, snapshot.wall_ts, snapshot.boot_id, snapshot.clock_source) == (
        5.0,
        6.0,
        "0b1c",
        "tsc",
    )
    assert (snapshot.memory_total_bytes, snapshot.memory_available_bytes) == (1000 << 10, 400 << 10)
    assert (snapshot.memory_limit_bytes, snapshot.memory_headroom_bytes, snapshot.oom_kills) == (
        4096,
        3096,
        2,
    )
    assert snapshot.memory_pressure == Pressure(1.5, 2.5, 0.5, 0.25)
    assert snapshot.cpu_pressure == Pressure(7.0, 8.0, 0.0, 0.0)
    assert snapshot.io_pressure is None
    assert (snapshot.open_files, snapshot.open_files_max) == (1504, 98765)
    assert (snapshot.tasks, snapshot.tasks_max) == (7, 100)
    assert sorted(snapshot.sleepers, key=lambda sleeper: sleeper.pid) == [
        Sleeper(12, 777, "D", "nvidia-smi"),
        Sleeper(13, 778, "Z", "a) b (c)"),
    ]
    assert snapshot.mounts == (
        Mount("/", "ext4", "/dev/vda", False),
        Mount("/my data", "nfs4", "server:/x", True),
        Mount("/broken", "ext4", "/dev/sdb", True),
    )
    assert (snapshot.lustre_health, snapshot.shm_bytes, snapshot.failures) == ("healthy", None, ())


def test_nothing_to_read(tmp_path: Path) -> None:
    """Neither an error nor a made-up number; the memory is then unknown, not healthy."""
    snapshot = read(tmp_path)
    assert (snapshot.memory_total_bytes, snapshot.oom_kills, snapshot.mounts) == (None, None, ())
    results = {result.check: result.status for result in judge_host([snapshot], None, "node-a", False)}
    assert results["host.memory"] is Status.UNKNOWN
    assert (results["host.oom"], results["host.pressure"]) == (Status.SKIPPED, Status.SKIPPED)


def test_file_that_fails_is_told(tmp_path: Path) -> None:
    """A directory in its place stands for a kernel that answers with an error."""
    write(tmp_path, FILES)
    (tmp_path / "proc/pressure/io").mkdir()
    assert read(tmp_path).failures == (f"{tmp_path}/proc/pressure/io: Is a directory",)


@pytest.mark.parametrize(
    ("membership", "files", "wanted"),
    [
        (
            "0::/a/b\n",
            {"a/b/pids.max": "max", "a/b/pids.current": "3", "a/pids.max": "9", "a/pids.current": "4"},
            (4, 9),
        ),
        ("8:pids:/a\n0::/\n", {"pids/a/pids.max": "50", "pids/a/pids.current": "3"}, (3, 50)),
        ("8:pids:/host/path\n", {"pids/pids.max": "50", "pids/pids.current": "3"}, (3, 50)),
        ("8:pids:/\n", {"pids/pids.max": "max", "pids/pids.current": "3"}, None),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_tasks(
    tmp_path: Path, membership: str, files: dict[str, str], wanted: tuple[int, int] | None
) -> None:
    """Versions 1 and 2, from inside a container too; the tightest limit on the way up."""
    write(
        tmp_path, {"proc/self/cgroup": membership, **{f"cgroup/{name}": text for name, text in files.items()}}
    )
    assert read_tasks(tmp_path / "proc", tmp_path / "cgroup") == wanted


def test_this_machine() -> None:
    """The real files are understood, and the snapshot travels as JSON."""
    snapshot = HostReader().read()
    assert (snapshot.memory_total_bytes or 0) > (snapshot.memory_available_bytes or 0) > 0
    assert any(mount.point == "/" for mount in snapshot.mounts)
    assert snapshot.failures == ()
    assert from_json(HostSnapshot, to_json(snapshot)) == snapshot
    assert len(snapshot.boot_id) == 36


def test_limits_of_this_process() -> None:
    """They are the process's own, so a child tells of those that it was given."""
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))\n"
        "from ftrun.healthchecks.system import HostReader\n"
        "snapshot = HostReader().read()\n"
        "print(snapshot.locked_memory_limit_bytes, snapshot.open_files_limit)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["65536", "1024"]


def test_real_zombie_is_seen() -> None:
    """A child that has ended and is not reaped."""
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (found,) = [sleeper for sleeper in HostReader().read().sleepers if sleeper.pid == child.pid]
        assert (found.state, found.command) == ("Z", "true")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()

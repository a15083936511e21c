"""Reading error files and the kernel's OOM counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.healthchecks.cgroup import OomCounter
from ftrun.launcher.error_file import MAX_ERROR_FILE_BYTES, read_error_file
from ftrun.monitor.incident import ErrorRecord


def error_file(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "error.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def nested(message: str, **extra: object) -> dict[str, object]:
    details = {"py_callstack": "Traceback", "timestamp": "1", **extra}
    return {"message": {"message": message, "extraInfo": details}}


def test_torch_format_gives_type_text_and_traceback(tmp_path: Path) -> None:
    """A file as torch's own handler writes it has no frame, bases or exact time."""
    path = error_file(tmp_path, nested("ValueError: bad: loss"))
    assert read_error_file(path) == ErrorRecord("ValueError", "bad: loss", "Traceback")


def test_additions_of_the_worker_start_up_code_are_read(tmp_path: Path) -> None:
    """Frame, bases and the monotonic time come from extraInfo."""
    extra = {"frame": "train.py:3 in f", "bases": ["ValueError", "Exception"], "recorded_at": 12.5}
    path = error_file(tmp_path, nested("MyError: x\ny", **extra))
    assert read_error_file(str(path)) == ErrorRecord(
        "MyError", "x\ny", "Traceback", "train.py:3 in f", ("ValueError", "Exception"), 12.5
    )


@pytest.mark.parametrize(
    ("text", "type_name", "message"),
    [
        ("KeyError: 'x'", "KeyError", "'x'"),
        ("AssertionError: ", "AssertionError", ""),
        ("torch.distributed.DistNetworkError: x", "DistNetworkError", "x"),
        ("Boom: x", "Boom", "x"),
        ("a text without a type", "", "a text without a type"),
    ],
)
def test_type_is_derived_from_the_text(tmp_path: Path, text: str, type_name: str, message: str) -> None:
    """ "Type: text" is taken apart; an empty text is fine, and what has no type is a message."""
    record = read_error_file(error_file(tmp_path, nested(text)))
    assert record is not None
    assert (record.type_name, record.message) == (type_name, message)


@pytest.mark.parametrize(
    ("text", "type_name", "message"),
    [("OSError: gone", "OSError", "gone"), ("Note: gone", "", "Note: gone"), ("gone", "", "gone")],
)
def test_plain_message_is_understood(tmp_path: Path, text: str, type_name: str, message: str) -> None:
    """Other handlers write a string and a timestamp beside it; only a name of an exception is a type."""
    path = error_file(tmp_path, {"message": text, "timestamp": "1700000000"})
    assert read_error_file(path) == ErrorRecord(type_name, message, "")


def test_files_of_torchs_own_handler_are_understood(tmp_path: Path) -> None:
    """What `@record` of the installed torch writes is read back."""
    path = tmp_path / "error.json"
    code = (
        "from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler\n"
        "try: raise KeyError('k')\n"
        "except KeyError as e: ErrorHandler().record_exception(e)\n"
    )
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environ, timeout=120, check=True)
    record = read_error_file(path)
    assert record is not None
    assert (record.type_name, record.message) == ("KeyError", "'k'")
    assert record.traceback.startswith("Traceback (most recent call last)")


@pytest.mark.parametrize(
    "content",
    ["", "{", '{"message": {"mess', "[]", "7", "null", {}, {"message": 7}, {"message": {"message": 7}}],
)
def test_garbage_and_half_written_files_are_none(tmp_path: Path, content: object) -> None:
    """A file that is not whole tells nothing."""
    assert read_error_file(error_file(tmp_path, content)) is None


def test_odd_additions_are_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    """A wrong type in one field does not lose the others."""
    extra: dict[str, object] = {"py_callstack": 7, "frame": None, "bases": "Exception", "recorded_at": True}
    assert read_error_file(error_file(tmp_path, nested("A: b", **extra))) == ErrorRecord("A", "b", "")
    extra = {"py_callstack": "", "recorded_at": float("nan"), "bases": [1, "E"]}
    path = error_file(tmp_path, nested("A: b", **extra))
    assert read_error_file(path) == ErrorRecord("A", "b", "", bases=("E",))


def test_missing_unreadable_or_endless_files_are_none(tmp_path: Path) -> None:
    """No file, a directory, a pipe and a file of absurd size neither raise nor block."""
    os.mkfifo(tmp_path / "pipe")
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(MAX_ERROR_FILE_BYTES + 1)
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe", big, Path("/dev/zero")):
        assert read_error_file(path) is None


BYTES = st.binary(max_size=200)
VALUES = st.recursive(st.none() | st.text() | st.floats(), lambda inner: st.dictionaries(st.text(), inner))


@given(BYTES | VALUES.map(lambda value: json.dumps({"message": value}).encode()))
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever a worker left in the file, reading it is safe."""
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_bytes(content)
    assert read_error_file(path) is None or isinstance(read_error_file(path), ErrorRecord)


class Trees:
    """Fake /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path, membership: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", membership)
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 40\n")
        (root / "cgroup").mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def counter(self) -> OomCounter:
        return OomCounter(self.root / "proc", self.root / "cgroup")


V1 = "9:name=systemd:/\n4:memory:/job/step\n0::/\n"
V1_UNLIMITED = "9223372036854771712\n"


def test_version_1(tmp_path: Path) -> None:
    """The counter is the group's own, the limit the lowest on the way up."""
    trees = Trees(tmp_path, V1)
    trees.write("cgroup/memory/job/step/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    trees.write("cgroup/memory/job/step/memory.limit_in_bytes", V1_UNLIMITED)
    trees.write("cgroup/memory/job/memory.limit_in_bytes", "67108864\n")
    trees.write("cgroup/memory/memory.limit_in_bytes", V1_UNLIMITED)
    trees.write("cgroup/unified/cgroup.controllers", "\n")
    assert trees.counter().read() == 3
    assert trees.counter().limit_bytes() == 64 << 20


def test_version_1_without_limit(tmp_path: Path) -> None:
    """The kernel's largest number means no limit."""
    trees = Trees(tmp_path, V1)
    trees.write("cgroup/memory/job/step/memory.oom_control", "oom_kill 0\n")
    trees.write("cgroup/memory/job/step/memory.limit_in_bytes", V1_UNLIMITED)
    assert trees.counter().limit_bytes() is None


def test_version_1_of_an_old_kernel_has_no_counter(tmp_path: Path) -> None:
    """Before 4.13 the file does not count; the answer is "unknown", not 0."""
    trees = Trees(tmp_path, V1)
    trees.write("cgroup/memory/job/step/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
    assert trees.counter().read() is None


def test_version_1_seen_from_a_container(tmp_path: Path) -> None:
    """The path is the host's, while the mount begins at the container's own group."""
    trees = Trees(tmp_path, "4:memory:/docker/0123abcd\n")
    trees.write("cgroup/memory/memory.oom_control", "oom_kill 2\n")
    trees.write("cgroup/memory/memory.limit_in_bytes", "1048576\n")
    assert trees.counter().read() == 2
    assert trees.counter().limit_bytes() == 1 << 20


def test_version_1_with_controllers_mounted_together(tmp_path: Path) -> None:
    """The mount may carry the names of several controllers."""
    trees = Trees(tmp_path, "4:memory,hugetlb:/job\n")
    trees.write("cgroup/memory,hugetlb/job/memory.oom_control", "oom_kill 1\n")
    assert trees.counter().read() == 1


def test_version_2(tmp_path: Path) -> None:
    """The limit may be set above the agent's own group (a pod's, a Slurm job's)."""
    trees = Trees(tmp_path, "0::/pod/box\n")
    trees.write("cgroup/cgroup.controllers", "cpu memory\n")
    trees.write("cgroup/pod/box/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 1\n")
    trees.write("cgroup/pod/box/memory.max", "max\n")
    trees.write("cgroup/pod/memory.max", "4096\n")
    assert trees.counter().read() == 2
    assert trees.counter().limit_bytes() == 4096


@pytest.mark.parametrize("path", ["/", "/../../elsewhere", "/host/kubepods/pod1/box"])
def test_version_2_seen_from_a_container(tmp_path: Path, path: str) -> None:
    """Inside a cgroup namespace, or with the host's path, the container's group is the mount itself."""
    trees = Trees(tmp_path, f"0::{path}\n")
    trees.write("cgroup/memory.events", "oom_kill 5\n")
    trees.write("cgroup/memory.max", "8192\n")
    assert trees.counter().read() == 5
    assert trees.counter().limit_bytes() == 8192


def test_hybrid_mount_with_memory_in_version_2(tmp_path: Path) -> None:
    """With both versions mounted the unified tree may hold the memory controller."""
    trees = Trees(tmp_path, "1:name=systemd:/x\n0::/x\n")
    trees.write("cgroup/unified/x/memory.events", "oom_kill 1\n")
    trees.write("cgroup/unified/x/memory.max", "4096\n")
    assert trees.counter().read() == 1
    assert trees.counter().limit_bytes() == 4096


def test_root_of_version_2_counts_for_the_machine(tmp_path: Path) -> None:
    """On a bare machine the root group has no counter of its own, so the kernel's total stands in."""
    trees = Trees(tmp_path, "0::/\n")
    trees.write("cgroup/cgroup.controllers", "cpu memory\n")
    assert trees.counter().read() == 40
    assert trees.counter().limit_bytes() is None


@pytest.mark.parametrize("membership", ["", "0::/\n", "0::/x\n", "garbage\n", "3:cpu:/\n"])
def test_without_a_memory_controller_nothing_is_known(tmp_path: Path, membership: str) -> None:
    """Nobody else's kills are counted as ours."""
    assert Trees(tmp_path, membership).counter().read() is None
    assert OomCounter(tmp_path / "none", tmp_path / "none").read() is None


_EAT = """
import sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
from ftrun.healthchecks.cgroup import OomCounter
import os
counter = OomCounter()
before = counter.read()
print(before, counter.limit_bytes(), flush=True)
pid = os.fork()
if pid == 0:
    block = bytearray(256 << 20)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), counter.read() - before, flush=True)
"""


def _new_v1_group() -> Path | None:
    """A fresh memory cgroup below this process's own, 64 MiB; None where that is not allowed."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if ":memory:" in line), None)
    if own is None:
        return None
    group = Path("/sys/fs/cgroup/memory") / own.lstrip("/") / f"ftrun-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError:
        return None
    return group


def test_real_oom_kill_is_counted() -> None:
    """A child that outgrows a real 64 MiB cgroup is killed by SIGKILL and counted once."""
    group = _new_v1_group()
    if group is None:
        pytest.skip("needs a writable cgroup v1 memory controller")
    try:
        command = [sys.executable, "-c", _EAT, str(group)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.split() == ["0", str(64 << 20), "-9", "1"], done.stderr
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """rmdir as soon as the kernel has let go of the last process."""
    deadline = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise

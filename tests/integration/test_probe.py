"""The probe under everything that can go wrong: hangs, missing things, death, nonsense; nothing piles up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ftrun.healthchecks.probe_client import Probe
from ftrun.healthchecks.probe_process import probe_command
from ftrun.healthchecks.reading import Lack, Missing, Value, from_json
from ftrun.healthchecks.snapshots import NvmlSnapshot
from tests.support.fakenvml.build import FakeNvml, build
from tests.support.waiting import until

DEADLINE_S = 20.0
SLACK_S = 5.0
"""Far below the time for which what hangs does so."""
HUNG_FUSE = Path(__file__).parents[1] / "support" / "hung_fuse.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def fake(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A node with eight GPUs, for every child of this process."""
    fake = FakeNvml(library, tmp_path / "state")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Probe() as probe:
        yield probe


def why(snapshot: NvmlSnapshot) -> Missing:
    """Why there is no reading."""
    assert isinstance(snapshot.init, Missing), snapshot.init
    return snapshot.init


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_call_that_never_returns_costs_the_deadline(fake: FakeNvml, probe: Probe, how: str) -> None:
    """The reason names GPU and call, nothing is left, and the next reading is from a new child."""
    fake.set("gpu.3.call.nvmlDeviceGetTotalEccErrors.hang", how)
    assert probe.ask(DEADLINE_S, "addresses").init == Value(True)
    pid, began = probe.pid, time.monotonic()
    missing = why(probe.ask(1.0))
    assert time.monotonic() - began < 1.0 + SLACK_S
    assert missing.lack is Lack.TIMEOUT
    assert missing.reason.startswith("GPU 3: nvmlDeviceGetTotalEccErrors has not returned after 1 s")
    until(lambda: not probe.is_stuck, lambda: "the child outlives SIGKILL")
    assert probe.pid is None
    fake.clear("gpu.3.call.nvmlDeviceGetTotalEccErrors.hang")
    assert probe.ask(DEADLINE_S).init == Value(True)
    assert probe.pid not in (None, pid)


def test_xid_before_a_hang_is_not_lost(fake: FakeNvml, probe: Probe) -> None:
    """What the driver reported before it hung is the best that is known of the hang."""
    assert probe.ask(DEADLINE_S, "addresses").init == Value(True)
    fake.report_xid(3, 119)
    fake.set("call.nvmlDeviceGetCount_v2.hang", "sleep")
    snapshot = probe.ask(1.0)
    assert why(snapshot).lack is Lack.TIMEOUT
    assert [xid.xid for xid in snapshot.xids] == [119]


def test_slow_driver_is_waited_for(fake: FakeNvml, probe: Probe) -> None:
    """Slow is not hung, as long as the deadline allows it."""
    fake.set("call.nvmlInitWithFlags.sleep_ms", 700)
    assert probe.ask(DEADLINE_S, "addresses").init == Value(True)


def test_child_that_does_not_run_is_no_evidence_against_a_gpu(fake: FakeNvml, probe: Probe) -> None:
    """An overloaded node is slow to start or to schedule it; NVML has not been asked."""
    assert probe.ask(DEADLINE_S, "addresses").init == Value(True)
    assert probe.pid is not None
    os.kill(probe.pid, signal.SIGSTOP)
    missing = why(probe.ask(0.3))
    assert missing.lack is Lack.ERROR
    assert "overloaded" in missing.reason


def test_end_is_not_delayed_by_a_hung_child(fake: FakeNvml, probe: Probe) -> None:
    """A child that hangs before it is asked anything is ended all the same."""
    fake.set("call.nvmlInitWithFlags.hang", "spin")
    probe.start()
    pid, began = probe.pid, time.monotonic()
    assert pid is not None
    probe.close()
    assert time.monotonic() - began < SLACK_S
    until(lambda: not probe.is_stuck, lambda: "the child outlives SIGKILL")
    assert not Path(f"/proc/{pid}").exists()


def test_start_is_for_a_later_reading(fake: FakeNvml, probe: Probe) -> None:
    """The child initialises NVML meanwhile; a second start does nothing."""
    probe.start()
    pid = probe.pid
    probe.start()
    assert probe.ask(DEADLINE_S, "addresses").init == Value(True)
    assert probe.pid == pid


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    """Where a FUSE filesystem that never answers can be mounted; skips the test where it cannot."""
    directory = tmp_path / "hung"
    directory.mkdir()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    command = [sys.executable, str(HUNG_FUSE), str(directory), "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode != 0:
        pytest.skip(f"a FUSE filesystem cannot be mounted here: {tried.stderr.strip()}")
    return directory


UNKILLABLE = f"""
import time
from ftrun.healthchecks.probe_client import Probe
probe = Probe()
assert probe.ask(30.0, "addresses").init.value
began = time.monotonic()
first = probe.ask(1.0)
assert time.monotonic() - began < 1.0 + {SLACK_S}, time.monotonic() - began
pid = probe.pid
state = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0]
assert (probe.is_stuck, state) == (True, "D"), (probe.is_stuck, state)
assert f"pid {{pid}}, a child, has outlived SIGKILL" in first.init.reason, first.init
began = time.monotonic()
probe.start()
second = probe.ask(30.0)
assert time.monotonic() - began < {SLACK_S}, time.monotonic() - began
assert probe.pid == pid, "there is never a second one"
assert "nvmlDeviceGetTotalEccErrors still hangs" in second.init.reason, second.init
assert first.init.lack.value == second.init.lack.value == "timeout"
probe.close()
assert time.monotonic() - began < 2 * {SLACK_S}
assert probe.is_stuck
print("done", flush=True)
"""


def test_child_that_survives_sigkill_is_left_behind(fake: FakeNvml, mount_point: Path) -> None:
    """In uninterruptible sleep it holds nobody up, is named, and has no second one beside it."""
    fake.set("gpu.0.call.nvmlDeviceGetTotalEccErrors.hang", "stat")
    environment = {**os.environ, "FAKE_NVML_HANG_PATH": str(mount_point / "x")}
    command = [sys.executable, str(HUNG_FUSE), str(mount_point), sys.executable, "-c", UNKILLABLE]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr


@pytest.mark.parametrize(("code", "lack"), [(9, Lack.NOT_FOUND), (18, Lack.ERROR), (999, Lack.ERROR)])
def test_failed_start_of_nvml_says_which(fake: FakeNvml, probe: Probe, code: int, lack: Lack) -> None:
    """No driver is a node without GPUs; anything else is an error, with NVML's own words. It may go away."""
    fake.set("call.nvmlInitWithFlags.ret", code)
    missing = why(probe.ask(DEADLINE_S))
    assert (missing.lack, missing.code) == (lack, code)
    assert missing.reason.startswith("nvmlInit: ")
    pid = probe.pid
    fake.clear("call.nvmlInitWithFlags.ret")
    assert probe.ask(DEADLINE_S).init == Value(True)
    assert probe.pid == pid, "the same child sees the driver come"


def test_device_files_are_tried_where_nvml_does_not_start(fake: FakeNvml, tmp_path: Path) -> None:
    """A container may have lost its right to open them, with the GPUs well."""
    fake.set("call.nvmlInitWithFlags.ret", 999)
    devices = tmp_path / "dev"
    devices.mkdir()
    with Probe(str(tmp_path)) as probe:
        files = probe.ask(DEADLINE_S).device_files
        assert isinstance(files, Missing)
        assert files.lack is Lack.NOT_FOUND
        for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "nvidia-caps"):
            (devices / name).touch()
        assert probe.ask(DEADLINE_S).device_files == Value(3)


def ask_by_hand(*wrapper: str, root: str = "/") -> NvmlSnapshot:
    """A reading by a probe in surroundings that `wrapper` makes; skips the test where it cannot."""
    # Without a trace and a parent to name; in another pid namespace the parent has no number that is known.
    boot = ["import os, sys; sys.argv[3:] = ['-1', str(os.getppid()), sys.argv[3]]", probe_command()[4]]
    command = [*probe_command()[:4], "\n".join(boot), *probe_command()[5:7], root]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*wrapper, *words],
            input="usual\n",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    if shutil.which(wrapper[0]) is None or run("true").returncode != 0:
        pytest.skip(f"{wrapper[0]} is not possible here")
    ended = run(*command)
    assert (ended.returncode, ended.stderr) == (0, "")
    return from_json(NvmlSnapshot, ended.stdout.splitlines()[1])


def test_container_that_may_not_open_its_devices_is_told_from_a_broken_driver(
    fake: FakeNvml, tmp_path: Path
) -> None:
    """As its devices cgroup does after a daemon-reload, a mount without devices refuses them to root, too."""
    fake.set("call.nvmlInitWithFlags.ret", 999)
    (tmp_path / "dev").mkdir()
    script = 'mount -t tmpfs -o nodev none "$0" && mknod "$0/nvidia0" c 1 3 && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", script, str(tmp_path / "dev"))
    snapshot = ask_by_hand(*wrapper, root=str(tmp_path))
    assert why(snapshot).code == 999
    assert isinstance(snapshot.device_files, Missing)
    assert snapshot.device_files.lack is Lack.NO_PERMISSION


def test_pids_of_another_namespace_are_not_given_names(fake: FakeNvml) -> None:
    """NVML's numbers are the host's: in a container pid 1 would be named after the container's own."""
    fake.set("gpu.0.processes", "1:100")
    snapshot = ask_by_hand("unshare", "--pid", "--fork", "--mount-proc")
    processes = snapshot.gpus[0].processes
    assert isinstance(processes, Value)
    assert [(process.pid, process.command) for process in processes.value] == [(1, "")]


def test_old_pynvml_is_used_as_far_as_it_goes(fake: FakeNvml, tmp_path: Path) -> None:
    """12.535 lacks some functions and structures; a package of the same name warns on import."""
    *before, pynvml, trace, parent, root = probe_command()
    text = (Path(pynvml) / "pynvml.py").read_text()
    lacking = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMarginTemperature", "c_nvmlGpuFabricInfo_v3_t")
    text += f"\nfor name in {lacking}:\n    del globals()[name]\n"
    text += "import warnings\nwarnings.warn('deprecated', FutureWarning)\n"
    (tmp_path / "pynvml.py").write_text(text)
    python, *options = before
    strict = (python, "-W", "error::FutureWarning", *options)
    with Probe(command=(*strict, str(tmp_path), trace, parent, root)) as probe:
        snapshot = probe.ask(DEADLINE_S)
    assert snapshot.init == Value(True)
    margin, fabric = snapshot.gpus[0].temperature_margin_c, snapshot.gpus[0].fabric
    assert isinstance(margin, Missing)
    assert (margin.lack, "too old" in margin.reason) == (Lack.NOT_FOUND, True)
    assert isinstance(fabric, Value)
    assert fabric.value.state == 3
    assert [peers.status for peers in snapshot.peers] == [Value(0)] * 28


def test_node_without_the_library_says_so(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on every machine without a GPU."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    missing = why(probe.ask(DEADLINE_S))
    assert (missing.lack, missing.code) == (Lack.NOT_FOUND, 12)


def test_python_without_pynvml_says_so() -> None:
    """The child is told where pynvml is; where it is nowhere, the reason names the package."""
    *before, _, trace, parent, root = probe_command()
    with Probe(command=(*before, "", trace, parent, root)) as probe:
        missing = why(probe.ask(DEADLINE_S))
    assert missing.lack is Lack.NOT_FOUND
    assert "nvidia-ml-py" in missing.reason


NEWER_SYMBOLS = {
    "nvmlDeviceGetGpuFabricInfoV": "fabric",
    "nvmlDeviceGetGpuFabricInfo": "fabric",
    "nvmlDeviceGetMarginTemperature": "temperature_margin_c",
    "nvmlDeviceGetSramEccErrorStatus": "is_sram_threshold_exceeded",
    "nvmlDeviceGetRepairStatus": "repair_pending",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": "is_memory_unrepairable",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetRemappedRows": "remapped_rows",
    "nvmlDeviceGetFieldValues": "recovery_action",
    "nvmlDeviceGetNvLinkState": "nvlinks",
}


def test_old_library_without_symbols_is_read_as_far_as_it_goes(
    fake: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing function is one missing reading, and never an error of the others."""
    old = build(
        tmp_path, [*NEWER_SYMBOLS, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"]
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old))
    with Probe() as probe:
        gpu = probe.ask(DEADLINE_S).gpus[0]
    lacks = {field: getattr(gpu, field).lack for field in NEWER_SYMBOLS.values()}
    assert lacks == dict.fromkeys(NEWER_SYMBOLS.values(), Lack.NOT_FOUND)
    assert gpu.clocks_event_reasons == Value(1)
    assert isinstance(gpu.memory, Value)
    assert gpu.memory.value.reserved_bytes is None
    assert gpu.ecc_uncorrected_volatile == Value(0)


@pytest.mark.parametrize(
    ("newest", "absent", "mask", "summary"),
    [
        (0x3000028, (), 0x1AA, 1),
        (0x2000024, (), 0x1AA, None),
        (0x1000000, (), None, None),
        (0, ("nvmlDeviceGetGpuFabricInfoV",), None, None),
    ],
)
def test_fabric_is_read_by_the_newest_version_that_the_driver_knows(
    fake: FakeNvml,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    newest: int,
    absent: Sequence[str],
    mask: int | None,
    summary: int | None,
) -> None:
    """Older versions lack the summary, then the mask."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(tmp_path, absent)))
    fake.set("fabric.newest", newest)
    with Probe() as probe:
        fabric = probe.ask(DEADLINE_S).gpus[0].fabric
    assert isinstance(fabric, Value)
    assert (fabric.value.state, fabric.value.health_mask, fabric.value.summary) == (3, mask, summary)


def test_gpus_without_xid_events_are_read_without_them(fake: FakeNvml, probe: Probe) -> None:
    """The reason says that nothing will be reported."""
    fake.set("gpu.*.events.supported", 3)
    snapshot = probe.ask(DEADLINE_S)
    assert isinstance(snapshot.events, Missing)
    assert snapshot.events.lack is Lack.NOT_SUPPORTED
    fake.set("gpu.2.events.supported", 8)
    assert probe.ask(DEADLINE_S).events == Value(True)


def test_child_that_dies_is_replaced(fake: FakeNvml, probe: Probe) -> None:
    """A crash inside the driver's library costs that reading."""
    fake.set("gpu.1.call.nvmlDeviceGetTemperature.die", 11)
    assert "by signal 11" in why(probe.ask(DEADLINE_S)).reason
    fake.clear("gpu.1.call.nvmlDeviceGetTemperature.die")
    assert probe.ask(DEADLINE_S).init == Value(True)
    assert probe.pid is not None
    os.kill(probe.pid, signal.SIGKILL)
    assert "by signal 9" in why(probe.ask(DEADLINE_S)).reason
    assert probe.ask(DEADLINE_S).init == Value(True)


def test_what_the_library_prints_is_no_answer(fake: FakeNvml, probe: Probe) -> None:
    """Preloaded libraries say things on standard output, and may say much on standard error."""
    fake.set("call.*.say", "NVML says hello")
    assert probe.ask(DEADLINE_S).init == Value(True)
    assert probe.ask(DEADLINE_S).init == Value(True)


def child_that(code: str) -> tuple[str, ...]:
    """A child that runs `code` where the probe would be."""
    return (sys.executable, "-I", "-S", "-c", textwrap.dedent(code))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("input(); print('hello', flush=True); input()", "is no reading"),
        ("input(); print('[1, 2]', flush=True); input()", "is no reading"),
        ("input(); print('{}', flush=True); input()", "is no reading"),
        ("input(); print('[' * 99999, flush=True); input()", "is no reading"),
        ('input(); print(\'{"taken_at":1,"init":{"missing":1}}\', flush=True); input()', "is no reading"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\n'); sys.stdout.flush(); input()", "is no reading"),
        ("while True: print('x' * 65536, end='', flush=True)", "a line of more than"),
        ("import sys; sys.exit('out of luck')", "ended with exit code 1: out of luck"),
        ("import os; os.close(0); os.close(1); import time; time.sleep(60)", "ended"),
    ],
)
def test_nonsense_is_an_error_and_ends_the_child(code: str, reason: str) -> None:
    """Nothing that a child says can be taken for a healthy node, or raise in the agent."""
    with Probe(command=child_that(code)) as probe:
        missing = why(probe.ask(DEADLINE_S))
        assert missing.lack is Lack.ERROR
        assert reason in missing.reason
        until(lambda: probe.pid is None, lambda: "the child is still there")


def test_child_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    """The system may be out of processes or memory."""
    with Probe(command=(str(tmp_path / "missing"),)) as probe:
        assert "no child can be started" in why(probe.ask(DEADLINE_S)).reason


def test_child_that_somebody_else_reaps_is_no_surprise(fake: FakeNvml, probe: Probe) -> None:
    """An agent reaps every orphan that it is given, and may be faster."""
    probe.start()
    assert probe.pid is not None
    os.kill(probe.pid, signal.SIGKILL)
    os.waitpid(probe.pid, 0)
    assert "ended" in why(probe.ask(DEADLINE_S)).reason
    assert probe.ask(DEADLINE_S, "addresses").init == Value(True)


def test_child_has_its_own_session_and_no_descriptor_of_ours(fake: FakeNvml, probe: Probe) -> None:
    """A signal from the terminal does not reach it, and it holds no socket or pipe of the agent open."""
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        assert probe.ask(DEADLINE_S, "addresses").init == Value(True)
        pid = probe.pid
        assert pid is not None
        assert os.getsid(pid) == pid
        targets = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [target for target in targets if target == os.devnull]
        assert len(targets) <= 5, targets


def test_child_ends_with_whoever_started_it(fake: FakeNvml) -> None:
    """SIGKILL of the agent leaves no probe, hung or not."""
    code = "from ftrun.healthchecks.probe_client import Probe; p = Probe(); p.ask(20); print(p.pid); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        agent.kill()
    until(lambda: not is_running(pid), lambda: f"pid {pid} still runs", DEADLINE_S)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_nothing_grows_over_a_hundred_readings(fake: FakeNvml, probe: Probe) -> None:
    """Neither processes nor descriptors, of this process or of the child; every tenth child is lost."""
    fake.set("device_count", 1)
    strangers = set(children_of(os.getpid()))  # of other tests; they end when they like
    probe.ask(DEADLINE_S)
    before = resources(probe, strangers)
    for number in range(100):
        if number % 10 == 9:
            fake.set("call.nvmlDeviceGetCount_v2.die", 9)
            assert isinstance(probe.ask(DEADLINE_S).init, Missing)
            fake.clear("call.nvmlDeviceGetCount_v2.die")
        assert probe.ask(DEADLINE_S).init == Value(True)
    assert resources(probe, strangers) == before
    probe.close()
    until(lambda: not probe.is_stuck, lambda: "the child outlives SIGKILL")
    assert set(children_of(os.getpid())) <= strangers


def resources(probe: Probe, strangers: set[int]) -> tuple[int, int, int]:
    ours, theirs = (len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), probe.pid))
    return ours, theirs, len(set(children_of(os.getpid())) - strangers)


def children_of(pid: int) -> list[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


def test_requests_by_hand_are_answered_as_json(fake: FakeNvml) -> None:
    """`python -m` with a scope a line: for whoever wants to see what NVML says."""
    command = [sys.executable, "-m", "ftrun.healthchecks.probe"]
    ended = subprocess.run(
        command, input="usual\naddresses\n", capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) == 4
    refused = subprocess.run(command, input="all\n", capture_output=True, text=True, timeout=20, check=False)
    assert refused.returncode == 2
    assert "expected one of addresses, memory, usual, thorough" in refused.stderr


def test_child_starts_as_fast_as_python_can_import_pynvml(fake: FakeNvml) -> None:
    """Without site-packages' start-up files, dataclasses or torch: the least of several starts counts."""
    python = shutil.which(sys.executable) or sys.executable
    *_, pynvml, _, _, _ = probe_command()
    bare = [python, "-I", "-S", "-c", f"import sys; sys.path.append({pynvml!r}); import pynvml"]

    def start_bare() -> None:
        subprocess.run(bare, timeout=DEADLINE_S, check=True)

    def start_probe() -> None:
        with Probe() as probe:
            assert probe.ask(DEADLINE_S, "addresses").init == Value(True)

    start_bare()
    start_probe()
    least_probe, least_bare = spent_s(start_probe), spent_s(start_bare)
    for _ in range(40):  # in turn, since the machine may do something else for a while
        if least_probe < 2 * least_bare:
            break
        least_probe = min(least_probe, spent_s(start_probe))
        least_bare = min(least_bare, spent_s(start_bare))
    assert least_probe < 2 * least_bare


def spent_s(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began

"""Unmodified clients of nvidia-resiliency-ext against the heartbeat servers: the installed, and 0.7.0."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from queue import Queue

import pytest

from ftrun.monitor.heartbeats import RankHeartbeats, Timeouts
from ftrun.monitor.server import HeartbeatServers
from ftrun.monitor.sockets import make_runtime_directory
from ftrun.monitor.wire import ClientSettings, ControlRequest, WorkloadAction
from tests.support.waiting import until

PROGRAM = Path(__file__).parents[1] / "support/nvrx_client.py"
DEADLINE_S = 60.0
NEW_VERSION = "0.7.0"
WHEEL = f"nvidia_resiliency_ext-{NEW_VERSION}-cp312-cp312-manylinux_2_39_x86_64.whl"
UNREACHABLE = (
    *("NewConnectionError", "NameResolutionError", "ConnectTimeout", "ReadTimeout", "ProxyError"),
    *("ProtocolError", "SSLError", "IncompleteRead", "ConnectionResetError", "RemoteDisconnected"),
)
TIMEOUTS = Timeouts.from_config(600.0, 60.0, {"step": 5.0, "eval": 50.0}, 70.0)


def download(cache: Path) -> Path:
    """The wheel of the new version; it is made for another Python, but its Python files are not."""
    wheel = cache / WHEEL
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        platform = ("--only-binary=:all:", "--python-version=3.12", "--platform=manylinux_2_39_x86_64")
        with tempfile.TemporaryDirectory(dir=cache) as partial:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", *platform, "--dest", partial]
            command += ["--retries=1", "--timeout=15", f"nvidia-resiliency-ext=={NEW_VERSION}"]
            try:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            except subprocess.TimeoutExpired:
                pytest.skip(f"the package registry is too slow for nvidia-resiliency-ext {NEW_VERSION}")
            said = ended.stdout + ended.stderr
            if ended.returncode != 0 and any(word in said for word in UNREACHABLE):
                pytest.skip(f"no package registry can be reached for nvidia-resiliency-ext {NEW_VERSION}")
            assert ended.returncode == 0, said
            os.replace(Path(partial) / WHEEL, wheel)
    return wheel


@pytest.fixture(scope="module")
def new_path(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What makes `import nvidia_resiliency_ext` get the new version."""
    root = tmp_path_factory.mktemp("nvrx")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ftrun-tests"
    with zipfile.ZipFile(download(cache)) as wheel:
        wheel.extractall(root, [name for name in wheel.namelist() if name.endswith(".py")])
    if find_spec("httpx") is None:  # imported with the client, for a health check that is not used here
        (root / "httpx.py").touch()
    return [root]


class Client:
    """A process with a RankMonitorClient."""

    def __init__(self, nvrx_version: str, path: list[Path], variables: dict[str, str]) -> None:
        self.answers_each = tuple(map(int, nvrx_version.split(".")[:2])) < (0, 6)
        self.drops_unknown_sections = tuple(map(int, nvrx_version.split(".")[:2])) >= (0, 5)
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FT")}
        paths = {"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**kept, **paths, **rank, **variables},
        )
        self.pid = self._process.pid
        ready = self._answer()
        assert ready.startswith(f"ready {path[0] if path else ''}"), ready

    def does(self, line: str) -> None:
        """It runs without an exception."""
        assert self.says(line) == "ok"

    def says(self, line: str) -> str:
        """What came of it: "ok", or the exception."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            data = b""
            deadline = time.monotonic() + DEADLINE_S
            while not data.endswith(b"\n"):
                assert selector.select(max(0.0, deadline - time.monotonic())), f"only {data!r} came"
                more = self._process.stdout.read(65536)
                assert more, f"it ended after {data!r}"
                data += more
        return data.decode().rstrip("\n")

    def kill(self) -> None:
        """As the kernel or a colleague would."""
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def close(self) -> None:
        """End it, whatever it does."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Node:
    """Servers for one rank and a way to start clients of it."""

    def __init__(self, start: Callable[[dict[str, str]], Client]) -> None:
        self.requests: Queue[ControlRequest] = Queue()
        self.servers = HeartbeatServers(
            make_runtime_directory(os.environ),
            [0],
            TIMEOUTS,
            ClientSettings(),
            lambda rank, state: None,
            self.requests.put,
        )
        self._start = start
        self._clients: list[Client] = []

    def client(self) -> Client:
        """A new process."""
        self._clients.append(self._start(self.servers.environment(0)))
        return self._clients[-1]

    def state(self) -> RankHeartbeats:
        """What is known of the rank."""
        return self.servers.snapshot()[0]

    def wait(self, is_reached: Callable[[RankHeartbeats], bool]) -> RankHeartbeats:
        """The rank's state once it is as asked: new clients do not wait until it is."""
        until(lambda: is_reached(self.state()), self.state)
        return self.state()

    def close(self) -> None:
        """All of it."""
        for client in self._clients:
            client.close()
        self.servers.close()


@pytest.fixture(params=["installed", NEW_VERSION])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """Servers, to be used by clients of one version."""
    if request.param == "installed":
        nvrx_version, path = version("nvidia-resiliency-ext"), []
    else:
        nvrx_version, path = NEW_VERSION, request.getfixturevalue("new_path")
    one = Node(lambda variables: Client(nvrx_version, path, variables))
    yield one
    one.close()


def test_a_script_with_a_client_is_served(node: Node) -> None:
    """Beats, nested sections, wrong order, calculated limits, restart in the process, control requests."""
    client = node.client()
    client.does("client.init_workload_monitoring()")
    state = node.wait(lambda state: state.is_connected)
    assert (state.pid, state.global_rank, state.is_fire_and_forget) == (
        client.pid,
        0,
        not client.answers_each,
    )
    beats_and_sections(node, client)
    calculated_limits(node, client)
    restart_in_the_process(node, client)
    control_requests(node, client)
    client.does("client.shutdown_workload_monitoring()")
    assert node.wait(lambda state: not state.is_connected).initialized_at is not None


def beats_and_sections(node: Node, client: Client) -> None:
    for _ in range(3):
        client.does("client.send_heartbeat()")
    assert node.wait(lambda state: state.heartbeat_count == 3).error_count == 0
    client.does("client.start_section('eval')")
    client.does("client.start_section('step')")
    state = node.wait(lambda state: len(state.open_sections) == 2)
    assert [section.name for section in state.open_sections] == ["eval", "step"]
    client.does("client.end_section('eval'); client.end_section('step')")
    assert set(node.wait(lambda state: not state.open_sections).observed.sections) == {"eval", "step"}
    assert "RankMonitorClientError" in client.says("client.end_section('step')")
    assert "'step' is not open" in node.wait(lambda state: state.error_count == 1).last_error
    if client.drops_unknown_sections:
        client.does("client.start_section('odd')")
    else:
        said = client.says("client.start_section('odd')")
        assert said.startswith("RankMonitorClientError")
        assert "odd" in node.wait(lambda state: state.error_count == 2).last_error
        client.does("client.start_section('eval'); client.start_section('step'); client.end_all_sections()")
        assert node.wait(lambda state: not state.open_sections).is_connected
    client.does("client.send_heartbeat()")
    node.wait(lambda state: state.heartbeat_count == 4)


def calculated_limits(node: Node, client: Client) -> None:
    client.does("import torch.distributed as dist")
    client.does("dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)")
    client.does("client.calculate_and_set_hb_timeouts()")
    client.does("client.calculate_and_set_section_timeouts(selected_sections=['step'])")
    wanted = {"initial", "steady", "section:step", "out_of_section"}
    timeouts = node.wait(lambda state: state.timeouts.calculated == wanted).timeouts
    assert timeouts.sections["eval"] == 50.0
    client.does(f"assert client.hb_timeouts.subsequent == {timeouts.steady!r}")
    client.does(f"assert client.section_timeouts.section['step'] == {timeouts.sections['step']!r}")


def restart_in_the_process(node: Node, client: Client) -> None:
    client.does("state = client.state_dict(); old = client; client = new_client()")
    client.does("state['current_timeouts']['heartbeat']['subsequent'] = 33.0")
    client.does("client.load_state_dict(state)")
    client.does("client.init_workload_monitoring()")
    state = node.wait(lambda state: (state.session_count, state.timeouts.steady) == (2, 33.0))
    assert state.pid == client.pid
    client.does("old.send_heartbeat(); client.send_heartbeat(); old.shutdown_workload_monitoring()")
    assert node.wait(lambda state: state.heartbeat_count == 6).is_connected


def control_requests(node: Node, client: Client) -> None:
    for name, action in (
        ("Continue", WorkloadAction.CONTINUE),
        ("ExcludeThisNode", WorkloadAction.EXCLUDE_THIS_NODE),
        ("ShutdownWorkload", WorkloadAction.SHUTDOWN_WORKLOAD),
    ):
        request = f"WorkloadControlRequest(WorkloadAction.{name}, 'why')"
        client.does(f"client.send_workload_control_request({request})")
        assert node.requests.get(timeout=DEADLINE_S) == ControlRequest(0, action, "why")


def test_killed_clients_and_second_processes(node: Node) -> None:
    """A second process gets an error and disturbs nothing; once the first is dead, a new one is welcome."""
    first, second = node.client(), node.client()
    first.does("client.init_workload_monitoring(); client.start_section('step')")
    node.wait(lambda state: len(state.open_sections) == 1)
    said = second.says("client.init_workload_monitoring()")
    assert said.startswith("RankMonitorClientError")
    state = node.wait(lambda state: state.error_count == 1)
    assert (state.pid, state.is_connected, len(state.open_sections)) == (first.pid, True, 1)
    assert f"process {first.pid} is this rank's client already" in state.last_error
    first.does("client.send_heartbeat()")
    node.wait(lambda state: state.heartbeat_count == 1)
    first.kill()
    node.wait(lambda state: not state.is_connected)
    node.servers.begin_round()
    second.does("client = new_client(); client.init_workload_monitoring(); client.send_heartbeat()")
    state = node.wait(lambda state: state.heartbeat_count == 1)
    assert (state.pid, state.session_count) == (second.pid, 1)

"""A node's own state: warnings that explain failures, and few reasons to condemn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.host import HostThresholds, judge_host
from ftrun.healthchecks.host_snapshots import HostSnapshot, Pressure, Sleeper
from ftrun.healthchecks.result import Result, Status

GIB = 1 << 30
GOOD = HostSnapshot(
    taken_at=1000.0,
    wall_ts=1.7e9,
    clock_source="tsc",
    memory_total_bytes=100 * GIB,
    memory_available_bytes=50 * GIB,
    oom_kills=3,
    shm_bytes=50 * GIB,
    shm_free_bytes=49 * GIB,
    memory_pressure=Pressure(1.0, 1.0, 0.0, 0.0),
    io_pressure=Pressure(20.0, 20.0, 10.0, 10.0),
    open_files_limit=1 << 20,
    open_files=1000,
    open_files_max=1 << 20,
    tasks=100,
    tasks_max=1000,
)


def change(**fields: object) -> HostSnapshot:
    return replace(GOOD, **fields)  # type: ignore[arg-type]


def judge(
    *recent: HostSnapshot, baseline: HostSnapshot | None = GOOD, uses_rdma: bool = True, **limits: object
) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    thresholds = HostThresholds(**limits)  # type: ignore[arg-type]
    for result in judge_host(recent, baseline, "node-a", uses_rdma, thresholds):
        found.setdefault(result.check, []).append(result)
    return found


def bad(*recent: HostSnapshot, **arguments: object) -> dict[str, Status]:
    """Checks with a result that is not healthy."""
    results = judge(*recent, **arguments)  # type: ignore[arg-type]
    return {
        check: result.status
        for check, found in results.items()
        for result in found
        if result.status is not Status.HEALTHY
    }


def test_good_node_is_healthy() -> None:
    """All checks answer."""
    assert bad(GOOD) == {}
    names = ["clock", "files", "limits", "memory", "oom", "pressure", "shm", "stuck", "tasks", "zombies"]
    assert sorted(judge(GOOD)) == [f"host.{name}" for name in names]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"memory_available_bytes": 5 * GIB}, {}),
        ({"memory_available_bytes": 5 * GIB - 1}, {"host.memory": Status.DEGRADED}),
        ({"memory_limit_bytes": 10 * GIB, "memory_headroom_bytes": GIB}, {}),
        (
            {"memory_limit_bytes": 10 * GIB, "memory_headroom_bytes": GIB // 3},
            {"host.memory": Status.DEGRADED},
        ),
        ({"memory_available_bytes": None}, {"host.memory": Status.UNKNOWN}),
        ({"oom_kills": 4}, {"host.oom": Status.DEGRADED}),
        ({"oom_kills": 0}, {}),
        ({"oom_kills": None}, {"host.oom": Status.SKIPPED}),
        ({"shm_free_bytes": GIB}, {}),
        ({"shm_free_bytes": GIB - 1}, {"host.shm": Status.DEGRADED}),
        ({"shm_bytes": None, "shm_free_bytes": None}, {"host.shm": Status.DEGRADED}),
        ({"memory_pressure": Pressure(50, 50, 10.0, 10.0)}, {}),
        ({"memory_pressure": Pressure(50, 50, 11.0, 11.0)}, {"host.pressure": Status.DEGRADED}),
        ({"io_pressure": Pressure(90, 90, 51.0, 51.0)}, {"host.pressure": Status.DEGRADED}),
        ({"memory_pressure": None, "io_pressure": None}, {"host.pressure": Status.SKIPPED}),
        ({"locked_memory_limit_bytes": 8 << 20}, {"host.limits": Status.DEGRADED}),
        ({"open_files_limit": 1024}, {"host.limits": Status.DEGRADED}),
        ({"open_files_limit": None}, {}),
        ({"tasks": 800}, {}),
        ({"tasks": 801}, {"host.tasks": Status.DEGRADED}),
        ({"tasks": None, "tasks_max": None}, {}),
        ({"open_files": 1 << 20}, {"host.files": Status.DEGRADED}),
        ({"clock_source": "hpet"}, {"host.clock": Status.DEGRADED}),
        ({"failures": ("/proc/meminfo: Input/output error",)}, {"host.readings": Status.UNKNOWN}),
    ],
)
def test_one_thing_differs(fields: dict[str, object], wanted: dict[str, Status]) -> None:
    """Each limit, and what is just within it."""
    assert bad(change(**fields)) == wanted


def test_locked_memory_matters_to_rdma_only() -> None:
    """TCP needs none."""
    assert bad(change(locked_memory_limit_bytes=8 << 20), uses_rdma=False) == {}


def test_small_shm_that_the_job_needs_condemns() -> None:
    """Docker's 64 MiB; when it was so at the begin the result says that."""
    small = change(shm_bytes=64 << 20, shm_free_bytes=64 << 20)
    (result,) = judge(small, baseline=small, min_shm_bytes=8 * GIB)["host.shm"]
    assert (result.status, result.is_persistent) == (Status.UNHEALTHY, True)
    assert result.observed == "64 MiB of 64 MiB in /dev/shm are free"
    (warning,) = judge(small, baseline=small)["host.shm"]
    assert (warning.status, warning.is_persistent) == (Status.DEGRADED, True)


def test_oom_kill_takes_the_blame_from_the_gpus() -> None:
    """Whoever reads it knows what to do."""
    (result,) = judge(change(oom_kills=5, memory_limit_bytes=10 * GIB, memory_headroom_bytes=9 * GIB))[
        "host.oom"
    ]
    assert result.observed == "2 OOM kills since the job began (limit 10 GiB)"
    assert "GPUs are not to blame" in result.remedy


def zombies(count: int) -> tuple[Sleeper, ...]:
    return tuple(Sleeper(pid, 1, "Z", "sh") for pid in range(count))


def test_zombies() -> None:
    """A few are normal in a container without an init."""
    assert bad(change(sleepers=zombies(1000))) == {}
    many = change(sleepers=zombies(1001))
    assert bad(many) == {"host.zombies": Status.DEGRADED}
    assert judge(many, baseline=many)["host.zombies"][0].is_persistent


def sleeping(*commands: str, seconds: tuple[float, ...], state: str = "D") -> list[HostSnapshot]:
    sleepers = tuple(Sleeper(10 + index, 7, state, command) for index, command in enumerate(commands))
    return [change(taken_at=1000.0 + at, wall_ts=1.7e9 + at, sleepers=sleepers) for at in seconds]


def test_driver_that_hangs_in_the_kernel_condemns() -> None:
    """nvidia-smi in state D for five minutes needs a reboot."""
    recent = sleeping("nvidia-smi", "python", seconds=(0, 150, 300))
    (result,) = judge(*recent)["host.stuck"]
    assert (result.status, result.remedy) == (Status.UNHEALTHY, "reboot the node")
    assert result.observed == "2 processes hang in the kernel since 300 s: nvidia-smi (10), python (11)"


@pytest.mark.parametrize(
    ("recent", "wanted"),
    [
        (sleeping("python", seconds=(0, 150, 300)), {"host.stuck": Status.DEGRADED}),
        (sleeping("nvidia-smi", seconds=(0, 150, 299)), {}),
        (sleeping("nvidia-smi", seconds=(0, 300)), {}),
        (sleeping("nvidia-smi", seconds=(0, 150, 300), state="Z"), {}),
        ([*sleeping("nvidia-smi", seconds=(0, 150)), *sleeping(seconds=(300,))], {}),
        (
            [
                *sleeping("nvidia-smi", seconds=(0,)),
                *sleeping(seconds=(150,)),
                *sleeping("nvidia-smi", seconds=(300,)),
            ],
            {},
        ),
    ],
)
def test_processes_that_sleep(recent: list[HostSnapshot], wanted: dict[str, Status]) -> None:
    """Only what sleeps in all readings over the whole time hangs."""
    assert bad(*recent) == wanted


def test_pid_that_was_given_away_is_another_process() -> None:
    """The start time tells them apart."""
    recent = sleeping("nvidia-smi", seconds=(0, 150, 300))
    recent[1] = replace(recent[1], sleepers=(Sleeper(10, 8, "D", "nvidia-smi"),))
    assert bad(*recent) == {}


def test_thread_that_slept_when_the_job_began_is_left_alone() -> None:
    """Some kernel threads wait in that state."""
    recent = sleeping("nvidia-modeset/", seconds=(0, 150, 300))
    assert bad(*recent, baseline=recent[0]) == {}


@pytest.mark.parametrize(("jump_s", "jumps"), [(0.9, False), (1.1, True), (-1.1, True), (3600, True)])
def test_wall_clock_that_jumps(jump_s: float, jumps: bool) -> None:
    """Its distance to the monotonic clock should stay."""
    later = change(taken_at=1030.0, wall_ts=1.7e9 + 30 + jump_s)
    assert bad(GOOD, later) == ({"host.clock": Status.DEGRADED} if jumps else {})

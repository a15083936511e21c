"""Judges a node's own state: memory, OOM kills, /dev/shm, pressure, limits, stuck processes, clocks. Pure.

Nearly all of it is a warning: it explains a failure, or tells of one to come. What was so when the job began
is marked as persistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftrun.healthchecks.host_snapshots import HostSnapshot, Pressure, Sleeper
from ftrun.healthchecks.result import Result, Status, Subject

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class HostThresholds:
    """When a node's state is worth a word. Sources where they are not named: estimates."""

    min_memory_fraction: float = 0.05
    """Of the memory, or of the cgroup's limit, that should be left."""
    min_shm_free_bytes: int = 1 * _GIB
    """NCCL and data loaders share memory there; the 64 MiB that containers get by default are too little."""
    min_shm_bytes: int | None = None
    """Size that the job needs; less is unhealthy. None asks nothing."""
    memory_pressure_percent: float = 10.0
    """Share of the last minute in which everybody waited for memory."""
    io_pressure_percent: float = 50.0
    min_open_files: int = 65536
    """Each rank holds a few descriptors for each peer."""
    used_fraction: float = 0.8
    """Of task and descriptor numbers (gpud)."""
    zombies: int = 1000
    """gpud warns from here on."""
    stuck_s: float = 300.0
    """A process that sleeps uninterruptibly for so long hangs (gpud: five checks, a minute apart)."""
    stuck_readings: int = 3
    """.. and is seen so in so many readings."""
    clock_jump_s: float = 1.0


def judge_host(
    recent: Sequence[HostSnapshot],
    baseline: HostSnapshot | None,
    node: str,
    uses_rdma: bool,
    thresholds: HostThresholds = HostThresholds(),
) -> tuple[Result, ...]:
    """All checks of the node itself.

    Args:
        recent: readings, oldest first, at least the newest one.
        baseline: as it was when the job began; None if the newest reading is that.
        node: name of this node.
        uses_rdma: the node has RDMA devices, which need locked memory.
        thresholds: when to complain.
    """
    subject, start = Subject("node", node), baseline or recent[-1]
    return (
        _memory(recent[-1], subject, thresholds),
        _oom(recent[-1], start, subject),
        *_shm(recent[-1], start, subject, thresholds),
        *_pressure(recent[-1], subject, thresholds),
        *_limits(recent[-1], uses_rdma, subject, thresholds),
        *_numbers(recent[-1], subject, thresholds),
        _zombies(recent[-1], start, subject, thresholds),
        _stuck(recent, start, subject, thresholds),
        *_clock(recent, start, subject, thresholds),
        *(Result("host.readings", Status.UNKNOWN, subject, failure) for failure in recent[-1].failures),
    )


def _memory(now: HostSnapshot, subject: Subject, thresholds: HostThresholds) -> Result:
    places = [
        (now.memory_available_bytes, now.memory_total_bytes, "the node"),
        (now.memory_headroom_bytes, now.memory_limit_bytes, "the cgroup"),
    ]
    known = [(free / whole, free, name) for free, whole, name in places if free is not None and whole]
    if not known:
        return Result("host.memory", Status.UNKNOWN, subject, "the free memory cannot be read")
    fraction, free, name = min(known)
    observed = f"{_size(free)} ({fraction:.0%}) of {name}'s memory are free"
    if fraction >= thresholds.min_memory_fraction:
        return Result("host.memory", Status.HEALTHY, subject, observed)
    expected = f"at least {thresholds.min_memory_fraction:.0%}"
    remedy = "fewer data loader workers, or a larger limit; the next step is an OOM kill"
    return Result("host.memory", Status.DEGRADED, subject, observed, expected, remedy)


def _oom(now: HostSnapshot, start: HostSnapshot, subject: Subject) -> Result:
    if now.oom_kills is None or start.oom_kills is None:
        return Result("host.oom", Status.SKIPPED, subject, "the kernel does not count OOM kills here")
    growth = now.oom_kills - start.oom_kills
    if growth <= 0:
        return Result("host.oom", Status.HEALTHY, subject, "no OOM kill since the job began")
    limit = f" (limit {_size(now.memory_limit_bytes)})" if now.memory_limit_bytes is not None else ""
    observed = f"{growth} OOM kills since the job began{limit}"
    remedy = "give the job more memory; the GPUs are not to blame"
    return Result("host.oom", Status.DEGRADED, subject, observed, "none", remedy)


def _shm(
    now: HostSnapshot, start: HostSnapshot, subject: Subject, thresholds: HostThresholds
) -> Iterator[Result]:
    remedy = "start the container with a larger --shm-size (Kubernetes: an emptyDir of medium Memory)"
    if now.shm_bytes is None or now.shm_free_bytes is None:
        was_so = start.shm_bytes is None
        yield Result(
            "host.shm", Status.DEGRADED, subject, "no /dev/shm", "a tmpfs", remedy, is_persistent=was_so
        )
        return
    observed = f"{_size(now.shm_free_bytes)} of {_size(now.shm_bytes)} in /dev/shm are free"
    wanted = thresholds.min_shm_bytes
    if wanted is not None and now.shm_bytes < wanted:
        was_so = start.shm_bytes is not None and start.shm_bytes < wanted
        expected = f"a size of {_size(wanted)}"
        yield Result("host.shm", Status.UNHEALTHY, subject, observed, expected, remedy, is_persistent=was_so)
    elif now.shm_free_bytes < thresholds.min_shm_free_bytes:
        was_so = start.shm_bytes is not None and start.shm_bytes < thresholds.min_shm_free_bytes
        expected = f"{_size(thresholds.min_shm_free_bytes)} free"
        yield Result("host.shm", Status.DEGRADED, subject, observed, expected, remedy, is_persistent=was_so)
    else:
        yield Result("host.shm", Status.HEALTHY, subject, observed)


def _pressure(now: HostSnapshot, subject: Subject, thresholds: HostThresholds) -> Iterator[Result]:
    rows: tuple[tuple[str, Pressure | None, float, str], ...] = (
        ("memory", now.memory_pressure, thresholds.memory_pressure_percent, "the node is short of memory"),
        ("io", now.io_pressure, thresholds.io_pressure_percent, "the storage is too slow, or about to fail"),
    )
    if all(pressure is None for _, pressure, _, _ in rows):
        yield Result("host.pressure", Status.SKIPPED, subject, "this kernel does not measure pressure")
    for name, pressure, limit, remedy in rows:
        if pressure is None:
            continue
        observed = f"{pressure.full_avg60:g} % of the last minute everybody waited for {name}"
        if pressure.full_avg60 > limit:
            expected = f"at most {limit:g} %"
            yield Result("host.pressure", Status.DEGRADED, subject, observed, expected, remedy)
        else:
            yield Result("host.pressure", Status.HEALTHY, subject, observed)


def _limits(
    now: HostSnapshot, uses_rdma: bool, subject: Subject, thresholds: HostThresholds
) -> Iterator[Result]:
    """Limits of this process, which its workers inherit; they do not change while it lives."""
    if uses_rdma and now.locked_memory_limit_bytes is not None:
        observed = f"{_size(now.locked_memory_limit_bytes)} of memory may be locked"
        remedy = "ulimit -l unlimited (container: --ulimit memlock=-1): RDMA registers memory by locking it"
        yield Result(
            "host.limits", Status.DEGRADED, subject, observed, "no limit", remedy, is_persistent=True
        )
    files = now.open_files_limit
    if files is not None and files < thresholds.min_open_files:
        observed, expected = f"a process may open {files} files", f"{thresholds.min_open_files}"
        yield Result(
            "host.limits", Status.DEGRADED, subject, observed, expected, "ulimit -Hn", is_persistent=True
        )
    elif not uses_rdma or now.locked_memory_limit_bytes is None:
        yield Result("host.limits", Status.HEALTHY, subject, "locked memory and open files suffice")


def _numbers(now: HostSnapshot, subject: Subject, thresholds: HostThresholds) -> Iterator[Result]:
    rows = (
        ("host.tasks", now.tasks, now.tasks_max, "tasks of the cgroup", "raise pids.max"),
        ("host.files", now.open_files, now.open_files_max, "open files of the kernel", "raise fs.file-max"),
    )
    for check, used, most, what, remedy in rows:
        if used is None or not most:
            continue
        observed = f"{used} of {most} {what}"
        if used <= thresholds.used_fraction * most:
            yield Result(check, Status.HEALTHY, subject, observed)
        else:
            expected = f"at most {thresholds.used_fraction:.0%}"
            yield Result(check, Status.DEGRADED, subject, observed, expected, remedy)


def _zombies(now: HostSnapshot, start: HostSnapshot, subject: Subject, thresholds: HostThresholds) -> Result:
    count = sum(1 for sleeper in now.sleepers if sleeper.state == "Z")
    if count <= thresholds.zombies:
        return Result("host.zombies", Status.HEALTHY, subject, f"{count} dead processes are not reaped")
    before = sum(1 for sleeper in start.sleepers if sleeper.state == "Z")
    return Result(
        "host.zombies",
        Status.DEGRADED,
        subject,
        f"{count} dead processes are not reaped",
        f"at most {thresholds.zombies}",
        "run the container with an init (--init), or find the parent that does not wait",
        is_persistent=before > thresholds.zombies,
    )


def _stuck(
    recent: Sequence[HostSnapshot], start: HostSnapshot, subject: Subject, thresholds: HostThresholds
) -> Result:
    """Processes that sleep uninterruptibly all the time; NVIDIA's own mean that the driver hangs."""
    first = next(
        (s for s in reversed(recent) if recent[-1].taken_at - s.taken_at >= thresholds.stuck_s), None
    )
    span = [s for s in recent if first is not None and s.taken_at >= first.taken_at]
    if len(span) < thresholds.stuck_readings:
        return Result("host.stuck", Status.HEALTHY, subject, "watched for too short a time to tell")
    stuck = _uninterruptible(span[0]) - _uninterruptible(start)
    for snapshot in span[1:]:
        stuck &= _uninterruptible(snapshot)
    if not stuck:
        return Result("host.stuck", Status.HEALTHY, subject, "no process hangs in the kernel")
    is_driver = any(command.startswith("nvidia") for _, _, command in stuck)
    names = ", ".join(f"{command} ({pid})" for pid, _, command in sorted(stuck)[:5])
    seconds = span[-1].taken_at - span[0].taken_at
    return Result(
        "host.stuck",
        Status.UNHEALTHY if is_driver else Status.DEGRADED,
        subject,
        f"{len(stuck)} processes hang in the kernel since {seconds:.0f} s: {names}",
        "none",
        "reboot the node" if is_driver else "look for a dead filesystem or device (dmesg)",
    )


def _uninterruptible(snapshot: HostSnapshot) -> set[tuple[int, int, str]]:
    return {_identity(sleeper) for sleeper in snapshot.sleepers if sleeper.state == "D"}


def _identity(sleeper: Sleeper) -> tuple[int, int, str]:
    return sleeper.pid, sleeper.started_ticks, sleeper.command


def _clock(
    recent: Sequence[HostSnapshot], start: HostSnapshot, subject: Subject, thresholds: HostThresholds
) -> Iterator[Result]:
    offsets = [snapshot.wall_ts - snapshot.taken_at for snapshot in recent]
    jump_s = max((after - before for before, after in pairwise(offsets)), key=abs, default=0.0)
    if abs(jump_s) > thresholds.clock_jump_s:
        yield Result(
            "host.clock",
            Status.DEGRADED,
            subject,
            f"the wall clock jumped by {jump_s:+.1f} s",
            f"steps below {thresholds.clock_jump_s:g} s",
            "look at chrony or ntpd; the machine may also have been suspended or moved",
        )
    elif start.clock_source and recent[-1].clock_source != start.clock_source:
        yield Result(
            "host.clock",
            Status.DEGRADED,
            subject,
            f"the clock source is {recent[-1].clock_source or 'gone'}",
            f"{start.clock_source} as at the job's begin",
            "look in dmesg why the kernel gave it up; reading the time is slow now",
        )
    else:
        yield Result("host.clock", Status.HEALTHY, subject, f"steady ({recent[-1].clock_source or '?'})")


def _size(count: int | None) -> str:
    """Bytes for a person: "1.5 GiB"."""
    value, units = float(count or 0), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"

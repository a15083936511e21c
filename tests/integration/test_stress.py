"""A hundred kills in a row: the job goes on, and the agent is as small afterwards as after the first ten."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from ftrun.monitor import events
from tests.support.run import Run, start

KILLS = 100
MEASURE_EVERY = 10
MAX_GROWTH_BYTES = 1024 * 1024
DEADLINE_S = 30.0

BEATS = """
import os, signal
from pathlib import Path
from ftrun.monitor.client import heartbeat

directory, restart_count = Path(os.environ["D"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
heartbeat(restart_count)
(directory / "writing").write_text(str(os.getpid()))
os.rename(directory / "writing", directory / f"beat-{restart_count}")
if not (directory / "end").exists():
    signal.pause()
"""


@dataclass(frozen=True)
class Size:
    """What the agent holds at one moment."""

    fds: int
    threads: int
    listening: int
    private_bytes: int


def settled_size_of(run: Run) -> Size:
    """The least of several looks, which what is only opened for a moment cannot disturb."""
    looks: list[Size] = []

    def has_looked() -> bool:
        looks.append(size_of(run.process.pid))
        return len(looks) == 5

    run.wait_until(has_looked, "five looks at the agent")
    return Size(*(min(getattr(look, one.name) for look in looks) for one in fields(Size)))


def size_of(pid: int) -> Size:
    """The agent's size from /proc; private memory is what it does not share with other processes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    private_kib = sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE))
    connections = psutil.Process(pid).net_connections("tcp")
    return Size(
        len(os.listdir(f"/proc/{pid}/fd")),
        len(os.listdir(f"/proc/{pid}/task")),
        sum(connection.status == psutil.CONN_LISTEN for connection in connections),
        private_kib * 1024,
    )


def is_settled(run: Run, restart_count: int) -> bool:
    """Whether the job trains, its standby waits and its store serves: nothing is under way in the agent."""
    found = [record.event for record in run.records()]
    starts = [i for i, event in enumerate(found) if isinstance(event, events.WorkerStarted)]
    if len(starts) <= restart_count:  # a worker may be quicker than the line that tells of its start
        return False
    kinds = {type(event) for event in found[starts[-1] :]}
    return {events.WorkerProgressed, events.StandbyReadied} <= kinds and "pt_tcpstore_uv" in threads_of(run)


def threads_of(run: Run) -> set[str]:
    """Names of the agent's threads; torch names the one that serves a store."""
    names = set()
    for task in Path(f"/proc/{run.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            names.add((task / "comm").read_text().strip())
    return names


def test_hundred_kills_leave_nothing_behind(tmp_path: Path) -> None:
    """No process, no port, no descriptor, no thread, and at most 1 MB more memory than after ten kills."""
    script = tmp_path / "beats.py"
    script.write_text(BEATS)
    sizes: list[Size] = []
    options = ("--max-restarts", "1000", "--ft-set", "restart.max_in_window=0")
    with start(tmp_path, *options, str(script)) as run:
        for restart_count in range(KILLS + 1):
            beat = tmp_path / f"beat-{restart_count}"
            run.wait_until(beat.exists, f"progress after {restart_count} restarts", DEADLINE_S)
            if restart_count % MEASURE_EVERY == 0:
                what = f"full pool, {restart_count} restarts"
                run.wait_until(lambda count=restart_count: is_settled(run, count), what, DEADLINE_S)
                sizes.append(settled_size_of(run))
            if restart_count == KILLS:
                (tmp_path / "end").touch()
            os.kill(int(beat.read_text()), signal.SIGKILL)
        assert run.wait() == 0, run.stderr
        assert run.living() == {}
        [ended] = run.events(events.RunEnded)
        assert ended.restart_count == KILLS + 1
    settled = sizes[1]
    assert {size.fds for size in sizes[1:]} == {settled.fds}, sizes
    assert {size.threads for size in sizes[1:]} == {settled.threads}, sizes
    assert {size.listening for size in sizes[1:]} == {1}, sizes
    assert sizes[-1].private_bytes - settled.private_bytes <= MAX_GROWTH_BYTES, sizes

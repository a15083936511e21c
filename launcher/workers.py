"""The worker group of this node: start it from a plan, watch it, ask it to end, kill it, take its exits.

Acts on behalf of the agent and decides nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftrun.launcher import environment, guard, process
from ftrun.launcher.control import Activate, ControlError
from ftrun.launcher.entry import Entry
from ftrun.launcher.model import Plan
from ftrun.launcher.standby import Standby
from ftrun.monitor import events
from ftrun.monitor.page import Page, PageSnapshot
from ftrun.monitor.signal_names import signal_name
from ftrun.monitor.stack_signal import STACKS_VARIABLE

_MAX_TRIES = 8
"""More than a pool of standbys that have all died since."""


@dataclass(slots=True)
class Worker:
    """One rank's process in the current round."""

    rank: int
    local_rank: int
    standby: Standby
    page: Page
    is_warm: bool
    error_file: str
    stacks_file: str = ""
    """Where it writes its stacks when it is asked to; "" if it cannot."""
    exit_code: int | None = None
    exited_at: float = 0.0
    is_stopped_by_agent: bool = False
    is_ended: bool = False
    """The agent has ended this worker in particular."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self.standby.pid


@dataclass(frozen=True, slots=True)
class Streams:
    """Where one worker's output goes: descriptors that are the worker's once it is started."""

    stdout: int
    stderr: int
    error_file: str
    stacks_file: str


class WorkerGroup:
    """Workers of one node; empty between rounds.

    `take` gives a process for a rank: a standby, or a new one that starts cold; `discard` gets bad ones.
    """

    def __init__(
        self, entry: Entry, take: Callable[[], Standby], discard: Callable[[Standby, str], None]
    ) -> None:
        self._entry = entry
        self._take = take
        self._discard = discard
        self._has_killed = False
        self.workers: tuple[Worker, ...] = ()

    def start(
        self, plan: Plan, streams: Mapping[int, Streams], variables: Mapping[int, Mapping[str, str]]
    ) -> tuple[Worker, ...]:
        """Start all workers of `plan`; closes the descriptors in `streams`.

        Raises:
            OSError: one could not be started; those before it are in `workers`.
        """
        self._has_killed = False
        try:
            for local_rank in range(plan.ranks.local_world_size):
                worker = self._start_one(plan, local_rank, streams[local_rank], variables[local_rank])
                self.workers = (*self.workers, worker)
        finally:
            for fd in {fd for one in streams.values() for fd in (one.stdout, one.stderr)}:
                os.close(fd)
        return self.workers

    def _start_one(
        self, plan: Plan, local_rank: int, streams: Streams, variables: Mapping[str, str]
    ) -> Worker:
        page = Page.create()
        values: dict[str, str | None] = {
            **variables,
            "TORCHELASTIC_ERROR_FILE": streams.error_file,
            "FTRUN_PAGE": page.path,
            STACKS_VARIABLE: streams.stacks_file,
        }
        argv = environment.substitute(self._entry.argv, local_rank, plan.resume_from)
        message = Activate(environment=values, argv=argv, kind=self._entry.kind)
        try:
            standby = self._activate_one(message, streams)
        except OSError:
            page.close()
            raise
        return Worker(
            rank=plan.ranks.rank_of(local_rank),
            local_rank=local_rank,
            standby=standby,
            page=page,
            is_warm=standby.ready is not None,
            error_file=streams.error_file,
            stacks_file=streams.stacks_file,
        )

    def _activate_one(self, message: Activate, streams: Streams) -> Standby:
        """A process that has been told its rank; one that cannot be told is thrown away for the next."""
        for _ in range(_MAX_TRIES):
            standby = self._take()
            try:
                standby.activate(message, streams.stdout, streams.stderr)
            except (OSError, ControlError) as error:
                self._discard(standby, f"could not be told its rank: {error}")
            else:
                return standby
        raise OSError(f"{_MAX_TRIES} worker processes in a row ended before they could be told their rank")

    def poll(self, now: float, is_stopping: bool) -> list[Worker]:
        """Workers that ended since the last call; they stay zombies until `collect`."""
        ended = []
        for worker in self.workers:
            if worker.exit_code is None:
                worker.exit_code = worker.standby.process.poll()
                if worker.exit_code is not None:
                    worker.exited_at = now
                    # A SIGKILL that the agent has not sent yet is somebody else's, whenever it shows.
                    is_foreign = worker.exit_code == -signal.SIGKILL and not (
                        self._has_killed or worker.is_ended
                    )
                    worker.is_stopped_by_agent = worker.is_ended or (is_stopping and not is_foreign)
                    ended.append(worker)
        return ended

    def snapshots(self) -> dict[int, PageSnapshot]:
        """Progress of each worker, by local rank."""
        return {worker.local_rank: worker.page.read() for worker in self.workers}

    def remains(self, standby_pids: set[int]) -> list[int]:
        """Pids of every process of the round that still runs, children and grandchildren included.

        As the init of a container the agent also gets orphans of others; what is the round's tells its
        environment there.
        """
        found = process.descendants(os.getpid(), without=standby_pids)
        if os.getpid() != 1:
            return found
        workers = {worker.pid for worker in self.workers}
        return [pid for pid in found if pid in workers or guard.carries(pid, guard.marker(1))]

    def ask(self, signum: int, standby_pids: set[int]) -> list[tuple[int, str]]:
        """Send `signum` once to every process of the round: by group, then to each that left it.

        Returns (pid, command) of those that left it, as a detached child does.
        """
        groups = {worker.pid for worker in self.workers}
        strays = [pid for pid in self.remains(standby_pids) if _group_of(pid) not in groups]
        named = [(pid, process.command_of(pid)) for pid in strays]
        for worker in self.workers:
            worker.standby.process.signal_group(signum)
            if process.state_of(worker.pid) == "T":  # a stopped process acts on nothing but SIGKILL
                worker.standby.process.signal_group(signal.SIGCONT)
        for pid in strays:
            process.kill_descendant(pid, signum, os.getpid())
        return named

    def pass_on(self, number: signal.Signals) -> events.SignalForwarded:
        """Give the signal to the ranks that would survive it: its default action is death."""
        running = [worker for worker in self.workers if worker.exit_code is None]
        ready = [worker for worker in running if process.catches(worker.pid, number)]
        for worker in ready:
            worker.standby.process.signal(number)
        return events.SignalForwarded(
            number.name,
            tuple(worker.rank for worker in ready),
            tuple(worker.rank for worker in running if worker not in ready),
        )

    def end(self, local_rank: int, signum: int) -> None:
        """End one worker that cannot act on being asked: `signum` to itself, stopped or not."""
        for worker in self.workers:
            if worker.local_rank == local_rank and worker.exit_code is None:
                worker.is_ended = True
                worker.standby.process.signal(signum)
                worker.standby.process.signal(signal.SIGCONT)

    def kill(self, standby_pids: set[int]) -> list[tuple[int, str]]:
        """SIGKILL what is left of the round; returns (pid, command) of each that was not a worker itself."""
        self._has_killed = True
        workers = {worker.pid for worker in self.workers}
        strays = []
        for pid in self.remains(standby_pids):
            if pid not in workers:
                strays.append((pid, process.command_of(pid)))
            process.kill_descendant(pid, 9, os.getpid())
        return strays

    def collect(self) -> dict[int, process.ExitStatus]:
        """Reap the ended workers and let go of all they used; by local rank. Their pages go with them."""
        statuses = {}
        for worker in self.workers:
            if worker.exit_code is not None:
                statuses[worker.local_rank] = worker.standby.process.reap()
            else:
                worker.standby.process.release()
            worker.standby.control.close()
            worker.page.close()
        self.workers = ()
        return statuses


def exited_event(worker: Worker, round_number: int) -> events.WorkerExited:
    """How a worker that has ended did so, with what its page says of it."""
    page, code = worker.page.read(), worker.exit_code or 0

    def seconds_since(at: float | None) -> float | None:
        return None if at is None else max(0.0, worker.exited_at - at)

    return events.WorkerExited(
        round_number,
        worker.rank,
        worker.local_rank,
        worker.pid,
        code,
        signal_name(code),
        worker.is_stopped_by_agent,
        page.steps,
        seconds_since(page.main_started_at),
        page.reported_step,
        seconds_since(page.last_progress_at),
        tuple(section.name for section in page.sections),
    )


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1

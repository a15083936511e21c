"""Which standbys wait, what they preload, and when one is taken, started or thrown away."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from ftrun.launcher.control import ControlError, Message, Ready
from ftrun.launcher.standby import Standby
from ftrun.launcher.standby_pool import StandbyPool
from ftrun.launcher.watcher import Watcher
from ftrun.monitor import events

GIB = 1024**3
BEYOND_ALL_PIDS = 1 << 22  # pid_max cannot be more (proc(5)), so none of these pids is ever a process
_numbers = itertools.count(1)


class FakeDescriptor:
    """A socket of which only the number matters."""

    def __init__(self) -> None:
        self.number = next(_numbers)

    def fileno(self) -> int:
        return self.number


class FakeProcess:
    """A process that ends when the test says so."""

    def __init__(self) -> None:
        self.pid = BEYOND_ALL_PIDS + next(_numbers)
        self.pidfd = next(_numbers)
        self.exit_code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.exit_code

    def signal(self, signum: int) -> None:
        self.signals.append(signum)


class FakeStandby:
    """A standby that says what the test gives it to say."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = tuple(modules)
        self.process = FakeProcess()
        self.control = FakeDescriptor()
        self.ready: Ready | None = None
        self.messages: list[Message] = []
        self.error: ControlError | None = None
        self.has_hung_up = False
        self.is_closed = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> list[Message]:
        if self.error is not None:
            raise self.error
        messages, self.messages = self.messages, []
        return messages

    def close(self) -> None:
        self.is_closed = True


class FakeWatcher:
    """Remembers which descriptors are watched."""

    def __init__(self) -> None:
        self.fds: set[int] = set()

    def add(self, fd: int, source: object) -> None:
        assert fd not in self.fds
        self.fds.add(fd)

    def remove(self, fd: int) -> None:
        self.fds.discard(fd)


class World:
    """A pool and all that is around it."""

    def __init__(self, size: int = 2, may_learn: bool = True) -> None:
        self.started: list[FakeStandby] = []
        self.watcher = FakeWatcher()
        self.events: list[events.Event] = []
        self.available = 8 * GIB
        self.pool = StandbyPool(
            size,
            cast("Callable[[Sequence[str], bool], Standby]", self.start),
            cast("Watcher[object]", self.watcher),
            self.events.append,
            lambda: self.available,
            4 * GIB,
            may_learn,
            "",
        )

    def start(self, modules: Sequence[str], is_for_later: bool) -> FakeStandby:
        self.started.append(FakeStandby(modules))
        return self.started[-1]

    def say(self, standby: FakeStandby, message: Message) -> None:
        """The standby sends `message` and the pool reads it."""
        standby.messages.append(message)
        self.pool.read(cast(Standby, standby))

    def refilled(self) -> FakeStandby:
        """The standby that a refill starts."""
        count = len(self.started)
        self.pool.refill()
        assert len(self.started) == count + 1
        return self.started[-1]

    def waiting(self) -> FakeStandby:
        """A further standby that has done its imports."""
        standby = self.refilled()
        self.say(standby, Ready(0.5))
        return standby

    def taken(self) -> FakeStandby:
        return cast(FakeStandby, self.pool.take())

    def recorded(self, kind: type[events.Event]) -> list[events.Event]:
        return [event for event in self.events if isinstance(event, kind)]


def stocked(size: int = 2, modules: tuple[str, ...] = ("torch", "numpy")) -> World:
    """A pool that knows what to preload and has no standby yet."""
    world = World(size)
    world.pool.modules = modules
    return world


def test_processes_of_the_first_round_are_taken_in_order_before_they_are_ready() -> None:
    """The first round waits for nothing: its processes are used while they still import."""
    world = World()
    first = [FakeStandby(("torch",)), FakeStandby(("torch",))]
    world.pool.adopt(cast("list[Standby]", first), "first")
    assert world.pool.pids == {standby.pid for standby in first}
    assert [world.taken(), world.taken()] == first
    assert world.started == []
    assert world.pool.pids == set()


def test_processes_of_the_first_round_are_read_while_they_wait_for_other_nodes() -> None:
    """What nobody reads keeps the agent's loop turning; one that is no good is replaced when a rank comes."""
    world = World()
    ready, failed, cold, dead = (FakeStandby(modules) for modules in (("torch",), ("torch",), (), ("torch",)))
    world.pool.adopt(cast("list[Standby]", [ready, failed, cold, dead]), "first")
    world.say(ready, Ready(0.5))
    world.say(failed, Ready(0.5, failed=(("torch", "ImportError: no"),)))
    world.say(cold, Ready(0.0))
    dead.process.exit_code = -9
    world.pool.sweep()
    assert [standby.messages for standby in (ready, failed, cold)] == [[], [], []]
    assert len(world.recorded(events.StandbyReadied)) == 1
    assert [world.taken(), world.taken()] == [ready, cold]
    assert cold.ready is None
    assert failed.is_closed
    assert dead.is_closed
    assert world.taken() is world.started[0]


def test_ready_standby_is_taken_and_leaves_the_pool() -> None:
    """A warm process is what a restart gets, and it then belongs to the round."""
    world = stocked()
    standby = world.waiting()
    assert world.pool.pids == {standby.pid}
    assert world.taken() is standby
    assert world.pool.pids == set()


def test_rank_without_a_standby_gets_a_process_that_preloads_nothing() -> None:
    """Nothing is imported ahead when the rank must start now; the script imports what it needs."""
    world = stocked()
    standby = world.taken()
    assert standby.modules == ()
    assert world.pool.pids == set()
    [event] = world.recorded(events.StandbyStarted)
    assert isinstance(event, events.StandbyStarted)
    assert event.is_cold


def test_standby_that_still_loads_an_unproven_list_is_not_taken() -> None:
    """Its imports might fail or initialise CUDA; it stays and the rank starts cold."""
    world = stocked()
    loading = world.refilled()
    assert world.taken() is not loading
    assert loading.pid in world.pool.pids


def test_standby_that_loads_a_proven_list_is_taken() -> None:
    """The same list has worked in another process: waiting for its imports beats starting them anew."""
    world = stocked()
    world.waiting()
    loading = world.refilled()
    world.taken()
    assert world.taken() is loading


def test_list_learned_anew_has_to_be_proven_again() -> None:
    """What worked before says nothing about modules that no standby has loaded yet."""
    world = stocked()
    world.waiting()
    world.pool.learn(["torch", "numpy", "csv"])
    loading = world.refilled()
    world.taken()
    assert world.taken() is not loading


def test_refill_starts_one_at_a_time_up_to_the_size() -> None:
    """Imports of several standbys at once would take CPU from training."""
    world = stocked(size=2)
    standby = world.refilled()
    world.pool.refill()
    assert len(world.started) == 1
    world.say(standby, Ready())
    world.waiting()
    world.pool.refill()
    assert len(world.started) == 2


def test_refill_starts_nothing_without_a_list() -> None:
    """A standby that preloads nothing would save nothing worth its memory."""
    world = World()
    world.pool.refill()
    assert world.started == []


def test_refill_is_suspended_while_memory_is_short_and_says_so_once() -> None:
    """Training needs memory more; one event per change, not one per look."""
    world = stocked()
    world.available = 3 * GIB
    world.pool.refill()
    world.available = 2 * GIB
    world.pool.refill()
    [event] = world.recorded(events.StandbySuspended)
    assert isinstance(event, events.StandbySuspended)
    assert "3072 MiB" in event.reason
    assert "4096 MiB" in event.reason
    world.available = 5 * GIB
    world.say(world.refilled(), Ready())
    world.available = 1 * GIB
    world.pool.refill()
    assert len(world.recorded(events.StandbySuspended)) == 2


def test_learned_list_is_journalled_when_it_changes() -> None:
    """Each rank reports; equal lists are told once."""
    world = World()
    world.pool.learn(["csv", "torch"])
    world.pool.learn(["csv", "torch"])
    assert world.pool.modules == ("csv", "torch")
    assert world.recorded(events.PreloadLearned) == [events.PreloadLearned(2)]


def test_torch_stays_on_the_list_where_a_report_lacks_it() -> None:
    """It may be installed where the worker takes it for the user's own, as from PYTHONPATH."""
    world = stocked(modules=("torch", "torch.fx"))
    world.pool.learn(["json", "lib"])
    assert world.pool.modules == ("torch", "torch.fx", "json", "lib")


def test_learned_list_ends_where_a_banned_module_came_before_torch() -> None:
    """Torch must not be imported in front of a library that may have to come first."""
    world = stocked(modules=("csv", "early", "torch"))
    world.say(world.refilled(), Ready(0.1, (("early", "it reads RANK"),)))
    world.pool.learn(["csv", "early", "torch", "json"])
    assert world.pool.modules == ("csv",)


def test_pool_that_may_not_learn_keeps_its_list() -> None:
    """Where the script sets something up between its imports, only the list of the analysis is safe."""
    world = World(may_learn=False)
    world.pool.modules = ("torch",)
    world.pool.learn(["csv", "torch"])
    assert world.pool.modules == ("torch",)
    assert world.recorded(events.PreloadLearned) == []


def test_standby_whose_import_failed_is_discarded_and_its_module_never_preloaded_again() -> None:
    """A half-done import could change what the script sees; submodules go with their package."""
    world = stocked(modules=("csv", "bad", "bad.part", "badly"))
    standby = world.refilled()
    world.say(standby, Ready(0.1, (("bad", "ValueError: no"),)))
    assert standby.is_closed
    assert world.pool.pids == set()
    assert world.pool.modules == ("csv", "badly")
    [reduced] = world.recorded(events.PreloadReduced)
    assert reduced == events.PreloadReduced("bad", "preloading it failed: ValueError: no")
    world.pool.learn(["csv", "bad", "bad.part", "json"])
    assert world.pool.modules == ("csv", "json")


def test_standby_that_initialised_cuda_is_discarded_and_the_culprit_banned() -> None:
    """A context made while waiting would hold GPU memory and be on the wrong device."""
    world = stocked(modules=("torch", "greedy"))
    standby = world.refilled()
    world.say(standby, Ready(0.1, (), "greedy"))
    assert standby.is_closed
    assert world.pool.modules == ("torch",)
    [reduced] = world.recorded(events.PreloadReduced)
    assert isinstance(reduced, events.PreloadReduced)
    assert "CUDA" in reduced.reason
    [discarded] = world.recorded(events.StandbyDiscarded)
    assert isinstance(discarded, events.StandbyDiscarded)
    assert "greedy" in discarded.reason
    assert world.refilled().modules == ("torch",)


def test_list_is_not_proven_after_a_failure() -> None:
    """The reduced list is another list; the next standby has to show that it works."""
    world = stocked(size=3, modules=("csv", "bad"))
    world.waiting()
    world.say(world.refilled(), Ready(0.1, (("bad", "OSError: now it fails"),)))
    loading = world.refilled()
    world.taken()
    assert world.taken() is not loading


def test_dead_standby_is_swept_and_replaced() -> None:
    """A killed standby costs one discard; the next refill starts another."""
    world = stocked()
    standby = world.waiting()
    standby.process.exit_code = -9
    world.pool.sweep()
    assert world.pool.pids == set()
    [event] = world.recorded(events.StandbyDiscarded)
    assert isinstance(event, events.StandbyDiscarded)
    assert "-9" in event.reason
    assert world.refilled().modules == ("torch", "numpy")


def test_list_that_kills_a_standby_is_not_waited_for() -> None:
    """A list under which a process has died may kill the next one too: it has to be proven again."""
    world = stocked()
    world.waiting().process.exit_code = -11
    world.pool.sweep()
    loading = world.refilled()
    assert world.taken() is not loading


def test_standby_that_sends_garbage_is_discarded() -> None:
    """What broke the protocol cannot be trusted to understand an activation."""
    world = stocked()
    standby = world.refilled()
    standby.error = ControlError("control frame is not JSON")
    world.pool.read(cast(Standby, standby))
    assert standby.is_closed
    assert world.recorded(events.StandbyDiscarded) == [
        events.StandbyDiscarded(standby.pid, "control frame is not JSON")
    ]


def test_standby_that_closed_its_socket_is_killed_and_then_swept() -> None:
    """It can never be told its rank, and while it loads it would keep others from being started."""
    world = stocked()
    standby = world.refilled()
    standby.has_hung_up = True
    world.pool.read(cast(Standby, standby))
    assert standby.process.signals == [9]
    standby.process.exit_code = -9
    world.pool.sweep()
    assert world.pool.pids == set()


@pytest.mark.parametrize("how", ["discard", "sweep", "close"])
def test_no_descriptor_of_a_standby_that_is_gone_stays_watched(how: str) -> None:
    """Descriptor numbers are given away again: one that stays watched would speak for somebody else."""
    world = stocked()
    standby = world.waiting()
    assert world.watcher.fds == {standby.control.number, standby.process.pidfd}
    if how == "discard":
        world.pool.discard(cast(Standby, standby), "no reason")
    elif how == "sweep":
        standby.process.exit_code = 1
        world.pool.sweep()
    else:
        world.pool.close()
    assert world.watcher.fds == set()
    assert standby.is_closed


def test_close_kills_first_waiting_and_loading_ones() -> None:
    """The end of the job leaves no standby of any kind."""
    world = stocked()
    first = FakeStandby(())
    world.pool.adopt(cast("list[Standby]", [first]), "first")
    waiting, loading = world.waiting(), world.refilled()
    world.pool.close()
    assert [first.is_closed, waiting.is_closed, loading.is_closed] == [True, True, True]
    assert world.pool.pids == set()

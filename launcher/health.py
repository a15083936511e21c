"""The health of this node for the agent: checks on a thread of its own, and what they come to.

A check begins when a round begins to end, so that it runs while the workers are being stopped; the node joins
the next round with what it found. While training runs one is made from time to time. Nothing here waits on
the agent's thread.
"""

from __future__ import annotations

import math
import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ftrun.healthchecks.policy import HealthPolicy, Scope
from ftrun.healthchecks.registry import Occasion
from ftrun.healthchecks.result import Result, Status
from ftrun.launcher import health_chart, process
from ftrun.launcher.health_chart import Chart
from ftrun.launcher.node_state import Cause, Phase, State
from ftrun.launcher.placement import Placement, place
from ftrun.monitor import events
from ftrun.monitor.incident import Ailment

if TYPE_CHECKING:
    from ftrun.healthchecks.held_memory import HeldMemory
    from ftrun.healthchecks.reading import Missing
    from ftrun.healthchecks.runner import Health

_JITTER = 0.2
"""Share of the interval by which checks while training runs are moved at random: the nodes of a job are not
to ask their file server at the same moment."""
_SOON_S = 1.0
"""To a second look at what would end the round."""
_SLACK_S = 0.3
"""Time that a check may take beyond its deadline to say what has not answered."""
_START_UP_S = 5.0
"""What the first check may take longer where a node is overloaded: it imports code and starts children."""
_WORTH_TELLING_S = 1.0
"""A wait for GPU memory that is journalled although it was given back."""
_MEMORY_DEADLINE_S = 1.0
"""For one look at it; a healthy driver takes milliseconds."""
_DRIVER = "gpu.driver"
_LAST_S = 0.25
"""Longest wait for the thread at the agent's end; it has nothing to do but to end its children."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A check of the node is done."""

    number: int
    """Of the check before a round; 0 for one while training runs."""
    results: tuple[Result, ...]
    devices: tuple[str, ...] | None
    """UUIDs of the devices that CUDA numbers 0, 1, ..; None if that is not known."""
    gpus: tuple[str, ...] | None = None
    """UUID of the GPU that each of them is, or is a MIG part of."""


@dataclass(frozen=True, slots=True)
class MemoryAwaited:
    """The memory of the workers that have ended is free again, or is not waited for any longer."""

    number: int
    held: tuple[HeldMemory, ...]
    """What was held at first, or still is."""
    waited_s: float
    is_freed: bool
    unread: str = ""
    """Why nobody could tell whether it is free."""


Note: TypeAlias = Checked | MemoryAwaited


@dataclass(frozen=True, slots=True)
class _BeforeRound:
    number: int


@dataclass(frozen=True, slots=True)
class _AwaitMemory:
    number: int


@dataclass(frozen=True, slots=True)
class _LookSoon:
    """Do not wait for the interval to pass."""


_Request: TypeAlias = _BeforeRound | _AwaitMemory | _LookSoon | None


@dataclass(frozen=True, slots=True)
class Standing:
    """With what a node joins a round."""

    unhealthy: tuple[Ailment, ...]
    """Why it should not take part; the slots that are left out not counted."""
    placement: Placement
    gpus: tuple[str, ...] = ()
    """UUID of each slot's GPU, if single ones can be left out; else none."""


class NodeHealth:
    """What the checks say of this node. All methods are for the agent's thread.

    Args:
        policy: what is checked; `is_enabled` must be known. Without checks all nodes are well.
        scope: what the job has of the node.
        post: takes notes from the thread of the checks.
        clock: CLOCK_MONOTONIC, seconds.
        can_shrink: a GPU that is not healthy is left out, not the node.
        least_slots: with fewer the node is of no use.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        scope: Scope,
        post: Callable[[Note], None],
        clock: Callable[[], float],
        *,
        can_shrink: bool = False,
        least_slots: int = 1,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._can_shrink = can_shrink
        self._least_slots = least_slots
        self._checker = _Checker(policy, scope, post, clock) if policy.is_enabled else None
        self._chart = Chart(slot_count=scope.local_world_size)
        self._phase = Phase.JOINING
        self._number = 0
        self._checked = self._freed = 0
        self._check_by = self._memory_by = 0.0
        self._told_late = 0
        self.placement = place(scope.local_world_size, frozenset(), ())
        """With which the node has joined."""
        self.excluded_gpus: frozenset[str] = frozenset()
        """UUIDs of those that the job goes on without."""
        self._began_at = 0.0

    def start(self) -> None:
        """Begin the check before the first round."""
        if self._checker is not None:
            self._request_check(_START_UP_S)
            self._freed = self._number  # no worker has ever used the GPUs
            self._checker.start()

    def follow(self, state: State) -> None:
        """Do what the node's phase calls for, when it has changed."""
        before, self._phase = self._phase, state.phase
        if self._checker is None or before is state.phase:
            return
        if state.phase is Phase.ENDED:
            self._checker.end()
        elif state.phase is Phase.RUNNING:
            self._began_at = self._clock()
            self._chart = replace(self._chart, slots=self.placement.slots)
        elif before is Phase.RUNNING and state.cause is not Cause.SUCCESS and state.ending is None:
            self._request_check()
        elif before is Phase.STOPPING and state.phase is Phase.JOINING and self._freed < self._number:
            self._memory_by = self._clock() + self._policy.gpu_memory_timeout_s + _SLACK_S
            self._checker.requests.put(_AwaitMemory(self._number))

    def _request_check(self, more_s: float = 0.0) -> None:
        """For the next round, unless no other is likely to come."""
        assert self._checker is not None
        self._number += 1
        self._check_by = self._clock() + self._policy.round_deadline_s + _SLACK_S + more_s
        self._memory_by = math.inf
        self._checker.requests.put(_BeforeRound(self._number))

    @property
    def wanted_at(self) -> float | None:
        """When `is_ready` becomes true at the latest (CLOCK_MONOTONIC, seconds)."""
        is_waiting = self._checked < self._number or self._freed < self._number
        at = self._check_by if self._checked < self._number else self._memory_by
        return at if is_waiting and self._clock() < at < math.inf else None

    def take(self, note: Note) -> tuple[events.Event, ...]:
        """What the thread has found out; returns what is to be journalled."""
        if isinstance(note, MemoryAwaited):
            self._freed = max(self._freed, note.number)
            if note.unread:
                what = "whether the memory of the ended workers is free could not be told"
                return (events.HealthCheckDelayed(f"{what}: {note.unread}; going on without"),)
            is_worth_telling = not note.is_freed or note.waited_s >= _WORTH_TELLING_S
            return tuple(_told(held, note) for held in note.held) if is_worth_telling else ()
        self._checked = max(self._checked, note.number)
        chart = self._chart
        if note.devices:
            chart = replace(chart, devices=note.devices, gpus=note.gpus or note.devices)
        self._chart, changes = health_chart.take_in(chart, note.results, self._clock())
        is_running = self._phase is Phase.RUNNING
        wants_look = is_running and health_chart.needs_second_look(self._chart, self._began_at)
        if wants_look and self._checker is not None:
            self._checker.requests.put(_LookSoon())
        return changes

    @property
    def reason_to_stop(self) -> str:
        """Why the round that runs must end here; "" if it need not."""
        if self._phase is not Phase.RUNNING:
            return ""
        return health_chart.find_reason_to_stop(self._chart, self._began_at)

    def is_ready(self, now: float) -> bool:
        """What the node joins the next round with is known, or is not waited for any longer."""
        if self._checker is None or not self._checker.is_alive:
            return True
        if self._checked < self._number:  # its thread cannot ask for memory either
            return now >= self._check_by
        return self._freed >= self._number or now >= self._memory_by

    def delay(self) -> events.HealthCheckDelayed | None:
        """To be journalled when the node joins without the check's answer; once per check."""
        if self._checked >= self._number or self._told_late == self._number:
            return None
        self._told_late = self._number
        waited_s = self._policy.round_deadline_s
        return events.HealthCheckDelayed(f"the check has not ended within {waited_s:g} s; going on without")

    @property
    def fatal(self) -> tuple[Ailment, ...]:
        """What is wrong with this node, so that it should not take part in a round with all its slots."""
        return health_chart.find_fatal(self._chart)

    @property
    def standing(self) -> Standing:
        """What it should not take part for, and with which slots it can."""
        chart, fatal = self._chart, self.fatal
        count, devices = chart.slot_count, tuple(chart.devices or ())
        if not self._can_shrink:
            return Standing(fatal, place(count, frozenset(), devices))
        excluded = health_chart.find_slots_of(chart, self.excluded_gpus)
        sick = health_chart.find_sick_slots(chart)
        if sick is None or count - len(sick | excluded) < self._least_slots:
            sick = frozenset()
        else:
            fatal = ()
        placement = place(count, sick | excluded, devices)
        is_enough = len(placement.slots) > self._least_slots
        return Standing(fatal, placement, placement.gpus if is_enough else ())

    def ailments(self, ended_at: float) -> tuple[Ailment, ...]:
        """What was wrong when the last round began to end."""
        return health_chart.find_ailments(self._chart, ended_at)

    def close(self) -> None:
        """End the checks and their children; never waits for one that hangs."""
        if self._checker is not None:
            self._checker.close()


def _told(held: HeldMemory, note: MemoryAwaited) -> events.GpuMemoryAwaited:
    holders = tuple(f"pid {p.pid} ({p.command})" if p.command else f"pid {p.pid}" for p in held.processes)
    over_bytes = held.used_bytes - held.allowed_bytes
    subject = f"gpu {held.index} ({held.uuid})"
    return events.GpuMemoryAwaited(subject, over_bytes, note.waited_s, note.is_freed, holders)


def jittered(interval_s: float, draw: float) -> float:
    """Time to the next check while training runs, seconds; `draw` is a random number from 0 to 1."""
    return interval_s * (1.0 + _JITTER * (2.0 * draw - 1.0))


class _Checker:
    """The thread: checks when asked, and from time to time."""

    def __init__(
        self,
        policy: HealthPolicy,
        scope: Scope,
        post: Callable[[Note], None],
        clock: Callable[[], float],
    ) -> None:
        self.requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._policy = policy
        self._scope = scope
        self._post = post
        self._clock = clock
        self._has_driver = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ftrun-health", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self.requests.put(None)

    def close(self) -> None:
        self.end()
        if self._thread.is_alive():
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        # Here, because it takes tens of milliseconds, in which the workers can be started.
        from ftrun.healthchecks.runner import Health

        health = Health(self._policy, self._scope, self._clock)
        is_first, next_at = True, self._clock()
        while not self._ended.is_set():
            try:
                request = self.requests.get(timeout=max(0.0, next_at - self._clock()))
            except queue.Empty:
                self._check(health)
                next_at = self._clock() + self._interval_s()
                continue
            match request:
                case _BeforeRound(number):
                    self._check_before_round(health, number, is_first)
                    is_first, next_at = False, self._clock() + self._interval_s()
                case _AwaitMemory(number):
                    self._await_memory(health, number)
                case _LookSoon():
                    next_at = min(next_at, self._clock() + _SOON_S)
        health.close()

    def _interval_s(self) -> float:
        return jittered(self._policy.interval_s, random.random())

    def _check_before_round(self, health: Health, number: int, is_first: bool) -> None:
        deadline_s = self._policy.round_deadline_s
        report = health.begin(deadline_s) if is_first else health.check(Occasion.BEFORE_ROUND, deadline_s)
        drivers = [result.status for result in report.results if result.check == _DRIVER]
        self._has_driver = bool(drivers) and all(status is Status.HEALTHY for status in drivers)
        self._post(Checked(number, report.results, health.visible_devices, health.visible_gpus))

    def _check(self, health: Health) -> None:
        own_pids = frozenset({os.getpid(), *process.descendants(os.getpid())})
        report = health.check(Occasion.PERIODIC, self._policy.deadline_periodic_s, own_pids)
        self._post(Checked(0, report.results, health.visible_devices, health.visible_gpus))

    def _await_memory(self, health: Health, number: int) -> None:
        """Until all that the workers had of the GPUs' memory is free, and at most so long."""
        began = self._clock()
        held = first = self._find_held(health)
        while held and self._clock() - began < self._patience_s(held):
            if self._ended.wait(self._policy.gpu_memory_poll_s):
                break
            held = self._find_held(health)
        waited_s = self._clock() - began
        if isinstance(held, tuple):
            told = held or (first if isinstance(first, tuple) else ())
            self._post(MemoryAwaited(number, told, waited_s, is_freed=not held))
        else:
            self._post(MemoryAwaited(number, (), waited_s, is_freed=False, unread=str(held)))

    def _patience_s(self, held: tuple[HeldMemory, ...] | Missing) -> float:
        """For a driver that gives no memory as long as for a check; one that hangs gets no second chance."""
        from ftrun.healthchecks.reading import Lack  # the agent's thread does without

        longest_s = self._policy.gpu_memory_timeout_s
        if isinstance(held, tuple):
            return longest_s
        return 0.0 if held.lack is Lack.TIMEOUT else min(longest_s, self._policy.deadline_before_round_s)

    def _find_held(self, health: Health) -> tuple[HeldMemory, ...] | Missing:
        """Nothing where the driver did not answer the check before: there is no use in asking it again."""
        deadline_s = min(_MEMORY_DEADLINE_S, self._policy.deadline_before_round_s)
        return health.memory_holders(deadline_s) if self._has_driver else ()

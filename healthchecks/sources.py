"""Asks all that health checks read, side by side, and is back in time whatever hangs. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from ftrun.healthchecks.course import Taken
from ftrun.healthchecks.external import check_command, check_nvhcd
from ftrun.healthchecks.host_snapshots import PathReading
from ftrun.healthchecks.lane import Lane
from ftrun.healthchecks.paths import PathReader
from ftrun.healthchecks.policy import HealthPolicy, JobPath
from ftrun.healthchecks.probe_client import Scope as ProbeScope
from ftrun.healthchecks.readers import (
    GpuReader,
    GpuRequest,
    HostReading,
    NetworkReading,
    Places,
    host_reader,
    network_reader,
)
from ftrun.healthchecks.reading import Lack, Missing
from ftrun.healthchecks.registry import TIMING, Occasion, Source
from ftrun.healthchecks.result import Result, Status, Subject
from ftrun.healthchecks.snapshots import NvmlSnapshot, failed_snapshot

T = TypeVar("T")

_MARGIN = 0.1
_MARGIN_S = 0.25
"""Readers with deadlines of their own end so much earlier, a share of the deadline and this at most: their
reasons say more than "no answer"."""
_DEATH_S = 0.15
"""A reader may take so much longer than the whole check's deadline to see a child die."""
_NVHCD_DEATH_S = 2.2
"""Of which `check_nvhcd` says that it may take so much longer than its time."""


class Sources:
    """The lanes of one node; a lane is made when it is first needed.

    Args:
        policy: what is asked of others.
        node: host name.
        paths: the job's.
        places: where the node's file systems are.
        clock: CLOCK_MONOTONIC, seconds.
        needs_gpus: GPUs are expected, so a missing driver is asked for again and again.
        reads_old_log: the kernel's log is read from its beginning, not from now on.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        node: str,
        paths: Collection[JobPath],
        places: Places,
        clock: Callable[[], float] = time.monotonic,
        *,
        needs_gpus: bool = False,
        reads_old_log: bool = False,
    ) -> None:
        self._policy = policy
        self._node = node
        self._clock = clock
        self._asked_at: dict[Source, float] = {}
        gpus = GpuReader(places, needs_gpus)
        self._gpu = Lane[GpuRequest, NvmlSnapshot]("gpu", gpus.read, gpus.close)
        self._network = Lane[float, NetworkReading](
            "network", network_reader(places, policy.topology_file, clock)
        )
        self._host = Lane[float, HostReading]("host", host_reader(places, clock, reads_old_log))
        self._paths = {path.path: _path_lane(path, clock) for path in paths}
        self._external = dict(_external_lanes(policy, node))

    def read(self, wanted: Collection[Source], occasion: Occasion, deadline_s: float) -> Taken:
        """Readings of these sources, within `deadline_s` + 0.2 seconds."""
        began = time.monotonic()
        due = [source for source in Source if source in wanted and self._is_due(source, occasion)]
        ends_at = {source: began + min(deadline_s, self._longest_s(source)) for source in due}
        for source in reversed(due):  # those that have to start a child come last in the table
            self._asked_at[source] = began
            self._ask(source, occasion, ends_at[source] - began)
        taken = Taken()
        for source in due:
            taken = self._collect(source, taken, ends_at[source] + _DEATH_S)
        return taken

    def held_memory(self, deadline_s: float) -> NvmlSnapshot:
        """A reading of who holds the memory of GPUs, within `deadline_s` + 0.2 seconds."""
        ends_at = time.monotonic() + deadline_s
        self._gpu.ask(GpuRequest(_inner(deadline_s), "memory"))
        return self._gpu_answer(ends_at + _DEATH_S)

    def close(self) -> None:
        """End all lanes; what hangs is left to its own end, and a probe that does not is killed."""
        closers = [self._gpu.close, self._network.close, self._host.close]
        closers += [lane.close for lane in self._paths.values()]
        closers += [lane.close for lane in self._external.values()]
        for close in closers:
            close()
        if not self._gpu.is_busy:
            self._gpu.join(_DEATH_S)

    def _is_due(self, source: Source, occasion: Occasion) -> bool:
        last = self._asked_at.get(source)
        if occasion is not Occasion.PERIODIC or last is None:
            return True
        return time.monotonic() - last >= TIMING[source].min_interval_s

    def _longest_s(self, source: Source) -> float:
        return self._policy.external_timeout_s if source is Source.EXTERNAL else TIMING[source].deadline_s

    def _ask(self, source: Source, occasion: Occasion, deadline_s: float) -> None:
        timeout_s = _inner(deadline_s)
        if source is Source.GPU:
            scope: ProbeScope = "thorough" if occasion is Occasion.BY_HAND else "usual"
            self._gpu.ask(GpuRequest(timeout_s, scope, may_renew=occasion is Occasion.PERIODIC))
        elif source is Source.NETWORK:
            self._network.ask(timeout_s)
        elif source is Source.HOST:
            self._host.ask(timeout_s)
        elif source is Source.PATH:
            for lane in self._paths.values():
                lane.ask(timeout_s)
        else:
            for external in self._external.values():
                external.ask(timeout_s)

    def _collect(self, source: Source, taken: Taken, until: float) -> Taken:
        if source is Source.GPU:
            return replace(taken, gpu=self._gpu_answer(until))
        if source is Source.NETWORK:
            return self._add_network(taken, until)
        if source is Source.HOST:
            return self._add_host(taken, until)
        if source is Source.PATH:
            subjects = {path: ("storage.probe", Subject("path", path)) for path in self._paths}
            readings, failures = self._answers(self._paths, subjects, until)
            return replace(taken, paths=readings, failures=taken.failures + failures)
        names = {name: (name, Subject("node", self._node)) for name in self._external}
        results, failures = self._answers(self._external, names, until)
        return replace(taken, external=results, failures=taken.failures + failures)

    def _gpu_answer(self, until: float) -> NvmlSnapshot:
        snapshot = self._gpu.answer(until - time.monotonic())
        if snapshot is not None:
            return snapshot
        # The probe keeps its deadline even if the driver hangs, so it is not the driver that is to blame.
        return failed_snapshot(self._clock(), Missing(Lack.ERROR, self._gpu.failure))

    def _add_network(self, taken: Taken, until: float) -> Taken:
        reading = self._network.answer(until - time.monotonic())
        if reading is None:
            failure = _unknown("nic.readings", Subject("node", self._node), self._network.failure)
            return replace(taken, failures=(*taken.failures, failure))
        problems = [reading.problem] if reading.problem else []
        found = tuple(_unknown("nic.readings", Subject("node", self._node), why) for why in problems)
        return replace(
            taken, network=reading.snapshot, chains=reading.chains, failures=taken.failures + found
        )

    def _add_host(self, taken: Taken, until: float) -> Taken:
        reading = self._host.answer(until - time.monotonic())
        if reading is None:
            failure = _unknown("host.readings", Subject("node", self._node), self._host.failure)
            return replace(taken, failures=(*taken.failures, failure))
        return replace(
            taken,
            host=reading.snapshot,
            kernel_xids=reading.xids,
            has_kernel_log=reading.has_kernel_log,
        )

    def _answers(
        self, lanes: Mapping[str, Lane[float, T]], subjects: Mapping[str, tuple[str, Subject]], until: float
    ) -> tuple[tuple[T, ...], tuple[Result, ...]]:
        """What these lanes say, and an unknown result for each that says nothing."""
        answers: list[T] = []
        failures: list[Result] = []
        for name, lane in lanes.items():
            answer = lane.answer(until - time.monotonic())
            if answer is None:
                failures.append(_unknown(*subjects[name], lane.failure))
            else:
                answers.append(answer)
        return tuple(answers), tuple(failures)


def _path_lane(path: JobPath, clock: Callable[[], float]) -> Lane[float, PathReading]:
    reader = PathReader(clock)
    return Lane("path", lambda timeout_s: reader.read(path.path, timeout_s, path.is_written))


def _external_lanes(policy: HealthPolicy, node: str) -> Iterator[tuple[str, Lane[float, Result]]]:
    if policy.command:
        yield (
            "external.command",
            Lane("command", lambda timeout_s: check_command(policy.command, timeout_s, node)),
        )
    if policy.nvhcd_endpoint:

        def ask(timeout_s: float) -> Result:
            return check_nvhcd(policy.nvhcd_endpoint, node, max(timeout_s - _NVHCD_DEATH_S, _MARGIN_S))

        yield "external.nvhcd", Lane("nvhcd", ask)


def _inner(deadline_s: float) -> float:
    """The deadline that a reader is given."""
    return deadline_s - min(deadline_s * _MARGIN, _MARGIN_S)


def _unknown(check: str, subject: Subject, why: str) -> Result:
    return Result(check, Status.UNKNOWN, subject, why, "an answer in time")

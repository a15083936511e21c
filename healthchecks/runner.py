"""Runs the health checks of a job's node, and is always back in time. Decides nothing of what follows.

Import it where a wait hurts nobody: with all judges it takes tens of milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.healthchecks import children
from ftrun.healthchecks.course import Course, Taken
from ftrun.healthchecks.held_memory import HeldMemory, find_held
from ftrun.healthchecks.judging import as_configured, judge_all, without_echoes
from ftrun.healthchecks.policy import HealthPolicy, Scope, job_paths
from ftrun.healthchecks.readers import Places
from ftrun.healthchecks.reading import Lack, Missing
from ftrun.healthchecks.registry import CHECKS, Occasion, Severity, Source
from ftrun.healthchecks.result import Result, Status, as_warning, worst
from ftrun.healthchecks.snapshots import NvmlSnapshot, XidEvent
from ftrun.healthchecks.sources import Sources
from ftrun.healthchecks.thresholds import build

_OLD_XIDS_S = 7200.0
"""How far back a check by hand looks in the kernel's log (Azure's checks: two hours)."""
_MAY_BE_MENDED = "before this check; a reset since may have mended it"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What one check of a node has found."""

    results: tuple[Result, ...]
    """In the order of the registry."""
    took_s: float
    xids: tuple[XidEvent, ...] = ()
    """What the driver has reported since the check before."""

    @property
    def status(self) -> Status:
        """Of all results together."""
        return worst(self.results)

    @property
    def unhealthy(self) -> tuple[Result, ...]:
        """What the node, or a GPU of the job, should not go on with."""
        return tuple(result for result in self.results if result.status is Status.UNHEALTHY)


class Health:
    """The health of one node for one job.

    All methods but `child_pids` are for one thread at a time, which may be any. The first check is what later
    ones are compared with: `begin` says that no worker has started yet.

    Args:
        policy: what is checked, and how strictly.
        scope: what the job has of the node.
        clock: CLOCK_MONOTONIC, seconds.
        places: where the node's file systems are; for tests.
        by_hand: one check by hand: the kernel's log is read from its beginning.

    Raises:
        KeyError: the policy names a threshold that there is not.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        scope: Scope,
        clock: Callable[[], float] = time.monotonic,
        *,
        places: Places | None = None,
        by_hand: bool = False,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._thresholds = build(policy.thresholds)
        paths = job_paths(policy, scope)
        since = clock() - (_OLD_XIDS_S if by_hand else 0.0)
        self._course = Course(scope, self._thresholds, paths, since)
        self._memory_baseline: NvmlSnapshot | None = None
        self.last_taken = Taken()
        """All that the last check has read."""
        self._sources = Sources(
            policy,
            scope.node,
            paths,
            places or Places(),
            clock,
            needs_gpus=self._thresholds.gpu.expected_count is not None,
            reads_old_log=by_hand,
        )

    def begin(self, deadline_s: float) -> HealthReport:
        """The first check, before any worker uses a GPU, so that memory in use now belongs to others."""
        report = self.check(Occasion.BEFORE_ROUND, deadline_s)
        self._memory_baseline = self._course.gpu_baseline
        return report

    def check(
        self, occasion: Occasion, deadline_s: float, own_pids: frozenset[int] | None = None
    ) -> HealthReport:
        """Read and judge, within `deadline_s` + 0.2 seconds; what has not answered by then is unknown.

        Args:
            occasion: which checks run.
            deadline_s: seconds.
            own_pids: the job's processes on this node; None if they are not known, which leaves out the check
                for processes of others.
        """
        began = self._clock()
        names = self._names(occasion, own_pids is not None)
        sources = {check.source for check in CHECKS if check.name in names}
        if "gpu.xid" in names:
            sources.add(Source.HOST)  # the kernel's log
        taken = self._sources.read(sources, occasion, deadline_s)
        self.last_taken = taken
        evidence = self._course.take_in(taken, own_pids or frozenset())
        judged = judge_all(evidence, taken.sources, names)
        found = (*without_echoes(judged), *taken.external, *taken.failures)
        results = as_configured(
            (result for result in found if result.check in names), self._policy.severities
        )
        if occasion is Occasion.BY_HAND:
            results = tuple(map(_of_the_past, results))
        return HealthReport(results, self._clock() - began, taken.xids)

    def memory_holders(self, deadline_s: float = 1.0) -> tuple[HeldMemory, ...] | Missing:
        """What of the job's GPUs' memory is in use although no worker is alive, within `deadline_s` + 0.2 s.

        Empty if all is free, or if there is no driver to ask; if it cannot be told, why.
        """
        now = self._sources.held_memory(deadline_s)
        if isinstance(now.init, Missing) and now.init.lack is Lack.NOT_FOUND:
            return ()
        return find_held(now, self._memory_baseline, self._course.job(), self._thresholds.gpu_memory)

    @property
    def visible_devices(self) -> tuple[str, ...] | None:
        """UUIDs of the devices that CUDA numbers 0, 1, .. (a local rank's is its own); None if not known."""
        return self._course.visible

    @property
    def visible_gpus(self) -> tuple[str, ...] | None:
        """UUID of the GPU that each of these devices is, or is a MIG part of: whom results are about."""
        return self._course.visible_gpus

    @staticmethod
    def child_pids() -> frozenset[int]:
        """Children of health checks, stuck ones included: they belong to no round. From any thread."""
        return children.running_pids()

    def close(self) -> None:
        """End all children, within 0.2 s; what hangs in the kernel is left behind."""
        self._sources.close()

    def _names(self, occasion: Occasion, knows_pids: bool) -> frozenset[str]:
        return frozenset(
            check.name
            for check in CHECKS
            if occasion in check.occasions
            and self._policy.severities[check.name] is not Severity.OFF
            and (knows_pids or check.name != "gpu.processes")
        )


def _of_the_past(result: Result) -> Result:
    """By hand there is no job yet: nobody knows what was done about an Xid since."""
    is_old = result.check == "gpu.xid" and result.status is Status.UNHEALTHY
    return as_warning(result, _MAY_BE_MENDED) if is_old else result

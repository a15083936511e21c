"""What one job has seen of its node so far: histories, baselines, Xids, hangs. Pure.

Takes in the readings of one check after the other and gives the judges their evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from ftrun.healthchecks.evidence import Evidence, PathEvidence
from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.history import History
from ftrun.healthchecks.host_snapshots import HostSnapshot, NetworkSnapshot, PathReading
from ftrun.healthchecks.policy import JobPath, Scope
from ftrun.healthchecks.reading import Lack, Missing, Value
from ftrun.healthchecks.registry import Source
from ftrun.healthchecks.result import Result, is_known
from ftrun.healthchecks.snapshots import NvmlSnapshot, XidEvent
from ftrun.healthchecks.thresholds import Thresholds
from ftrun.healthchecks.visible_gpus import gpus_of_devices, job_uuids, visible_uuids

_GPU_WINDOW_S = 1200.0
"""The longest look back of a judge of GPUs is 15 minutes (NVLink errors)."""
_NETWORK_WINDOW_S = 3600.0
"""Symbol errors are counted over an hour."""
_HOST_WINDOW_S = 900.0
"""A process is called stuck after five minutes in three readings."""
_PATH_WINDOW_S = 1800.0
_MOST_XIDS = 100
"""Of one number and GPU: a storm of one must not push out the others."""
_HANGS_FORGOTTEN_S = 3600.0
"""A driver that has answered for an hour since it hung gets another chance."""
_SAME_HANG_S = 10.0
"""One child that hangs is found by every reading; those of one moment are one hang."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one check has read; None, or nothing, of a source that was not asked or gave no answer."""

    gpu: NvmlSnapshot | None = None
    network: NetworkSnapshot | None = None
    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    host: HostSnapshot | None = None
    kernel_xids: tuple[XidEvent, ...] = ()
    has_kernel_log: bool = False
    paths: tuple[PathReading, ...] = ()
    external: tuple[Result, ...] = ()
    failures: tuple[Result, ...] = ()
    """Unknown ones, of the sources that gave no answer."""

    @property
    def sources(self) -> frozenset[Source]:
        """Those that have given a reading to judge."""
        given = {
            Source.GPU: self.gpu is not None,
            Source.NETWORK: self.network is not None,
            Source.HOST: self.host is not None,
            Source.PATH: bool(self.paths),
        }
        return frozenset(source for source, is_given in given.items() if is_given)

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """From the driver and from the kernel's log."""
        return (*(self.gpu.xids if self.gpu is not None else ()), *self.kernel_xids)


class Course:
    """The readings of a job, in their order.

    Args:
        scope: what the job has of the node.
        thresholds: for the judges.
        paths: the job's paths.
        since: CLOCK_MONOTONIC, seconds: Xids before this are older than the job.
    """

    def __init__(self, scope: Scope, thresholds: Thresholds, paths: Sequence[JobPath], since: float) -> None:
        self._scope = scope
        self._thresholds = thresholds
        self._since = since
        self._xids: dict[tuple[int, str], deque[XidEvent]] = {}
        self._has_kernel_log = False
        self._hung_at: list[float] = []
        self._visible: tuple[str, ...] | None = None
        self._gpu_of: dict[str, str] = {}
        self._gpu = History[NvmlSnapshot](_GPU_WINDOW_S)
        self._network = History[NetworkSnapshot](_NETWORK_WINDOW_S)
        self._host = History[HostSnapshot](_HOST_WINDOW_S)
        self._paths = {path.path: (History[PathReading](_PATH_WINDOW_S), path.is_needed) for path in paths}

    @property
    def gpu_baseline(self) -> NvmlSnapshot | None:
        """The first reading of the GPUs."""
        return self._gpu.baseline

    @property
    def visible(self) -> tuple[str, ...] | None:
        """UUIDs of the devices that CUDA numbers 0, 1, ..; None as long as that is not known."""
        return self._visible

    @property
    def visible_gpus(self) -> tuple[str, ...] | None:
        """UUID of the GPU that each of these devices is, or is a MIG part of."""
        return None if self._visible is None else tuple(self._gpu_of.get(one, one) for one in self._visible)

    def job(self, own_pids: frozenset[int] = frozenset()) -> JobGpus:
        """The job's GPUs, as far as they are known now."""
        scope = self._scope
        if self._visible is None and scope.visible_devices is not None:
            # "" and "-1" are how CUDA is told to see none; no driver is needed to know that.
            first = scope.visible_devices.partition(",")[0].strip()
            if not first.isdecimal() and not first.startswith(("GPU-", "MIG-")):
                return JobGpus(scope.node, frozenset(), own_pids)
        uuids, ranks_per_gpu = job_uuids(self._visible, scope.local_world_size)
        return JobGpus(scope.node, uuids, own_pids, ranks_per_gpu)

    def take_in(self, taken: Taken, own_pids: frozenset[int] = frozenset()) -> Evidence:
        """Remember a check's readings; what the judges get to see of them, baselines of before included."""
        for xid in taken.xids:
            key = (xid.xid, xid.uuid or xid.pci_address)
            self._xids.setdefault(key, deque(maxlen=_MOST_XIDS)).append(xid)
        self._has_kernel_log |= taken.has_kernel_log
        baselines = self._gpu.baseline, self._network.baseline, self._host.baseline
        before = {path: series.baseline for path, (series, _) in self._paths.items()}
        earlier_hangs = self._take_gpu(taken.gpu)
        if taken.network is not None:
            self._network.add(taken.network)
        if taken.host is not None:
            self._host.add(taken.host)
        for reading in taken.paths:
            self._paths[reading.path][0].add(reading)
        has_gpus = taken.gpu is not None and isinstance(taken.gpu.init, Value)
        return Evidence(
            node=self._scope.node,
            job=self.job(own_pids),
            thresholds=self._thresholds,
            gpu=self._gpu.recent if has_gpus or taken.gpu is None else (*self._gpu.recent, taken.gpu),
            gpu_baseline=baselines[0],
            earlier_hangs=earlier_hangs,
            xids=tuple(chain.from_iterable(self._xids.values())),
            xids_since=self._since,
            has_kernel_log=self._has_kernel_log,
            network=self._network.recent,
            network_baseline=baselines[1],
            chains=taken.chains,
            job_interfaces=self._scope.interfaces,
            host=self._host.recent,
            host_baseline=baselines[2],
            paths=tuple(
                PathEvidence(series.recent, before[path], needed, path in {r.path for r in taken.paths})
                for path, (series, needed) in self._paths.items()
            ),
        )

    def _take_gpu(self, now: NvmlSnapshot | None) -> int:
        """Hangs before this reading."""
        if now is None:
            return 0
        if isinstance(now.init, Missing):
            return self._count_hangs(now) if now.init.lack is Lack.TIMEOUT else 0
        self._gpu.add(now)
        self._gpu_of |= gpus_of_devices(now)
        if self._visible is None or not all(map(is_known, self._visible)):
            scope = self._scope
            self._visible = visible_uuids(scope.visible_devices, scope.device_order, now)
        return 0

    def _count_hangs(self, now: NvmlSnapshot) -> int:
        recent = [at for at in self._hung_at if now.taken_at - at < _HANGS_FORGOTTEN_S]
        if not recent or now.taken_at - recent[-1] >= _SAME_HANG_S:
            recent.append(now.taken_at)
        self._hung_at = recent
        return len(recent) - 1

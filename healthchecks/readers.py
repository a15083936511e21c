"""What each lane of the health checks reads, and how it keeps what it reads with. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ftrun.healthchecks.host_snapshots import HostSnapshot, NetworkSnapshot
from ftrun.healthchecks.kmsg import KernelLog
from ftrun.healthchecks.nic_counters import NAMES
from ftrun.healthchecks.probe_client import Probe
from ftrun.healthchecks.probe_client import Scope as ProbeScope
from ftrun.healthchecks.reading import Lack, Missing
from ftrun.healthchecks.snapshots import NvmlSnapshot, XidEvent
from ftrun.healthchecks.sysfs import NetworkReader
from ftrun.healthchecks.system import HostReader

PROBE_LIFE_S = 3600.0
"""A probe that lives for ever keeps others from resetting a GPU, and does not see that its container has lost
the devices."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the node's file systems are; other places are for tests."""

    root: str = "/"
    """As the probe sees it."""
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    shm: Path = Path("/dev/shm")
    kernel_log: str = "/dev/kmsg"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What is asked of NVML."""

    deadline_s: float
    scope: ProbeScope
    may_renew: bool = False
    """An old probe may be replaced before it is asked: nobody waits for the answer."""


class GpuReader:
    """Asks NVML through one probe, which is kept warm where there is a GPU."""

    def __init__(self, places: Places, is_needed: bool) -> None:
        """
        Args:
            places: where to look.
            is_needed: GPUs are expected, so a missing driver may still come.
        """
        self._probe = Probe(places.root)
        self._is_needed = is_needed
        self._absent: NvmlSnapshot | None = None
        self._started_at = time.monotonic()

    def read(self, request: GpuRequest) -> NvmlSnapshot:
        """A reading, or why there is none. Where there is no driver, nobody is asked a second time."""
        if self._absent is not None:
            return self._absent
        if request.may_renew and time.monotonic() - self._started_at > PROBE_LIFE_S:
            self.close()
        if self._probe.pid is None:
            self._started_at = time.monotonic()
        snapshot = self._probe.ask(request.deadline_s, request.scope)
        if isinstance(snapshot.init, Missing):
            if snapshot.init.lack is Lack.NOT_FOUND and not self._is_needed:
                self._absent = snapshot
                self.close()
        elif snapshot.gpus:
            self._is_needed = True
        return snapshot

    def close(self) -> None:
        """End the probe."""
        self._probe.close()


@dataclass(frozen=True, slots=True)
class NetworkReading:
    """What sysfs says of the network, and where it is not to be believed."""

    snapshot: NetworkSnapshot
    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Places on the PCI bus, of the topology file."""
    problem: str = ""
    """Why the topology file is of no use."""


def network_reader(
    places: Places, topology_file: str, clock: Callable[[], float]
) -> Callable[[float], NetworkReading]:
    """Reads NICs again and again; the topology file once."""
    reader = NetworkReader(NAMES, places.sysfs, places.proc)
    topology: list[tuple[dict[str, tuple[str, ...]], str]] = []

    def read(_: float) -> NetworkReading:
        if not topology:
            topology.append(_read_topology(topology_file))
        return NetworkReading(reader.read(clock()), *topology[0])

    return read


def _read_topology(path: str) -> tuple[dict[str, tuple[str, ...]], str]:
    if not path:
        return {}, ""
    # XML takes longer to import than the file to read, and few need it.
    from ftrun.healthchecks.topology_file import read_chains

    try:
        return read_chains(Path(path).read_text(encoding="utf-8")), ""
    except (OSError, ValueError) as error:
        return {}, f"{path}: {error}"


@dataclass(frozen=True, slots=True)
class HostReading:
    """What the kernel says of the node."""

    snapshot: HostSnapshot
    xids: tuple[XidEvent, ...] = ()
    """Of the kernel's log, since the reading before."""
    has_kernel_log: bool = False


def host_reader(
    places: Places, clock: Callable[[], float], reads_old_log: bool
) -> Callable[[float], HostReading]:
    """Reads the node again and again, and its kernel log from now on, or from what it holds on."""
    reader = HostReader(places.proc, places.sysfs, places.shm, clock)
    log = KernelLog(places.kernel_log, reads_old_log)
    begun_at = clock()

    def read(_: float) -> HostReading:
        xids = log.read(clock())
        if not reads_old_log:
            # The log's clock lags behind the monotonic one by seconds after weeks.
            xids = tuple(replace(xid, seen_at=max(xid.seen_at, begun_at)) for xid in xids)
        return HostReading(reader.read(), xids, log.is_readable)

    return read

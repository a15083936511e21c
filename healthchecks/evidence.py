"""What the judges of one check are given: readings of all sources, as they are now and were before. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ftrun.healthchecks.affinity import Affinity, place_nics
from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.host_snapshots import HostSnapshot, NetworkSnapshot, PathReading, PciDevice
from ftrun.healthchecks.reading import value_of
from ftrun.healthchecks.snapshots import NvmlSnapshot, XidEvent
from ftrun.healthchecks.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class PathEvidence:
    """Readings of one path."""

    recent: tuple[PathReading, ...]
    """Oldest first."""
    baseline: PathReading | None
    is_needed: bool
    """The job cannot go on without it; False for logs, whose loss is worth a warning."""
    is_fresh: bool = True
    """The last reading is of this check."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Readings oldest first, the last one is now; a source that was not asked or gave nothing has none.

    A baseline is as it was when the job began; None if the newest reading is the first.
    """

    node: str
    job: JobGpus
    thresholds: Thresholds
    gpu: tuple[NvmlSnapshot, ...] = ()
    """May end with a snapshot that says why there is none."""
    gpu_baseline: NvmlSnapshot | None = None
    earlier_hangs: int = 0
    """Readings of the GPUs before this one that had no answer."""
    xids: tuple[XidEvent, ...] = ()
    """Of the whole job."""
    xids_since: float = 0.0
    """CLOCK_MONOTONIC, seconds: the job's begin."""
    has_kernel_log: bool = False
    network: tuple[NetworkSnapshot, ...] = ()
    network_baseline: NetworkSnapshot | None = None
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Places on the PCI bus that override sysfs."""
    job_interfaces: tuple[str, ...] = ()
    host: tuple[HostSnapshot, ...] = ()
    host_baseline: HostSnapshot | None = None
    paths: tuple[PathEvidence, ...] = ()

    @property
    def uses_rdma(self) -> bool:
        """The node has RDMA devices."""
        return bool(self.network and self.network[-1].nics)

    def affinity(self) -> Affinity:
        """Which NICs serve the job's GPUs, as they were when the job began."""
        network = self.network_baseline or self.network[-1]
        devices = {device.address: device for device in network.gpus}
        return place_nics(self._gpu_places(devices), network, self.chains)

    def _gpu_places(self, devices: Mapping[str, PciDevice]) -> dict[str, PciDevice | None]:
        """The job's GPUs by PCI address; all that sysfs shows if NVML does not tell which those are."""
        known = self.gpu_baseline or (self.gpu[-1] if self.gpu else None)
        if known is None or not known.gpus:
            return {} if self.job.uuids == frozenset() else dict(devices)
        places: dict[str, PciDevice | None] = {}
        for gpu in known.gpus:
            address = value_of(gpu.pci_address)
            names = {value_of(gpu.uuid), *(device.uuid for device in value_of(gpu.mig_devices) or ())}
            if address is not None and (self.job.uuids is None or names & self.job.uuids):
                places[address] = devices.get(address)
        return places

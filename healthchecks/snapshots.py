"""What NVML and the driver said at one moment: frozen readings, nothing judged. Pure.

`ftrun.healthchecks.reading.to_json` and `from_json` carry an `NvmlSnapshot` from the probe to the agent.
Numbers are NVML's own, whose meaning is in nvml.h; constants that judges compare with are beside the judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ftrun.healthchecks.reading import NOT_READ, Missing, Reading, Value


@dataclass(frozen=True, slots=True)
class Mode:
    """A setting that takes effect later (ECC, MIG)."""

    is_on: bool
    is_on_pending: bool
    """After the next reset or reboot."""


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """nvmlDeviceGetRemappedRows."""

    correctable: int
    uncorrectable: int
    is_pending: bool
    has_failed: bool


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """nvmlDeviceGetRetiredPages, by cause (before Ampere)."""

    single_bit: int
    double_bit: int
    is_pending: bool


@dataclass(frozen=True, slots=True)
class RepairPending:
    """nvmlDeviceGetRepairStatus."""

    channel: bool
    tpc: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """nvmlDeviceGetMemoryInfo."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None
    """What the driver keeps; None if it is part of `used_bytes` (version 1 of the call)."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has a context on the GPU."""

    pid: int
    """In the host's namespace, whatever namespace the reader is in."""
    kind: Literal["compute", "graphics", "mps"]
    used_bytes: int | None
    """None where the driver does not say."""
    command: str = ""
    """From /proc; "" if no such process is visible here: it is dead, or this reader is not in the initial pid
    namespace, where the same number may be another process's."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG compute instance of the GPU."""

    uuid: str
    """ "MIG-" and 36 characters."""
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Fabric:
    """nvmlDeviceGetGpuFabricInfo(V)."""

    state: int
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: int
    """nvmlReturn_t of the registration; meaningful when completed."""
    health_mask: int | None = None
    """None before version 2 of the call."""
    summary: int | None = None
    """0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity; None before version 3."""
    cluster_uuid: str = ""
    clique: int = 0


@dataclass(frozen=True, slots=True)
class NvLink:
    """One link of one GPU. The list of a GPU ends before the first link that NVML does not know.

    Counters grow from the load of the driver on. Links up to version 4 have `replays`, `recoveries` and
    `crc_errors`, version 5 has the others; what a link does not have is NOT_SUPPORTED.
    """

    number: int
    is_active: Reading[bool] = NOT_READ
    remote: Reading[str] = NOT_READ
    """PCI address of the other end; "" if NVML knows none (no bridge)."""
    speed_mbps: Reading[int] = NOT_READ
    """Field 164, MB/s."""
    replays: Reading[int] = NOT_READ
    """Field 161."""
    recoveries: Reading[int] = NOT_READ
    """Field 162."""
    crc_errors: Reading[int] = NOT_READ
    """Field 163."""
    malformed_packets: Reading[int] = NOT_READ
    """Field 206."""
    buffer_overruns: Reading[int] = NOT_READ
    """Field 207."""
    receive_errors: Reading[int] = NOT_READ
    """Field 208."""
    integrity_errors: Reading[int] = NOT_READ
    """Field 211."""
    failed_recoveries: Reading[int] = NOT_READ
    """Field 214."""
    recovery_events: Reading[int] = NOT_READ
    """Field 215."""
    effective_errors: Reading[int] = NOT_READ
    """Field 219."""
    symbol_errors: Reading[int] = NOT_READ
    """Field 221."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU (per NVML index). MIG instances are no GPUs of their own."""

    index: int
    handle: Reading[bool] = NOT_READ
    """True if NVML gives a handle for the index; 15 and 999 there are GPU_LOST."""
    uuid: Reading[str] = NOT_READ
    """ "GPU-" and 36 characters."""
    pci_address: Reading[str] = NOT_READ
    """Name of the device in sysfs: "0000:3b:00.0"."""
    pci_vendor: Reading[int] = NOT_READ
    """From sysfs, first word of the device's `config` file: 0x10de; 0xffff if it answers no more."""
    name: Reading[str] = NOT_READ
    serial: Reading[str] = NOT_READ
    minor: Reading[int] = NOT_READ
    """N of /dev/nvidiaN."""
    virtualization: Reading[int] = NOT_READ
    """0 none, 1 passthrough, 2 vGPU, 3 host vGPU, 4 host vSGA."""
    performance_state: Reading[int] = NOT_READ
    """0 is the fastest (P0)."""
    is_persistent: Reading[bool] = NOT_READ
    """Persistence mode."""
    compute_mode: Reading[int] = NOT_READ
    """0 default, 2 prohibited, 3 exclusive process."""
    mig: Reading[Mode] = NOT_READ
    mig_devices: Reading[tuple[MigDevice, ...]] = NOT_READ
    """Empty when MIG is off."""

    recovery_action: Reading[int] = NOT_READ
    """Field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, .. (driver 570)."""
    inforom_valid: Reading[bool] = NOT_READ
    """nvmlDeviceValidateInforom; False for 14 CORRUPTED_INFOROM. Slow (10 to 100 ms): may stay unread."""
    ecc: Reading[Mode] = NOT_READ
    ecc_uncorrected_volatile: Reading[int] = NOT_READ
    """Since the driver was loaded."""
    ecc_uncorrected_aggregate: Reading[int] = NOT_READ
    """Over the life of the board."""
    ecc_corrected_volatile: Reading[int] = NOT_READ
    is_sram_threshold_exceeded: Reading[bool] = NOT_READ
    remapped_rows: Reading[RemappedRows] = NOT_READ
    retired_pages: Reading[RetiredPages] = NOT_READ
    is_memory_unrepairable: Reading[bool] = NOT_READ
    repair_pending: Reading[RepairPending] = NOT_READ

    clocks_event_reasons: Reading[int] = NOT_READ
    """Bits of nvmlClocksEventReasons: why the clocks are lower than asked."""
    temperature_c: Reading[int] = NOT_READ
    temperature_slowdown_c: Reading[int] = NOT_READ
    """Threshold 1; 0 is unknown."""
    temperature_max_c: Reading[int] = NOT_READ
    """Threshold 3 (GPU_MAX); 0 is unknown."""
    memory_temperature_c: Reading[int] = NOT_READ
    """Field 82; 0 is unknown."""
    memory_temperature_max_c: Reading[int] = NOT_READ
    """Threshold 2 (MEM_MAX); 0 is unknown."""
    temperature_margin_c: Reading[int] = NOT_READ
    """Distance to the slowdown; H100 and older give 0 or less without meaning it."""

    pcie_width: Reading[int] = NOT_READ
    pcie_width_max: Reading[int] = NOT_READ
    pcie_generation: Reading[int] = NOT_READ
    pcie_generation_max: Reading[int] = NOT_READ
    """Of the GPU and its slot together (nvmlDeviceGetMaxPcieLinkGeneration)."""
    pcie_replays: Reading[int] = NOT_READ
    """Counter since the driver was loaded."""

    memory: Reading[Memory] = NOT_READ
    processes: Reading[tuple[GpuProcess, ...]] = NOT_READ
    """Compute, graphics and MPS."""
    fabric: Reading[Fabric] = NOT_READ
    nvlinks: Reading[tuple[NvLink, ...]] = NOT_READ
    """Empty if this GPU has none."""


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """nvmlDeviceGetP2PStatus for NVLink (caps index 2), per pair of GPUs of this node."""

    index_a: int
    index_b: int
    status: Reading[int]
    """0 is ok."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An error that the driver reported for a GPU."""

    xid: int
    uuid: str
    """Of the physical GPU; "" if the source names it by PCI address only."""
    pci_address: str
    """ "0000:3b:00.0"; "" if unknown."""
    seen_at: float
    """CLOCK_MONOTONIC of this node, seconds: when NVML gave the event, or the kernel's own stamp."""
    source: Literal["nvml", "kernel"] = "nvml"
    gpu_instance: int | None = None
    """MIG; None for the whole device."""
    compute_instance: int | None = None
    pid: int | None = None
    """The process that the kernel names (host's namespace)."""
    process_name: str = ""
    detail: str = ""
    """The rest of the kernel's line."""


@dataclass(frozen=True, slots=True)
class NvmlSnapshot:
    """One reading of a node's GPUs."""

    taken_at: float
    """CLOCK_MONOTONIC of this node, seconds, when the reading began."""
    init: Reading[bool]
    """True, or why nvmlInit failed: NOT_FOUND if there is no library (12) or no driver (9), TIMEOUT if there
    was no answer, else ERROR."""
    device_files: Reading[int] = NOT_READ
    """How many of /dev/nvidia* (nvidiactl, nvidia0, ..) can be opened; NO_PERMISSION if one refuses with
    EPERM or EACCES, NOT_FOUND if there is none."""
    driver_version: Reading[str] = NOT_READ
    """ "570.148.08"."""
    nvml_version: Reading[str] = NOT_READ
    cuda_version: Reading[int] = NOT_READ
    """Of the driver: 12080 is 12.8."""
    device_count: Reading[int] = NOT_READ
    gpus: tuple[Gpu, ...] = ()
    """One for each index below `device_count`, also for those that give no handle."""
    peers: tuple[PeerAccess, ...] = ()
    """All pairs once, index_a < index_b."""
    events: Reading[bool] = NOT_READ
    """True while Xid events are registered for at least one GPU; else why not."""
    xids: tuple[XidEvent, ...] = ()
    """Events since the reading before this one, oldest first."""


def failed_snapshot(taken_at: float, why: Missing) -> NvmlSnapshot:
    """The snapshot of a probe that gave none."""
    return NvmlSnapshot(taken_at, why)


def gpu_by_index(snapshot: NvmlSnapshot, index: int) -> Gpu | None:
    """The GPU that NVML numbers so."""
    return next((gpu for gpu in snapshot.gpus if gpu.index == index), None)


def gpu_by_uuid(snapshot: NvmlSnapshot, uuid: str) -> Gpu | None:
    """The GPU with that UUID, if it can still say so."""
    return next((gpu for gpu in snapshot.gpus if gpu.uuid == Value(uuid)), None)

"""Builders of NVML snapshots: a healthy node of H100 GPUs, with what a test changes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.reading import Lack, Missing, Reading, Value
from ftrun.healthchecks.result import Result, Status
from ftrun.healthchecks.snapshots import (
    Fabric,
    Gpu,
    Memory,
    Mode,
    NvLink,
    NvmlSnapshot,
    PeerAccess,
    RemappedRows,
    RepairPending,
)

GIB = 1 << 30
NOT_SUPPORTED = Missing(Lack.NOT_SUPPORTED, "Not Supported", 3)
NO_PERMISSION = Missing(Lack.NO_PERMISSION, "Insufficient Permissions", 4)
NO_FUNCTION = Missing(Lack.NOT_FOUND, "Function Not Found", 13)
LOST = Missing(Lack.GPU_LOST, "GPU is lost", 15)
RESET = Missing(Lack.RESET_REQUIRED, "GPU requires reset", 16)
ERROR = Missing(Lack.ERROR, "Unknown Error", 999)
HANGS = Missing(Lack.TIMEOUT, "no answer within 10 s")
JOB = JobGpus("n0")


def uuid(index: int) -> str:
    """UUID of the GPU that the builders give this index."""
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


def link(number: int, is_active: Reading[bool] | bool = True, /, **counters: Reading[int]) -> NvLink:
    """A link of version 4."""
    state = Value(is_active) if isinstance(is_active, bool) else is_active
    remote = "0000:c4:00.0" if state == Value(True) else ""
    usual: dict[str, Reading[int]] = {"replays": Value(0), "recoveries": Value(0), "crc_errors": Value(0)}
    newer = (
        *("malformed_packets", "buffer_overruns", "receive_errors", "integrity_errors"),
        *("failed_recoveries", "recovery_events", "effective_errors", "symbol_errors"),
    )
    readings = dict.fromkeys(newer, NOT_SUPPORTED) | usual | counters
    return NvLink(number, state, Value(remote), Value(26562), **readings)


def links(count: int = 18, down: Iterable[int] = ()) -> Value[tuple[NvLink, ...]]:
    """The links of one GPU, active but for those that are down."""
    return Value(tuple(link(number, number not in set(down)) for number in range(count)))


def gpu(index: int = 0, /, **changes: object) -> Gpu:
    """A healthy GPU."""
    healthy = Gpu(
        index,
        handle=Value(True),
        uuid=Value(uuid(index)),
        pci_address=Value(f"0000:{0x3B + index:02x}:00.0"),
        pci_vendor=Value(0x10DE),
        name=Value("NVIDIA H100 80GB HBM3"),
        serial=Value(f"16{index}"),
        minor=Value(index),
        virtualization=Value(0),
        performance_state=Value(0),
        is_persistent=Value(True),
        compute_mode=Value(0),
        mig=Value(Mode(False, False)),
        mig_devices=Value(()),
        recovery_action=Value(0),
        inforom_valid=Value(True),
        ecc=Value(Mode(True, True)),
        ecc_uncorrected_volatile=Value(0),
        ecc_uncorrected_aggregate=Value(0),
        ecc_corrected_volatile=Value(0),
        is_sram_threshold_exceeded=Value(False),
        remapped_rows=Value(RemappedRows(0, 0, False, False)),
        retired_pages=NOT_SUPPORTED,
        is_memory_unrepairable=Value(False),
        repair_pending=Value(RepairPending(False, False)),
        clocks_event_reasons=Value(0),
        temperature_c=Value(60),
        temperature_slowdown_c=Value(90),
        temperature_max_c=Value(87),
        memory_temperature_c=Value(70),
        memory_temperature_max_c=Value(95),
        temperature_margin_c=Value(0),
        pcie_width=Value(16),
        pcie_width_max=Value(16),
        pcie_generation=Value(5),
        pcie_generation_max=Value(5),
        pcie_replays=Value(0),
        memory=Value(Memory(80 * GIB, 0, GIB // 2)),
        processes=Value(()),
        fabric=Value(Fabric(3, 0, 0, 1)),
        nvlinks=links(),
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def node(*gpus: Gpu, at: float = 100.0, **changes: object) -> NvmlSnapshot:
    """A reading of a node with these GPUs, all of which reach each other; two healthy ones by default."""
    given = gpus or (gpu(0), gpu(1))
    indices = sorted(one.index for one in given)
    healthy = NvmlSnapshot(
        at,
        Value(True),
        device_files=Value(len(given) + 1),
        driver_version=Value("570.148.08"),
        nvml_version=Value("12.570.148.08"),
        cuda_version=Value(12080),
        device_count=Value(len(given)),
        gpus=given,
        peers=tuple(PeerAccess(a, b, Value(0)) for a in indices for b in indices if a < b),
        events=Value(True),
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def statuses(results: Iterable[Result]) -> list[Status]:
    """What each result says."""
    return [result.status for result in results]

"""What NVML says of one GPU, as the document of a `ftrun.healthchecks.snapshots.Gpu`. Judges nothing.

Part of the probe, see `ftrun.healthchecks.nvml`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias, cast

from ftrun.healthchecks.nvml import (
    CORRUPTED_INFOROM,
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNKNOWN,
    Device,
    Nvml,
    Refusal,
    is_too_new,
    member,
    pci_address,
    refusal_of_file,
)
from ftrun.healthchecks.nvml_links import fabric, nvlinks

if TYPE_CHECKING:
    from ftrun.healthchecks.nvml import Document
    from ftrun.healthchecks.reading import Json

    Read: TypeAlias = Callable[[Device], Json]

_RECOVERY_ACTION, _MEMORY_TEMPERATURE = 230, 82
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, to which there is no other way, and NVML_FI_DEV_MEMORY_TEMP."""
_MEMORY_V2 = 0x02000028
"""nvmlMemory_v2: version and size of the structure whose `used` leaves out what the driver keeps."""

_HOST_PIDS = "pid:[4026531836]"
"""The initial pid namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h), whose pids NVML gives."""


def read_gpu(nvml: Nvml, index: int, scope: str, root: str) -> tuple[Document, Device | None]:
    """The GPU that NVML numbers so, and the device to ask more if it is there.

    A GPU that is found to be lost is asked no more: each further call may take seconds.

    Args:
        nvml: has been started.
        index: below the device count.
        scope: one of `ftrun.healthchecks.probe.SCOPES`.
        root: where the node's file system is, "/" as a rule.
    """
    nvml.subject = f"GPU {index}"
    try:
        device = Device(nvml, nvml.ask("nvmlDeviceGetHandleByIndex", index), root)
    except Refusal as refusal:
        if refusal.code == UNKNOWN:  # "Unable to determine the device handle": off the bus
            refusal.lack = "gpu_lost"
        return {"index": index, "handle": refusal.document()}, None
    gpu: Document = {"index": index, "handle": True}
    for field, read in _readers(scope).items():
        try:
            gpu[field] = read(device)
        except Refusal as refusal:
            gpu[field] = refusal.document()
            if refusal.lack == "gpu_lost":
                return gpu, None
    return gpu, device


def _readers(scope: str) -> dict[str, Read]:
    if scope == "addresses":
        return _ADDRESSES
    if scope == "memory":
        return _ADDRESSES | _MEMORY
    return _ADDRESSES | _USUAL | _SLOW if scope == "thorough" else _ADDRESSES | _USUAL


def _number(name: str, *arguments: object) -> Read:
    return lambda device: device.number(name, *arguments)


def _flag(name: str) -> Read:
    return lambda device: device.number(name) != 0


def _text(name: str) -> Read:
    return lambda device: device.text(name)


def _field(number: int) -> Read:
    return lambda device: device.fields((number,))[0]


def _mode(name: str) -> Read:
    def read(device: Device) -> Json:
        current, pending = device.numbers(name)
        return {"is_on": current == 1, "is_on_pending": pending == 1}

    return read


def _pci_address(device: Device) -> Json:
    return pci_address(device.ask("nvmlDeviceGetPciInfo"))


def _pci_vendor(device: Device) -> Json:
    """First word of the PCI configuration space: all ones when the device does not answer."""
    address = pci_address(device.ask("nvmlDeviceGetPciInfo"))
    path = os.path.join(device.root, "sys/bus/pci/devices", address, "config")
    device.nvml.trace(path)
    try:
        with open(path, "rb") as file:
            return int.from_bytes(file.read(2), "little")
    except OSError as error:
        raise refusal_of_file(error) from None


def _mig_devices(device: Device) -> Json:
    current, _ = device.numbers("nvmlDeviceGetMigMode")
    found: list[Json] = []
    for index in range(device.number("nvmlDeviceGetMaxMigDeviceCount") if current == 1 else 0):
        try:
            handle = device.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
        except Refusal as refusal:
            if refusal.code not in (NOT_FOUND, INVALID_ARGUMENT):
                raise
            continue  # numbers may have gaps
        instance = Device(device.nvml, handle, device.root)
        document: Document = {"uuid": instance.text("nvmlDeviceGetUUID")}
        document["gpu_instance"] = instance.number("nvmlDeviceGetGpuInstanceId")
        document["compute_instance"] = instance.number("nvmlDeviceGetComputeInstanceId")
        found.append(document)
    return found


def _sram_threshold(device: Device) -> Json:
    status = device.structure("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus")
    return member(status, "bThresholdExceeded") != 0


def _remapped_rows(device: Device) -> Json:
    correctable, uncorrectable, pending, failed = device.numbers("nvmlDeviceGetRemappedRows")
    return {
        "correctable": correctable,
        "uncorrectable": uncorrectable,
        "is_pending": pending != 0,
        "has_failed": failed != 0,
    }


def _retired_pages(device: Device) -> Json:
    single, double = (len(device.numbers("nvmlDeviceGetRetiredPages", cause)) for cause in (0, 1))
    pending = device.number("nvmlDeviceGetRetiredPagesPendingStatus")
    return {"single_bit": single, "double_bit": double, "is_pending": pending != 0}


def _repair_pending(device: Device) -> Json:
    channel, tpc = device.numbers("nvmlDeviceGetRepairStatus")
    return {"channel": channel != 0, "tpc": tpc != 0}


def _inforom_valid(device: Device) -> Json:
    try:
        device.ask("nvmlDeviceValidateInforom")
    except Refusal as refusal:
        if refusal.code != CORRUPTED_INFOROM:
            raise
        return False
    return True


def _clocks_event_reasons(device: Device) -> Json:
    try:
        return device.number("nvmlDeviceGetCurrentClocksEventReasons")
    except Refusal as refusal:
        if not is_too_new(refusal):
            raise
    return device.number("nvmlDeviceGetCurrentClocksThrottleReasons")


def _memory(device: Device) -> Json:
    reserved = None
    try:
        memory = device.ask("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
        reserved = member(memory, "reserved")
    except Refusal as refusal:
        if not is_too_new(refusal):
            raise
        memory = device.ask("nvmlDeviceGetMemoryInfo")
    return {
        "total_bytes": member(memory, "total"),
        "used_bytes": member(memory, "used"),
        "reserved_bytes": reserved,
    }


def _processes(device: Device) -> Json:
    """Compute processes; graphics and MPS ones too where the driver tells them. Each pid once."""
    found: dict[int, Json] = {}
    for kind, call in (("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute")):
        try:
            # The unversioned functions hide a missing one behind an exception that is no NVMLError.
            processes = device.ask(f"nvmlDeviceGet{call}RunningProcesses_v3")
        except Refusal as refusal:
            if kind == "compute" or refusal.lack == "gpu_lost":
                raise
            continue
        for process in cast("Iterable[object]", processes):
            pid, used = member(process, "pid"), getattr(process, "usedGpuMemory", None)
            command = _command(device.root, pid)
            found.setdefault(pid, {"pid": pid, "kind": kind, "used_bytes": used, "command": command})
    return list(found.values())


def _command(root: str, pid: int) -> str:
    """Executable and first argument: enough to recognise it, too little to leak a secret option."""
    try:
        if root == "/" and os.readlink("/proc/self/ns/pid") != _HOST_PIDS:
            return ""  # the number that NVML says may be another process's here
        with open(os.path.join(root, f"proc/{pid}/cmdline"), "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return ""
    return b" ".join(word for word in words[:2] if word).decode(errors="replace")


_ADDRESSES: dict[str, Read] = {"uuid": _text("nvmlDeviceGetUUID"), "pci_address": _pci_address}
_MEMORY: dict[str, Read] = {"memory": _memory, "processes": _processes}
_USUAL: dict[str, Read] = {
    "pci_vendor": _pci_vendor,
    "name": _text("nvmlDeviceGetName"),
    "serial": _text("nvmlDeviceGetSerial"),
    "minor": _number("nvmlDeviceGetMinorNumber"),
    "virtualization": _number("nvmlDeviceGetVirtualizationMode"),
    "performance_state": _number("nvmlDeviceGetPerformanceState"),
    "is_persistent": _flag("nvmlDeviceGetPersistenceMode"),
    "compute_mode": _number("nvmlDeviceGetComputeMode"),
    "mig": _mode("nvmlDeviceGetMigMode"),
    "mig_devices": _mig_devices,
    "recovery_action": _field(_RECOVERY_ACTION),
    "ecc": _mode("nvmlDeviceGetEccMode"),
    "ecc_uncorrected_volatile": _number("nvmlDeviceGetTotalEccErrors", 1, 0),
    "ecc_uncorrected_aggregate": _number("nvmlDeviceGetTotalEccErrors", 1, 1),
    "ecc_corrected_volatile": _number("nvmlDeviceGetTotalEccErrors", 0, 0),
    "is_sram_threshold_exceeded": _sram_threshold,
    "remapped_rows": _remapped_rows,
    "retired_pages": _retired_pages,
    "is_memory_unrepairable": _flag("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    "repair_pending": _repair_pending,
    "clocks_event_reasons": _clocks_event_reasons,
    "temperature_c": _number("nvmlDeviceGetTemperature", 0),
    "temperature_slowdown_c": _number("nvmlDeviceGetTemperatureThreshold", 1),
    "temperature_max_c": _number("nvmlDeviceGetTemperatureThreshold", 3),
    "memory_temperature_c": _field(_MEMORY_TEMPERATURE),
    "memory_temperature_max_c": _number("nvmlDeviceGetTemperatureThreshold", 2),
    "temperature_margin_c": _number("nvmlDeviceGetMarginTemperature"),
    "pcie_width": _number("nvmlDeviceGetCurrPcieLinkWidth"),
    "pcie_width_max": _number("nvmlDeviceGetMaxPcieLinkWidth"),
    "pcie_generation": _number("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_generation_max": _number("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_replays": _number("nvmlDeviceGetPcieReplayCounter"),
    **_MEMORY,
    "fabric": fabric,
    "nvlinks": nvlinks,
}
_SLOW: dict[str, Read] = {"inforom_valid": _inforom_valid}

"""What NVML says of a GPU's NVLinks and of the fabric behind them. Judges nothing.

Part of the probe, see `ftrun.healthchecks.nvml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.healthchecks.nvml import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    Device,
    Refusal,
    is_too_new,
    member,
    pci_address,
)

if TYPE_CHECKING:
    from ftrun.healthchecks.nvml import Document
    from ftrun.healthchecks.reading import Json

_FIELDS = {
    "speed_mbps": 164,
    "replays": 161,
    "recoveries": 162,
    "crc_errors": 163,
    "malformed_packets": 206,
    "buffer_overruns": 207,
    "receive_errors": 208,
    "integrity_errors": 211,
    "failed_recoveries": 214,
    "recovery_events": 215,
    "effective_errors": 219,
    "symbol_errors": 221,
}
"""NVML_FI_DEV_NVLINK_* (nvml.h), with the link as their scope."""
_MOST_LINKS = 64
"""A GPU of 2025 has 18. NVML_NVLINK_MAX_LINKS depends on pynvml's version, not on the GPU."""


def fabric(device: Device) -> Json:
    """By the newest version of the structure that driver and pynvml both know."""
    for kind in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        try:
            return _fabric_document(device.structure(kind, "nvmlDeviceGetGpuFabricInfoV"))
        except Refusal as refusal:
            if not is_too_new(refusal):
                raise
    return _fabric_document(device.structure("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"))


def _fabric_document(info: object) -> Json:
    return {
        "clique": member(
            info, "cliqueId"
        ),  # first: where pynvml has another name for it, all sizes are wrong
        "state": member(info, "state"),
        "status": member(info, "status"),
        "cluster_uuid": bytes(getattr(info, "clusterUuid")).hex(),  # noqa: B009 (the type is pynvml's)
        "health_mask": getattr(info, "healthMask", None),
        "summary": getattr(info, "healthSummary", None),
    }


def nvlinks(device: Device) -> Json:
    """The links that this GPU has: the first one that it does not have is refused in one of two ways."""
    links: list[Json] = []
    lacks: Document = {}
    for number in range(_MOST_LINKS):
        try:
            state: Json = device.number("nvmlDeviceGetNvLinkState", number) == 1
        except Refusal as refusal:
            if refusal.code == INVALID_ARGUMENT or refusal.lack == "not_supported":
                break
            if refusal.lack in ("not_found", "gpu_lost"):
                raise
            state = refusal.document()
        link: Document = {"number": number, "is_active": state, "remote": _remote(device, number)}
        link.update(_fields(device, number, lacks))
        links.append(link)
    return links


def _remote(device: Device, number: int) -> Json:
    """ "" for a link that goes nowhere, which NVML says in several ways."""
    try:
        address = pci_address(device.ask("nvmlDeviceGetNvLinkRemotePciInfo", number))
    except Refusal as refusal:
        if refusal.lack == "gpu_lost":
            raise
        return "" if refusal.code in (INVALID_ARGUMENT, NOT_FOUND) else refusal.document()
    return "" if address in ("0000:00:00.0", "ffffffff:ffff:ffff.0") else address


def _fields(device: Device, number: int, lacks: Document) -> Document:
    """The readings of one link; `lacks` collects those that this GPU's links do not have, asked only once."""
    wanted = {name: field for name, field in _FIELDS.items() if name not in lacks}
    try:
        values = device.fields(tuple(wanted.values()), number)
    except Refusal as refusal:
        if refusal.lack == "gpu_lost":
            raise
        values = (refusal.document(),) * len(wanted)
    found = dict(zip(wanted, values, strict=True))
    lacks.update((name, value) for name, value in found.items() if _is_unsupported(value))
    return {**lacks, **found}


def _is_unsupported(value: Json) -> bool:
    return isinstance(value, dict) and value["missing"] == "not_supported"

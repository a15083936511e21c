"""Xid events that the driver reports through NVML, as documents of `ftrun.healthchecks.snapshots.XidEvent`.

Part of the probe, see `ftrun.healthchecks.nvml`. The driver keeps the events for an event set from the
registration on, so nothing is missed between two readings; what was before is not told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from ctypes import c_void_p, cast
from typing import TYPE_CHECKING

from ftrun.healthchecks.nvml import TIMEOUT, Device, Handle, Nvml, Refusal, member, pci_address

if TYPE_CHECKING:
    from ftrun.healthchecks.nvml import Document
    from ftrun.healthchecks.reading import Json

_XID = 8
"""nvmlEventTypeXidCriticalError."""
_WAIT_MS = 1
"""The shortest time that no driver can take for "no limit"."""
_MOST_AT_ONCE = 1000
"""Events of one reading; a driver that reports more leaves the others to the next one."""
_NO_INSTANCE = 0xFFFFFFFF
"""GPU or compute instance of an event that is not about a MIG device."""


class XidEvents:
    """The event set of a probe."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._set: object = None
        self._names: dict[int, Document] = {}
        """UUID and PCI address by handle: a GPU that is lost cannot be asked any more."""
        self._refusal = Refusal("not_read", "no GPU has been registered for events")

    def register(self, devices: Iterable[Device]) -> None:
        """Collect the events of these GPUs from now on; of those that have been registered already, still."""
        for device in devices:
            if _address_of(device.handle) in self._names:
                continue
            try:
                self._register(device)
            except Refusal as refusal:
                self._refusal = refusal

    def _register(self, device: Device) -> None:
        if self._set is None:
            self._set = self._nvml.ask("nvmlEventSetCreate")
        if not device.number("nvmlDeviceGetSupportedEventTypes") & _XID:
            raise Refusal("not_supported", "nvmlDeviceGetSupportedEventTypes: no Xid events")
        uuid = device.text("nvmlDeviceGetUUID")
        address = pci_address(device.ask("nvmlDeviceGetPciInfo"))
        device.ask("nvmlDeviceRegisterEvents", _XID, self._set)
        self._names[_address_of(device.handle)] = {"uuid": uuid, "pci_address": address}

    def take(self) -> Document:
        """The fields `events` and `xids` of a snapshot: what has come since this was called before."""
        if not self._names:
            return {"events": self._refusal.document(), "xids": []}
        xids: list[Json] = []
        try:
            while len(xids) < _MOST_AT_ONCE:
                xids.append(self._document(self._nvml.ask("nvmlEventSetWait_v2", self._set, _WAIT_MS)))
        except Refusal as refusal:
            if refusal.code != TIMEOUT:
                return {"events": refusal.document(), "xids": xids}
        return {"events": True, "xids": xids}

    def _document(self, event: object) -> Document:
        handle = getattr(event, "device")  # noqa: B009 (the type is pynvml's)
        names = self._names.get(_address_of(handle), {"uuid": "", "pci_address": ""})
        instances = (member(event, name) for name in ("gpuInstanceId", "computeInstanceId"))
        gpu_instance, compute_instance = (None if i == _NO_INSTANCE else i for i in instances)
        return {
            **names,
            "xid": member(event, "eventData"),
            "seen_at": time.monotonic(),
            "gpu_instance": gpu_instance,
            "compute_instance": compute_instance,
        }


def _address_of(handle: Handle) -> int:
    return cast(handle, c_void_p).value or 0  # type: ignore[arg-type]

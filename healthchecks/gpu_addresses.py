"""Where the GPUs of this node are, read once in a child of its own. Judges nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuAddress:
    """Where one physical GPU is (per GPU of the node)."""

    index: int
    """NVML's index: PCI bus order, whatever CUDA_VISIBLE_DEVICES says."""
    uuid: str
    """ "GPU-" and 36 characters."""
    pci_address: str
    """Name of the device in sysfs: "0000:3b:00.0"."""


class NvmlError(Exception):
    """NVML gave no reading; `reason` is a sentence a person can read."""

    def __init__(self, reason: str, survivor_pid: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.survivor_pid = survivor_pid
        """The child, if it has outlived SIGKILL and was left behind; None otherwise."""


def read_gpus(timeout_s: float) -> tuple[GpuAddress, ...]:
    """All GPUs of this node by NVML index, within `timeout_s` seconds and what it takes to end the child.

    Raises:
        NvmlError: no library, no driver, an error of NVML, or no answer in time.
    """
    # Here, because it takes as long to import as a launcher that needs no GPU takes altogether.
    from ftrun.healthchecks.probe_client import Probe
    from ftrun.healthchecks.reading import Missing, value_of

    with Probe() as probe:
        snapshot = probe.ask(timeout_s, "addresses")
        survivor_pid = probe.pid if probe.is_stuck else None
    for missing in (snapshot.init, snapshot.device_count):
        if isinstance(missing, Missing):
            raise NvmlError(str(missing), survivor_pid)
    for gpu in snapshot.gpus:
        for lacking in (gpu.handle, gpu.uuid, gpu.pci_address):
            if isinstance(lacking, Missing):
                raise NvmlError(f"GPU {gpu.index}: {lacking}")
    return tuple(
        GpuAddress(gpu.index, value_of(gpu.uuid) or "", value_of(gpu.pci_address) or "")
        for gpu in snapshot.gpus
    )

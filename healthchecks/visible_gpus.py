"""Which of a node's GPUs are the job's, by CUDA_VISIBLE_DEVICES and the number of its workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.healthchecks.reading import Value, value_of
from ftrun.healthchecks.result import nameless
from ftrun.healthchecks.snapshots import Gpu, NvmlSnapshot

_UUID_CHARACTERS = 40
""" "GPU-" or "MIG-" and 36 characters; CUDA takes any beginning that is unique."""


def visible_uuids(visible: str | None, device_order: str, snapshot: NvmlSnapshot) -> tuple[str, ...] | None:
    """UUIDs of the GPUs and MIG devices that CUDA numbers 0, 1, ..; None if that is not known.

    CUDA reads the list up to the first entry that it does not know. An entry is an index, a UUID or the
    beginning of one, or, with MIG, also "MIG-GPU-<uuid>/<GPU instance>/<compute instance>" (drivers before
    470). CUDA counts fastest first unless told otherwise, which is NVML's order where all GPUs are alike.
    A GPU that cannot say its UUID now has a name that no GPU has (`ftrun.healthchecks.result.nameless`).

    Args:
        visible: CUDA_VISIBLE_DEVICES; None if it is not set.
        device_order: CUDA_DEVICE_ORDER; "" if it is not set.
        snapshot: as early as possible: before a GPU was lost.
    """
    gpus = snapshot.gpus
    names = [str(gpu.index) for gpu in gpus] if visible is None else visible.split(",")
    found: list[str] = []
    for name in (name.strip() for name in names):
        if name.isdecimal() and not _is_ordered(gpus, device_order):
            return None
        uuid = _uuid_of(name, gpus)
        if uuid is None:
            break
        found.append(uuid)
    # With MIG, CUDA numbers instances, in an order that NVML does not tell.
    has_mig = any(isinstance(gpu.mig_devices, Value) and gpu.mig_devices.value for gpu in gpus)
    return None if has_mig and any(not uuid.startswith("MIG-") for uuid in found) else tuple(found)


def gpus_of_devices(snapshot: NvmlSnapshot) -> dict[str, str]:
    """UUID of the GPU that each MIG device of the reading is a part of, by the device's own UUID."""
    return {
        device.uuid: uuid
        for gpu in snapshot.gpus
        if (uuid := value_of(gpu.uuid)) is not None
        for device in value_of(gpu.mig_devices) or ()
    }


def job_uuids(visible: Sequence[str] | None, local_world_size: int) -> tuple[frozenset[str] | None, int]:
    """UUIDs of what the job's workers use, None for all of the node; and the most workers per device.

    A worker uses the device whose number is its local rank; others that it may see give warnings only. More
    workers than devices share them.

    Args:
        visible: see `visible_uuids`.
        local_world_size: workers of this node; 0 if that is not known.
    """
    if visible is None:
        return None, 1
    if not local_world_size or not visible:
        return frozenset(visible), 1
    return frozenset(visible[:local_world_size]), -(-local_world_size // len(visible))


def _is_ordered(gpus: Sequence[Gpu], device_order: str) -> bool:
    models = {name for gpu in gpus if (name := value_of(gpu.name)) is not None}
    return device_order == "PCI_BUS_ID" or len(models) <= 1


def _uuid_of(name: str, gpus: Sequence[Gpu]) -> str | None:
    """The device that an entry of the list means; None if there is none."""
    if name.isdecimal():
        gpu = next((gpu for gpu in gpus if gpu.index == int(name)), None)
        return None if gpu is None else value_of(gpu.uuid) or nameless(gpu.index)
    if name.startswith("MIG-GPU-"):
        return _old_mig(name, gpus)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    known = [uuid for gpu in gpus if (uuid := value_of(gpu.uuid)) is not None]
    known += [device.uuid for gpu in gpus for device in value_of(gpu.mig_devices) or ()]
    matches = [uuid for uuid in known if uuid.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    # A whole UUID is the job's wish, also when its GPU is gone: then it is the one that is lost.
    return name if len(name) == _UUID_CHARACTERS else None


def _old_mig(name: str, gpus: Sequence[Gpu]) -> str | None:
    parts = name.removeprefix("MIG-").split("/")
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    instances = (int(parts[1]), int(parts[2]))
    devices = (
        device
        for gpu in gpus
        if (value_of(gpu.uuid) or "").startswith(parts[0])
        for device in value_of(gpu.mig_devices) or ()
    )
    return next((d.uuid for d in devices if (d.gpu_instance, d.compute_instance) == instances), None)

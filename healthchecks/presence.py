"""Whether a node has anything that health checks are for: a few file names, no import, no child."""

from __future__ import annotations

import os
from collections.abc import Mapping

_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_PLACES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",  # GKE and COS mount the driver here
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",  # NixOS
)


def has_gpu_driver(environ: Mapping[str, str], root: str = "/") -> bool:
    """NVML is installed, or the driver is loaded. Both may be broken: that is for the checks to find out."""
    named = (path for path in environ.get("LD_LIBRARY_PATH", "").split(":") if path)
    places = (*named, *(os.path.join(root, place) for place in _LIBRARY_PLACES))
    files = (os.path.join(root, name) for name in ("dev/nvidiactl", "proc/driver/nvidia/version"))
    return any(map(os.path.exists, files)) or any(
        os.path.exists(os.path.join(place, _LIBRARY)) for place in places
    )


def has_rdma(root: str = "/") -> bool:
    """There is an RDMA device, with a driver."""
    try:
        return bool(os.listdir(os.path.join(root, "sys/class/infiniband")))
    except OSError:
        return False

"""The child that talks to NVML, so that a driver that hangs holds it and nothing else.

`python -m ftrun.healthchecks.probe` reads requests from standard input, a scope a line, and answers each with
two lines of JSON, both of them a `ftrun.healthchecks.snapshots.NvmlSnapshot`: what had been reported before
the reading began, which is thus known even if the reading hangs, and the reading. It ends with its input, or
with its parent. The other side is `ftrun.healthchecks.probe_client`; what NVML is asked is in `nvml` and its
parts.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.healthchecks.nvml import Device, Nvml, Refusal, reading, refusal_of_file
from ftrun.healthchecks.nvml_events import XidEvents
from ftrun.healthchecks.nvml_gpu import read_gpu

if TYPE_CHECKING:
    from ftrun.healthchecks.nvml import Document
    from ftrun.healthchecks.reading import Json

SCOPES = ("addresses", "memory", "usual", "thorough")
"""What may be asked: where the GPUs are; that and who holds their memory; all that is quick; that and the
slow check of the infoROM."""
_WHOLE = ("usual", "thorough")
TRACE_BYTES = 256
"""Size of what is said to be about to happen, padded with NUL."""
_PR_SET_PDEATHSIG = 1
_NVLINK = 2
"""NVML_P2P_CAPS_INDEX_NVLINK."""


class Node:
    """All GPUs of this node, through NVML.

    Args:
        trace_fd: file that always says what is being done, so that a hang has a name; -1 for none.
        root: where the node's file system is, "/" as a rule.
    """

    def __init__(self, trace_fd: int = -1, root: str = "/") -> None:
        self._trace_fd = trace_fd
        self._root = root
        self._nvml = Nvml(self._trace)
        self._events = XidEvents(self._nvml)

    def start(self) -> None:
        """Initialise NVML and collect Xid events, if that is possible yet."""
        try:
            self._nvml.start()
            count = self._nvml.number("nvmlDeviceGetCount")
        except Refusal:
            return  # the readings will say so
        found = (read_gpu(self._nvml, index, "addresses", self._root)[1] for index in range(count))
        self._events.register(device for device in found if device is not None)
        self._nvml.subject = ""

    def reported(self) -> Document:
        """A snapshot that holds nothing but what was reported since the last one."""
        return {"taken_at": time.monotonic(), "init": True, **self._events.take()}

    def read(self, scope: str) -> Document:
        """A snapshot of `scope`, one of `SCOPES`."""
        snapshot: Document = {"taken_at": time.monotonic()}
        try:
            self._nvml.start()
        except Refusal as refusal:
            files = reading(self._device_files)
            return {**snapshot, "init": refusal.document(), "device_files": files}
        snapshot["init"] = True
        if scope in _WHOLE:
            snapshot.update(self._versions())
        snapshot["device_count"] = count = reading(lambda: self._nvml.number("nvmlDeviceGetCount"))
        devices: list[Device | None] = []
        gpus: list[Json] = []
        for index in range(count if isinstance(count, int) else 0):
            gpu, device = read_gpu(self._nvml, index, scope, self._root)
            gpus.append(gpu)
            devices.append(device)
        if scope in _WHOLE:
            snapshot["peers"] = self._peers(devices)
        self._nvml.subject = ""
        self._events.register(device for device in devices if device is not None)
        return {**snapshot, "gpus": gpus, **self._events.take()}

    def rest(self) -> None:
        """Say that nothing is being done."""
        self._trace("")

    def _trace(self, what: str) -> None:
        if self._trace_fd >= 0:
            os.pwrite(self._trace_fd, what.encode()[:TRACE_BYTES].ljust(TRACE_BYTES, b"\0"), 0)

    def _versions(self) -> Document:
        ask = self._nvml
        return {
            "driver_version": reading(lambda: ask.text("nvmlSystemGetDriverVersion")),
            "nvml_version": reading(lambda: ask.text("nvmlSystemGetNVMLVersion")),
            "cuda_version": reading(lambda: ask.number("nvmlSystemGetCudaDriverVersion_v2")),
        }

    def _peers(self, devices: Sequence[Device | None]) -> Json:
        peers: list[Json] = []
        for a, first in enumerate(devices):
            self._nvml.subject = f"GPU {a}"
            for b, second in enumerate(devices[a + 1 :], a + 1):
                peers.append({"index_a": a, "index_b": b, "status": _peer_status(first, second)})
        return peers

    def _device_files(self) -> Json:
        """Only where NVML cannot be initialised: to open the file of a GPU that nobody uses takes seconds."""
        devices = os.path.join(self._root, "dev")
        names = [name for name in os.listdir(devices) if _is_device_file(name)]
        if not names:
            raise Refusal("not_found", f"there is no nvidiactl in {devices}")
        opened = 0
        for path in (os.path.join(devices, name) for name in names):
            self._trace(path)
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                opened += 1
            except PermissionError as error:
                raise refusal_of_file(error) from None
            except OSError:
                continue
        return opened


def _is_device_file(name: str) -> bool:
    return name == "nvidiactl" or (name.startswith("nvidia") and name[6:].isdecimal())


def _peer_status(first: Device | None, second: Device | None) -> Json:
    if first is None or second is None:
        return Refusal("not_read", "one of the two GPUs is lost").document()
    return reading(lambda: first.number("nvmlDeviceGetP2PStatus", second.handle, _NVLINK))


def main(arguments: Sequence[str]) -> int:
    """Serve requests; the arguments are none, or the trace's descriptor, the parent's pid and the root."""
    trace_fd, parent, root = arguments or (-1, os.getppid(), "/")
    # A child that hangs in the driver is of no use to anybody once its parent is gone (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like
    node = Node(int(trace_fd), str(root))
    node.start()
    node.rest()
    for line in sys.stdin:
        scope = line.strip()
        if scope not in SCOPES:
            print(f"found the request {scope!r}, expected one of {', '.join(SCOPES)}", file=sys.stderr)
            return 2
        answers.write(_json(node.reported()))
        answer = _json(node.read(scope))
        node.rest()
        answers.write(answer)
    return 0


def _json(document: Document) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The one reader of NVML, and the child process it runs in. Judges nothing.

A driver that hangs keeps whoever calls it, at times beyond SIGKILL. So the launcher never loads NVML: it asks
`read_gpus`, which runs this module as a child under a deadline. Run as a program (`python -m
ftrun.healthchecks.nvml`) it prints its readings as JSON, or one line on stderr that says why there are none.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from types import ModuleType

_PR_SET_PDEATHSIG = 1
_DEATH_S = 1.0
"""How long a killed child may take to vanish; one that hangs in the driver does not vanish at all."""


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
    """All GPUs of this node by NVML index, read in a child process within `timeout_s` seconds.

    Raises:
        NvmlError: no library, no driver, an error of NVML, or no answer in time.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "ftrun.healthchecks.nvml"],
        cwd="/",  # -m puts the working directory on the path, where the user's files could shadow a module
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, complaint = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise _abandoned(child, timeout_s) from None
    try:
        return tuple(GpuAddress(**entry) for entry in json.loads(output))
    except (ValueError, TypeError):
        lines = complaint.strip().splitlines() or [f"the child that asks NVML ended with {child.returncode}"]
        raise NvmlError(lines[-1]) from None


def _abandoned(child: subprocess.Popen[str], timeout_s: float) -> NvmlError:
    reason = f"NVML did not answer within {timeout_s:g} s: the GPU driver hangs, or initialises very slowly"
    child.kill()
    try:
        child.wait(_DEATH_S)
        survivor_pid = None
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # nobody waits for it any more
        survivor_pid = child.pid
        reason += f"; the child that asked it, pid {child.pid}, has outlived SIGKILL and is left behind"
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    return NvmlError(reason, survivor_pid)


def _read_gpus_here() -> tuple[GpuAddress, ...]:
    """As `read_gpus`, in this process and without a deadline."""
    pynvml = _import_pynvml()
    try:
        pynvml.nvmlInit()
        return tuple(_read_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None


def _import_pynvml() -> ModuleType:
    with warnings.catch_warnings():
        # nvidia-resiliency-ext installs the deprecated `pynvml` package, which warns although it is not used.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError as error:
            raise NvmlError(f"pynvml (of nvidia-ml-py) cannot be imported: {error}") from None
    module: ModuleType = pynvml
    return module


def _read_gpu(pynvml: ModuleType, index: int) -> GpuAddress:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        bus_id = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML, GPU {index}: {error}") from None
    return GpuAddress(index, uuid, sysfs_address(bus_id))


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def sysfs_address(bus_id: str) -> str:
    """NVML's "00000000:3B:00.0" as sysfs names the device: "0000:3b:00.0" (domain printed with %04x)."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def main() -> int:
    """Print the GPUs of this node as JSON; exit code 1 and a line on stderr if that cannot be had."""
    # A child that hangs in the driver is of no use to anybody once the launcher is gone (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        gpus = _read_gpus_here()
    except NvmlError as error:
        print(error.reason, file=sys.stderr)
        return 1
    print(json.dumps([asdict(gpu) for gpu in gpus]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

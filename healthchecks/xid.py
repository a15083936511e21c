"""What the driver's error numbers (Xid) mean for a GPU, its node and the job: a table. Pure.

From NVIDIA's Xid catalog of 2025-10-29 (docs.nvidia.com/deploy/xid-errors, "immediate action"), with what
k8s-device-plugin, DCGM, gpud and gcm make of single codes where they agree against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class XidEffect(Enum):
    """What follows from an Xid."""

    NONE = "none"
    """Logged only."""
    RESTART = "restart"
    """The processes that it hit have to start again; the GPU is fine unless it happens again and again."""
    ECHO = "echo"
    """Comes with another event or with the end of a process; never acted on alone."""
    GPU = "gpu"
    """The GPU has to be reset before it is used again."""
    NODE = "node"
    """The node has to be rebooted or repaired."""
    LINK = "link"
    """An NVLink failed. The GPU is to be left out, though the other end may be guilty: several GPUs of a node
    point there."""
    UNDECIDED = "undecided"
    """Not in the table, or left to NVIDIA's support: a warning."""


@dataclass(frozen=True, slots=True)
class XidClass:
    """One Xid."""

    xid: int
    effect: XidEffect
    meaning: str
    remedy: str = ""
    blames_application: bool = False
    """A mistake of the application, or the way it ended, is enough to cause it."""
    tolerated: int = 0
    """Times that it may happen to one GPU before `effect` holds; until then it is as `XidEffect.RESTART`."""


_RESET = "reset the GPU: nvidia-smi --gpu-reset"
_REPEATED = "if it happens to the same GPU again, suspect the GPU"
_DEBUG = "look for the error in the application (compute-sanitizer, CUDA_LAUNCH_BLOCKING=1)"
_REBOOT = "reboot the node; if it happens again, have the GPU, its slot and its power checked"
_LINK = "reset the GPU; have the link, its bridge or switch, and the GPU at the other end checked"

_NONE: Mapping[int, str] = {
    14: "test error",
    37: "driver firmware error",
    38: "driver firmware error: watchdog",
    43: "a channel was stopped after an error of its application",
    44: "graphics engine fault during a context switch",
    63: "a memory row or page was remapped or retired",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    92: "high rate of corrected ECC errors",
    93: "wear limit of the infoROM reached, not fatal",
    106: "test message",
    107: "test message",
    108: "NVLink remote translation error",
    121: "error of the chip-to-chip link, corrected",
    137: "NVLink access without privilege",
    141: "CUDA fast path error",
    152: "DLA SMMU error",
    153: "DLA timeout",
    157: "a resource could not be retired",
    160: "a channel was retired",
    161: "a channel could not be retired",
    162: "power smoothing is engaged again",
    163: "power smoothing is disengaged",
    164: "power smoothing circuitry nears the end of its life",
    165: "power smoothing circuitry has reached the end of its life",
    166: "unencrypted traffic on a link before it was configured",
    170: "interrupt in confidential-computing mode",
}

_UNDECIDED: Mapping[int, str] = {
    142: "video encoder error",
    159: "error of the coherent link to the CPU",
    167: "fatal PCIe timeout",
    168: "reduced memory: errors in the write-protected region",
    169: "SEC2 micro-controller halted",
    171: "uncorrectable DRAM error (details of Xid 48)",
    172: "uncorrectable SRAM error (details of Xid 48)",
}
"""No action in the catalog, or only to ask."""

_OF_APPLICATION: Mapping[int, str] = {
    11: "invalid or corrupted push buffer",
    13: "graphics engine exception: illegal access or instruction in a kernel",
    25: "invalid or illegal push buffer",
    31: "memory page fault: access to an address that is not mapped",
    32: "invalid or corrupted push buffer (DMA)",
    69: "graphics engine class error",
    80: "corrupted data sent to the GPU",
}

_RESTART: Mapping[int, str] = {
    8: "the GPU stopped processing",
    60: "video processor exception",
    68: "video decoder exception",
    82: "JPEG engine error",
    86: "optical flow engine error",
    94: "uncorrectable memory error, contained to the processes that it hit",
    139: "optical flow engine error",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder error"),
    **dict.fromkeys(range(99, 106), "JPEG engine error"),
}

_GPU: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "double-bit ECC error",
    62: "internal micro-controller halted",
    64: "a memory row or page could not be remapped or retired",
    95: "uncorrectable memory error, not contained",
    110: "security fault",
    119: "the GPU system processor does not answer",
    120: "error of the GPU system processor",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialised",
    155: "NVLink error defined by software",
    156: "a resource was retired",
    158: "fatal timeout of the GPU",
}

_NODE: Mapping[int, str] = {
    54: "auxiliary power is not connected",
    78: "the vGPU could not be started",
    79: "the GPU has fallen off the bus",
    151: "key rotation error",
}

_LINKS: Mapping[int, str] = {
    74: "NVLink error",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (NVLPW)",
    149: "NVLink error (NETIR)",
    150: "NVLink error (MSE)",
}


def _entries() -> Iterator[XidClass]:
    for code, meaning in _NONE.items():
        yield XidClass(code, XidEffect.NONE, meaning, blames_application=code == 43)
    for code, meaning in _OF_APPLICATION.items():
        yield XidClass(code, XidEffect.RESTART, meaning, f"{_DEBUG}; {_REPEATED}", blames_application=True)
    for code, meaning in _RESTART.items():
        yield XidClass(code, XidEffect.RESTART, meaning, _REPEATED, blames_application=code == 68)
    for code, meaning in _GPU.items():
        yield XidClass(code, XidEffect.GPU, meaning, _RESET)
    for code, meaning in _NODE.items():
        yield XidClass(code, XidEffect.NODE, meaning, _REBOOT)
    for code, meaning in _LINKS.items():
        yield XidClass(code, XidEffect.LINK, meaning, _LINK)
    for code, meaning in _UNDECIDED.items():
        yield XidClass(code, XidEffect.UNDECIDED, meaning, "ask NVIDIA's support if it happens again")
    echo = "a channel was removed after another error, or because its process ended"
    yield XidClass(45, XidEffect.ECHO, echo, blames_application=True)
    yield XidClass(154, XidEffect.ECHO, "the recommended recovery action has changed", "see gpu.recovery")
    # The catalog says reset, k8s-device-plugin and gcm say application: restart first, reset if it recurs.
    timeout = "context switch timeout"
    yield XidClass(109, XidEffect.GPU, timeout, _RESET, blames_application=True, tolerated=1)


_TABLE: Mapping[int, XidClass] = {entry.xid: entry for entry in _entries()}

KNOWN_XIDS = frozenset(_TABLE)


def classify(xid: int) -> XidClass:
    """The class of an Xid; a warning for numbers that the catalog calls unused or does not have."""
    unlisted = XidClass(xid, XidEffect.UNDECIDED, "not in the table", "look it up in NVIDIA's Xid catalog")
    return _TABLE.get(xid, unlisted)

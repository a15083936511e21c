"""How many workers this node runs: `--nproc-per-node` as a number, and why it is that number.

The meaning of each word is torchrun's (`determine_local_world_size` of torch.distributed.run). Imports torch
only where a word cannot be answered without it, because the workers cannot start before. Knows nothing of the
health of a device.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Slots:
    """Workers of this node (per node)."""

    count: int
    reason: str
    """How the number came about, as a sentence a person can read."""


class SlotsError(ValueError):
    """`--nproc-per-node` cannot be made into a number of workers on this node."""


@dataclass(frozen=True, slots=True)
class _Devices:
    kind: str
    """Device type as torch names it: "cuda", "xpu", ...; "" for auto without an accelerator."""
    count: int
    """0 if torch can use none."""
    why_none: str = ""
    """Why it can use none, when that is known."""


def resolve(nproc_per_node: str, environ: Mapping[str, str]) -> Slots:
    """Number of workers for `nproc_per_node`: a number, cpu, gpu, xpu, auto or a private backend's name.

    `environ` is this process's own environment, which torch reads by itself.

    Raises:
        SlotsError: not a number above 0, a word that torch does not know, or none of its devices is there.
    """
    try:
        count = int(nproc_per_node)
    except ValueError:
        return _resolve_word(nproc_per_node, environ)
    if count < 1:
        raise SlotsError(
            f"--nproc-per-node is {count}; expected at least one worker. Give a number above 0, or auto."
        )
    return Slots(count, f"--nproc-per-node is {count}")


def _resolve_word(word: str, environ: Mapping[str, str]) -> Slots:
    option = f"--nproc-per-node {word}"
    if word == "cpu":
        count, text = _cpus()
        return Slots(count, f"{option}: {text}")
    devices = _ask_torch(word)
    if devices.count > 0:
        return Slots(devices.count, f"{option}: {_describe(devices, environ)}")
    why = f" ({devices.why_none})" if devices.why_none else ""
    if word == "auto":
        count, text = _cpus()
        return Slots(count, f"{option}: {text} and torch finds no accelerator{why}")
    raise SlotsError(
        f"{option}: torch can use no {devices.kind} device on this node{why}; expected at least one. "
        "Use --nproc-per-node cpu or a number to train without."
    )


def _cpus() -> tuple[int, str]:
    """CPUs that this process may use (its affinity mask, as torch counts them), and a sentence about them."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 0
    of_present = f" of this node's {present}" if present > usable else ""
    plural = usable > 1 or of_present
    verb = "are" if usable > 1 else "is"
    return usable, f"{usable}{of_present} CPU{'s' if plural else ''} {verb} available to this process"


def _describe(devices: _Devices, environ: Mapping[str, str]) -> str:
    text = f"torch finds {devices.count} {devices.kind} device{'s' if devices.count > 1 else ''}"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if devices.kind != "cuda" or visible is None:
        return text
    listed = [name.strip() for name in visible.split(",")]
    text += f"; CUDA_VISIBLE_DEVICES lists {len(listed)}"
    if devices.count == 1 < len(listed) and all(name.startswith("MIG") for name in listed):
        text += (
            " MIG devices, of which CUDA gives a process only the first: for one worker on each, use "
            f"--nproc-per-node {len(listed)} --virtual-local-rank"
        )
    return text


def _ask_torch(word: str) -> _Devices:
    """What torch has of the devices that `word` names; its warnings while it looks say why it has none."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch = _import_torch(word)
        heard.clear()  # of the import: a deprecated `pynvml` package, which says nothing about devices
        kind, module = _accelerator(torch) if word == "auto" else _named(torch, word)
        count = int(module.device_count()) if module.is_available() else 0
    reasons = [str(warning.message).strip() for warning in heard]
    if kind == "cuda" and torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        reasons.insert(0, f"torch {torch.__version__} is built without CUDA")
    return _Devices(kind, count, "; ".join(reasons))


def _import_torch(word: str) -> ModuleType:
    try:
        import torch
    except (ImportError, OSError) as error:
        raise SlotsError(
            f"--nproc-per-node {word}: only torch knows the number of devices, and it cannot be imported: "
            f"{error}. Give a number."
        ) from error
    module: ModuleType = torch
    return module


def _accelerator(torch: ModuleType) -> tuple[str, ModuleType]:
    """The device type of this node's accelerator ("" if it has none), and torch's module that counts them."""
    module: ModuleType = torch.accelerator
    device = module.current_accelerator()
    return ("" if device is None else str(device.type)), module


def _named(torch: ModuleType, word: str) -> tuple[str, ModuleType]:
    """The device type that `word` means, and torch's module for it (a private backend registers its own)."""
    kind = "cuda" if word == "gpu" else word
    try:
        module: ModuleType | None = torch.get_device_module(kind) if kind.isidentifier() else None
    except RuntimeError:  # torch knows no such type, or no module is registered for it
        module = None
    if module is None or not (hasattr(module, "is_available") and hasattr(module, "device_count")):
        raise SlotsError(
            f"--nproc-per-node {word}: torch {torch.__version__} knows no such kind of device; expected a "
            "number above 0, auto, cpu, gpu, xpu or the name of an installed private backend."
        )
    return kind, module

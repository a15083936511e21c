"""All thresholds of all judges, and their names in a configuration. Pure.

A name is the part of `Thresholds` and the field: "nvlink.max_crc_per_s". The dataclasses say what each one
means and where its default is from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from ftrun.healthchecks.gpu import GpuLimits
from ftrun.healthchecks.gpu_memory import GpuMemoryLimits
from ftrun.healthchecks.gpu_speed import GpuSpeedLimits
from ftrun.healthchecks.host import HostThresholds
from ftrun.healthchecks.netdev import InterfaceThresholds
from ftrun.healthchecks.nic import NicThresholds
from ftrun.healthchecks.nic_counters import LIMITS, CounterThresholds
from ftrun.healthchecks.nvlink import NvLinkLimits
from ftrun.healthchecks.storage import StorageThresholds
from ftrun.healthchecks.xid_events import XidLimits


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of each group of judges."""

    gpu: GpuLimits = field(default_factory=GpuLimits)
    gpu_memory: GpuMemoryLimits = field(default_factory=GpuMemoryLimits)
    gpu_speed: GpuSpeedLimits = field(default_factory=GpuSpeedLimits)
    nvlink: NvLinkLimits = field(default_factory=NvLinkLimits)
    xid: XidLimits = field(default_factory=XidLimits)
    nic: NicThresholds = field(default_factory=NicThresholds)
    interface: InterfaceThresholds = field(default_factory=InterfaceThresholds)
    counters: CounterThresholds = field(default_factory=CounterThresholds)
    """Also by counter: "counters.symbol_error" is how much that one may grow in its own unit of time."""
    host: HostThresholds = field(default_factory=HostThresholds)
    storage: StorageThresholds = field(default_factory=StorageThresholds)


_COUNTERS = tuple(limit.name for limit in LIMITS)


def defaults() -> dict[str, float | None]:
    """Every threshold by name with its default; None where nothing is expected by default."""
    return dict(_walk(Thresholds()))


def whole_numbers() -> frozenset[str]:
    """Names of the thresholds that are counts of something indivisible."""
    groups = {item.name: type(getattr(Thresholds(), item.name)) for item in fields(Thresholds)}
    return frozenset(
        f"{group}.{name}"
        for group, kind in groups.items()
        for name, hint in get_type_hints(kind).items()
        if hint in (int, int | None)
    )


def build(changes: Mapping[str, float]) -> Thresholds:
    """The defaults with these changes, by name.

    Raises:
        KeyError: there is no threshold of that name.
    """
    thresholds = Thresholds()
    wholes = whole_numbers() if changes else frozenset()
    for name, value in changes.items():
        thresholds = _changed(thresholds, name, int(value) if name in wholes else float(value))
    return thresholds


def _walk(thresholds: Thresholds) -> Iterator[tuple[str, float | None]]:
    for group in fields(Thresholds):
        section = getattr(thresholds, group.name)
        for item in fields(section):
            value = getattr(section, item.name)
            if not isinstance(value, tuple):
                yield f"{group.name}.{item.name}", value
    for limit in thresholds.counters.limits:
        yield f"counters.{limit.name}", limit.limit


def _changed(thresholds: Thresholds, name: str, value: float) -> Thresholds:
    group, _, item = name.partition(".")
    if name not in defaults():
        raise KeyError(name)
    section: Any = getattr(thresholds, group)
    if group == "counters" and item in _COUNTERS:
        limits = tuple(
            replace(limit, limit=value) if limit.name == item else limit for limit in section.limits
        )
        changed = replace(section, limits=limits)
    else:
        changed = replace(section, **{item: value})
    return replace(thresholds, **{group: changed})

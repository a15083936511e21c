"""The `ftrun.health` section, and the policy of health checks that follows from a configuration. Pure.

Some of it can also be said in the `fault_tolerance:` section, in nvidia-resiliency-ext's words; a key that is
given here wins over its counterpart there. What the checks themselves know is imported only when it is asked
for: it takes longer than all of a configuration, before any worker is started.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ftrun.launcher import values as v
from ftrun.launcher.fault_tolerance import FaultToleranceConfig
from ftrun.launcher.values import Entry, Kind, Setting, setting

if TYPE_CHECKING:
    from ftrun.healthchecks.policy import HealthPolicy

_MIB = 1 << 20
_LEARN = "learn"


def _read_expected(value: object) -> Setting:
    if value == _LEARN:
        return _LEARN
    count = v.COUNT.read(value)
    if count == 0:
        raise ValueError("zero")
    return count


def _read_texts(value: object) -> Setting:
    items = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise ValueError("not texts")
    return tuple(items)


def _read_command(value: object) -> Setting:
    return _read_texts(shlex.split(value) if isinstance(value, str) else value)


def _paths_from_text(text: str) -> object:
    return [path.strip() for path in text.split(",") if path.strip()]


def _severity_names() -> tuple[str, ...]:
    from ftrun.healthchecks.registry import GROUPS, NAMES

    return (*NAMES, *GROUPS)


def _threshold_names() -> tuple[str, ...]:
    from ftrun.healthchecks.thresholds import defaults

    return tuple(name for name in defaults() if name not in _EXPECTED.values())


def _threshold_kind(name: str) -> Kind:
    from ftrun.healthchecks.thresholds import whole_numbers

    if name.endswith("_bytes"):
        return v.SIZE
    return v.COUNT if name in whole_numbers() else _MEASURE


_EXPECTED = {
    "expected_gpus": "gpu.expected_count",
    "expected_nvlinks": "nvlink.expected_links",
    "expected_nics": "nic.expected_nics",
}
"""Thresholds that have keys of their own."""
_MEASURE = Kind("a number, 0 or more", v.SECONDS.read)
_SEVERITY = v.choice_of("off", "warn", "fatal")
_EXPECTED_COUNT = Kind("learn, or a whole number above 0", _read_expected, v.COUNT.from_text)
_FRACTION = v.fraction()
_PATHS = Kind("a list of paths", _read_texts, _paths_from_text)
_COMMAND = Kind("a command and its arguments, as a list or as a shell would read it", _read_command)
_SEVERITIES = v.mapping_of(
    "a mapping from names of checks, or of their groups, to off, warn or fatal: {gpu.ecc: warn, nic: off}",
    Entry("check", _severity_names, lambda name: _SEVERITY),
)
_THRESHOLDS = v.mapping_of(
    "a mapping from names of thresholds to numbers: {nvlink.max_crc_per_s: 50}",
    Entry("threshold", _threshold_names, _threshold_kind),
)


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """Health checks of each node."""

    enabled: str = setting(
        "auto",
        v.choice_of("auto", "on", "off"),
        "auto, on or off",
        "auto checks nodes that have an NVIDIA driver or an RDMA device; elsewhere there is little to find.",
    )
    interval: float = setting(
        30.0,
        v.INTERVAL,
        "seconds",
        "Time between two checks while training runs, with some jitter; a check costs tens of milliseconds.",
    )
    deadline_before_round: float = setting(
        5.0,
        v.INTERVAL,
        "seconds",
        "Longest wait of a round for its check; what has not answered by then is unknown and excludes none.",
    )
    max_excluded_fraction: float = setting(
        0.2,
        _FRACTION,
        "fraction of the nodes",
        "If more nodes (and more than one) fail the same check at once, none is excluded for it: a bad "
        "driver or a subnet manager that restarts looks like this.",
    )
    expected_gpus: str | int = setting(
        _LEARN, _EXPECTED_COUNT, "learn, or GPUs", "GPUs of a node; learn for those of the job's begin."
    )
    expected_nvlinks: str | int = setting(
        _LEARN,
        _EXPECTED_COUNT,
        "learn, or links",
        "Active NVLinks of a GPU; learn for as many as the other GPUs of the node have.",
    )
    expected_nics: str | int = setting(
        _LEARN,
        _EXPECTED_COUNT,
        "learn, or NICs",
        "Usable RDMA devices that serve the job's GPUs; learn for those of the job's begin.",
    )
    checks: tuple[tuple[str, str], ...] = setting(
        (),
        _SEVERITIES,
        "off, warn or fatal by name of a check or a group",
        "What a finding may lead to, where it is not the check's own default (ftctl check --list).",
    )
    thresholds: tuple[tuple[str, float], ...] = setting(
        (), _THRESHOLDS, "numbers by name", "Thresholds that differ from the defaults in docs/health.md."
    )
    paths: tuple[str, ...] = setting(
        (),
        _PATHS,
        "absolute paths",
        "Files and directories that must be readable before a round, such as data sets; the checkpoint "
        "directory is also written to.",
    )
    command: tuple[str, ...] = setting(
        (),
        _COMMAND,
        "command with arguments",
        "Runs before each round; exit code 0 is healthy, 1 unhealthy, 2 could not tell.",
    )
    node_health_check_endpoint: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path of a Unix socket",
        "nvidia-resiliency-ext's node health check daemon, which is asked before each round.",
    )
    external_timeout: float = setting(
        60.0,
        v.INTERVAL,
        "seconds",
        "Longest wait of a round for that command and that daemon, each; nvidia-resiliency-ext's limit.",
    )


def build_policy(health: HealthConfig, fault_tolerance: FaultToleranceConfig) -> HealthPolicy:
    """The policy that both sections together ask for."""
    from ftrun.healthchecks.policy import HealthPolicy
    from ftrun.healthchecks.registry import Severity, severities

    chosen = {} if fault_tolerance.enable_nic_healthcheck else {"nic": Severity.OFF}
    chosen |= {name: Severity(word) for name, word in health.checks}
    topology_file, endpoint = fault_tolerance.pci_topo_file, health.node_health_check_endpoint
    nvrx_paths = _paths_of(fault_tolerance.storage_healthcheck_path or "")
    return HealthPolicy(
        is_enabled={"on": True, "off": False}.get(health.enabled),
        interval_s=_first_changed(
            (health, "interval"), (fault_tolerance, "node_health_check_interval"), default=health.interval
        ),
        deadline_before_round_s=health.deadline_before_round,
        max_excluded_fraction=health.max_excluded_fraction,
        severities=severities(chosen),
        thresholds=_thresholds(health, fault_tolerance),
        paths=tuple(dict.fromkeys((*health.paths, *nvrx_paths))),
        command=health.command,
        nvhcd_endpoint=endpoint or "",
        external_timeout_s=health.external_timeout,
        topology_file=topology_file or "",
        gpu_memory_timeout_s=fault_tolerance.gpu_memory_reclaim_timeout,
        gpu_memory_poll_s=_first_changed(
            (fault_tolerance, "gpu_memory_poll_interval"), default=HealthPolicy().gpu_memory_poll_s
        ),
    )


def _paths_of(text: str) -> tuple[str, ...]:
    return tuple(path.strip() for path in text.split(",") if path.strip())


def _first_changed(*keys: tuple[HealthConfig | FaultToleranceConfig, str], default: float) -> float:
    """The first of these values that is not its section's default, which stands for `default`."""
    for section, name in keys:
        standard = next(item.default for item in fields(section) if item.name == name)
        value: float = getattr(section, name)
        if value != standard:
            return value
    return default


def _thresholds(health: HealthConfig, fault_tolerance: FaultToleranceConfig) -> Mapping[str, float]:
    found: dict[str, float] = {}
    tolerance_mb = fault_tolerance.gpu_memory_tolerance_mb
    if tolerance_mb != FaultToleranceConfig().gpu_memory_tolerance_mb:
        found["gpu_memory.held_tolerance_bytes"] = tolerance_mb * _MIB
    for key, name in _EXPECTED.items():
        count = getattr(health, key)
        if count != _LEARN:
            found[name] = count
    return found | dict(health.thresholds)

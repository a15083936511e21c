"""The table of all health checks: what each looks at, when it runs and what it may lead to. Pure.

`ftrun.healthchecks.judging` has the judge of each group; thresholds are in `ftrun.healthchecks.thresholds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """What a finding may lead to."""

    OFF = "off"
    """The check gives no result."""
    WARN = "warn"
    """Degraded at most: told, and nothing follows."""
    FATAL = "fatal"
    """An unhealthy subject takes no part in the next round."""


class Occasion(Enum):
    """When checks run."""

    BEFORE_ROUND = "before_round"
    PERIODIC = "periodic"
    BY_HAND = "by_hand"
    """`ftctl check`."""


class Source(Enum):
    """Whom a check asks; each is read apart from the others, so that one that hangs holds up none."""

    GPU = "gpu"
    """NVML, in a child."""
    NETWORK = "network"
    """NICs and the PCI bus, in sysfs."""
    HOST = "host"
    """/proc, /sys and /dev/shm; the kernel's log."""
    PATH = "path"
    """Write and read back, in a child for each path."""
    EXTERNAL = "external"
    """Programs of others."""


@dataclass(frozen=True, slots=True)
class SourceTiming:
    """How long a source may take, and how often it is asked."""

    deadline_s: float
    """Longest wait for it, however much longer the whole check may take."""
    min_interval_s: float = 0.0
    """While training runs it is asked no more often."""


TIMING: Mapping[Source, SourceTiming] = {
    # A healthy driver takes tens of milliseconds, with persistence mode off seconds for each idle GPU.
    Source.GPU: SourceTiming(10.0),
    Source.NETWORK: SourceTiming(10.0),
    Source.HOST: SourceTiming(5.0),
    # NVRx gives each path 5 s. A thousand nodes that write 1 MiB each are felt by a file server.
    Source.PATH: SourceTiming(5.0, 300.0),
    Source.EXTERNAL: SourceTiming(60.0),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One health check."""

    name: str
    source: Source
    severity: Severity
    """By default; `WARN` where the check calls nothing unhealthy by itself."""
    description: str
    occasions: frozenset[Occasion]

    @property
    def group(self) -> str:
        """The name's first part, which stands for all checks of the group in a configuration."""
        return self.name.partition(".")[0]


_ALWAYS = frozenset(Occasion)
_NOT_WHILE_RUNNING = frozenset({Occasion.BEFORE_ROUND, Occasion.BY_HAND})
_BY_HAND = frozenset({Occasion.BY_HAND})


def _fatal(name: str, source: Source, description: str, occasions: frozenset[Occasion] = _ALWAYS) -> Check:
    return Check(name, source, Severity.FATAL, description, occasions)


def _warn(name: str, source: Source, description: str, occasions: frozenset[Occasion] = _ALWAYS) -> Check:
    return Check(name, source, Severity.WARN, description, occasions)


CHECKS: tuple[Check, ...] = (
    _fatal("gpu.driver", Source.GPU, "NVML can be initialised and answers in time"),
    _fatal("gpu.count", Source.GPU, "as many GPUs as expected"),
    _fatal("gpu.lost", Source.GPU, "each GPU answers"),
    _fatal("gpu.reset", Source.GPU, "no GPU needs a reset"),
    _fatal("gpu.recovery", Source.GPU, "the driver recommends no recovery action"),
    _fatal("gpu.xid", Source.GPU, "no grave Xid since the job began"),
    _fatal("gpu.ecc", Source.GPU, "no uncorrectable memory error that the driver could not repair"),
    _warn("gpu.ecc_corrected", Source.GPU, "no storm of corrected memory errors"),
    _fatal("gpu.sram", Source.GPU, "uncorrectable SRAM errors below the driver's threshold"),
    _fatal("gpu.row_remap", Source.GPU, "no memory row that could not be remapped"),
    _fatal("gpu.retired_pages", Source.GPU, "few retired memory pages (before Ampere)"),
    _fatal("gpu.repair", Source.GPU, "memory can be repaired (newest drivers)"),
    _fatal("gpu.slowdown", Source.GPU, "clocks not held down by heat or a power brake"),
    _warn("gpu.temperature", Source.GPU, "GPU and memory below the board's limits"),
    _warn("gpu.pcie_width", Source.GPU, "all PCIe lanes in use"),
    _warn("gpu.pcie_generation", Source.GPU, "full PCIe speed when busy (P0)"),
    _warn("gpu.pcie_replay", Source.GPU, "few PCIe packets sent again"),
    _fatal("gpu.compute_mode", Source.GPU, "the job's processes may use the GPU"),
    _warn("gpu.mig", Source.GPU, "MIG is as it was when the job began"),
    _warn("gpu.memory", Source.GPU, "no GPU memory is held before workers start", _BY_HAND),
    _warn("gpu.processes", Source.GPU, "no processes of others on the GPUs"),
    _warn("gpu.persistence", Source.GPU, "tells whether persistence mode is on"),
    _warn("gpu.inforom", Source.GPU, "the board's configuration memory is intact", _BY_HAND),
    _fatal("gpu.fabric", Source.GPU, "the GPU has joined its NVLink fabric"),
    _fatal("gpu.p2p", Source.GPU, "the job's GPUs reach each other over NVLink"),
    _fatal("nvlink.state", Source.GPU, "links that were active when the job began still are"),
    _fatal("nvlink.count", Source.GPU, "as many active links as expected"),
    _fatal("nvlink.errors", Source.GPU, "few errors on the links"),
    _fatal("nic.present", Source.NETWORK, "the RDMA devices of the job's begin are there"),
    _fatal("nic.count", Source.NETWORK, "as many usable RDMA devices as configured"),
    _fatal("nic.state", Source.NETWORK, "ports that were active when the job began still are"),
    _fatal("nic.rate", Source.NETWORK, "ports have their full rate"),
    _fatal("nic.gid", Source.NETWORK, "RoCE ports have an address"),
    _fatal("nic.verbs", Source.NETWORK, "RDMA devices can be opened by programs"),
    _fatal("nic.interface", Source.NETWORK, "interfaces that were up when the job began still are"),
    _warn("nic.speed", Source.NETWORK, "interfaces have the speed of the job's begin"),
    _warn("nic.mtu", Source.NETWORK, "interfaces have the MTU of the job's begin"),
    _warn("nic.bond", Source.NETWORK, "all members of a bond work"),
    _fatal("nic.errors", Source.NETWORK, "error counters of ports are quiet"),
    _fatal("nic.flaps", Source.NETWORK, "links do not come and go"),
    _fatal("nic.pcie", Source.NETWORK, "NICs answer, with full PCIe width and speed"),
    _warn("nic.readings", Source.NETWORK, "sysfs can be read in time"),
    _warn("host.memory", Source.HOST, "memory is left, also within the cgroup's limit"),
    _warn("host.oom", Source.HOST, "no OOM kill since the job began"),
    _fatal("host.shm", Source.HOST, "/dev/shm is large enough"),
    _warn("host.pressure", Source.HOST, "not everybody waits for memory or storage"),
    _warn("host.limits", Source.HOST, "locked memory and open files are not limited too tightly"),
    _warn("host.tasks", Source.HOST, "processes and threads below the cgroup's limit"),
    _warn("host.files", Source.HOST, "open files below the kernel's limit"),
    _warn("host.zombies", Source.HOST, "dead processes are reaped"),
    _fatal("host.stuck", Source.HOST, "no process of the GPU driver hangs in the kernel"),
    _warn("host.clock", Source.HOST, "the clock is steady"),
    _warn("host.readings", Source.HOST, "/proc and /sys can be read"),
    _fatal("storage.mount", Source.HOST, "the job's paths are mounted and writable"),
    _fatal("storage.lustre", Source.HOST, "Lustre, if the job uses it, calls itself healthy"),
    _fatal("storage.probe", Source.PATH, "the job's paths can be written and read back"),
    _warn("storage.space", Source.PATH, "space is left on the job's paths"),
    _warn("storage.inodes", Source.PATH, "inodes are left on the job's paths"),
    _fatal("external.command", Source.EXTERNAL, "the configured command ends with 0", _NOT_WHILE_RUNNING),
    _fatal("external.nvhcd", Source.EXTERNAL, "NVRx's node health check daemon agrees", _NOT_WHILE_RUNNING),
)
"""In the order in which results are shown."""

NAMES: tuple[str, ...] = tuple(check.name for check in CHECKS)
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(check.group for check in CHECKS))


def severities(choices: Mapping[str, Severity]) -> dict[str, Severity]:
    """The severity of every check.

    Args:
        choices: by name of a check or of a group; the check's own wins over its group's, that over the
            default. A group cannot make fatal what only warns by default.
    """
    return {check.name: _severity(check, choices) for check in CHECKS}


def _severity(check: Check, choices: Mapping[str, Severity]) -> Severity:
    of_group = choices.get(check.group, check.severity)
    milder = check.severity if of_group is Severity.FATAL else of_group
    return choices.get(check.name, milder)

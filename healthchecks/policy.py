"""What is checked on a node, how strictly and for whom: what `ftrun.healthchecks.runner` is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ftrun.healthchecks.registry import Severity, severities


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """How strict the checks are, and when they run."""

    is_enabled: bool | None = None
    """None: where the node has a GPU or an RDMA device (`ftrun.healthchecks.presence`)."""
    interval_s: float = 30.0
    """Between checks while training runs; jitter is the caller's."""
    deadline_before_round_s: float = 5.0
    """Longest wait of a round for its check."""
    deadline_periodic_s: float = 10.0
    max_excluded_fraction: float = 0.2
    """Of the nodes, and at least one. If more fail one check at once, nobody is excluded for it: a bad driver
    or a subnet manager that restarts looks like this."""
    severities: Mapping[str, Severity] = field(default_factory=lambda: severities({}))
    """By name of the check, all of them."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Changed ones by dotted name, see `ftrun.healthchecks.thresholds`."""
    paths: tuple[str, ...] = ()
    """Files and directories that must be there and readable, beside the directories of the scope."""
    command: tuple[str, ...] = ()
    """Argument vector of an own check; () for none."""
    nvhcd_endpoint: str = ""
    """Socket of NVRx's node health check daemon; "" for none."""
    external_timeout_s: float = 60.0
    """Of the command and of the daemon, each."""
    topology_file: str = ""
    """NCCL's, where sysfs hides the PCI tree; "" for sysfs."""
    gpu_memory_timeout_s: float = 50.0
    """Longest wait for the memory of ended workers before new ones start."""
    gpu_memory_poll_s: float = 0.05

    @property
    def round_deadline_s(self) -> float:
        """Longest wait of a round, checks of others included: who configures one wants its answer."""
        has_external = self.command or self.nvhcd_endpoint
        return max(self.deadline_before_round_s, self.external_timeout_s if has_external else 0.0)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the job has of this node."""

    node: str
    """Host name."""
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES as the workers get it; None if it is not set."""
    device_order: str = ""
    """CUDA_DEVICE_ORDER; "" if it is not set."""
    local_world_size: int = 0
    """Workers of this node, of which each uses the device of its local rank; 0 if that is not known."""
    checkpoint_dir: str = ""
    """Absolute; "" where there is none. So the other directories."""
    log_dir: str = ""
    run_dir: str = ""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that the job names itself (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)."""


@dataclass(frozen=True, slots=True)
class JobPath:
    """A path that is looked at."""

    path: str
    is_written: bool
    """A directory that the job writes to; False for what only has to be readable."""
    is_needed: bool
    """The job cannot go on without it."""


def job_paths(policy: HealthPolicy, scope: Scope) -> tuple[JobPath, ...]:
    """Each path once. Of run directory and logs, those on their own: what is below another is that one's."""
    found = [JobPath(scope.checkpoint_dir, True, True)] if scope.checkpoint_dir else []
    known = {path.path for path in found}
    found += [JobPath(path, False, True) for path in dict.fromkeys(policy.paths) if path not in known]
    for path in (scope.run_dir, scope.log_dir):
        place = PurePosixPath(path)
        written = {PurePosixPath(other.path) for other in found if other.is_written}
        if path and not written & {place, *place.parents}:
            found.append(JobPath(path, True, False))
    return tuple(found)

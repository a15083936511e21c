"""The `fault_tolerance:` section of a configuration file, as nvidia-resiliency-ext has it.

Pure. Says which fields there are, their units and reasons, and why a field has no effect in this version.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.launcher import values as v
from ftrun.launcher.values import setting

_ALL_PORTS = "ftrun finds the ports of every card below /sys by itself"
_NO_ATTRIBUTION = "this version has no attribution service yet, so nothing is sent to one"
_DEAD = "nvidia-resiliency-ext itself no longer reads it"


@dataclass(frozen=True, slots=True)
class FaultToleranceConfig:
    """The `fault_tolerance:` section: fields of nvidia-resiliency-ext 0.4.1 to 0.7, with 0.7's defaults."""

    workload_check_interval: float = setting(
        5.0, v.INTERVAL, "seconds", "How often heartbeats and sections are compared with their timeouts."
    )
    initial_rank_heartbeat_timeout: float | None = setting(
        None,
        v.TIMEOUT,
        "seconds",
        "Longest wait for a rank's first heartbeat, which includes imports, loading and compilation.",
    )
    rank_heartbeat_timeout: float | None = setting(
        None,
        v.TIMEOUT,
        "seconds",
        "Longest gap between two heartbeats of a rank; at most the initial timeout.",
    )
    rank_section_timeouts: tuple[tuple[str, float | None], ...] = setting(
        (), v.SECTION_TIMEOUTS, "seconds by section name", "Longest stay in each named section of the script."
    )
    rank_out_of_section_timeout: float | None = setting(
        None, v.TIMEOUT, "seconds", "Longest stay outside all sections."
    )
    node_health_check_interval: float = setting(
        5.0,
        v.INTERVAL,
        "seconds",
        "How often the node's health is checked while training runs; 5.0, the default there, stands for "
        "ftrun.health.interval.",
    )
    safety_factor: float = setting(
        5.0, v.FACTOR, "factor", "Observed intervals times this give the learned timeouts."
    )
    rank_termination_signal: str = setting(
        "SIGKILL",
        v.SIGNAL,
        "signal name or number",
        "Ends a rank that hangs; a hung rank seldom obeys a weaker signal.",
    )
    log_level: int = setting(
        20,
        v.LOG_LEVEL,
        "10 DEBUG, 20 INFO, 30 WARNING, 40 ERROR, 50 CRITICAL",
        "Kept so that old files load.",
        _DEAD,
    )
    restart_check_interval: float = setting(
        60.0, v.INTERVAL, "seconds", "Kept so that old files load.", _DEAD
    )
    enable_nic_monitor: bool = setting(
        False,
        v.SWITCH,
        "true or false",
        "Watches the network cards while training runs.",
        "ftrun always does where health checks are on; ftrun.health.checks switches single ones",
    )
    enable_nic_healthcheck: bool = setting(
        True,
        v.SWITCH,
        "true or false",
        "Looks at network cards; false is ftrun.health.checks {nic: off}.",
    )
    pci_topo_file: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path",
        "Topology file of NCCL, by which network cards are told to serve GPUs; null to ask the system.",
    )
    link_down_path_template: str | None = setting(
        None, v.TEXT_OR_OFF, "path with {dev_name}", "Where a network card counts its lost links.", _ALL_PORTS
    )
    link_state_path_template: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path with {dev_name}",
        "Where a network card shows the state of its link.",
        _ALL_PORTS,
    )
    enable_dist_storage_healthcheck: bool = setting(
        False,
        v.SWITCH,
        "true or false",
        "Looks at distributed storage before a round starts.",
        "ftrun always looks at Lustre and at the mounts of the job's paths where health checks are on",
    )
    storage_healthcheck_path: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "absolute paths, separated by commas",
        "Paths that must be readable before a round starts, beside ftrun.health.paths.",
    )
    gpu_memory_reclaim_timeout: float = setting(
        50.0,
        v.SECONDS,
        "seconds",
        "Longest wait for the memory of stopped workers to be free again.",
    )
    gpu_memory_tolerance_mb: float = setting(
        512.0, v.MEGABYTES, "MB", "GPU memory that may stay in use and still counts as free."
    )
    gpu_memory_poll_interval: float = setting(
        2.0,
        v.INTERVAL,
        "seconds",
        "How often GPU memory is looked at during that wait; 2.0, the default there, stands for 0.05.",
    )
    check_remaining_processes: bool = setting(
        False,
        v.SWITCH,
        "true or false",
        "Asks whether processes of an earlier round still hold a GPU.",
        "ftrun always ends every process of a round, so there is nothing to switch",
    )
    skip_section_response: bool = setting(
        True, v.SWITCH, "true or false", "Section messages need no answer, which makes them cheaper."
    )
    segment: int | None = setting(
        None,
        v.COUNT_OR_OFF,
        "nodes",
        "Nodes of one network domain that must be used together.",
        "ftrun does not ask in which network domain a node is, and fills the world in the order of nodes",
    )
    numa_bind_strict: bool = setting(
        True,
        v.SWITCH,
        "true or false",
        "Binds memory strictly to the NUMA node of the GPU.",
        "NUMA binding is asked for with --numa-binding here",
    )
    use_infra_group_rank: bool = setting(
        True,
        v.SWITCH,
        "true or false",
        "Only version 0.5 has it: ranks follow the scheduler's order of nodes.",
        "ranks always follow the scheduler's order of nodes, if there is one",
    )
    max_no_progress_cycles: int = setting(
        3,
        v.COUNT,
        "rounds",
        "Rounds in a row without progress after which the job is given up; unless it is given, "
        "ftrun.restart.max_no_progress holds.",
    )
    min_progress_iterations: int = setting(
        1,
        v.COUNT,
        "iterations",
        "Steps beyond those that the job ever had done that count as progress of a round.",
    )
    checkpoint_iteration_file: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path",
        "Holds the iteration of the newest checkpoint.",
        "ftrun counts the steps itself, and looks at the checkpoints below ftrun.checkpoint.dir",
    )
    install_exception_hook: bool = setting(
        False,
        v.SWITCH,
        "true or false",
        "Makes workers record uncaught exceptions.",
        "ftrun always records the exception that ended a worker",
    )
    num_warmup_iterations: int = setting(
        5, v.COUNT, "iterations", "First iterations that learned timeouts leave out, because they are slow."
    )
    attribution_endpoint: str | None = setting(
        None, v.TEXT_OR_OFF, "host:port or URL", "Service that explains failures.", _NO_ATTRIBUTION
    )
    attribution_stop_action: str = setting(
        "log",
        v.choice_of("log", "no-restart"),
        "log or no-restart",
        "What to do when that service advises to stop.",
        _NO_ATTRIBUTION,
    )
    attribution_export_url: str | None = setting(
        None, v.TEXT_OR_OFF, "URL", "Where that service's findings are sent.", _NO_ATTRIBUTION
    )
    cycle_info_dir: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path",
        "Where a file per round was written.",
        "ftrun writes every round into its journal instead (--ft-run-dir)",
    )

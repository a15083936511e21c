"""The configuration of a run: one frozen tree, built once by `ftrun.launcher.options`.

Holds what was asked for, its defaults, units and reasons, and which values contradict each other. Does not
read files, the environment or the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ftrun.launcher import values as v
from ftrun.launcher.account_config import JournalConfig, MetricsConfig
from ftrun.launcher.checkpoint_config import CheckpointConfig
from ftrun.launcher.fault_tolerance import FaultToleranceConfig as FaultToleranceConfig
from ftrun.launcher.health_config import HealthConfig
from ftrun.launcher.restart_config import RestartConfig as RestartConfig
from ftrun.launcher.streams import StdMap
from ftrun.launcher.values import Setting, Spec, setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_D = TypeVar("_D", bound="DataclassInstance")

_NO_STREAMS = StdMap()

DEFAULT_MAX_RESTARTS = 3
MAX_RESTARTS_KEY = "ftrun.restart.max_restarts"
_MAX_RESTARTS = Spec(
    v.COUNT, "restarts of the job", "How often workers are started again before the job is given up."
)


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What torchrun's options say; names, defaults and meaning are torchrun's, `max_restarts` excepted."""

    training_script: str
    """Script, module or program; "" only when nothing is to be started (`--ft-show-config`)."""
    training_script_args: tuple[str, ...] = ()
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: str = "1"
    """A number above 0, or a word (auto, cpu, gpu, xpu, a private backend's name) still to be resolved."""
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    rdzv_conf: tuple[tuple[str, str], ...] = ()
    standalone: bool = False
    max_restarts: int = DEFAULT_MAX_RESTARTS
    monitor_interval: float = 0.1
    """Seconds."""
    start_method: str = "spawn"
    event_log_handler: str = "null"
    role: str = "default"
    is_module: bool = False
    no_python: bool = False
    run_path: bool = False
    """Wins over `no_python`."""
    log_dir: str | None = None
    redirects: StdMap = _NO_STREAMS
    tee: StdMap = _NO_STREAMS
    local_ranks_filter: frozenset[int] | None = None
    """Local ranks whose output reaches the console; None for all."""
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    local_addr: str | None = None
    logs_specs: str | None = None
    """Name of an entry point in group `torchrun.logs_specs`; it exists."""
    numa_binding: str | None = None
    signals_to_handle: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    shutdown_timeout: float | None = None
    """Seconds; rules every stop path when given."""
    virtual_local_rank: bool = False


@dataclass(frozen=True, slots=True)
class StopConfig:
    """How long workers may take to end; `--shutdown-timeout` rules both graces when given."""

    grace_after_failure: float = setting(
        5.0,
        v.SECONDS,
        "seconds",
        "SIGTERM to SIGKILL after a rank failed: the others mostly wait for it in a collective and "
        "cannot answer.",
    )
    grace_after_signal: float = setting(
        30.0,
        v.SECONDS,
        "seconds",
        "SIGTERM to SIGKILL after the agent was told to stop: time to save, as torchrun and Kubernetes give.",
    )
    grace_after_success: float = setting(
        30.0,
        v.SECONDS,
        "seconds",
        "Time for processes that outlived their rank, such as an upload, before they are asked to end.",
    )
    kill_timeout: float = setting(
        10.0,
        v.INTERVAL,
        "seconds",
        "Longest wait for a process to vanish after SIGKILL; one that stays is reported as unkillable.",
    )


@dataclass(frozen=True, slots=True)
class StandbyConfig:
    """Worker processes that have done their imports and wait for a rank."""

    mode: str = setting(
        "auto",
        v.choice_of("auto", "on", "off"),
        "auto, on or off",
        "auto starts cold where preloading could change what the script does; on overrides that; off "
        "never preloads.",
    )
    min_free_memory: int = setting(
        4 * 1024**3,
        v.SIZE,
        "bytes, or text such as 4GiB",
        "Memory that must stay free for a standby to be started: training needs it more.",
    )


@dataclass(frozen=True, slots=True)
class TimeoutsConfig:
    """When a job in which no rank shows any sign of progress is hung; `docs/timeouts.md` has the rule."""

    stall: str | float = setting(
        "auto",
        v.STALL,
        "auto, off, or seconds",
        "auto learns from the longest quiet time that this job has shown; a number is a fixed limit.",
    )
    stall_floor: float = setting(
        60.0, v.INTERVAL, "seconds", "Least limit that is learned: a pause of the machine is no hang."
    )


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Which nodes take part in a round."""

    min_size: int | None = setting(
        None,
        v.COUNT_OR_OFF,
        "ranks",
        "Fewest ranks that the job goes on with when it has lost nodes; null for what MIN nodes have.",
    )
    spares: int = setting(
        0,
        v.COUNT,
        "nodes",
        "Nodes that are kept out of the world, joined and ready to replace one that is lost.",
    )
    shrink: str = setting(
        "node",
        v.choice_of("node", "gpu", "never"),
        "node, gpu or never",
        "What a GPU that is not healthy takes out of the world: its node, or the workers on that GPU alone. "
        "never: as node, and the world is never smaller than it was; it waits for a replacement.",
    )
    grow: str = setting(
        "at_checkpoint",
        v.choice_of("at_checkpoint", "immediately", "never"),
        "at_checkpoint, immediately or never",
        "When nodes that have come later get ranks: at_checkpoint waits until no step is lost by it.",
    )


@dataclass(frozen=True, slots=True)
class RdzvConfig:
    """How nodes stay in touch; the keys of torchrun's --rdzv-conf win over these."""

    reconnect_timeout: float = setting(
        300.0,
        v.SECONDS,
        "seconds",
        "How long nodes look for the store again when its host is lost: a pod needs minutes to be replaced.",
    )
    keep_alive_interval: float = setting(
        1.0, v.INTERVAL, "seconds", "How often each agent shows that it is there: one small request."
    )
    lost_after: float = setting(
        5.0,
        v.INTERVAL,
        "seconds",
        "A node not heard of for so long is lost; at least two intervals, since one beat may be late.",
    )
    same_arguments: bool = setting(
        True,
        v.SWITCH,
        "true or false",
        "Refuses an agent whose script or arguments differ, which mostly belongs to another job.",
    )


@dataclass(frozen=True, slots=True)
class FtrunConfig:
    """The `ftrun:` section."""

    restart: RestartConfig = field(default_factory=RestartConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    standby: StandbyConfig = field(default_factory=StandbyConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    timeouts: TimeoutsConfig = field(default_factory=TimeoutsConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    rdzv: RdzvConfig = field(default_factory=RdzvConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    run_dir: str | None = setting(
        None, v.TEXT_OR_OFF, "path", "Journal and logs of the run; null for $XDG_STATE_HOME/ftrun/<run_id>."
    )
    log_format: str = setting(
        "human", v.choice_of("human", "json"), "human or json", "How events are written to the terminal."
    )
    graceful_exit_code: int | None = setting(
        None,
        v.EXIT_CODE_OR_OFF,
        "exit code",
        "After a stop by signal n when all workers exited 0; null for 128+n, which keeps a drained pod "
        "from counting as finished.",
    )


@dataclass(frozen=True, slots=True)
class IgnoredOption:
    """Something that was asked for and has no effect."""

    name: str
    """As typed, or the key of a configuration file."""
    reason: str
    """Without a full stop."""


@dataclass(frozen=True, slots=True)
class Config:
    """All that was asked for, and where it came from."""

    launch: LaunchOptions
    fault_tolerance: FaultToleranceConfig = field(default_factory=FaultToleranceConfig)
    ftrun: FtrunConfig = field(default_factory=FtrunConfig)
    ignored: tuple[IgnoredOption, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    """Dotted key (`launch.role`, `fault_tolerance.safety_factor`, `ftrun.stop.kill_timeout`) to origin."""

    def is_given(self, name: str) -> bool:
        """Whether somebody set this value, by its dotted key in `origins`, rather than left it out."""
        return name in self.origins

    @property
    def grace_after_failure_s(self) -> float:
        """Seconds from SIGTERM to SIGKILL after a worker failed."""
        timeout_s = self.launch.shutdown_timeout
        return self.ftrun.stop.grace_after_failure if timeout_s is None else timeout_s

    @property
    def grace_after_signal_s(self) -> float:
        """Seconds from SIGTERM to SIGKILL after the agent was told to stop."""
        timeout_s = self.launch.shutdown_timeout
        return self.ftrun.stop.grace_after_signal if timeout_s is None else timeout_s


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration file with a value."""

    name: str
    """Dotted, e.g. "ftrun.stop.kill_timeout"."""
    value: Setting
    spec: Spec


def _walk(prefix: str, section: DataclassInstance) -> Iterator[Key]:
    for item in fields(section):
        name, value = f"{prefix}.{item.name}", getattr(section, item.name)
        if is_dataclass(value) and not isinstance(value, type):
            yield from _walk(name, value)
        else:
            yield Key(name, value, item.metadata["spec"])


def iterate_keys(
    fault_tolerance: FaultToleranceConfig, ftrun: FtrunConfig, max_restarts: int
) -> Iterator[Key]:
    """Every key that a configuration file may hold, in its order, with the value of this configuration."""
    yield from _walk("fault_tolerance", fault_tolerance)
    yield Key(MAX_RESTARTS_KEY, max_restarts, _MAX_RESTARTS)
    yield from _walk("ftrun", ftrun)


DEFAULT_KEYS: Mapping[str, Key] = {
    key.name: key for key in iterate_keys(FaultToleranceConfig(), FtrunConfig(), DEFAULT_MAX_RESTARTS)
}
"""Every key with its default."""


def _fill(prefix: str, section: _D, settings: Mapping[str, Setting]) -> _D:
    changes: dict[str, Any] = {}
    for item in fields(section):
        name, value = f"{prefix}.{item.name}", getattr(section, item.name)
        if is_dataclass(value) and not isinstance(value, type):
            changes[item.name] = _fill(name, value, settings)
        elif name in settings:
            changes[item.name] = settings[name]
    return replace(section, **changes)


def build_sections(settings: Mapping[str, Setting]) -> tuple[FaultToleranceConfig, FtrunConfig]:
    """The two sections with these values (by dotted key, already of the right kind), defaults elsewhere."""
    return _fill("fault_tolerance", FaultToleranceConfig(), settings), _fill("ftrun", FtrunConfig(), settings)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two values that do not fit, by dotted key."""

    key: str
    """Its value is too low."""
    other: str
    """Its value, `times` as much, is the least that the first may be."""
    times: int = 1


def find_contradictions(
    fault_tolerance: FaultToleranceConfig, ftrun: FtrunConfig
) -> tuple[Contradiction, ...]:
    """What these sections hold that does not fit together."""
    initial_s = fault_tolerance.initial_rank_heartbeat_timeout
    steady_s = fault_tolerance.rank_heartbeat_timeout
    found = []
    if initial_s is not None and steady_s is not None and initial_s < steady_s:
        prefix = "fault_tolerance"
        found.append(
            Contradiction(f"{prefix}.initial_rank_heartbeat_timeout", f"{prefix}.rank_heartbeat_timeout")
        )
    if ftrun.restart.backoff_max < ftrun.restart.backoff_initial:
        found.append(Contradiction("ftrun.restart.backoff_max", "ftrun.restart.backoff_initial"))
    if ftrun.rdzv.lost_after < 2 * ftrun.rdzv.keep_alive_interval:
        found.append(Contradiction("ftrun.rdzv.lost_after", "ftrun.rdzv.keep_alive_interval", 2))
    return tuple(found)

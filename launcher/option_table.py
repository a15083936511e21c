"""The options that ftrun declares: names, defaults, environment variables and what each is for.

Pure tables; `ftrun.launcher.options` parses with them and `ftrun.launcher.nvrx_options` adds those of
ft_launcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Group(Enum):
    """Whose option it is; the value heads its part of the help."""

    TORCHRUN = "Options of torchrun"
    FTRUN = "Options of ftrun"
    FT_LAUNCHER = "Options of ft_launcher"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option."""

    names: tuple[str, ...]
    """With dashes, the canonical one first; each long name also works with underscores."""
    help: str
    group: Group = Group.TORCHRUN
    is_flag: bool = False
    is_repeatable: bool = False
    has_env: bool = True
    """`PET_<NAME>` in the environment sets it."""
    other_env: str = ""
    """A variable that is read when the PET_ one is not set."""
    choices: tuple[str, ...] = ()
    key: str = ""
    """Key of the configuration tree that it sets; "" for options that have a place of their own."""
    ignored: str = ""
    """Why it has no effect; "" if it has one, or if `key` tells."""

    @property
    def dest(self) -> str:
        """Name as torchrun's parser has it, e.g. "nproc_per_node"."""
        return self.names[0].lstrip("-").replace("-", "_")

    @property
    def env_names(self) -> tuple[str, ...]:
        """Environment variables that set it, the first that is set wins."""
        if not self.has_env:
            return ()
        pet = ["PET_" + name[2:].replace("-", "_").upper() for name in self.names if name.startswith("--")]
        return (*pet, self.other_env) if self.other_env else tuple(pet)


TORCHRUN_OPTIONS = (
    OptionSpec(("--nnodes",), "Number of nodes, or MIN:MAX."),
    OptionSpec(("--nproc-per-node",), "Workers per node: a number, auto, cpu, gpu or xpu."),
    OptionSpec(("--rdzv-backend",), "How nodes find each other, e.g. static or c10d."),
    OptionSpec(("--rdzv-endpoint",), "Where they find each other: HOST[:PORT]."),
    OptionSpec(("--rdzv-id",), "Name of the job, the same on all its nodes."),
    OptionSpec(("--rdzv-conf",), "Settings of the rendezvous: KEY=VALUE,KEY=VALUE."),
    OptionSpec(
        ("--standalone",),
        "One node, free port: --rdzv-backend, -endpoint and -id are chosen.",
        is_flag=True,
    ),
    OptionSpec(
        ("--max-restarts",),
        "Restarts of the workers before the job is given up (torchrun: 0).",
        key="ftrun.restart.max_restarts",
    ),
    OptionSpec(("--monitor-interval",), "Seconds between looks at what sends no event."),
    OptionSpec(
        ("--start-method",),
        "Start method for --run-path: spawn, fork or forkserver.",
        choices=("spawn", "fork", "forkserver"),
    ),
    OptionSpec(("--event-log-handler",), "Where torch elastic's events go: null or console."),
    OptionSpec(("--role",), "Role of the workers, shown in logs."),
    OptionSpec(("--module", "-m"), "The script is the name of a module, as with python -m.", is_flag=True),
    OptionSpec(("--no-python",), "The script is a program of its own, not Python.", is_flag=True),
    OptionSpec(("--run-path",), "Run the script with runpy; wins over --no-python.", is_flag=True),
    OptionSpec(("--log-dir",), "Directory for the workers' log files."),
    OptionSpec(("--redirects", "-r"), "Streams to files: 0 none, 1 out, 2 err, 3 both, or LOCAL_RANK:N,..."),
    OptionSpec(("--tee", "-t"), "Streams to files and to the console, as --redirects."),
    OptionSpec(("--local-ranks-filter",), "Local ranks whose output is shown, e.g. 0,1; all if empty."),
    OptionSpec(("--duplicate-stdout-filters",), "Copy stdout lines with one of these texts (a,b) to a file."),
    OptionSpec(("--duplicate-stderr-filters",), "Copy stderr lines with one of these texts (a,b) to a file."),
    OptionSpec(("--node-rank",), "Rank of this node, or its place in the order of nodes."),
    OptionSpec(("--master-addr",), "Address of node 0; for the static rendezvous."),
    OptionSpec(("--master-port",), "Port on node 0; for the static rendezvous."),
    OptionSpec(("--local-addr",), "Address of this node, if its name is not the right one."),
    OptionSpec(("--logs-specs",), "Plug-in for log files (entry point torchrun.logs_specs).", has_env=False),
    OptionSpec(
        ("--numa-binding",),
        "Bind workers to CPUs near their GPU.",
        has_env=False,
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    OptionSpec(("--signals-to-handle",), "Signals that end the job with grace."),
    OptionSpec(
        ("--shutdown-timeout",),
        "Seconds from SIGTERM to SIGKILL, whatever the cause.",
        other_env="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    ),
    OptionSpec(
        ("--virtual-local-rank",), "Each worker sees LOCAL_RANK 0 and only its own GPU.", is_flag=True
    ),
    OptionSpec(("--help", "-h"), "Show this text.", is_flag=True, has_env=False),
)


def _own(
    name: str, text: str, *, key: str = "", more: tuple[str, ...] = (), is_flag: bool = False
) -> OptionSpec:
    return OptionSpec((name, *more), text, Group.FTRUN, is_flag=is_flag, has_env=not is_flag, key=key)


FTRUN_OPTIONS = (
    _own("--ft-config", "Configuration file (YAML).", more=("--ft-cfg-path", "--fault-tol-cfg-path")),
    OptionSpec(
        ("--ft-set",),
        "Set one key of the configuration: KEY=VALUE; may be repeated.",
        group=Group.FTRUN,
        is_repeatable=True,
        has_env=False,
    ),
    _own("--ft-show-config", "Show every value with its origin, and start nothing.", is_flag=True),
    _own(
        "--ft-workers-stop-timeout",
        "Seconds from SIGTERM to SIGKILL after a failure (5).",
        key="ftrun.stop.grace_after_failure",
        more=("--workers-stop-timeout",),
    ),
    _own(
        "--ft-term-timeout",
        "Seconds from SIGTERM to SIGKILL after the agent was signalled (30).",
        key="ftrun.stop.grace_after_signal",
        more=("--term-timeout",),
    ),
    _own("--ft-checkpoint-dir", "The newest whole checkpoint below it is used.", key="ftrun.checkpoint.dir"),
    _own("--ft-run-dir", "Where journal and logs go.", key="ftrun.run_dir"),
    _own("--ft-metrics-port", "Port for Prometheus; needs ftrun[metrics].", key="ftrun.metrics.port"),
    _own("--ft-metrics-host", "Address of that port (127.0.0.1).", key="ftrun.metrics.host"),
    _own("--ft-metrics-file", "File for node_exporter's textfile collector.", key="ftrun.metrics.file"),
    _own("--ft-log-format", "human or json.", key="ftrun.log_format"),
    _own("--ft-standby", "auto, on or off: start workers ahead of need.", key="ftrun.standby.mode"),
    _own(
        "--ft-min-world-size",
        "Fewest ranks that the job goes on with when nodes are lost.",
        key="ftrun.world.min_size",
    ),
    _own("--ft-spares", "Nodes to keep out of the world, ready to replace others.", key="ftrun.world.spares"),
    _own(
        "--ft-grow",
        "at_checkpoint, immediately or never: when nodes that come later get ranks.",
        key="ftrun.world.grow",
    ),
    _own(
        "--ft-reconnect-timeout",
        "Seconds to look for the store again when its host is lost (300).",
        key="ftrun.rdzv.reconnect_timeout",
    ),
    _own("--ft-health", "auto, on or off: check each node's health.", key="ftrun.health.enabled"),
    _own(
        "--ft-graceful-exit-code",
        "Exit code after a signal when all workers exited 0 (128+n).",
        key="ftrun.graceful_exit_code",
    ),
    _own("--ft-version", "Show the version.", more=("--version",), is_flag=True),
)

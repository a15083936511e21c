"""The options of nvidia-resiliency-ext's ft_launcher, 0.4.1 to 0.7, so that its command lines work unchanged.

Pure table. Those that name a key of the `fault_tolerance:` section set it; the rest are accepted and have no
effect, for the reason given here.
"""

from __future__ import annotations

from dataclasses import fields

from ftrun.launcher.fault_tolerance import FaultToleranceConfig
from ftrun.launcher.option_table import Group, OptionSpec

_NO_COMMAND_LINE = frozenset({"num_warmup_iterations"})
"""Fields that ft_launcher reads from its file only."""

_SPELLINGS = {"storage_healthcheck_path": "storage-health-check-path"}
"""Fields whose option is not spelled like the field."""

_NO_LOG_SERVICE = "this version has no log collection service; use --log-dir, --redirects and --tee"
_NO_ATTRIBUTION = "this version has no attribution service yet"

_IGNORED = {
    "restart-policy": "ftrun has one policy: a failed worker restarts the workers of the whole job",
    "rdzv-impl": "ftrun has one rendezvous of its own",
    "segment-health-check-dir": "each node checks its own health and its GPUs' part of the NVLink fabric",
    "no-restart-exit-code": "ftrun's exit codes are fixed: 93 says that a restart would not help",
    "per-cycle-applog-prefix": "ftrun keeps the logs of each round apart below --log-dir",
    "nvrx-logfile": _NO_LOG_SERVICE,
    "enable-log-server": _NO_LOG_SERVICE,
    "log-server-port": _NO_LOG_SERVICE,
    "log-aggregator-count": _NO_LOG_SERVICE,
    "log-leaf-max-queue-chunks": _NO_LOG_SERVICE,
    "log-server-log-prefix": _NO_LOG_SERVICE,
    "log-server-graceful-shutdown-timeout": _NO_LOG_SERVICE,
    "attribution-startup-timeout": _NO_ATTRIBUTION,
    "attribution-compute-timeout": _NO_ATTRIBUTION,
    "attribution-llm-api-key-file": _NO_ATTRIBUTION,
    "attribution-llm-base-url": _NO_ATTRIBUTION,
    "attribution-llm-model": _NO_ATTRIBUTION,
    "attribution-analysis-backend": _NO_ATTRIBUTION,
    "attribution-log-level": _NO_ATTRIBUTION,
}
_CHOICES = {"restart-policy": ("any-failed", "min-healthy")}
_OTHER_NAMES = {"restart-policy": ("--restart-policy",)}


def _setting_options() -> tuple[OptionSpec, ...]:
    specs = []
    for item in fields(FaultToleranceConfig):
        if item.name not in _NO_COMMAND_LINE:
            name = _SPELLINGS.get(item.name, item.name.replace("_", "-"))
            names = (f"--ft-{name}", f"--ft-param-{name}")
            key = f"fault_tolerance.{item.name}"
            specs.append(
                OptionSpec(names, item.metadata["spec"].why, group=Group.FT_LAUNCHER, has_env=False, key=key)
            )
    return tuple(specs)


def _ignored_options() -> tuple[OptionSpec, ...]:
    return tuple(
        OptionSpec(
            (f"--ft-{name}", *_OTHER_NAMES.get(name, ())),
            f"No effect: {reason}.",
            group=Group.FT_LAUNCHER,
            choices=_CHOICES.get(name, ()),
            ignored=reason,
        )
        for name, reason in _IGNORED.items()
    )


_IGNORE_MISSING_REASON = "ftrun needs no configuration file, and one that is named but missing is an error"

NVRX_OPTIONS = (
    *_setting_options(),
    *_ignored_options(),
    OptionSpec(
        ("--ft-node-health-check-endpoint",),
        "Unix socket of the node health check daemon, which is asked before each round.",
        group=Group.FT_LAUNCHER,
        key="ftrun.health.node_health_check_endpoint",
    ),
    OptionSpec(
        ("--ft-ignore-missing-cfg", "--ignore-missing-fault-tol-cfg"),
        f"No effect: {_IGNORE_MISSING_REASON}.",
        group=Group.FT_LAUNCHER,
        is_flag=True,
        has_env=False,
        ignored=_IGNORE_MISSING_REASON,
    ),
)

"""`ftctl check`: the health checks of this node by hand, or as a Slurm prolog or a Kubernetes probe."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ftrun.healthchecks.course import Taken
    from ftrun.healthchecks.policy import HealthPolicy, Scope
    from ftrun.healthchecks.runner import HealthReport
    from ftrun.launcher.config import FtrunConfig

_DEADLINE_S = 15.0
"""Of a healthy node nobody waits for this long; where persistence mode is off, each GPU takes seconds."""


@click.command()
@click.option("--all", "show_all", is_flag=True, help="Show also what is healthy or skipped.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--node-report", is_flag=True, help="Print every reading as JSON, with the results.")
@click.option("--list", "as_list", is_flag=True, help="Print all checks and thresholds, and check nothing.")
@click.option("--config", "config_path", metavar="FILE", help="Configuration file, as ftrun --ft-config.")
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(min=0.1),
    default=_DEADLINE_S,
    show_default=True,
    help="Seconds after which what has not answered is unknown.",
)
@click.pass_context
def check(
    context: click.Context,
    show_all: bool,
    as_json: bool,
    node_report: bool,
    as_list: bool,
    config_path: str | None,
    deadline_s: float,
) -> None:
    """Whether this node is fit for a job.

    Looks at the GPUs that CUDA_VISIBLE_DEVICES lists, all without it, at NVLink, network cards, memory and
    the paths of the configuration. Ends with 0 if all is well or there is nothing to check, 1 if something
    is unhealthy, 2 if that could not be told.
    """
    # Here, since the judges take a while to import and other commands do without.
    from ftrun.healthchecks.registry import Occasion
    from ftrun.healthchecks.runner import Health
    from ftrun.monitor.check_table import exit_code, render_check

    policy, config = _load(config_path)
    if as_list:
        click.echo(_list(policy), nl=False)
        return
    health = Health(policy, _scope(config), by_hand=True)
    try:
        deadline_s = max(deadline_s, policy.round_deadline_s if _has_external(policy) else 0.0)
        report = health.check(Occasion.BY_HAND, deadline_s, frozenset({os.getpid()}))
        taken = health.last_taken
    finally:
        health.close()
    if node_report or as_json:
        click.echo(_to_json(report, taken if node_report else None))
    else:
        click.echo(render_check(report.results, report.took_s, show_all), nl=False)
    context.exit(exit_code(report.results))


def _has_external(policy: HealthPolicy) -> bool:
    return bool(policy.command or policy.nvhcd_endpoint)


def _load(path: str | None) -> tuple[HealthPolicy, FtrunConfig]:
    """The policy of a configuration file, or the one without a file."""
    from ftrun.launcher.config import build_sections
    from ftrun.launcher.config_file import ConfigError, load
    from ftrun.launcher.health_config import build_policy

    try:
        settings = {item.key: item.value for item in load(path)} if path is not None else {}
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    fault_tolerance, ftrun = build_sections(settings)
    return build_policy(ftrun.health, fault_tolerance), ftrun


def _scope(config: FtrunConfig) -> Scope:
    from ftrun.healthchecks.policy import Scope

    directory = config.checkpoint.dir
    return Scope(
        platform.node(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=os.environ.get("CUDA_DEVICE_ORDER", ""),
        checkpoint_dir=os.path.abspath(directory) if directory else "",
    )


def _to_json(report: HealthReport, taken: Taken | None) -> str:
    from ftrun.healthchecks.reading import to_json

    document: dict[str, object] = {
        "node": platform.node(),
        "status": report.status.value,
        "took_s": round(report.took_s, 3),
        "results": [asdict(result) | {"status": result.status.value} for result in report.results],
    }
    if taken is not None:
        readings = {"gpu": taken.gpu, "network": taken.network, "host": taken.host}
        document |= {name: json.loads(to_json(reading)) for name, reading in readings.items() if reading}
        document["paths"] = [json.loads(to_json(path)) for path in taken.paths]
        document["kernel_xids"] = [json.loads(to_json(xid)) for xid in taken.kernel_xids]
    return json.dumps(document, indent=2)


def _list(policy: HealthPolicy) -> str:
    """All checks with their severity, then all thresholds with their value."""
    from ftrun.healthchecks.registry import CHECKS
    from ftrun.healthchecks.thresholds import defaults

    lines = ["checks:"]
    lines += [f"  {c.name}: {policy.severities[c.name].value}  # {c.description}" for c in CHECKS]
    lines += ["thresholds:"]
    values = defaults() | dict(policy.thresholds)
    lines += [
        f"  {name}: {'null' if value is None else format(value, '.15g')}" for name, value in values.items()
    ]
    return "\n".join(lines) + "\n"

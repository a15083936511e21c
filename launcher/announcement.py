"""What an agent says of its run before anything happens in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from ftrun.launcher.config import Config, LaunchOptions, iterate_keys
from ftrun.launcher.config_show import render_value
from ftrun.launcher.start import Start
from ftrun.monitor import events
from ftrun.monitor.redaction import MASK, Redactor, is_secret_name

_NOT_RECORDED = frozenset({"launch.training_script", "launch.training_script_args", "launch.max_restarts"})
"""The script is in another event, its arguments are nobody's business, and the last has a key of the file."""


def announce(
    config: Config,
    start: Start,
    started: events.RunStarted,
    located: events.LogLocated,
    environ: Mapping[str, str],
) -> Iterator[events.Event]:
    """The events with which a journal begins; `environ` is the agent's."""
    yield started
    yield configured(config)
    for ignored in config.ignored:
        yield events.OptionIgnored(ignored.name, ignored.reason)
    if start.slots.count > 1 and "OMP_NUM_THREADS" not in environ:
        yield events.EnvironmentDefaulted("OMP_NUM_THREADS", "1")
    if start.advice.is_cold:
        yield events.StandbySuspended(start.advice.reason)
    yield located


def configured(config: Config) -> events.RunConfigured:
    """What somebody has set, with where; without secrets and without arguments of the script or a command."""
    keys = iterate_keys(config.fault_tolerance, config.ftrun, config.launch.max_restarts)
    values = {f"launch.{item.name}": getattr(config.launch, item.name) for item in fields(LaunchOptions)}
    values |= {key.name: key.value for key in keys}
    given = [name for name in values if name in config.origins and name not in _NOT_RECORDED]
    return events.RunConfigured(
        names=tuple(given),
        values=tuple(_record(name, values[name]) for name in given),
        origins=tuple(config.origins[name] for name in given),
    )


def _record(name: str, value: object) -> str:
    """As text, in which what may be a secret is masked."""
    if name.endswith(".command") and isinstance(value, tuple) and value:
        return f"{render_value(value[0])} ({len(value) - 1} arguments)"
    if isinstance(value, tuple):
        value = tuple(_without_secret(item) for item in value)
    return Redactor().mask(render_value(value))


def _without_secret(item: object) -> object:
    """Of a pair of name and value, a value that the name makes a secret is masked."""
    if isinstance(item, tuple) and len(item) == 2 and is_secret_name(str(item[0])):
        return item[0], MASK
    return item

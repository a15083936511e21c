"""From ftrun's command line, the environment and the configuration file to one `Config`.

The command line wins over the environment, that over the file, that over the default. Prints nothing and
never exits: the caller does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType

from ftrun.launcher import command_line, config_file
from ftrun.launcher.command_line import CommandLine
from ftrun.launcher.config import (
    DEFAULT_KEYS,
    MAX_RESTARTS_KEY,
    Config,
    FtrunConfig,
    IgnoredOption,
    LaunchOptions,
    build_sections,
    find_contradictions,
)
from ftrun.launcher.config_show import render_config
from ftrun.launcher.fault_tolerance import FaultToleranceConfig
from ftrun.launcher.ignored_options import find_ignored
from ftrun.launcher.launch_options import Given, UsageError, build_launch_options, read_flag
from ftrun.launcher.nodes import RENDEZVOUS_BACKENDS
from ftrun.launcher.nvrx_options import NVRX_OPTIONS
from ftrun.launcher.option_table import FTRUN_OPTIONS, TORCHRUN_OPTIONS, Group, OptionSpec
from ftrun.launcher.values import Setting

__all__ = ["ALL_OPTIONS", "HelpRequested", "UsageError", "parse"]

ALL_OPTIONS = (*TORCHRUN_OPTIONS, *FTRUN_OPTIONS, *NVRX_OPTIONS)

_LAUNCH_FIELDS = {"module": "is_module"}
"""Fields of `LaunchOptions` that are not called like the option."""


class HelpRequested(Exception):
    """Nothing is to be started; `text` belongs on stdout, and the exit code is 0."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Build the configuration of a run.

    Args:
        argv: the command line without the program's name.
        environ: the environment.

    Raises:
        UsageError: something asked for does not exist, does not fit or contradicts something else.
        HelpRequested: help, version or the configuration was asked for.
    """
    line = command_line.split(argv, ALL_OPTIONS)
    if "help" in line.words:
        raise HelpRequested(command_line.format_help(ALL_OPTIONS, _describe_defaults()))
    if "ft_version" in line.words:
        raise HelpRequested(f"ftrun {_find_version()}\n")
    given = {spec.dest: text for spec in ALL_OPTIONS for text in _find_given(spec, line, environ)}
    settings = _Settings()
    try:
        settings.add_file(given.get("ft_config"))
        settings.add_options(given, from_command_line=False)
        settings.add_assignments(line)
        settings.add_options(given, from_command_line=True)
    except config_file.ConfigError as error:
        raise UsageError(str(error)) from None
    is_shown = "ft_show_config" in line.words
    config = _build(settings, given, line.command, environ, is_shown=is_shown)
    if is_shown:
        raise HelpRequested(render_config(config))
    return config


def _find_given(spec: OptionSpec, line: CommandLine, environ: Mapping[str, str]) -> Iterator[Given]:
    """The text that rules for an option, if there is one."""
    word = line.words.get(spec.dest)
    given = None
    if word is not None:
        given = Given(word.texts[-1], word.name, True)
    else:
        for name in spec.env_names:
            # An empty variable is a value to torchrun; job templates often leave ours empty.
            if name in environ and (environ[name] or spec.group is Group.TORCHRUN):
                given = Given(environ[name], name, False)
                break
    if given is None:
        return
    if spec.choices and given.text not in spec.choices:
        raise UsageError(f"{given.where}: found {given.text!r}, expected one of {', '.join(spec.choices)}")
    yield given


class _Settings:
    """Collects the values of configuration keys; what is added later wins."""

    def __init__(self) -> None:
        self.values: dict[str, Setting] = {}
        self.origins: dict[str, str] = {}
        self._ignored: dict[str, IgnoredOption] = {}

    @property
    def ignored(self) -> tuple[IgnoredOption, ...]:
        """What was asked for and has no effect, once per key."""
        return tuple(self._ignored.values())

    def add_file(self, given: Given | None) -> None:
        if given is not None:
            for item in config_file.load(given.text):
                self._add(item.key, item.value, f"{given.text}:{item.line}")

    def add_assignments(self, line: CommandLine) -> None:
        word = line.words.get("ft_set")
        for text in word.texts if word else ():
            try:
                key, value = config_file.parse_assignment(text)
            except config_file.ConfigError as error:
                raise UsageError(f"--ft-set: {error}") from None
            self._add(key, value, "command line --ft-set")

    def add_options(self, given: Mapping[str, Given], *, from_command_line: bool) -> None:
        for spec in ALL_OPTIONS:
            text = given.get(spec.dest)
            if text is None or text.is_typed is not from_command_line:
                continue
            if spec.ignored and not (spec.is_flag and not text.read(read_flag, "1 or 0")):
                self._ignored[spec.dest] = IgnoredOption(text.where, spec.ignored)
            elif spec.key:
                kind = DEFAULT_KEYS[spec.key].spec.kind
                self._add(spec.key, text.read(kind.read_text, kind.expected), text.origin, text.where)

    def _add(self, key: str, value: Setting, origin: str, typed: str = "") -> None:
        self.values[key] = value
        self.origins[key] = origin
        known = DEFAULT_KEYS[key]
        self._ignored.pop(key, None)
        # A file may list keys at their default, as default.yaml does: nobody needs a warning for that.
        if known.spec.inactive and (typed or value != known.value):
            self._ignored[key] = IgnoredOption(typed or key, known.spec.inactive)


def _build(
    settings: _Settings,
    given: Mapping[str, Given],
    command: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    is_shown: bool,
) -> Config:
    if not (is_shown or (command and command[0])):
        raise UsageError("no training script: expected ftrun [OPTIONS] SCRIPT [ARGS]...; see ftrun --help")
    max_restarts = settings.values.get(MAX_RESTARTS_KEY, DEFAULT_KEYS[MAX_RESTARTS_KEY].value)
    assert isinstance(max_restarts, int)
    launch_given = {
        _LAUNCH_FIELDS.get(spec.dest, spec.dest): given[spec.dest]
        for spec in TORCHRUN_OPTIONS
        if spec.dest in given and not spec.key
    }
    launch = build_launch_options(launch_given, max_restarts, command)
    _check_logs_specs(launch)
    _check_backend(launch, launch_given.get("rdzv_backend"))
    fault_tolerance, ftrun = build_sections(settings.values)
    origins = dict(settings.origins)
    origins |= {f"launch.{name}": text.origin for name, text in launch_given.items()}
    if "nnodes" in launch_given:
        origin = origins.pop("launch.nnodes")
        origins |= {"launch.min_nodes": origin, "launch.max_nodes": origin}
    if MAX_RESTARTS_KEY in origins:
        origins["launch.max_restarts"] = origins[MAX_RESTARTS_KEY]
    if command:
        origins |= {"launch.training_script": "command line", "launch.training_script_args": "command line"}
    _check_contradictions(fault_tolerance, ftrun, origins)
    config = Config(launch, fault_tolerance, ftrun, origins=MappingProxyType(origins))
    return replace(config, ignored=(*settings.ignored, *find_ignored(launch_given, config, environ)))


def _check_logs_specs(launch: LaunchOptions) -> None:
    if launch.logs_specs is None:
        return
    names = _plugins("torchrun.logs_specs")
    if launch.logs_specs not in names:
        expected = f"an entry point of group torchrun.logs_specs; installed: {', '.join(names) or 'none'}"
        raise UsageError(f"--logs-specs: found {launch.logs_specs!r}, expected {expected}")


def _check_backend(launch: LaunchOptions, given: Given | None) -> None:
    if given is None or launch.standalone or given.text in RENDEZVOUS_BACKENDS:
        return
    names = (*RENDEZVOUS_BACKENDS, *_plugins("torchrun.handlers"))
    if given.text not in names:
        expected = f"one of {', '.join(names)} or an entry point of group torchrun.handlers"
        raise UsageError(f"{given.where}: found {given.text!r}, expected {expected}")


def _plugins(group: str) -> list[str]:
    """Names of the installed entry points of a group."""
    # Imported here because it takes longer than all of this module, and few runs need it.
    from importlib import metadata

    return sorted(entry.name for entry in metadata.entry_points(group=group))


def _check_contradictions(
    fault_tolerance: FaultToleranceConfig, ftrun: FtrunConfig, origins: Mapping[str, str]
) -> None:
    for found in find_contradictions(fault_tolerance, ftrun):
        first, second = (f"{key} ({origins.get(key, 'default')})" for key in (found.key, found.other))
        times = f"{found.times} times " if found.times > 1 else ""
        raise UsageError(f"{first} is below {times}{second}: raise the first or lower the second")


def _find_version() -> str:
    from importlib import metadata

    return metadata.version("ftrun")


def _describe_defaults() -> dict[str, str]:
    launch = LaunchOptions("")
    names = {item.name for item in fields(launch)}
    texts = {}
    for spec in ALL_OPTIONS:
        name = _LAUNCH_FIELDS.get(spec.dest, spec.dest)
        value: object = DEFAULT_KEYS[spec.key].value if spec.key else None
        if name in names and not spec.key:
            value = getattr(launch, name)
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        if not spec.is_flag and value is not None and value != "":
            texts[spec.dest] = str(value)
    return texts

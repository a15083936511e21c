"""ft_launcher's options, old and new, on ftrun's command line."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from ftrun.launcher.command_line import OptionNames
from ftrun.launcher.config import FaultToleranceConfig
from ftrun.launcher.options import ALL_OPTIONS, parse

_NEWER_OPTIONS = (
    "ft-skip-section-response",
    "ft-rdzv-impl",
    "ft-use-infra-group-rank",
    "ft-enable-nic-healthcheck",
    "ft-link-state-path-template",
    "ft-enable-dist-storage-healthcheck",
    "ft-storage-health-check-path",
    "ft-node-health-check-endpoint",
    "ft-segment",
    "ft-numa-bind-strict",
    "ft-gpu-memory-reclaim-timeout",
    "ft-gpu-memory-tolerance-mb",
    "ft-gpu-memory-poll-interval",
    "ft-check-remaining-processes",
    "ft-install-exception-hook",
    "ft-max-no-progress-cycles",
    "ft-min-progress-iterations",
    "ft-checkpoint-iteration-file",
    "ft-per-cycle-applog-prefix",
    "ft-nvrx-logfile",
    "ft-enable-log-server",
    "ft-log-server-port",
    "ft-log-aggregator-count",
    "ft-log-leaf-max-queue-chunks",
    "ft-log-server-log-prefix",
    "ft-log-server-graceful-shutdown-timeout",
    "ft-cycle-info-dir",
    "ft-attribution-endpoint",
    "ft-attribution-startup-timeout",
    "ft-attribution-llm-api-key-file",
    "ft-attribution-llm-base-url",
    "ft-attribution-llm-model",
    "ft-attribution-analysis-backend",
    "ft-attribution-log-level",
    "ft-attribution-stop-action",
    "ft-attribution-export-url",
    "ft-no-restart-exit-code",
    "ft-ignore-missing-cfg",
    "ft-segment-health-check-dir",
)
"""Options of versions 0.5 to 0.7, which cannot be asked here since 0.4.1 is what installs."""


@functools.cache
def _installed_option_strings() -> tuple[str, ...]:
    pytest.importorskip("nvidia_resiliency_ext")
    from nvidia_resiliency_ext.fault_tolerance.launcher import get_args_parser

    return tuple(name for action in get_args_parser()._actions for name in action.option_strings)


def test_every_option_of_the_installed_ft_launcher_is_known() -> None:
    """Walks the parser of the installed nvidia-resiliency-ext, aliases and both spellings included."""
    names = OptionNames(ALL_OPTIONS)
    assert [name for name in _installed_option_strings() if names.find_exactly(name) is None] == []


@pytest.mark.parametrize("name", _NEWER_OPTIONS)
def test_newer_options_are_known_in_every_spelling(name: str) -> None:
    """Dashes, underscores behind `ft-`, and underscores throughout."""
    names = OptionNames(ALL_OPTIONS)
    rest = name.removeprefix("ft-").replace("-", "_")
    specs = {names.find_exactly(form) for form in (f"--{name}", f"--ft-{rest}", f"--ft_{rest}")}
    assert len(specs) == 1
    assert None not in specs


def test_every_field_of_the_installed_configuration_is_known() -> None:
    """A `fault_tolerance:` section that the installed version reads has no unknown key here."""
    config = pytest.importorskip("nvidia_resiliency_ext.fault_tolerance.config")
    theirs = {field.name for field in dataclasses.fields(config.FaultToleranceConfig)}
    assert theirs <= {field.name for field in dataclasses.fields(FaultToleranceConfig)}


def _values(line: str) -> FaultToleranceConfig:
    return parse([*line.split(), "x.py"], {}).fault_tolerance


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--ft-rank-heartbeat-timeout 30", "rank_heartbeat_timeout", 30.0),
        ("--ft-rank_heartbeat_timeout=30", "rank_heartbeat_timeout", 30.0),
        ("--ft-param-rank_heartbeat_timeout 30", "rank_heartbeat_timeout", 30.0),
        ("--ft-rank-heartbeat-timeout null", "rank_heartbeat_timeout", None),
        ("--ft-rank-heartbeat-timeout none", "rank_heartbeat_timeout", None),
        ("--ft-rank-heartbeat-timeout=", "rank_heartbeat_timeout", None),
        (
            "--ft-rank-section-timeouts step:60,save:null",
            "rank_section_timeouts",
            (("step", 60.0), ("save", None)),
        ),
        ("--ft-rank-termination-signal sigterm", "rank_termination_signal", "SIGTERM"),
        ("--ft-rank-termination-signal 9", "rank_termination_signal", "SIGKILL"),
        ("--ft-log-level DEBUG", "log_level", 10),
        ("--ft_param_enable_nic_monitor yes", "enable_nic_monitor", True),
        ("--ft-enable-nic-monitor 0", "enable_nic_monitor", False),
        ("--ft-storage-health-check-path /a,/b", "storage_healthcheck_path", "/a,/b"),
        ("--ft-segment 4", "segment", 4),
        ("--ft-attribution-stop-action no-restart", "attribution_stop_action", "no-restart"),
    ],
)
def test_options_of_fields_set_them(line: str, field: str, value: object) -> None:
    """A flag of ft_launcher reaches the field of the same name with the value that ft_launcher would read."""
    assert getattr(_values(line), field) == value


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("--ft-param-enable-nic-monitor true", "--ft-param-enable-nic-monitor"),
        ("--ft_rdzv_impl barrier", "--ft_rdzv_impl"),
        ("--restart-policy=any-failed", "--restart-policy"),
        ("--ignore-missing-fault-tol-cfg", "--ignore-missing-fault-tol-cfg"),
        ("--ft-enable-nic-monitor false", "--ft-enable-nic-monitor"),
    ],
)
def test_option_without_effect_is_listed_as_typed_with_one_reason(line: str, name: str) -> None:
    """What is accepted without effect can be warned about by the name that was typed."""
    (ignored,) = parse([*line.split(), "x.py"], {}).ignored
    assert ignored.name == name
    assert ignored.reason
    assert not ignored.reason.endswith(".")


def test_variable_without_effect_is_listed_by_its_name() -> None:
    """ft_launcher reads some options from the environment too."""
    (ignored,) = parse(["x.py"], {"PET_FT_NVRX_LOGFILE": "/l"}).ignored
    assert ignored.name == "PET_FT_NVRX_LOGFILE"


def test_file_is_named_in_each_way(tmp_path: object) -> None:
    """The configuration file has four names across versions."""
    for line in ("--ft-cfg-path", "--ft-cfg_path", "--fault-tol-cfg-path", "--ft-config"):
        assert "/nosuch.yaml" in _refusal(f"{line} /nosuch.yaml")


def _refusal(line: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse([*line.split(), "x.py"], {})
    return str(caught.value)

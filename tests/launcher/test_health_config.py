"""The `ftrun.health` section, and the policy that it and nvidia-resiliency-ext's words come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.healthchecks.policy import HealthPolicy
from ftrun.healthchecks.registry import NAMES, Severity
from ftrun.launcher.config import Config, FaultToleranceConfig, FtrunConfig, LaunchOptions
from ftrun.launcher.config_file import ConfigError, load, parse_assignment
from ftrun.launcher.config_show import render_config
from ftrun.launcher.health_config import HealthConfig, build_policy
from ftrun.launcher.options import UsageError, parse

WHOLE = """\
ftrun:
  health:
    enabled: on
    interval: 10
    max_excluded_fraction: 0.5
    expected_gpus: 8
    expected_nics: learn
    checks:
      gpu.ecc: warn
      nic: off
    thresholds: {nvlink.max_crc_per_s: 50.5, gpu.max_hangs: 3, storage.min_free_bytes: 2GiB}
    paths: [/data, "/with space"]
    command: [/usr/sbin/nhc, -q]
"""


def read(tmp_path: Path, text: str) -> dict[str, object]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return {item.key.removeprefix("ftrun.health."): item.value for item in load(str(path))}


def policy(line: str) -> HealthPolicy:
    config = parse([*line.split(), "x.py"], {})
    return build_policy(config.ftrun.health, config.fault_tolerance)


def test_section_is_read_whole(tmp_path: Path) -> None:
    """Switches, numbers, names of checks and groups, sizes, paths and a command."""
    assert read(tmp_path, WHOLE) == {
        "enabled": "on",
        "interval": 10.0,
        "max_excluded_fraction": 0.5,
        "expected_gpus": 8,
        "expected_nics": "learn",
        "checks": (("gpu.ecc", "warn"), ("nic", "off")),
        "thresholds": (
            ("nvlink.max_crc_per_s", 50.5),
            ("gpu.max_hangs", 3),
            ("storage.min_free_bytes", 2**31),
        ),
        "paths": ("/data", "/with space"),
        "command": ("/usr/sbin/nhc", "-q"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "checks:\n  gpu.eec: off",
            ":4: unknown check 'gpu.eec' in ftrun.health.checks, the nearest is gpu.e",
        ),
        ("checks:\n  gpus: off", ":4: unknown check 'gpus' in ftrun.health.checks, the nearest is gpu"),
        (
            "checks:\n  gpu.ecc: warn\n  gpu.sram: maybe",
            ":5: ftrun.health.checks: gpu.sram: found the text 'maybe', expected one of off, warn, fatal",
        ),
        ("checks: [gpu.ecc]", ":3: ftrun.health.checks: found a list, expected a mapping from names"),
        ("checks:\n  gpu.ecc: off\n  gpu.ecc: warn", ":5: key 'gpu.ecc' is given twice, first in line 4"),
        (
            "thresholds:\n  nvlink.max_crc: 5",
            ":4: unknown threshold 'nvlink.max_crc' in ftrun.health.thresholds, the nearest is nvlink.max_c",
        ),
        ("thresholds:\n  gpu.max_hangs: 1.5", ":4: ftrun.health.thresholds: gpu.max_hangs: found 1.5, exp"),
        ("thresholds:\n  gpu.expected_count: 8", ":4: unknown threshold 'gpu.expected_count'"),
        ("thresholds:\n  xid.episode_s: -1", ":4: ftrun.health.thresholds: xid.episode_s: found -1, exp"),
        ("expected_gpus: 0", ":3: ftrun.health.expected_gpus: found 0, expected learn, or a whole number"),
        ("max_excluded_fraction: 1.1", ":3: ftrun.health.max_excluded_fraction: found 1.1, expected a nu"),
        ("paths: [1]", ":3: ftrun.health.paths: found a list, expected a list of paths"),
        ("command: 'nhc \"-q'", ":3: ftrun.health.command: found the text"),
        ("chekcs: {}", ":3: unknown key 'chekcs' in ftrun.health, the nearest valid key is ftrun.health"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """A check that is believed to be off, or a threshold that is believed to hold, must be so."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"ftrun:\n  health:\n{lines}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("health.checks={gpu.ecc: off, host: warn}", "checks", (("gpu.ecc", "off"), ("host", "warn"))),
        ("health.expected_nvlinks=18", "expected_nvlinks", 18),
        ("health.command=nhc -c '/etc/my nhc.conf'", "command", ("nhc", "-c", "/etc/my nhc.conf")),
        ("health.paths=[/a, /b]", "paths", ("/a", "/b")),
        ("health.command=", "command", ()),
    ],
)
def test_section_can_be_set_on_the_command_line(text: str, key: str, value: object) -> None:
    """In YAML's notation, as any other key."""
    assert parse_assignment(text) == (f"ftrun.health.{key}", value)


def test_wrong_names_on_the_command_line_are_told_too() -> None:
    """There is no line there."""
    with pytest.raises(UsageError, match=r"unknown check 'gpu\.foo' in ftrun\.health\.checks"):
        parse(["--ft-set", "health.checks={gpu.foo: off}", "x.py"], {})


def test_shown_section_loads_as_the_same_section(tmp_path: Path) -> None:
    """Also its mappings and lists."""
    health = HealthConfig(
        enabled="off",
        expected_gpus=8,
        checks=(("gpu.ecc", "off"), ("nic", "warn")),
        thresholds=(("xid.episode_s", 1.5),),
        paths=("/a b", "/c"),
        command=("x", "-y: {"),
    )
    shown = render_config(Config(LaunchOptions("x.py"), ftrun=FtrunConfig(health=health)))
    found = read(tmp_path, shown)
    names = ("enabled", "expected_gpus", "checks", "thresholds", "paths", "command")
    assert {name: found[name] for name in names} == {
        "enabled": "off",
        "expected_gpus": 8,
        "checks": health.checks,
        "thresholds": health.thresholds,
        "paths": health.paths,
        "command": health.command,
    }


def test_defaults_are_the_policy_s_own() -> None:
    """One place says what a policy is by default, and this is not another."""
    assert build_policy(HealthConfig(), FaultToleranceConfig()) == HealthPolicy()


def test_policy_has_what_the_section_asks_for(tmp_path: Path) -> None:
    """Expected numbers are thresholds of their judges."""
    path = tmp_path / "c.yaml"
    path.write_text(WHOLE)
    found = policy(f"--ft-config {path}")
    assert (found.is_enabled, found.interval_s, found.max_excluded_fraction) == (True, 10.0, 0.5)
    assert found.severities["gpu.ecc"] is Severity.WARN
    assert {n for n in NAMES if found.severities[n] is Severity.OFF} == {
        n for n in NAMES if n.startswith("nic.")
    }
    assert found.thresholds == {
        "gpu.expected_count": 8,
        "nvlink.max_crc_per_s": 50.5,
        "gpu.max_hangs": 3,
        "storage.min_free_bytes": 2**31,
    }
    assert (found.paths, found.command) == (("/data", "/with space"), ("/usr/sbin/nhc", "-q"))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--ft-health off", "is_enabled", False),
        ("", "is_enabled", None),
        ("--ft-node-health-check-interval 7", "interval_s", 7.0),
        ("--ft-node-health-check-interval 5", "interval_s", 30.0),
        ("--ft-node-health-check-interval 7 --ft-set health.interval=9", "interval_s", 9.0),
        ("--ft-storage-health-check-path /a,/b", "paths", ("/a", "/b")),
        ("--ft-storage-health-check-path /a,/b --ft-set health.paths=[/b]", "paths", ("/b", "/a")),
        ("--ft-pci-topo-file /etc/topo.xml", "topology_file", "/etc/topo.xml"),
        ("--ft-gpu-memory-reclaim-timeout 9", "gpu_memory_timeout_s", 9.0),
        ("--ft-gpu-memory-poll-interval 0.5", "gpu_memory_poll_s", 0.5),
        ("--ft-gpu-memory-poll-interval 2", "gpu_memory_poll_s", 0.05),
        ("--ft-gpu-memory-tolerance-mb 100", "thresholds", {"gpu_memory.held_tolerance_bytes": 100 << 20}),
        ("--ft-node-health-check-endpoint /run/nvhcd.sock", "nvhcd_endpoint", "/run/nvhcd.sock"),
        ("--ft-node-health-check-endpoint /run/nvhcd.sock", "round_deadline_s", 60.0),
    ],
)
def test_nvidia_s_options_have_their_effect(line: str, name: str, value: object) -> None:
    """A default of theirs stands for ours; a key of ours wins; nobody is told that nothing is done."""
    assert getattr(policy(line), name) == value
    assert parse([*line.split(), "x.py"], {}).ignored == ()


def test_network_checks_can_be_switched_off_in_nvidia_s_words() -> None:
    """Single ones come back in ours."""
    config = parse(
        ["--ft-enable-nic-healthcheck", "0", "--ft-set", "health.checks={nic.state: fatal}", "x.py"], {}
    )
    found = build_policy(config.ftrun.health, config.fault_tolerance)
    assert found.severities["nic.state"] is Severity.FATAL
    assert found.severities["nic.rate"] is Severity.OFF
    assert found.severities["gpu.ecc"] is Severity.FATAL


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--ft-enable-nic-monitor 1", "always does"),
        ("--ft-link-state-path-template /x/{dev_name}", "by itself"),
        ("--ft-link-down-path-template /x/{dev_name}", "by itself"),
        ("--ft-enable-dist-storage-healthcheck true", "always looks at Lustre"),
        ("--ft-segment-health-check-dir /x", "each node checks its own health"),
    ],
)
def test_options_without_effect_say_why(line: str, word: str) -> None:
    """None of them claims that there are no health checks."""
    (ignored,) = parse([*line.split(), "x.py"], {}).ignored
    assert word in ignored.reason
    assert "no health checks" not in ignored.reason

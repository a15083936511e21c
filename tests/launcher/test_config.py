"""The configuration tree, its values and its text form."""

from __future__ import annotations

import dataclasses
import math
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher import values
from ftrun.launcher.config import (
    DEFAULT_KEYS,
    Config,
    FaultToleranceConfig,
    FtrunConfig,
    LaunchOptions,
    StopConfig,
    build_sections,
    find_contradictions,
)
from ftrun.launcher.config_file import load
from ftrun.launcher.config_show import render_config, render_defaults
from ftrun.launcher.values import Kind


def _shipped(name: str) -> Path:
    return Path(str(resources.files("ftrun.configs") / name))


def test_every_key_has_unit_and_reason_and_a_default_of_its_own_kind() -> None:
    """A key without documentation, or whose default its own reader refuses, cannot be added."""
    for key in DEFAULT_KEYS.values():
        assert key.spec.unit, key.name
        assert key.spec.why.endswith("."), key.name
        is_list = isinstance(key.value, tuple) and not key.spec.kind.is_mapping
        data = list(key.value) if is_list else dict(key.value) if key.spec.kind.is_mapping else key.value
        assert key.spec.kind.read(data) == key.value, key.name


def test_shipped_default_file_is_what_the_dataclasses_say() -> None:
    """configs/default.yaml documents every key with the value, unit and reason that the code has."""
    assert _shipped("default.yaml").read_text(encoding="utf-8") == render_defaults()


def test_shipped_default_file_loads_as_the_defaults() -> None:
    """Reading configs/default.yaml gives each key once, with its default."""
    loaded = {item.key: item.value for item in load(str(_shipped("default.yaml")))}
    assert loaded == {key.name: key.value for key in DEFAULT_KEYS.values()}


@pytest.mark.parametrize(
    ("name", "initial_s", "steady_s", "check_s"),
    [("eks-p5.yaml", 1200.0, 900.0, 5.0), ("debug.yaml", 60.0, 10.0, 0.5)],
)
def test_shipped_files_load_and_do_not_contradict_themselves(
    name: str, initial_s: float, steady_s: float, check_s: float
) -> None:
    """The files for EKS and for a desk hold the timeouts that their comments promise."""
    fault_tolerance, ftrun = build_sections({item.key: item.value for item in load(str(_shipped(name)))})
    assert fault_tolerance.initial_rank_heartbeat_timeout == initial_s
    assert fault_tolerance.rank_heartbeat_timeout == steady_s
    assert fault_tolerance.workload_check_interval == check_s
    assert find_contradictions(fault_tolerance, ftrun) == ()


def test_shutdown_timeout_rules_every_stop_path() -> None:
    """With --shutdown-timeout both graces are that long, even zero; without it each has its own."""
    stop = FtrunConfig(stop=StopConfig(grace_after_failure=2.0, grace_after_signal=9.0))
    own = Config(LaunchOptions("x.py"), ftrun=stop)
    ruled = Config(LaunchOptions("x.py", shutdown_timeout=0.0), ftrun=stop)
    assert (own.grace_after_failure_s, own.grace_after_signal_s) == (2.0, 9.0)
    assert (ruled.grace_after_failure_s, ruled.grace_after_signal_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("initial_s", "steady_s", "is_wrong"), [(60.0, 60.0, False), (59.0, 60.0, True), (None, 60.0, False)]
)
def test_first_heartbeat_may_not_be_due_before_a_later_one(
    initial_s: float | None, steady_s: float, is_wrong: bool
) -> None:
    """An initial timeout below the steady one is a contradiction, no initial timeout is not."""
    fault_tolerance = FaultToleranceConfig(
        initial_rank_heartbeat_timeout=initial_s, rank_heartbeat_timeout=steady_s
    )
    assert bool(find_contradictions(fault_tolerance, FtrunConfig())) is is_wrong


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (values.SECONDS, 3, 3.0),
        (values.TIMEOUT, None, None),
        (values.SIZE, "4GiB", 4 * 1024**3),
        (values.SIZE, "1.5 mb", 1_500_000),
        (values.SIZE, 7, 7),
        (values.SIGNAL, "sigterm", "SIGTERM"),
        (values.SIGNAL, 9, "SIGKILL"),
        (values.LOG_LEVEL, "DBG", 10),
        (values.SECTION_TIMEOUTS, {"step": 3, "save": None}, (("step", 3.0), ("save", None))),
        (values.choice_of("auto", "on", "off"), False, "off"),
        (values.choice_of("auto", "on", "off"), True, "on"),
    ],
)
def test_kinds_read_yaml_data(kind: Kind, data: object, value: object) -> None:
    """Each kind turns the data that YAML gives into the value of the tree."""
    assert kind.read(data) == value


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (values.SECONDS, "5"),
        (values.SECONDS, True),
        (values.SECONDS, math.nan),
        (values.SECONDS, math.inf),
        (values.SECONDS, -1),
        (values.SECONDS, 10**400),
        (values.SECONDS, None),
        (values.INTERVAL, 0),
        (values.COUNT, 1.0),
        (values.COUNT, True),
        (values.EXIT_CODE_OR_OFF, 256),
        (values.SWITCH, 1),
        (values.SWITCH, "true"),
        (values.TEXT_OR_OFF, 5),
        (values.SIZE, "4 bananas"),
        (values.SIZE, -4),
        (values.SIGNAL, "SIGFOO"),
        (values.SIGNAL, 4000),
        (values.SIGNAL, "SIG_DFL"),
        (values.SECTION_TIMEOUTS, {"step": "3"}),
        (values.SECTION_TIMEOUTS, ["step"]),
        (values.choice_of("human", "json"), True),
    ],
)
def test_kinds_refuse_data_of_another_kind(kind: Kind, data: object) -> None:
    """Numbers given as text, booleans as numbers, NaN and infinity do not slip through."""
    with pytest.raises(ValueError):
        kind.read(data)


@given(
    st.dictionaries(st.text(min_size=1), st.none() | st.floats(1e-9, 1e20), max_size=3),
    st.text(min_size=1),
    st.floats(0, 1e20),
)
def test_shown_configuration_loads_as_the_same_configuration(
    tmp_path_factory: pytest.TempPathFactory, timeouts: dict[str, float | None], text: str, seconds: float
) -> None:
    """The output of --ft-show-config can be used as a configuration file, whatever the values are."""
    fault_tolerance = FaultToleranceConfig(rank_section_timeouts=tuple(timeouts.items()), pci_topo_file=text)
    ftrun = FtrunConfig(stop=StopConfig(grace_after_failure=seconds), run_dir=text)
    config = Config(LaunchOptions(text, (text,), max_restarts=8), fault_tolerance, ftrun)
    path = tmp_path_factory.mktemp("shown") / "config.yaml"
    path.write_text(render_config(config), encoding="utf-8")
    loaded = {item.key: item.value for item in load(str(path))}
    assert build_sections(loaded) == (fault_tolerance, ftrun)
    assert loaded["ftrun.restart.max_restarts"] == 8


def test_shown_configuration_names_every_field() -> None:
    """No option of torchrun and no key is left out of --ft-show-config."""
    text = render_config(Config(LaunchOptions("x.py")))
    for item in dataclasses.fields(LaunchOptions):
        assert f"  {item.name}: " in text
    assert all(f"  {name.rpartition('.')[2]}: " in text for name in DEFAULT_KEYS)

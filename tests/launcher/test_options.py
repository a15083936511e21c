"""From command line, environment and file to one configuration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ftrun.launcher.config import Config
from ftrun.launcher.options import ALL_OPTIONS, HelpRequested, UsageError, parse

_NOTHING: Mapping[str, str] = {}


def _parse(line: str, environ: Mapping[str, str] = _NOTHING) -> Config:
    return parse(line.split(), environ)


def _refusal(line: str, environ: Mapping[str, str] = _NOTHING) -> str:
    with pytest.raises(UsageError) as caught:
        _parse(line, environ)
    return str(caught.value)


def test_everything_after_the_script_is_the_scripts() -> None:
    """Options, --help and -- behind the script are passed on untouched, whatever they look like."""
    rest = ["-h", "--help", "--nnodes=9", "--", "--ft-set", "x=1", "-m"]
    config = parse(["--nnodes", "1", "train.py", *rest], {})
    assert config.launch.training_script == "train.py"
    assert config.launch.training_script_args == tuple(rest)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--rdzv-conf timeout=9", "--rdzv-conf"),
        ("--node-rank 1", "--node-rank"),
        ("--local-addr 10.0.0.1", "--local-addr"),
        ("--run-path --start-method fork", "--start-method"),
        ("--monitor-interval 5", "--monitor-interval"),
        ("--rdzv-backend etcd-v2 --rdzv-endpoint h:2379", "--rdzv-backend"),
    ],
)
def test_options_for_several_nodes_have_no_effect_on_one(line: str, named: str) -> None:
    """What one node does not need is accepted, and named once with the reason."""
    (ignored,) = _parse(f"{line} x.py").ignored
    assert ignored.name == named
    assert ignored.reason
    assert not ignored.reason.endswith(".")


@pytest.mark.parametrize(
    "line",
    [
        "--node-rank 0",
        "--start-method spawn",
        "--rdzv-backend c10d --rdzv-endpoint h:1",
        "--standalone --rdzv-backend anything",
    ],
)
def test_options_that_fit_one_node_are_not_complained_about(line: str) -> None:
    """What says no more than what is done anyway is no reason for a warning; --standalone rules a backend."""
    assert _parse(f"{line} x.py").ignored == ()


def test_double_dash_before_the_script_ends_the_options() -> None:
    """A script whose name begins with a dash can be named behind --."""
    assert _parse("-- --odd.py a").launch.training_script == "--odd.py"


def test_sources_rule_in_their_order(tmp_path: Path) -> None:
    """Command line over environment over file over default, with the origin of each kept."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "ftrun:\n  run_dir: from-file\n  checkpoint: {dir: from-file}\n  stop: {kill_timeout: 1}\n"
    )
    environ = {
        "PET_FT_CFG_PATH": str(path),
        "PET_FT_RUN_DIR": "from-environment",
        "PET_FT_CHECKPOINT_DIR": "from-environment",
    }
    config = _parse("--ft-run-dir typed x.py", environ)
    assert config.ftrun.run_dir == "typed"
    assert config.ftrun.checkpoint.dir == "from-environment"
    assert config.ftrun.stop.kill_timeout == 1.0
    assert config.origins["ftrun.run_dir"] == "command line --ft-run-dir"
    assert config.origins["ftrun.checkpoint.dir"] == "environment PET_FT_CHECKPOINT_DIR"
    assert config.origins["ftrun.stop.kill_timeout"] == f"{path}:4"
    assert "ftrun.log_format" not in config.origins


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        ("", {}, 3),
        ("--ft-config FILE", {}, 5),
        ("--ft-config FILE", {"PET_MAX_RESTARTS": "6"}, 6),
        ("--ft-config FILE --ft-set restart.max_restarts=7", {"PET_MAX_RESTARTS": "6"}, 7),
        ("--ft-config FILE --ft-set restart.max_restarts=7 --max-restarts 0", {"PET_MAX_RESTARTS": "6"}, 0),
    ],
)
def test_restarts_come_from_the_strongest_source(
    tmp_path: Path, line: str, environ: Mapping[str, str], expected: int
) -> None:
    """PET_MAX_RESTARTS overrules the number of restarts in the file, and the command line both."""
    path = tmp_path / "c.yaml"
    path.write_text("ftrun: {restart: {max_restarts: 5}}")
    assert _parse(line.replace("FILE", str(path)) + " x.py", environ).launch.max_restarts == expected


def test_shutdown_timeout_falls_back_to_torchs_variable() -> None:
    """The option wins over PET_SHUTDOWN_TIMEOUT, that over TORCH_ELASTIC_SHUTDOWN_TIMEOUT."""
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert _parse("x.py").launch.shutdown_timeout is None
    assert _parse("x.py", environ).launch.shutdown_timeout == 7.0
    assert _parse("x.py", {**environ, "PET_SHUTDOWN_TIMEOUT": "8"}).launch.shutdown_timeout == 8.0
    assert _parse("--shutdown_timeout 9 x.py", environ).grace_after_failure_s == 9.0


def test_graces_of_ft_launcher_act() -> None:
    """--workers-stop-timeout and --term-timeout set the grace after a failure and after a signal."""
    config = _parse("--workers-stop-timeout 3 --term_timeout 4 x.py")
    assert (config.grace_after_failure_s, config.grace_after_signal_s, config.ignored) == (3.0, 4.0, ())


def test_standby_mode_takes_the_words_that_yaml_reads_as_booleans() -> None:
    """on and off reach the configuration as words, typed or in --ft-set."""
    assert _parse("--ft-standby off x.py").ftrun.standby.mode == "off"
    assert _parse("--ft-set standby.mode=on x.py").ftrun.standby.mode == "on"


def test_last_of_a_repeated_option_rules() -> None:
    """As with argparse; --ft-set may set several keys."""
    config = _parse("--role a --role b --ft-set run_dir=/a --ft-set log_format=json --ft-set run_dir=/b x.py")
    assert (config.launch.role, config.ftrun.run_dir, config.ftrun.log_format) == ("b", "/b", "json")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ["no training script", "ftrun [OPTIONS] SCRIPT"]),
        ("--nprocs-per-nod 2 x.py", ["--nprocs-per-nod: there is no such option", "--nproc-per-node"]),
        ("--ma 2 x.py", ["--ma: could be --max-restarts, --master-addr, --master-port"]),
        ("--standalone=1 x.py", ["--standalone", "does not take a value"]),
        ("--role", ["--role", "requires an argument"]),
        ("--log-dir --tee 3 x.py", ["--log-dir: expected a value, found the option --tee"]),
        ("--nnodes 3:2 x.py", ["--nnodes: found '3:2'", "MIN not above MAX"]),
        ("--nnodes 0 x.py", ["--nnodes: found '0'"]),
        ("--nnodes 1:2:3 x.py", ["--nnodes: found '1:2:3'"]),
        ("--nproc_per_node 0 x.py", ["--nproc_per_node: found '0', expected a number above 0, auto"]),
        ("--nproc-per-node=-1 x.py", ["found '-1'"]),
        ("--nproc-per-node 1.5 x.py", ["found '1.5'"]),
        ("--max-restarts -1 x.py", ["--max-restarts: found '-1', expected a whole number, 0 or more"]),
        ("--monitor-interval nan x.py", ["found 'nan', expected a number of seconds"]),
        ("--start-method thread x.py", ["expected one of spawn, fork, forkserver"]),
        ("--numa-binding moon x.py", ["expected one of node, socket, exclusive, core-complex"]),
        ("--logs-specs nosuch x.py", ["expected an entry point of group torchrun.logs_specs"]),
        ("--local-ranks-filter 0,x x.py", ["expected local ranks such as 0,1,2"]),
        ("--rdzv-conf a x.py", ["--rdzv-conf: found 'a', expected KEY=VALUE"]),
        ("--rdzv-endpoint host:99999 x.py", ["port from 0 to 65535"]),
        ("--master-port 65536 x.py", ["--master-port: found '65536', expected a port from 0 to 65535"]),
        ("--node-rank -1 x.py", ["--node-rank"]),
        ("-r 0:4 x.py", ["-r: found '0:4', expected 0 (none)"]),
        ("--signals-to-handle SIGFOO x.py", ["there is no signal 'SIGFOO'"]),
        ("--signals-to-handle SIGKILL x.py", ["no process can handle SIGKILL"]),
        ("--shutdown-timeout -1 x.py", ["--shutdown-timeout"]),
        ("--no-python -m x", ["--no-python and --module exclude each other"]),
        ("--ft-config nosuch.yaml x.py", ["nosuch.yaml: cannot read"]),
        ("--ft-set nosuch=1 x.py", ["--ft-set: unknown key 'nosuch'"]),
        ("--ft-log-format xml x.py", ["--ft-log-format: found 'xml', expected one of human, json"]),
        ("--ft-workload-check-interval none x.py", ["expected a number of seconds above 0"]),
        ("--ft-rank-termination-signal SIGFOO x.py", ["expected a signal's name"]),
        ("--ft-restart-policy never x.py", ["expected one of any-failed, min-healthy"]),
        (
            "--ft-rank-heartbeat-timeout 9 --ft-initial-rank-heartbeat-timeout 3 x.py",
            ["initial_rank_heartbeat_timeout (command line --ft-initial", "is below", "raise the first"],
        ),
    ],
)
def test_refusal_says_what_was_found_and_expected(line: str, parts: list[str]) -> None:
    """A bad command line is refused with the option as typed, what it had and what it takes."""
    message = _refusal(line)
    for part in parts:
        assert part in message


def test_bad_environment_variable_is_named() -> None:
    """A value from the environment is blamed on its variable, not on an option that nobody typed."""
    assert "PET_NNODES: found 'x'" in _refusal("x.py", {"PET_NNODES": "x"})
    assert "PET_STANDALONE: found 'yes', expected 1 or 0" in _refusal("x.py", {"PET_STANDALONE": "yes"})


def test_empty_variable_of_ours_is_no_value() -> None:
    """Job templates leave optional variables empty."""
    assert _parse("x.py", {"PET_FT_CONFIG": "", "PET_FT_RUN_DIR": ""}).ftrun.run_dir is None


def test_module_may_go_with_run_path() -> None:
    """As in torchrun, --run-path makes --no-python and --module irrelevant to each other."""
    assert _parse("--run-path --no-python -m x.py").launch.run_path


@pytest.mark.parametrize("line", ["-h", "--help", "--he", "--h", "--nnodes 2 -h", "-h x.py"])
def test_help_names_every_option(line: str) -> None:
    """Help needs no script and lists all options of all three groups."""
    with pytest.raises(HelpRequested) as caught:
        _parse(line)
    for spec in ALL_OPTIONS:
        assert spec.names[0] in caught.value.text


def test_version_is_shown() -> None:
    """--version and --ft-version need no script."""
    for line in ("--version", "--ft-version"):
        with pytest.raises(HelpRequested, match=r"ftrun \d"):
            _parse(line)


def test_show_config_needs_no_script_and_names_origins() -> None:
    """Every value is shown with where it is from; nothing is started."""
    with pytest.raises(HelpRequested) as caught:
        _parse("--ft-show-config --ft-set stop.kill_timeout=3 -r 3", {"PET_ROLE": "trainer"})
    text = caught.value.text
    assert "    kill_timeout: 3.0  # command line --ft-set\n" in text
    assert '  redirects: "3"  # command line -r\n' in text
    assert "  role: trainer  # environment PET_ROLE\n" in text
    assert "    max_restarts: 3  # default\n" in text


def test_files_values_without_effect_are_reported_unless_they_are_the_default(tmp_path: Path) -> None:
    """A value in a file that nothing acts on is named; a copy of the default says nothing new."""
    path = tmp_path / "c.yaml"
    path.write_text("fault_tolerance: {segment: 4, gpu_memory_reclaim_timeout: 50.0}")
    config = _parse(f"--ft-config {path} x.py")
    assert [option.name for option in config.ignored] == ["fault_tolerance.segment"]
    assert config.fault_tolerance.segment == 4


def test_parsing_does_not_import_torch() -> None:
    """The agent starts its workers before it pays for torch, so reading the options must not import it."""
    code = "import sys, ftrun.launcher.options as o; o.parse(['x.py'], {}); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "False"

"""ftrun's command line beside torchrun's own parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import run as torchrun
from torch.distributed.argparse_util import check_env, env
from torch.distributed.elastic.multiprocessing.api import Std as TorchStd
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from ftrun.launcher.command_line import OptionNames
from ftrun.launcher.config import Config, LaunchOptions
from ftrun.launcher.nodes import parse_endpoint
from ftrun.launcher.option_table import OptionSpec
from ftrun.launcher.options import ALL_OPTIONS, HelpRequested, UsageError, parse
from ftrun.launcher.rendezvous_conf import read_conf
from ftrun.launcher.streams import StdMap


def _torch_actions() -> Iterator[argparse.Action]:
    for action in torchrun.get_args_parser()._actions:
        if action.option_strings:
            yield action


def _spec(action: argparse.Action) -> OptionSpec:
    spec = OptionNames(ALL_OPTIONS).find_exactly(action.option_strings[0])
    assert spec is not None, f"ftrun lacks {action.option_strings[0]}"
    return spec


_ACTIONS = pytest.mark.parametrize("action", list(_torch_actions()), ids=lambda action: action.dest)


@_ACTIONS
def test_every_spelling_is_known(action: argparse.Action) -> None:
    """Each option string of torchrun names one and the same option of ftrun."""
    names = OptionNames(ALL_OPTIONS)
    assert {names.find_exactly(name) for name in action.option_strings} == {_spec(action)}


@_ACTIONS
def test_every_environment_variable_is_known(action: argparse.Action) -> None:
    """Options that torchrun reads from the environment are read from the same variable, others are not."""
    has_env = isinstance(action, (env, check_env))
    expected = f"PET_{action.dest.upper()}"
    assert (_spec(action).env_names[:1] == (expected,)) is has_env


@_ACTIONS
def test_choices_and_arity_are_the_same(action: argparse.Action) -> None:
    """Flags are flags, and the words an option takes are the same."""
    assert _spec(action).is_flag is (action.nargs == 0)
    assert set(_spec(action).choices) == set(action.choices or ())


_SAME_NAMES = (
    "nproc_per_node",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "standalone",
    "monitor_interval",
    "start_method",
    "event_log_handler",
    "role",
    "no_python",
    "run_path",
    "log_dir",
    "node_rank",
    "master_addr",
    "master_port",
    "local_addr",
    "logs_specs",
    "numa_binding",
    "shutdown_timeout",
    "virtual_local_rank",
    "training_script",
)
"""Options whose values are of the same type in both."""


def _same_streams(text: str, ours: StdMap) -> bool:
    theirs = TorchStd.from_str(text)
    if isinstance(theirs, TorchStd):
        return ours == StdMap.parse(str(int(theirs)))
    return all(int(ours.of(rank)) == int(std) for rank, std in theirs.items())


def _assert_same(theirs: argparse.Namespace, ours: LaunchOptions) -> None:
    for name in _SAME_NAMES:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.min_nodes, ours.max_nodes) == torchrun.parse_min_max_nnodes(theirs.nnodes)
    assert dict(ours.rdzv_conf) == torchrun._parse_rendezvous_config(theirs.rdzv_conf)
    assert ours.is_module == theirs.module
    assert _same_streams(theirs.redirects, ours.redirects)
    assert _same_streams(theirs.tee, ours.tee)
    ranks = {int(rank) for rank in theirs.local_ranks_filter.split(",") if rank}
    assert (ours.local_ranks_filter or set()) == ranks
    assert list(ours.duplicate_stdout_filters) == theirs.duplicate_stdout_filters
    assert list(ours.duplicate_stderr_filters) == theirs.duplicate_stderr_filters
    assert ours.signals_to_handle == tuple(theirs.signals_to_handle.split(","))
    assert list(ours.training_script_args) == theirs.training_script_args


def _parse_both(line: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[object, Config]:
    # torchrun reads the process's environment when its parser is made.
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return torchrun.parse_args(line.split()), parse(line.split(), environ)


_LINES = [
    "x.py",
    "x.py --lr 1 -m --nnodes 4",
    "x.py -h --help",
    "--nnodes 2 x.py",
    "--nnodes=1:4 x.py",
    "--nnod 3 x.py",
    "--nproc-per-node 2 x.py",
    "--nproc_per_node=2 x.py",
    "--nproc-per 2 x.py",
    "--nproc_p=2 x.py",
    "--nproc-per-node gpu x.py",
    "--nproc-per-node auto x.py",
    "--rdzv-backend c10d --rdzv_endpoint=h:29400 --rdzv-id j1 x.py",
    "--rdzv-endpoint [::1]:29400 x.py",
    "--rdzv-conf timeout=5,is_host=1 x.py",
    "--rdzv-c a=b=c x.py",
    "--standalone x.py",
    "--stand x.py",
    "--max-restarts 0 x.py",
    "--max_r 5 x.py",
    "--monitor-interval 5 x.py",
    "--monitor_interval=0.25 x.py",
    "--start-method fork x.py",
    "--event-log-handler console x.py",
    "--role trainer x.py",
    "--ro trainer x.py",
    "-m pkg.mod --flag",
    "--module pkg.mod",
    "--mod pkg.mod",
    "--no-python ./prog a b",
    "--no_python /bin/true",
    "--run-path /abs/x.py",
    "--run_path --no-python /abs/x.py",
    "--log-dir /l --redirects 3 --tee 0:1,1:2 x.py",
    "-r 1 -t 2 x.py",
    "-r3 -t0:3 x.py",
    "-mr 3 pkg.mod",
    "--t 3 x.py",
    "--red=2 x.py",
    "--local-ranks-filter 0,2 x.py",
    "--local_ranks_filter=1 x.py",
    "--duplicate-stdout-filters apple,or,,ange x.py",
    "--duplicate_stderr_filters=a x.py",
    "--node-rank 1 --master-addr h --master_port 29501 --local-addr me x.py",
    "--master_po 1 x.py",
    "--logs-specs default x.py",
    "--numa-binding core-complex x.py",
    "--numa_binding=node x.py",
    "--signals-to-handle SIGTERM,SIGUSR1 x.py",
    "--shutdown-timeout 5 x.py",
    "--virtual-local-rank x.py",
    "--role a --role b x.py",
    "--role= x.py",
    "--node-rank 00 x.py",
    "-- x.py a",
]


@pytest.mark.parametrize("line", _LINES)
def test_command_lines_mean_the_same(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line that torchrun takes has the same values in ftrun, the default restarts excepted."""
    theirs, config = _parse_both(line, {}, monkeypatch)
    assert isinstance(theirs, argparse.Namespace)
    _assert_same(theirs, config.launch)
    has_restarts = "--max" in line
    assert config.launch.max_restarts == (theirs.max_restarts if has_restarts else 3)


@pytest.mark.parametrize(
    "environ",
    [
        {"PET_NNODES": "1:3", "PET_NPROC_PER_NODE": "4", "PET_MAX_RESTARTS": "2"},
        {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "h", "PET_RDZV_ID": "i", "PET_RDZV_CONF": "a=b"},
        {"PET_STANDALONE": "1", "PET_MODULE": "1", "PET_VIRTUAL_LOCAL_RANK": "2"},
        {"PET_STANDALONE": "0", "PET_NO_PYTHON": "1", "PET_RUN_PATH": "0"},
        {"PET_MONITOR_INTERVAL": "2", "PET_START_METHOD": "fork", "PET_EVENT_LOG_HANDLER": "console"},
        {"PET_ROLE": "", "PET_LOG_DIR": "/l", "PET_REDIRECTS": "1", "PET_TEE": "0:3"},
        {
            "PET_LOCAL_RANKS_FILTER": "1",
            "PET_DUPLICATE_STDOUT_FILTERS": "a,b",
            "PET_DUPLICATE_STDERR_FILTERS": "c",
        },
        {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "1", "PET_LOCAL_ADDR": "l"},
        {"PET_SIGNALS_TO_HANDLE": "SIGTERM", "PET_SHUTDOWN_TIMEOUT": "3"},
        {"PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "x"},
    ],
    ids=lambda environ: ",".join(environ),
)
def test_environment_means_the_same(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """PET_ variables have the same effect, and the two options without one have none."""
    theirs, config = _parse_both("x.py", environ, monkeypatch)
    assert isinstance(theirs, argparse.Namespace)
    _assert_same(theirs, config.launch)
    assert config.launch.max_restarts == (theirs.max_restarts or 3)


def test_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that is typed hides its variable, a flag too."""
    environ = {"PET_ROLE": "a", "PET_STANDALONE": "0"}
    theirs, config = _parse_both("--role b --standalone x.py", environ, monkeypatch)
    assert isinstance(theirs, argparse.Namespace)
    _assert_same(theirs, config.launch)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--nosuch x.py",
        "--max-restarts x x.py",
        "--max-restarts 1.5 x.py",
        "--start-method thread x.py",
        "--numa-binding moon x.py",
        "--ma 1 x.py",
        "--standalone=1 x.py",
        "--role",
        "--log-dir --tee 3 x.py",
        "--node-rank x x.py",
    ],
)
def test_what_torchrun_refuses_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that ends torchrun with exit code 2 is a usage error."""
    with pytest.raises(SystemExit) as caught:
        torchrun.parse_args(line.split())
    assert caught.value.code == 2
    with pytest.raises(UsageError):
        parse(line.split(), {})
    capsys.readouterr()


@pytest.mark.parametrize("option", ["--mon=1", "--shut=5", "--virt", "--nproc=2"])
def test_beginning_that_only_the_two_spellings_share_is_taken(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun calls it ambiguous, since both spellings begin so; there is only one option it can mean."""
    with pytest.raises(SystemExit):
        torchrun.parse_args([option, "x.py"])
    assert parse([option, "x.py"], {}).launch != parse(["x.py"], {}).launch
    capsys.readouterr()


@pytest.mark.parametrize("line", ["-h", "--help", "--he"])
def test_help_is_asked_for_in_the_same_ways(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each way to ask torchrun for help asks ftrun for help."""
    with pytest.raises(SystemExit):
        torchrun.parse_args([line])
    with pytest.raises(HelpRequested):
        parse([line], {})
    capsys.readouterr()


_LABELS = st.from_regex(r"[a-zA-Z0-9_-]{1,8}(\.[a-zA-Z0-9_-]{1,8}){0,3}", fullmatch=True)
_ADDRESSES = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(lambda address: f"[{address}]")


@given(_LABELS | _ADDRESSES, st.none() | st.integers(1, 65535))
def test_endpoints_are_the_same(host: str, port: int | None) -> None:
    """Names and addresses, with and without a port, are the place that torch takes them for."""
    text = host if port is None else f"{host}:{port}"
    assert parse_endpoint(text, 29400) == parse_rendezvous_endpoint(text, 29400)


@given(st.ip_addresses(v=6), st.integers(1, 65535))
def test_endpoint_with_an_address_without_brackets_is_the_same(address: object, port: int) -> None:
    """torch takes the last number for the port."""
    text = f"{address}:{port}"
    assert parse_endpoint(text, 29400) == parse_rendezvous_endpoint(text, 29400)


@pytest.mark.parametrize(
    "word", ["1", "0", "true", "FALSE", "T", "f", "Yes", "no", "y", "N", "on", "2", "maybe"]
)
def test_is_host_has_torchs_words(word: str) -> None:
    """What torch takes for true or false is taken for the same, and the rest is refused."""
    theirs = RendezvousParameters("c10d", "h", "i", 1, 2, is_host=word)
    try:
        expected = theirs.get_as_bool("is_host")
    except ValueError:
        with pytest.raises(UsageError):
            read_conf((("is_host", word),), "c10d")
    else:
        assert read_conf((("is_host", word),), "c10d").is_host is expected

"""What workers find in their environment and arguments."""

from __future__ import annotations

import pytest

from ftrun.launcher import environment
from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.environment_watch import belongs_to_rank
from ftrun.launcher.model import Plan
from ftrun.launcher.ranks import assign
from ftrun.launcher.script_runner import ERROR_FILE_VARIABLE
from ftrun.monitor.page_writer import PAGE_VARIABLE
from ftrun.monitor.server import LAUNCHER_VARIABLE, RANK_VARIABLE
from ftrun.monitor.stack_signal import STACKS_VARIABLE

PLAN = Plan(3, 2, assign([2, 4])[1], "127.0.0.1", 4711, "/ckpt/step-40", 40)


def test_rank_variables_are_torchruns():
    """A worker learns its place, the store and the restart count under torchrun's names."""
    found = environment.of_rank(PLAN, 1, "job", LaunchOptions("train.py", role="trainer", max_restarts=5))
    assert found == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "trainer",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "FTRUN_RESUME_FROM": "/ckpt/step-40",
    }


def test_threads_are_limited_only_when_workers_share_the_node_and_nothing_is_set():
    """OMP_NUM_THREADS=1 as under torchrun: more than one worker, and not against the user's own value."""
    assert environment.of_every_worker({}, 2)["OMP_NUM_THREADS"] == "1"
    assert environment.of_every_worker({"OMP_NUM_THREADS": "8"}, 2)["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in environment.of_every_worker({}, 1)


def test_workers_write_unbuffered():
    """The last lines before a SIGKILL are not lost in a buffer."""
    assert environment.of_every_worker({}, 1)["PYTHONUNBUFFERED"] == "1"


def test_warning_options_are_the_users():
    """Scripts look at sys.warnoptions to see whether the user has asked for anything."""
    assert "PYTHONWARNINGS" not in environment.of_every_worker({}, 1)
    assert environment.of_every_worker({"PYTHONWARNINGS": "error"}, 1)["PYTHONWARNINGS"] == "error"


def test_every_variable_of_a_rank_is_watched_for_while_modules_are_preloaded():
    """Who reads one of them before a standby has its rank would keep a wrong value."""
    of_rank = environment.of_rank(PLAN, 1, "job", LaunchOptions("train.py"))
    names = {*of_rank, *environment.virtual_local_rank({}, 1), RANK_VARIABLE, LAUNCHER_VARIABLE}
    names |= {PAGE_VARIABLE, STACKS_VARIABLE, ERROR_FILE_VARIABLE}
    assert [name for name in names if not belongs_to_rank(name)] == []
    assert not belongs_to_rank("HOME")


def test_macros_are_replaced_and_other_dollars_left_alone():
    """`${local_rank}` and `${resume_from}` are ours; shell-like text in arguments is not."""
    arguments = ("--r=${local_rank}", "--from=${resume_from}", "$HOME", "${other}")
    assert environment.substitute(arguments, 1, "/c") == ("--r=1", "--from=/c", "$HOME", "${other}")
    assert environment.substitute(arguments, 0, None)[1] == "--from="


def test_virtual_local_rank_maps_through_visible_devices():
    """Each worker sees one GPU as device 0: the one at its place in CUDA_VISIBLE_DEVICES."""
    assert environment.virtual_local_rank({"CUDA_VISIBLE_DEVICES": "4, 7"}, 1)["CUDA_VISIBLE_DEVICES"] == "7"
    assert environment.virtual_local_rank({}, 3) == {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3"}


def test_virtual_local_rank_without_a_device_is_an_error_with_remedy():
    """More workers than visible devices cannot work, and the message says how many can."""
    with pytest.raises(ValueError, match="at most 1 workers"):
        environment.virtual_local_rank({"CUDA_VISIBLE_DEVICES": "4"}, 1)


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ()),
        ({"NCCL_SOCKET_IFNAME": "=eth0,ib0:18515", "GLOO_SOCKET_IFNAME": "eth0"}, ("eth0", "ib0")),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, ()),
        ({"NCCL_SOCKET_IFNAME": "", "GLOO_SOCKET_IFNAME": " ens5 "}, ("ens5",)),
    ],
)
def test_interfaces_that_the_job_names_are_known(variables: dict[str, str], names: tuple[str, ...]):
    """Those that it must use, not those that it must not."""
    assert environment.named_interfaces(variables) == names

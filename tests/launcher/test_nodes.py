"""What was asked for about several nodes, and in which order they stand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.nodes import (
    RendezvousSetting,
    describe_job,
    fingerprint_of,
    parse_endpoint,
    resolve_rendezvous,
    sort_key,
)
from ftrun.launcher.options import UsageError, parse

NO_VARIABLES: Mapping[str, str] = {}
C10D = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1"
STATIC = "--nnodes 2 --master-addr h"


def resolve(line: str, environ: Mapping[str, str] = NO_VARIABLES) -> RendezvousSetting:
    return resolve_rendezvous(parse([*line.split(), "x.py"], environ), environ)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--nnodes 1",
        "--standalone",
        "--standalone --nnodes 1:4",
        "--standalone --ft-spares 1",
        "--rdzv-backend c10d --rdzv-endpoint h:1",
        "--rdzv-backend etcd",
        "--rdzv-conf join_timeout=x",
        "--node-rank 3",
    ],
)
def test_one_node_needs_no_rendezvous(line: str) -> None:
    """Whatever else is said: a job that never has a second node meets nobody."""
    setting = resolve(line)
    assert (setting.backend, setting.min_nodes, setting.max_nodes) == ("local", 1, 1)
    assert (setting.run_id, setting.key) == (None, "")


def test_one_node_has_the_id_that_it_was_given() -> None:
    """Without one it is fresh, whatever the scheduler says: one allocation may hold many such jobs."""
    assert resolve("--rdzv-id j1").run_id == "j1"
    assert resolve("--rdzv-id none").run_id is None
    assert resolve("--standalone --rdzv-id j1").run_id is None
    assert resolve("", {"SLURM_JOB_ID": "7"}).run_id is None


def test_spare_makes_a_rendezvous_of_one_node() -> None:
    """A job on one node with a spare has two agents that must meet."""
    setting = resolve("--nnodes 1 --ft-spares 1 --rdzv-backend c10d --rdzv-endpoint h")
    assert (setting.backend, setting.max_nodes) == ("c10d", 1)


@pytest.mark.parametrize(
    ("line", "backend", "host", "port"),
    [
        (STATIC, "c10d", "h", 29500),
        ("--nnodes 2", "c10d", "127.0.0.1", 29500),
        (f"{STATIC} --master-port 7", "c10d", "h", 7),
        ("--nnodes 2 --master-addr fd00::1", "c10d", "fd00::1", 29500),
        ("--nnodes 2 --master-addr [fd00::1] --master-port 7", "c10d", "fd00::1", 7),
        (f"{STATIC} --rdzv-endpoint e:5", "c10d", "e", 5),
        (f"{STATIC} --rdzv-endpoint e", "c10d", "e", 29500),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h", "c10d", "h", 29400),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint [fd00::1]:5", "c10d", "fd00::1", 5),
        ("--nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint h", "etcd-v2", "h", 2379),
        (
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint /d/f --rdzv-conf store_type=file",
            "file",
            "/d/f",
            0,
        ),
    ],
)
def test_nodes_meet_where_torchrun_has_them_meet(line: str, backend: str, host: str, port: int) -> None:
    """Endpoint, address and port of the master, and torch's default ports."""
    setting = resolve(line)
    assert (setting.backend, setting.host, setting.port) == (backend, host, port)


def test_static_rank_decides_who_is_the_host() -> None:
    """Node 0 serves the store; a node that was not told its rank finds out, as node 0 may be left untold."""
    assert (resolve(f"{STATIC} --node-rank 0").rank_hint, resolve(f"{STATIC} --node-rank 0").is_host) == (
        0,
        True,
    )
    assert (resolve(f"{STATIC} --node-rank 1").rank_hint, resolve(f"{STATIC} --node-rank 1").is_host) == (
        1,
        False,
    )
    assert (resolve(STATIC).rank_hint, resolve(STATIC).is_host) == (0, None)
    assert resolve(STATIC, {"PET_NODE_RANK": "1"}).is_host is False


@pytest.mark.parametrize(
    ("line", "environ", "place"),
    [
        (C10D, {}, None),
        (f"{C10D} --node-rank 0", {}, 0),
        (f"{C10D} --node-rank 5", {"SLURM_PROCID": "1"}, 5),
        (C10D, {"PET_NODE_RANK": "1", "SLURM_PROCID": "0"}, 1),
        (C10D, {"SLURM_PROCID": "1"}, 1),
        (C10D, {"JOB_COMPLETION_INDEX": "1"}, 1),
        (STATIC, {"SLURM_PROCID": "1"}, 1),
    ],
)
def test_place_is_the_given_one_or_the_schedulers(
    line: str, environ: Mapping[str, str], place: int | None
) -> None:
    """A node rank counts only if somebody gave it: 0 is also what torchrun's option has when nobody did."""
    assert resolve(line, environ).rank_hint == place


def test_static_rendezvous_waits_for_all() -> None:
    """As in torchrun MIN has no effect there, and says so."""
    line = "--nnodes 1:4 --master-addr h"
    setting = resolve(line)
    assert (setting.min_nodes, setting.max_nodes, setting.join_timeout_s) == (4, 4, 900.0)
    (ignored,) = parse([*line.split(), "x.py"], {}).ignored
    assert ignored.name == "--nnodes"
    elastic = resolve("--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint h")
    assert (elastic.min_nodes, elastic.max_nodes, elastic.join_timeout_s) == (1, 4, 600.0)


def test_settings_of_torchs_rendezvous_rule() -> None:
    """The keys of --rdzv-conf that torch has mean the same here."""
    conf = "join_timeout=10,last_call_timeout=0,close_timeout=3,read_timeout=4,is_host=t,use_libuv=No"
    setting = resolve(f"{C10D} --rdzv-conf {conf}")
    assert setting == replace(
        resolve(C10D),
        join_timeout_s=10.0,
        last_call_timeout_s=0.0,
        close_timeout_s=3.0,
        read_timeout_s=4.0,
        is_host=True,
        use_libuv=False,
    )
    assert resolve(f"{STATIC} --rdzv-conf timeout=20").join_timeout_s == 20.0
    assert resolve(C10D, {"USE_LIBUV": "0"}).use_libuv is False
    assert resolve(f"{C10D} --rdzv-conf use_libuv=1", {"USE_LIBUV": "0"}).use_libuv is True


@pytest.mark.parametrize(
    ("conf", "interval_s", "lost_after_s"),
    [
        ("", 1.0, 5.0),
        ("--ft-set rdzv.keep_alive_interval=2 --ft-set rdzv.lost_after=8", 2.0, 8.0),
        ("--rdzv-conf keep_alive_interval=2,keep_alive_max_attempt=4", 2.0, 8.0),
        ("--rdzv-conf keep_alive_interval=2", 2.0, 6.0),
        ("--rdzv-conf keep_alive_max_attempt=4", 5.0, 20.0),
        ("--rdzv-conf keep_alive_interval=2,keep_alive_max_attempt=1", 2.0, 4.0),
    ],
)
def test_lost_after_is_torchs_interval_times_its_attempts(
    conf: str, interval_s: float, lost_after_s: float
) -> None:
    """One of torch's two keys brings torch's default of the other; one missed beat is never enough."""
    setting = resolve(f"{C10D} {conf}")
    assert (setting.keep_alive_interval_s, setting.lost_after_s) == (interval_s, lost_after_s)


@pytest.mark.parametrize(
    ("conf", "names"),
    [
        ("heartbeat_timeout=5", ["--rdzv-conf heartbeat_timeout"]),
        ("join_timout=5", ["--rdzv-conf join_timout"]),
        ("timeout=5,rank=1", ["--rdzv-conf timeout", "--rdzv-conf rank"]),
        ("protocol=https", ["--rdzv-conf protocol"]),
        ("keep_alive_max_attempt=1", ["--rdzv-conf keep_alive_max_attempt=1"]),
        ("join_timeout=5", []),
    ],
)
def test_key_without_effect_is_named(conf: str, names: list[str]) -> None:
    """torch passes over what it does not know; here a misspelled key is told, with the nearest right one."""
    ignored = parse([*C10D.split(), "--rdzv-conf", conf, "x.py"], {}).ignored
    assert [option.name for option in ignored] == names
    assert all("join_timeout" in option.reason for option in ignored if "timout" in option.name)
    assert not any(option.reason.endswith(".") for option in ignored)


def test_static_rendezvous_has_its_own_keys() -> None:
    """Who is the host is said by the rank there."""
    ignored = parse([*STATIC.split(), "--rdzv-conf", "timeout=5,is_host=1", "x.py"], {}).ignored
    assert [option.name for option in ignored] == ["--rdzv-conf is_host"]


def test_keys_of_etcd_are_passed_on() -> None:
    """ftrun knows their names, and torch's backend what they mean."""
    line = "--nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint h --rdzv-conf ca_cert=/c,read_timeout=9,x=y"
    setting = resolve(line)
    assert setting.backend_conf == (("ca_cert", "/c"),)
    assert setting.read_timeout_s == 9.0


@pytest.mark.parametrize(
    ("line", "environ", "run_id"),
    [
        (C10D, {}, None),
        (f"{C10D} --rdzv-id none", {}, None),
        (f"{C10D} --rdzv-id j1", {"SLURM_JOB_ID": "7"}, "j1"),
        (C10D, {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, "7"),
        (C10D, {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"}, "train"),
    ],
)
def test_run_id_is_the_given_one_or_the_schedulers(
    line: str, environ: Mapping[str, str], run_id: str | None
) -> None:
    """torchrun's default "none" is no id: every job that forgets to give one would share it."""
    assert resolve(line, environ).run_id == run_id


def test_key_is_the_same_for_agents_of_one_job() -> None:
    """An id that only some were given does not tell them apart, except where many jobs share the endpoint."""
    assert resolve(C10D).key == resolve(f"{C10D} --rdzv-id j").key == "h:1"
    etcd = "--nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint h --rdzv-id"
    assert resolve(f"{etcd} a").key != resolve(f"{etcd} b").key


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--nnodes 2 --rdzv-backend c10d", ["--rdzv-endpoint", "HOST[:PORT] of one of the nodes"]),
        ("--nnodes 2 --rdzv-backend etcd-v2", ["--rdzv-endpoint", "of etcd"]),
        ("--nnodes 2 --rdzv-backend etcd --rdzv-endpoint h", ["etcd-v2", "c10d"]),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-conf store_type=file", ["path of a file"]),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a_b!", ["--rdzv-endpoint: found 'a_b!'"]),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:0", ["1 to 65535"]),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:b:1", ["no host name"]),
        ("--nnodes 2 --master-port 0", ["--master-port: found 0"]),
        ("--nnodes 2 --master-addr h:1", ["--master-addr: found '[h:1]'"]),
        ("--nnodes 2 --node-rank 2", ["node rank 2 (command line --node-rank): expected 0 to 1"]),
        ("--standalone --nnodes 2", ["--standalone means one node", "at least 2"]),
        (
            "--nproc-per-node 2 --ft-min-world-size 3",
            ["3 ranks of ftrun.world.min_size (command line --ft-min-world-size)", "--nproc-per-node 2"],
        ),
        (
            f"{C10D} --rdzv-conf join_timeout=0,is_host=maybe,read_timeout=nan,keep_alive_max_attempt=1.5",
            ["join_timeout: found '0'", "is_host: found 'maybe', expected 1, true", "'nan'", "'1.5'"],
        ),
        (f"{C10D} --rdzv-conf store_type=redis", ["store_type: found 'redis', expected tcp or file"]),
    ],
)
def test_nodes_that_cannot_meet_are_refused(line: str, parts: list[str]) -> None:
    """What would end in a wait for nothing is said at once, with what was found and what to give."""
    with pytest.raises(UsageError) as caught:
        resolve(line)
    for part in parts:
        assert part in str(caught.value)


def test_ranks_of_several_nodes_may_be_more_than_this_node_gives() -> None:
    """Other nodes may run more workers, so only the job knows whether its least size can be reached."""
    assert resolve(f"{C10D} --nproc-per-node 4 --ft-min-world-size 12").max_nodes == 2


def test_node_rank_of_a_spare_is_taken() -> None:
    """With a spare there is one rank more than nodes in the world."""
    assert resolve(f"{STATIC} --node-rank 2 --ft-spares 1").rank_hint == 2


def test_slurms_own_list_is_proposed_as_endpoint() -> None:
    """Under Slurm the first node of the allocation is what people mean."""
    with pytest.raises(UsageError, match="scontrol show hostnames"):
        resolve("--nnodes 2 --rdzv-backend c10d", {"SLURM_JOB_NODELIST": "n[1-2]"})


@pytest.mark.parametrize(
    ("line", "environ", "is_warned"),
    [
        ("", {"SLURM_STEP_NUM_NODES": "2"}, True),
        ("", {"SLURM_NNODES": "2"}, True),
        ("", {"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"}, False),
        ("", {"SLURM_NNODES": "1"}, False),
        ("--nnodes 1", {"SLURM_NNODES": "2"}, False),
        ("--standalone", {"SLURM_NNODES": "2"}, False),
        ("", {"SLURM_NNODES": "2", "PET_NNODES": "1"}, False),
    ],
)
def test_nodes_that_would_each_train_alone_are_warned_about(
    line: str, environ: Mapping[str, str], is_warned: bool
) -> None:
    """A Slurm step over several nodes without --nnodes is mostly a mistake; some do it on purpose."""
    ignored = parse([*line.split(), "x.py"], environ).ignored
    assert bool(ignored) is is_warned
    assert all("--nnodes 2" in option.reason for option in ignored)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"{C10D} --master-addr a --master-port 5", ["--master-addr", "--master-port"]),
        (f"{STATIC} --rdzv-endpoint e:5", ["--master-addr"]),
        (f"{C10D} --local-addr a --node-rank 1", []),
        ("--standalone --nnodes 1:2", ["--nnodes"]),
    ],
)
def test_options_that_another_one_overrules_are_named(line: str, names: list[str]) -> None:
    """Of two options that both say where nodes meet, the one that is not read is told."""
    assert [option.name for option in parse([*line.split(), "x.py"], {}).ignored] == names


def test_keep_alives_must_be_able_to_be_late() -> None:
    """A node that is lost after a single missed beat would be lost all the time."""
    with pytest.raises(UsageError, match="is below 2 times ftrun"):
        parse(["--ft-set", "rdzv.lost_after=1.9", "x.py"], {})
    parse(["--ft-set", "rdzv.lost_after=2", "x.py"], {})


def test_flags_of_the_world_set_its_keys() -> None:
    """Each flag names one key of the configuration."""
    line = "--ft-min-world-size 6 --ft-spares 2 --ft-grow never --ft-reconnect-timeout 0 x.py"
    ftrun = parse(line.split(), {}).ftrun
    assert (ftrun.world.min_size, ftrun.world.spares, ftrun.world.grow) == (6, 2, "never")
    assert ftrun.rdzv.reconnect_timeout == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", ("h", 9)),
        (" h:1 ", ("h", 1)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]", ("::1", 9)),
        ("[::1]:1", ("::1", 1)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("::1", ("::1", 9)),
        ("fe80::a", ("fe80::a", 9)),
        ("fd00::5:29400", ("fd00::5", 29400)),
        ("1:2:3:4:5:6:7:8", ("1:2:3:4:5:6:7:8", 9)),
        ("pod-0.svc_x.ns", ("pod-0.svc_x.ns", 9)),
    ],
)
def test_endpoint_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    """IPv6 addresses with and without brackets, names and IPv4 addresses."""
    assert parse_endpoint(text, 9) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "h:",
        "h:x",
        "h:65536",
        "h:0",
        "h:-1",
        "h:99999999",
        "[h]:1",
        "[::1",
        "[::1]1",
        "[::1]:",
        "a b",
        "/f",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    """Nothing is made of a text that names no place."""
    with pytest.raises(ValueError):
        parse_endpoint(text, 9)


@given(
    st.ip_addresses() | st.from_regex(r"[a-z][a-z0-9-]{0,9}(\.[a-z]{1,5})?", fullmatch=True),
    st.integers(1, 65535),
)
def test_endpoint_is_read_as_it_is_written(host: object, port: int) -> None:
    """What the setting shows as its endpoint is read as the same host and port."""
    setting = RendezvousSetting("c10d", str(host), port)
    assert parse_endpoint(setting.endpoint, 9) == (str(host), port)


@given(st.text())
def test_no_endpoint_breaks_the_reader(text: str) -> None:
    """Any text is an endpoint or a ValueError."""
    try:
        host, port = parse_endpoint(text, 9)
    except ValueError:
        return
    assert host
    assert 0 < port <= 65535


def test_nodes_stand_in_the_order_in_which_people_count() -> None:
    """Given places first, then names with their numbers as numbers, further agents of a host behind it."""
    names = ["n1", "n2", "n2#1", "n2#2", "n2#10", "n10", "n10-a", "rack1-n9", "rack2-n1", "rack10-n1"]
    shuffled = random.Random(3).sample(names, len(names))
    assert sorted(shuffled, key=lambda name: sort_key(None, name)) == names
    placed = [(1, "n9"), (1, "n10"), (2, "n1"), (None, "n0")]
    mixed = random.Random(1).sample(placed, len(placed))
    assert sorted(mixed, key=lambda one: sort_key(*one)) == placed


@given(st.integers(0, 10**30), st.integers(0, 10**30), st.text(st.characters(categories=["L"]), min_size=1))
def test_numbers_in_names_are_numbers(first: int, second: int, prefix: str) -> None:
    """However long they are, and with or without zeros in front."""
    assert (sort_key(None, f"{prefix}{first}") < sort_key(None, f"{prefix}{second}")) is (first < second)
    assert sort_key(None, f"{prefix}0{first}") < sort_key(None, f"{prefix}{first + 1}")


@given(st.lists(st.tuples(st.none() | st.integers(0, 5), st.text()), unique=True))
def test_order_of_nodes_is_total(nodes: list[tuple[int | None, str]]) -> None:
    """No two different nodes stand at the same place, so all agents have the same order."""
    assert len({sort_key(*node) for node in nodes}) == len(nodes)
    mixed = random.Random(1).sample(nodes, len(nodes))
    in_order = sorted(nodes, key=lambda one: sort_key(*one))
    assert sorted(mixed, key=lambda one: sort_key(*one)) == in_order


_OPTIONS = LaunchOptions("train.py", ("--token", "s3cret"), min_nodes=2, max_nodes=4)


@pytest.mark.parametrize(
    "changed",
    [
        replace(_OPTIONS, training_script="other.py"),
        replace(_OPTIONS, training_script_args=("--token s3cret",)),
        replace(_OPTIONS, training_script_args=()),
        replace(_OPTIONS, is_module=True),
        replace(_OPTIONS, no_python=True),
        replace(_OPTIONS, run_path=True),
        replace(_OPTIONS, min_nodes=1),
        replace(_OPTIONS, max_nodes=5),
    ],
)
def test_other_job_has_another_fingerprint(changed: LaunchOptions) -> None:
    """Script, how it is run, each argument for itself, and the number of nodes."""
    assert fingerprint_of(changed) != fingerprint_of(_OPTIONS)


def test_fingerprint_leaves_out_what_may_differ_between_nodes() -> None:
    """Nodes of one job may have different numbers of workers, ranks and addresses."""
    same = replace(_OPTIONS, nproc_per_node="8", node_rank=3, local_addr="a", log_dir="/l", rdzv_id="x")
    assert fingerprint_of(same) == fingerprint_of(_OPTIONS)
    assert len(fingerprint_of(_OPTIONS)) == 16
    assert fingerprint_of(replace(_OPTIONS, training_script="\udcff.py"))


def test_job_is_described_without_its_secrets() -> None:
    """People see which script it is and on how many nodes; arguments are only counted."""
    assert describe_job(_OPTIONS) == "train.py with 2 arguments on 2 to 4 nodes"
    module = LaunchOptions("pkg.train", ("-v",), is_module=True)
    assert describe_job(module) == "-m pkg.train with 1 argument on 1 node"
    assert describe_job(LaunchOptions("x.py")) == "x.py with no arguments on 1 node"

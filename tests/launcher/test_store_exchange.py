"""The exchange over a store: real stores on the loopback, hosts that die, freeze or are somebody else's."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ftrun.launcher.exchange import (
    Beats,
    Connected,
    Degraded,
    Lost,
    Mismatch,
    Published,
    Received,
    StoodStill,
    Stopped,
    Waiting,
)
from ftrun.launcher.message_codec import encode
from ftrun.launcher.messages import (
    Agent,
    Awaited,
    Bye,
    JobPlan,
    Memory,
    Refused,
    Saved,
    Seat,
    StopKind,
    StopOrder,
    Verdict,
)
from ftrun.launcher.ports import listen
from ftrun.launcher.store_client import BackendError
from ftrun.launcher.store_setting import StoreSetting
from tests.support.exchange_party import DEADLINE_S, HELLO, LOOPBACK, Party, setting
from tests.support.nodes import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def join() -> Iterator[Callable[..., Party]]:
    """Makes parties and closes them at the end, the first (the host) last."""
    parties: list[Party] = []

    def make(name: str, settings: StoreSetting, **arguments: Any) -> Party:
        parties.append(Party(name, settings, **arguments))
        return parties[-1]

    yield make
    for party in reversed(parties):
        party.exchange.close(1.0)


@contextlib.contextmanager
def host_process(port: int) -> Iterator[subprocess.Popen[str]]:
    """A host agent's exchange in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.exchange_party", str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "host\n"
            yield process
        finally:
            process.kill()


def plan(round_number: int, *parties: Party) -> JobPlan:
    seats = tuple(Seat(party.agent, 1) for party in parties)
    return JobPlan(seats, (), LOOPBACK, 4000, Memory(round_number))


def failure(party: Party) -> StopOrder:
    return StopOrder(StopKind.FAILURE, party.agent.node, f"rank of {party.agent.node} failed")


@pytest.mark.parametrize("use_libuv", [True, False])
def test_three_agents_go_through_two_rounds(join: Callable[..., Party], port: int, use_libuv: bool) -> None:
    """Join, plan, stop, plan, verdict: everybody sees the same, in the same order."""
    parties = [join(name, setting(port, use_libuv=use_libuv)) for name in "abc"]
    host, *members = parties
    assert host.connect().is_host
    for member in members:
        assert member.connect() == Connected(HELLO, 0, is_host=False)
    for member in members:
        member.exchange.send(Bye(member.agent))
        assert host.expect(Received).message == Bye(member.agent)
    order = failure(members[1])
    host.exchange.publish(0, plan(0, *parties))
    for party in parties:
        assert party.expect(Published) == Published(0, plan(0, *parties))
    members[1].exchange.order_stop(0, order)
    for party in parties:
        assert party.expect(Stopped) == Stopped(0, order)
    host.exchange.publish(1, plan(1, *parties))
    host.exchange.publish(2, Verdict(0, "all ranks finished"))
    for party in parties:
        assert party.expect(Published).sequence == 1
        assert party.expect(Stopped).order.kind is StopKind.OVER
        assert party.expect(Published).publication == Verdict(0, "all ranks finished")


def test_stop_reaches_the_others_at_once(join: Callable[..., Party], port: int) -> None:
    """They are blocked in a wait for it: a round trip, not a poll."""
    parties = [join(name, setting(port, keep_alive_interval_s=5.0, lost_after_s=60.0)) for name in "abcd"]
    for party in parties:
        party.connect()
    delays = []
    for sequence in range(5):
        parties[0].exchange.publish(sequence, plan(sequence, *parties))
        for party in parties:
            party.expect(Published)
        began = time.monotonic()
        parties[-1].exchange.order_stop(sequence, failure(parties[-1]))
        for party in parties:
            party.expect(Stopped)
        delays.append(time.monotonic() - began)
    assert min(delays) < 0.5, delays


def test_first_of_two_stoppers_wins_everywhere(join: Callable[..., Party], port: int) -> None:
    """Two nodes see a failure at the same time: all agents still name the same one."""
    parties = [join(name, setting(port)) for name in "abc"]
    for party in parties:
        party.connect()
    for sequence in range(10):
        parties[0].exchange.publish(sequence, plan(sequence, *parties))
        for party in parties[1:]:
            party.exchange.order_stop(sequence, failure(party))
        orders = [party.expect(Stopped) for party in parties]
        assert orders == [Stopped(sequence, orders[0].order)] * 3


def test_who_waits_for_a_round_is_told_what_it_waits_for(join: Callable[..., Party], port: int) -> None:
    """Only the host agent knows it; the others would be silent for as long as the wait takes."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    waits = Awaited("1 of 3 nodes; have a, b", 590.0)
    host.exchange.tell_awaited(0, waits)
    assert member.expect(Awaited) == waits
    host.exchange.publish(0, plan(0, host, member))
    for party in (host, member):
        assert party.expect(Published).sequence == 0
        assert [note for note in party.seen if isinstance(note, Awaited)] == [waits] * (party is member)


def test_newcomer_is_told_the_open_round(join: Callable[..., Party], port: int) -> None:
    """While round 1 runs, round 2 is the one to join, and its plan is what comes first."""
    host, late = join("a", setting(port)), join("b", setting(port))
    host.connect()
    for sequence in range(2):
        host.exchange.publish(sequence, plan(sequence, host))
    host.expect(Published, lambda note: note.sequence == 1)
    assert late.connect().sequence == 2
    host.exchange.publish(2, plan(2, host, late))
    assert late.expect(Published) == Published(2, plan(2, host, late))


def test_host_sees_the_keep_alives_of_those_it_watches(join: Callable[..., Party], port: int) -> None:
    """Their counters grow while they live, and one that never came is left out."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    host.exchange.watch_beats([member.agent, Agent("c", "c-1")])
    first = host.expect(Beats).seen
    assert set(first) == {"b-1"}
    host.expect(Beats, lambda note: note.seen["b-1"] >= first["b-1"] + 3)


def test_first_keep_alive_is_there_before_the_first_message(join: Callable[..., Party], port: int) -> None:
    """A host that hears of an agent can watch it at once."""
    host, member = (
        join("a", setting(port)),
        join("b", setting(port, keep_alive_interval_s=30, lost_after_s=90)),
    )
    host.connect()
    member.exchange.connect()
    member.exchange.send(Bye(member.agent))
    host.expect(Received)
    host.exchange.watch_beats([member.agent])
    assert host.expect(Beats).seen == {"b-1": 1}


def client_of(port: int) -> dist.TCPStore:
    return dist.TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=DEADLINE_S))


def test_agent_that_dies_while_sending_holds_nobody_up(join: Callable[..., Party], port: int) -> None:
    """It took a number in the inbox and never wrote: the messages after it are read all the same."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    for _ in range(2):
        client_of(port).add("ftrun/inbox/count", 1)
        for round_number in range(3):
            member.exchange.send(Saved(member.agent, round_number))
        rounds = [host.expect(Received).message for _ in range(3)]
        assert rounds == [Saved(member.agent, number) for number in range(3)]


def test_message_that_was_late_is_still_read(join: Callable[..., Party], port: int) -> None:
    """An agent that was frozen between the two requests writes its message later."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    slow = client_of(port)
    number = slow.add("ftrun/inbox/count", 1) - 1
    member.exchange.send(Saved(member.agent, 1))
    host.expect(Received)
    slow.set(f"ftrun/inbox/{number}", encode(Saved(member.agent, 0)))
    assert host.expect(Received).message == Saved(member.agent, 0)


def test_inbox_does_not_grow(join: Callable[..., Party], port: int) -> None:
    """What has been read is deleted, so that a long job's store stays small."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    store = client_of(port)
    before = store.num_keys()
    for number in range(1000):
        member.exchange.send(Saved(member.agent, number))
    got = [host.expect(Received).message for _ in range(1000)]
    assert got == [Saved(member.agent, number) for number in range(1000)]
    host.exchange.send(Bye(host.agent))
    host.expect(Received)
    host.exchange.watch_beats([host.agent])
    for _ in range(5):  # each is a turn of the reader
        host.expect(Beats)
    assert store.num_keys() <= before + 1


def test_what_cannot_be_read_is_told(join: Callable[..., Party], port: int) -> None:
    """Garbage in the inbox ends nothing."""
    host = join("a", setting(port))
    host.connect()
    store = client_of(port)
    store.set(f"ftrun/inbox/{store.add('ftrun/inbox/count', 1) - 1}", "garbage")
    assert "cannot be understood" in host.expect(Degraded).reason
    host.exchange.send(Bye(host.agent))
    host.expect(Received)


def test_members_notice_a_killed_host_and_find_the_next(join: Callable[..., Party], port: int) -> None:
    """The kernel closes its connections: no time has to pass."""
    members = [join(name, setting(port, is_host=False)) for name in "bc"]
    with host_process(port) as process:
        epochs = {member.connect().hello.epoch for member in members}
        process.kill()
        began = time.monotonic()
        for member in members:
            assert "gone" in member.expect(Lost).reason
        assert time.monotonic() - began < 5.0  # half of what it takes when only the clock tells
        process.wait()
    for member in members:
        member.exchange.disconnect()
        member.exchange.connect()
        assert "refuses connections: no host agent there yet" in member.expect(Waiting).reason
    next_host = join("a", replace(setting(port), is_host=True), hello=replace(HELLO, epoch="e2"))
    assert next_host.connect().is_host
    epochs |= {member.expect(Connected).hello.epoch for member in members}
    assert epochs == {"e", "e2"}


def test_replacement_of_the_host_may_have_another_address(join: Callable[..., Party], port: int) -> None:
    """Its name is the same, and is resolved anew: a pod that comes in place of another one."""
    leads_to = [LOOPBACK]

    def resolve(host: str, port: int, **options: Any) -> Any:
        return socket.getaddrinfo(leads_to[0], port, **options)

    settings = setting(port, host="node0.example", is_host=False)
    member = join("b", settings, resolver=resolve)
    with host_process(port) as process:
        assert member.connect().hello.epoch == "e"
        process.kill()
        member.expect(Lost)
        member.exchange.connect()
        assert "no host agent there yet" in member.expect(Waiting).reason
        elsewhere = replace(setting(port), host="127.0.0.2", is_host=True)
        assert join("a", elsewhere, hello=replace(HELLO, epoch="e2")).connect().is_host
        leads_to[0] = "127.0.0.2"
        assert member.expect(Connected).hello.epoch == "e2"


def test_agent_at_the_address_takes_over_from_a_dead_host(join: Callable[..., Party], port: int) -> None:
    """The endpoint is an address of theirs: one serves it from now on, and the others join."""
    members = [join(name, setting(port)) for name in "bcd"]
    with host_process(port) as process:
        assert not any(member.connect().is_host for member in members)
        process.kill()
        for member in members:
            member.expect(Lost)
        process.wait()
    for member in members:
        member.exchange.connect()
    assert sum(member.expect(Connected).is_host for member in members) == 1


def test_frozen_host_is_lost_by_time(join: Callable[..., Party], port: int) -> None:
    """Its connections stay open, and the threads wait in them: only the clock tells."""
    member = join("b", setting(port, lost_after_s=3.0))
    with host_process(port) as process:
        member.connect()
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert "has not answered for" in member.expect(Lost).reason
        assert 0.7 < time.monotonic() - began < 15.0
        member.exchange.disconnect()
        threads = [one for one in threading.enumerate() if one.name.startswith("ftrun-store")]
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)


def test_host_serves_a_new_store_after_a_loss(join: Callable[..., Party], port: int) -> None:
    """Another epoch, on the same port, and nothing of the old one is in it."""
    host, member = join("a", setting(port)), join("b", setting(port, is_host=False))
    first = host.connect()
    member.connect()
    host.exchange.publish(0, plan(0, host))
    host.expect(Published)
    second = host.connect()
    assert (second.is_host, second.sequence) == (True, 0)
    assert first.hello.epoch != second.hello.epoch
    member.expect(Lost)
    assert member.connect() == replace(second, is_host=False)


def test_foreign_listener_is_named(join: Callable[..., Party], port: int) -> None:
    """It accepts and says nothing: torch alone would wait for ever without a word."""
    with listen(LOOPBACK, port):
        member = join("b", setting(port, read_timeout_s=1.0))
        member.exchange.connect()
        reason = member.expect(Waiting).reason
    assert f"{LOOPBACK}:{port} accepts connections but does not answer as a torch TCPStore" in reason
    assert f"pid {os.getpid()}" in reason
    assert member.expect(Connected).is_host  # the port is free now


def test_store_of_another_program_is_not_joined(join: Callable[..., Party], port: int) -> None:
    """A torch store without an ftrun agent: the next master of some training on a fixed port."""
    store = dist.TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False)
    member = join("b", setting(port))
    member.exchange.connect()
    assert "is not this job's: no ftrun agent has announced itself there" in member.expect(Waiting).reason
    store.set("ftrun/open", "0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": "f2"}, "ftrun.rdzv.same_arguments: false"),
        ({"ftrun_version": "0.9"}, "install the same version on all nodes"),
        ({"run_id": "job8"}, "--rdzv-id"),
    ],
)
def test_agent_of_another_job_is_refused_on_both_sides(
    join: Callable[..., Party], port: int, changes: dict[str, str], words: str
) -> None:
    """It ends with the reason, and the host agent hears the same one."""
    host, stranger = join("a", setting(port)), join("b", setting(port), hello=replace(HELLO, **changes))
    host.connect()
    stranger.exchange.connect()
    reason = stranger.expect(Mismatch).reason
    assert words in reason
    assert host.expect(Received).message == Refused(stranger.agent, reason)


def test_run_id_of_the_host_is_adopted(join: Callable[..., Party], port: int) -> None:
    """An agent that was given no id takes the job's; different arguments are let in if that is wanted."""
    host = join("a", setting(port))
    host.connect()
    settings = setting(port, has_run_id=False, same_arguments=False)
    member = join("b", settings, hello=replace(HELLO, run_id="made-up", fingerprint="f2"))
    assert member.connect().hello.run_id == "job7"


def test_name_that_does_not_resolve_yet_is_waited_for(join: Callable[..., Party], port: int) -> None:
    """A headless service has no address before its pod is ready."""
    is_ready = threading.Event()

    def resolve(host: str, port: int, **options: Any) -> Any:
        if not is_ready.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return socket.getaddrinfo(LOOPBACK, port, **options)

    join("a", setting(port)).connect()
    member = join("b", setting(port, host="node0.example"), resolver=resolve)
    member.exchange.connect()
    assert member.expect(Waiting).reason == "cannot resolve node0.example (Name or service not known)"
    is_ready.set()
    assert not member.expect(Connected).is_host


def test_first_node_serves_what_no_address_leads_to(join: Callable[..., Party], port: int) -> None:
    """The endpoint is a service's address, which is no machine's own; the others wait for the first node."""

    def resolve(host: str, port: int, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    settings = setting(port, host="service.example", rank_hint=0)
    assert join("a", settings, resolver=resolve).connect().is_host
    assert not join("b", setting(port)).connect().is_host


def test_every_address_of_the_endpoint_is_tried(join: Callable[..., Party], port: int) -> None:
    """A name with an address that nobody listens at, and one that works."""

    def resolve(host: str, port: int, **options: Any) -> Any:
        return [*socket.getaddrinfo("::1", port, **options), *socket.getaddrinfo(LOOPBACK, port, **options)]

    join("a", setting(port)).connect()
    member = join("b", setting(port, host="two.example", is_host=False), resolver=resolve)
    assert not member.connect().is_host


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_ipv6_address_is_an_endpoint(join: Callable[..., Party]) -> None:
    """Given without brackets, shown with them."""
    with listen("::1", 0) as listener:
        port = int(listener.getsockname()[1])
    assert join("a", setting(port, host="::1")).connect().is_host
    assert not join("b", setting(port, host="::1")).connect().is_host


def test_nothing_comes_after_disconnect(join: Callable[..., Party], port: int) -> None:
    """Not even what was published before and not read yet."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    member.exchange.disconnect()
    host.exchange.publish(0, plan(0, host))
    host.expect(Published)
    with pytest.raises(AssertionError):
        member.expect(Published, timeout_s=0.3)
    assert member.exchange.wanted_at is None


def test_closing_sends_what_is_left(join: Callable[..., Party], port: int) -> None:
    """The last word of an agent arrives, and its threads are gone when close returns."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    before = threading.active_count()
    for number in range(100):
        member.exchange.send(Saved(member.agent, number))
    member.exchange.send(Bye(member.agent))
    member.exchange.close(DEADLINE_S)
    assert threading.active_count() < before
    host.expect(Received, lambda note: note.message == Bye(member.agent))


def test_store_may_go_once_the_verdict_is_known(join: Callable[..., Party], port: int) -> None:
    """The host agent ends when it has said how the job ended: nobody has lost anything."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    member.connect()
    host.exchange.publish(0, Verdict(3, "no restart is left"))
    member.expect(Published)
    host.exchange.close(1.0)
    with pytest.raises(AssertionError):
        member.expect(Lost, timeout_s=0.5)


def test_agent_that_was_away_is_told_the_verdict(join: Callable[..., Party], port: int) -> None:
    """Its connection broke just then, or it comes late: the job is over for it too."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    host.exchange.publish(0, plan(0, host))
    host.exchange.publish(1, Verdict(3, "no restart is left"))
    host.expect(Published, lambda note: note.sequence == 1)
    assert member.connect().plan is None
    assert member.expect(Published) == Published(1, Verdict(3, "no restart is left"))


def test_agent_that_comes_while_the_verdict_is_published_is_told(
    join: Callable[..., Party], port: int
) -> None:
    """The next round is open already, which will never be closed, and the verdict not there yet."""
    host, member = join("a", setting(port)), join("b", setting(port))
    host.connect()
    client_of(port).set("ftrun/open", "1")
    member.exchange.connect()
    with pytest.raises(AssertionError):
        member.expect(Connected, timeout_s=0.5)
    host.exchange.publish(0, Verdict(3, "no restart is left"))
    assert member.expect(Published) == Published(0, Verdict(3, "no restart is left"))


def test_process_ends_quietly_with_its_threads_in_the_store(port: int) -> None:
    """A thread that comes out of C++ while Python ends would abort the process; torch would say much."""
    with host_process(port) as process:
        program = (
            "from tests.support.exchange_party import *\n"
            f"member = Party('b', setting({port}))\n"
            "member.connect()\n"
            "member.exchange.close(1.0)\n"
        )
        command = [sys.executable, "-W", "ignore", "-c", program]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * DEADLINE_S)
        assert (ended.returncode, ended.stderr) == (0, "")
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors


def file_setting(path: Path, **changes: Any) -> StoreSetting:
    return replace(setting(0, lost_after_s=3.0), backend="file", host=str(path / "store"), **changes)


def test_shared_file_can_be_the_store(join: Callable[..., Party], tmp_path: Path) -> None:
    """No agent serves it; one of those that come is the host agent."""
    parties = [join(name, file_setting(tmp_path)) for name in "abc"]
    for party in parties:
        party.exchange.connect()
    roles = {party: party.expect(Connected).is_host for party in parties}
    (host,) = [party for party, is_host in roles.items() if is_host]
    members = [party for party, is_host in roles.items() if not is_host]
    for member in members:
        member.exchange.send(Bye(member.agent))
        assert host.expect(Received).message == Bye(member.agent)
    host.exchange.publish(0, plan(0, *parties))
    members[0].exchange.order_stop(0, failure(members[0]))
    for party in parties:
        assert party.expect(Published).sequence == 0
        assert party.expect(Stopped).order == failure(members[0])


def test_id_can_be_used_again_in_a_store_that_outlives_the_job(
    join: Callable[..., Party], tmp_path: Path
) -> None:
    """What the run before left there is not taken for this one's."""
    first = join("a", file_setting(tmp_path))
    first.connect()
    first.exchange.publish(0, Verdict(0, "done"))
    first.expect(Published)
    first.exchange.close(5.0)
    again, member = join("b", file_setting(tmp_path)), join("c", file_setting(tmp_path, is_host=False))
    member.exchange.connect()
    assert "no host agent of this job is alive" in member.expect(Waiting).reason
    connected = again.connect()
    assert (connected.is_host, connected.sequence) == (True, 0)
    assert member.expect(Connected).sequence == 0


@pytest.mark.parametrize("places", [pytest.param((None, None), marks=pytest.mark.slow), (0, 1)])
def test_dead_host_of_a_shared_file_is_replaced(
    join: Callable[..., Party], tmp_path: Path, places: tuple[int | None, int | None]
) -> None:
    """It said nothing when it died; another takes its place, also if that was the first in the order."""
    host, member = (
        join(name, file_setting(tmp_path, rank_hint=place)) for name, place in zip("ab", places, strict=True)
    )
    assert host.connect().is_host
    assert not member.connect().is_host
    host.exchange.disconnect()
    assert "has ended or fallen silent" in member.expect(Lost).reason
    assert member.connect().is_host


@pytest.mark.skipif(importlib.util.find_spec("etcd") is not None, reason="python-etcd is installed")
def test_etcd_without_its_package_says_what_to_install() -> None:
    """Before anything is started."""
    with pytest.raises(BackendError, match="pip install python-etcd"):
        Party("a", replace(setting(2379), backend="etcd-v2"))


def test_agent_that_has_stood_still_is_told(join: Callable[..., Party], port: int) -> None:
    """It may have been given up meanwhile, and must say again that it is there."""
    slept_s = 0.0
    host = join("a", setting(port))
    host.connect()
    sleeper = join("b", setting(port), clock=lambda: time.monotonic() + slept_s)
    sleeper.connect()
    host.exchange.watch_beats([sleeper.agent])
    host.expect(Beats, lambda beats: beats.seen.get(sleeper.agent.incarnation, 0) > 1)
    slept_s = 60.0
    assert sleeper.expect(StoodStill) == StoodStill()

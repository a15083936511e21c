"""From pages, sockets and /proc to a verdict: real pages of real processes, with time as the test has it."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from ftrun.launcher.process import state_of
from ftrun.launcher.standby import Standby
from ftrun.launcher.watchdog import LOOK_EVERY_S, Watchdog
from ftrun.launcher.workers import Worker
from ftrun.monitor.heartbeats import Timeouts
from ftrun.monitor.liveness import Rule, Verdict
from ftrun.monitor.page import Page
from ftrun.monitor.page_writer import PageWriter
from ftrun.monitor.server import RANK_VARIABLE
from ftrun.monitor.stall_limits import StallLimits
from tests.support.heartbeat_node import TIMEOUTS, Node, beats
from tests.support.waiting import until

FIRST_RANK = 6
"""Global rank of local rank 0: nothing may take the one for the other."""
LIMIT_S = 3.0
STEADY = Timeouts.from_config(10.0, LIMIT_S, {}, None)
NO_TIMEOUTS = Timeouts.from_config(None, None, {}, None)
NO_STALL_RULE = StallLimits(is_learning=False)


@dataclass(frozen=True)
class FakeStandby:
    """A worker's process, of which only the number matters."""

    pid: int


@dataclass(frozen=True)
class Rank:
    """A worker that does nothing by itself, and its side of the page."""

    worker: Worker
    page: PageWriter
    process: subprocess.Popen[bytes]


MakeRank = Callable[[], Rank]


@pytest.fixture
def make_rank() -> Iterator[MakeRank]:
    """Ranks of this node, one after another."""
    ranks: list[Rank] = []

    def make() -> Rank:
        process = subprocess.Popen(["sleep", "600"])
        until(lambda: state_of(process.pid) == "S", lambda: "it does not sleep yet")
        page = Page.create()
        standby = cast("Standby", FakeStandby(process.pid))
        local_rank = len(ranks)
        worker = Worker(FIRST_RANK + local_rank, local_rank, standby, page, True, "")
        ranks.append(Rank(worker, PageWriter.open(page.path), process))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.process.kill()
        rank.process.wait(10)
        rank.worker.page.close()


@pytest.fixture
def node() -> Iterator[Node]:
    """Servers for clients of nvidia-resiliency-ext."""
    one = Node()
    yield one
    one.close()


def look_until(
    watchdog: Watchdog, now: float, end: float, meanwhile: Callable[[], object] = lambda: None
) -> tuple[Verdict | None, float]:
    """Looks when one is wanted, from `now` to `end`: the first verdict or standstill, and the last look."""
    while True:
        if verdict := (watchdog.look(now) or watchdog.standstill):
            return verdict, now
        assert watchdog.next_look_at is not None
        assert now < watchdog.next_look_at <= now + LOOK_EVERY_S
        if watchdog.next_look_at > end:
            return None, now
        now = watchdog.next_look_at
        meanwhile()


def test_silent_rank_is_found_as_soon_as_its_limit_has_passed(make_rank: MakeRank) -> None:
    """The last look comes right after the limit, and not at the next full second."""
    rank, watchdog = make_rank(), Watchdog(None, STEADY, NO_STALL_RULE)
    begun = time.monotonic()
    watchdog.watch([rank.worker], begun)
    rank.page.beat()
    beat_at = rank.worker.page.read().last_progress_at
    assert beat_at is not None
    verdict, now = look_until(watchdog, begun + 0.1, begun + 60.0)
    assert verdict is not None
    assert (verdict.rule, verdict.rank, verdict.culprits) == (Rule.STEADY, FIRST_RANK, (FIRST_RANK,))
    assert LIMIT_S < now - beat_at < LIMIT_S + 0.05
    assert watchdog.next_look_at is None


def test_evaluation_of_an_unedited_script_is_no_silence(make_rank: MakeRank) -> None:
    """One rank runs Python without steps and the other waits for it, for longer than the limit; then none."""
    ranks = [make_rank(), make_rank()]
    watchdog = Watchdog(None, STEADY, NO_STALL_RULE)
    begun = time.monotonic()
    watchdog.watch([rank.worker for rank in ranks], begun)
    for rank in ranks:
        rank.page.mark_optimizer_step()
    samples = itertools.count(1)
    verdict, now = look_until(
        watchdog, begun + 0.1, begun + 30.0, lambda: ranks[0].page.mark_sample(next(samples), 0.0)
    )
    assert verdict is None
    verdict, found_at = look_until(watchdog, now + LOOK_EVERY_S, begun + 90.0)
    assert verdict is not None
    assert verdict.rule is Rule.STEADY
    assert LIMIT_S < found_at - now < LIMIT_S + LOOK_EVERY_S + 0.1


def test_rank_that_sends_heartbeats_is_judged_by_them_alone(make_rank: MakeRank) -> None:
    """It polls in Python for ever, which is no heartbeat."""
    rank, watchdog = make_rank(), Watchdog(None, STEADY, NO_STALL_RULE)
    begun = time.monotonic()
    watchdog.watch([rank.worker], begun)
    rank.page.beat()
    samples = itertools.count(1)
    verdict, now = look_until(
        watchdog, begun + 0.1, begun + 30.0, lambda: rank.page.mark_sample(next(samples), 0.0)
    )
    assert verdict is not None
    assert verdict.rule is Rule.STEADY
    assert now - begun < LIMIT_S + 0.2


def test_rank_without_any_progress_has_the_initial_limit(make_rank: MakeRank) -> None:
    """Counted from when it was told its rank."""
    rank, watchdog = make_rank(), Watchdog(None, STEADY, NO_STALL_RULE)
    begun = time.monotonic()
    watchdog.watch([rank.worker], begun)
    verdict, now = look_until(watchdog, begun + 0.1, begun + 60.0)
    assert verdict is not None
    assert verdict.rule is Rule.INITIAL
    assert 10.0 < now - begun < 10.1


def test_without_limits_nobody_is_condemned(make_rank: MakeRank) -> None:
    """Nothing is configured, and nothing was learned."""
    rank, watchdog = make_rank(), Watchdog(None, NO_TIMEOUTS, StallLimits())
    begun = time.monotonic()
    watchdog.watch([rank.worker], begun)
    verdict, now = look_until(watchdog, begun + 0.1, begun + 500.0)
    assert verdict is None
    assert now > begun + 490.0


def test_heartbeats_of_a_client_count_for_its_global_rank(make_rank: MakeRank, node: Node) -> None:
    """The servers know local ranks only; limits are those that they hold."""
    ranks = [make_rank(), make_rank()]
    watchdog = Watchdog(node.servers, TIMEOUTS, NO_STALL_RULE)
    assert watchdog.environment(1) == node.servers.environment(1)
    assert watchdog.environment(0)[RANK_VARIABLE] != watchdog.environment(1)[RANK_VARIABLE]
    begun = time.monotonic()
    watchdog.watch([rank.worker for rank in ranks], begun)
    peer = node.join(local_rank=1)
    beats(peer, node, local_rank=1)
    assert watchdog.look(begun + 0.1) is None
    assert watchdog.signs[FIRST_RANK + 1].progress_count == 1
    assert watchdog.signs[FIRST_RANK].progress_count == 0
    verdict, now = look_until(watchdog, begun + 1.0, begun + 100.0)
    assert verdict is not None
    assert (verdict.rule, verdict.rank) == (Rule.STEADY, FIRST_RANK + 1)
    beat_at = node.state(1).last_heartbeat_at
    assert beat_at is not None
    assert 60.0 < now - beat_at < 60.1


def test_message_that_shortens_a_limit_is_looked_at_at_once(make_rank: MakeRank) -> None:
    """Unless no round runs."""
    rank, watchdog = make_rank(), Watchdog(None, STEADY, NO_STALL_RULE)
    watchdog.wake()
    assert watchdog.next_look_at is None
    watchdog.watch([rank.worker], 100.0)
    assert watchdog.next_look_at == 100.0 + LOOK_EVERY_S
    watchdog.wake()
    assert watchdog.next_look_at == 0.0
    watchdog.rest()
    assert watchdog.next_look_at is None
    watchdog.wake()
    assert watchdog.next_look_at is None


def test_job_that_stands_still_is_found_and_one_rank_that_moves_is_enough(make_rank: MakeRank) -> None:
    """The stall rule looks at all ranks together."""
    ranks = [make_rank(), make_rank()]
    watchdog = Watchdog(None, NO_TIMEOUTS, StallLimits(fixed_s=5.0))
    begun = time.monotonic()
    watchdog.watch([rank.worker for rank in ranks], begun)
    for rank in ranks:
        rank.page.mark_optimizer_step()
    verdict, now = look_until(watchdog, begun + 0.1, begun + 30.0, ranks[1].page.mark_optimizer_step)
    assert verdict is None
    verdict, found_at = look_until(watchdog, now + LOOK_EVERY_S, begun + 90.0)
    assert verdict is not None
    assert (verdict.rule, verdict.rank, verdict.culprits) == (Rule.STALL, None, (FIRST_RANK,))
    assert 5.0 < found_at - now < 7.1


def test_agent_that_did_not_look_condemns_nobody_for_it(make_rank: MakeRank) -> None:
    """It was stopped for a minute, and goes on counting where it was."""
    rank, watchdog = make_rank(), Watchdog(None, STEADY, StallLimits(fixed_s=5.0))
    begun = time.monotonic()
    watchdog.watch([rank.worker], begun)
    rank.page.beat()
    assert watchdog.look(begun + 0.1) is None
    assert watchdog.look(begun + 1.0) is None
    assert watchdog.look(begun + 61.0) is None
    verdict, now = look_until(watchdog, begun + 62.0, begun + 100.0)
    assert verdict is not None
    assert verdict.rule is Rule.STEADY
    assert now < begun + 64.0


def test_ended_process_is_no_hang(make_rank: MakeRank) -> None:
    """Its exit is what counts, and that comes another way."""
    rank, watchdog = make_rank(), Watchdog(None, STEADY, StallLimits(fixed_s=5.0))
    begun = time.monotonic()
    watchdog.watch([rank.worker], begun)
    rank.page.beat()
    assert watchdog.look(begun + 0.1) is None
    rank.process.kill()
    rank.process.wait(10)
    verdict, now = look_until(watchdog, begun + 1.0, begun + 30.0)
    assert verdict is None
    assert now > begun + 28.0


def test_what_was_learned_holds_in_the_next_round(make_rank: MakeRank) -> None:
    """As soon as the new workers have made progress; before, there is no limit."""
    first, second = make_rank(), make_rank()
    watchdog = Watchdog(None, NO_TIMEOUTS, StallLimits(floor_s=4.0, safety_factor=2.0))
    begun = time.monotonic()
    watchdog.begin_round()
    watchdog.watch([first.worker], begun)
    verdict, now = look_until(watchdog, begun + 0.1, begun + 10.0, first.page.mark_optimizer_step)
    assert verdict is None
    watchdog.rest()
    watchdog.end_round()
    watchdog.begin_round()
    watchdog.watch([second.worker], now)
    verdict, now = look_until(watchdog, now + 0.1, now + 50.0)
    assert verdict is None
    second.page.mark_optimizer_step()
    verdict, found_at = look_until(watchdog, now + LOOK_EVERY_S, now + 50.0)
    assert verdict is not None
    assert verdict.rule is Rule.STALL
    assert found_at - now < 6.1


def test_longest_times_are_those_of_all_rounds(make_rank: MakeRank) -> None:
    """Initialisation and steps of each rank; what a round has shown is not forgotten in the next one."""
    first, second = make_rank(), make_rank()
    watchdog = Watchdog(None, NO_TIMEOUTS, StallLimits())
    begun = time.monotonic() - 40.0
    watchdog.watch([first.worker], begun)
    watchdog.look(begun + 1.0)
    first.page.mark_optimizer_step()
    watchdog.look(begun + 41.0)
    longest = watchdog.end_round()
    assert longest.initialisation_s is not None
    assert 39.0 < longest.initialisation_s < 42.0
    assert longest.step_gap_s is None
    watchdog.begin_round()
    watchdog.watch([second.worker], time.monotonic())
    second.page.mark_optimizer_step()
    watchdog.look(time.monotonic())
    assert watchdog.end_round().initialisation_s == longest.initialisation_s


def test_watchdog_without_servers_has_nothing_to_tell_workers() -> None:
    """The sockets could not be made: the job runs without them."""
    watchdog = Watchdog(None, NO_TIMEOUTS, NO_STALL_RULE)
    assert watchdog.environment(0) == {}
    watchdog.begin_round()
    watchdog.watch([], 100.0)
    assert watchdog.look(101.0) is None
    watchdog.close()

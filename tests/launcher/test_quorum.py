"""Which nodes take part in a round, in which order, and where their ranks meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.messages import Agent, JobPlan, Join, Memory, Seat, SeenCheckpoint
from ftrun.launcher.quorum import (
    Rules,
    choose_seats,
    find_first_ranks,
    has_quorum,
    is_loopback,
    is_world_full,
    keep_size,
    may_grow,
    plan_of,
    world_nodes,
)


def join(node: str, slots: int = 1, hint: int | None = None) -> Join:
    """What a node says that wants to take part."""
    return Join(Agent(node, f"{node}.1"), slots, node, 1000, rank_hint=hint)


def names(chosen: tuple[Join, ...]) -> list[str]:
    """Nodes in group-rank order."""
    return [one.agent.node for one in chosen]


@pytest.mark.parametrize(
    ("available", "spares", "expected"),
    [
        (1, 0, 0),  # too few
        (2, 0, 2),
        (3, 0, 3),
        (4, 0, 4),
        (5, 0, 4),  # no more than MAX
        (2, 1, 2),  # MIN comes before spares
        (3, 1, 2),
        (4, 1, 3),
        (5, 1, 4),
        (6, 1, 4),
        (3, 5, 2),
    ],
)
def test_world_has_up_to_max_nodes_without_the_spares_and_at_least_min(
    available: int, spares: int, expected: int
):
    """Of a job of 2 to 4 nodes: spares are kept back only as long as there are MIN nodes without them."""
    assert world_nodes(Rules(2, 4, spares=spares), available) == expected


@pytest.mark.parametrize(
    ("available", "before", "expected"),
    [
        (5, 3, 3),
        (4, 3, 3),  # one was lost, and a spare has its place
        (3, 3, 3),
        (2, 3, 2),  # no spare is left
        (6, 3, 4),  # as without a last round
        (9, 9, 4),
        (1, 3, 0),
    ],
)
def test_spares_keep_the_world_as_large_as_it_was(available: int, before: int, expected: int):
    """Of a job of 2 to 4 nodes and two spares: a world of three does not shrink to two to have them."""
    assert world_nodes(Rules(2, 4, spares=2), available, before) == expected


@pytest.mark.parametrize(("available", "spares", "expected"), [(3, 0, False), (4, 0, True), (4, 1, False)])
def test_world_is_full_when_more_nodes_would_not_make_it_larger(available: int, spares: int, expected: bool):
    """The first round need not wait for more."""
    assert is_world_full(Rules(2, 4, spares=spares), available) is expected


@pytest.mark.parametrize(
    ("seated", "waiting", "spares", "expected"),
    [(2, 0, 0, False), (2, 1, 0, True), (4, 2, 0, False), (2, 1, 1, False), (2, 2, 1, True)],
)
def test_world_may_grow_only_by_nodes_that_are_neither_spares_nor_too_many(
    seated: int, waiting: int, spares: int, expected: bool
):
    """A node that waits is no reason to stop a round unless it would get ranks."""
    assert may_grow(Rules(2, 4, spares=spares), seated, waiting) is expected


def test_order_is_that_of_the_given_ranks_then_of_the_names_as_people_count():
    """A node's group rank does not depend on when it came."""
    joins = [join("node10"), join("node2"), join("z", hint=1), join("y", hint=0)]
    assert names(choose_seats(Rules(1, 9), joins, ())) == ["y", "z", "node2", "node10"]


def test_survivors_keep_their_order_and_a_replacement_takes_its_own_place():
    """Nobody moves because another node was lost."""
    before = [join(node) for node in ("a", "b", "c")]
    after = [join(node) for node in ("c", "b2", "a")]
    assert names(choose_seats(Rules(3, 3), before, ())) == ["a", "b", "c"]
    assert names(choose_seats(Rules(3, 3), after, ("a", "b", "c"))) == ["a", "b2", "c"]


def test_node_that_waits_never_displaces_one_of_the_last_round():
    """Its name may sort first, it may have joined first: the survivors of the round stay."""
    joins = [join("a"), join("b"), join("m"), join("n")]
    assert names(choose_seats(Rules(1, 2), joins, ("m", "n"))) == ["m", "n"]


def test_too_few_ranks_are_no_quorum_however_many_nodes_there_are():
    """The world's least size is in ranks, since nodes may differ."""
    rules = Rules(1, 4, min_ranks=5)
    assert not has_quorum(rules, [join("a", 2), join("b", 2)])
    assert has_quorum(rules, [join("a", 2), join("b", 3)])
    assert not has_quorum(Rules(2, 4), [join("a", 8)])
    assert not has_quorum(Rules(1, 4), [])


def test_size_is_kept_where_the_world_may_not_shrink():
    """In nodes and in ranks; what the user asked for holds if it is more."""
    rules = Rules(1, 4, min_ranks=2)
    assert keep_size(rules, (8, 8)) == rules
    fixed = replace(rules, may_shrink=False)
    kept = keep_size(fixed, (8, 4))
    assert (kept.min_nodes, kept.min_ranks) == (2, 12)
    assert keep_size(kept, (8,)) == kept
    assert keep_size(fixed, ()) == fixed


def test_spare_takes_part_when_there_would_be_too_few_ranks_without_it():
    """Otherwise a job with enough nodes would wait for more until its rendezvous fails."""
    rules = Rules(2, 4, min_ranks=3, spares=1)
    assert names(choose_seats(rules, [join("a"), join("b"), join("c")], ())) == ["a", "b", "c"]
    assert names(choose_seats(rules, [join("a", 2), join("b"), join("c")], ())) == ["a", "b"]


def test_larger_node_takes_the_place_of_a_smaller_one_only_if_there_would_be_too_few_ranks():
    """Too few ranks is worse than another order."""
    joins = [join("a", 1), join("b", 1), join("c", 8)]
    assert names(choose_seats(Rules(1, 2, min_ranks=2), joins, ("a", "b"))) == ["a", "b"]
    assert names(choose_seats(Rules(1, 2, min_ranks=4), joins, ("a", "b"))) == ["a", "c"]


@given(
    st.lists(st.integers(1, 4), max_size=8),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 3),
    st.integers(0, 12),
    st.sets(st.integers(0, 7)),
)
def test_choice_keeps_the_rules_for_any_nodes(
    slots: list[int], least: int, more: int, spares: int, min_ranks: int, last: set[int]
):
    """Enough nodes, not too many, enough ranks, nobody twice; and a choice whenever there could be one."""
    rules = Rules(least, least + more, min_ranks=min_ranks, spares=spares)
    joins = [join(f"n{place}", count) for place, count in enumerate(slots)]
    chosen = choose_seats(rules, joins, [f"n{place}" for place in last])
    most = sum(sorted(slots, reverse=True)[: rules.max_nodes])
    assert bool(chosen) == (len(joins) >= rules.min_nodes and most >= min_ranks)
    assert has_quorum(rules, joins) == bool(chosen)
    if chosen:
        assert rules.min_nodes <= len(chosen) <= rules.max_nodes
        assert sum(one.slots for one in chosen) >= min_ranks
        assert len(set(names(chosen))) == len(chosen)
        assert len(chosen) >= min(len(joins), len(last), rules.max_nodes)


def test_first_ranks_follow_from_the_slots():
    """Nodes may have different numbers of ranks."""
    seats = [Seat(join(node).agent, count) for node, count in (("a", 1), ("b", 4), ("c", 2))]
    assert find_first_ranks(seats) == (0, 1, 5)


def test_plan_of_an_agent_has_its_ranks_and_what_is_the_same_for_all():
    """Group rank, first rank, world size; the counters, the checkpoint and the address are the job's."""
    a, b = Agent("a", "1"), Agent("b", "2")
    memory = Memory(
        round_number=4, restart_count=3, nodes=("a", "b"), slots=(2, 1), resume=SeenCheckpoint("/c/40", 40)
    )
    plan = JobPlan((Seat(a, 2), Seat(b, 1)), ("s",), "10.0.0.1", 1234, memory, is_resume_known=True)
    mine = plan_of(plan, b)
    assert mine is not None
    assert (mine.ranks.group_rank, mine.ranks.first_rank, mine.ranks.world_size) == (1, 2, 3)
    assert (mine.round_number, mine.restart_count, mine.resume_from, mine.resume_step) == (4, 3, "/c/40", 40)
    assert (mine.master_addr, mine.master_port, mine.nodes, mine.spares) == (
        "10.0.0.1",
        1234,
        ("a", "b"),
        ("s",),
    )


def test_restarted_agent_has_no_part_in_the_plan_of_the_one_before_it():
    """A seat is an agent's, not a node's."""
    plan = JobPlan((Seat(Agent("a", "old"), 1),), (), "a", 1, Memory(round_number=0))
    assert plan_of(plan, Agent("a", "new")) is None


@pytest.mark.parametrize(
    ("addresses", "endpoint", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], "head", "10.0.0.1"),
        (["127.0.1.1", "10.0.0.2"], "head", "head"),  # Debian's /etc/hosts gives a host's own name 127.0.1.1
        (["127.0.0.1", "127.0.0.1"], "head", "127.0.0.1"),  # all on one machine
        (["localhost", "10.0.0.2"], "", "localhost"),
    ],
)
def test_ranks_meet_at_the_first_nodes_own_address_unless_only_that_node_could_reach_it(
    addresses: list[str], endpoint: str, expected: str
):
    """The endpoint's name has worked for all of them."""
    assert Rules(1, 2, endpoint_host=endpoint).master_address(addresses) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_told_from_other_addresses(address: str, expected: bool):
    """By value, without asking a name server."""
    assert is_loopback(address) is expected

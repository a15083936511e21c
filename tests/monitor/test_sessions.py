"""Which of several connections speaks for a rank."""

from __future__ import annotations

from ftrun.monitor.heartbeats import (
    Heartbeat,
    HeartbeatUpdate,
    Init,
    Ok,
    Refused,
    Section,
    SectionAction,
    Timeouts,
    UpdateConfig,
    Welcome,
)
from ftrun.monitor.sessions import MAX_SESSIONS, RankSessions

TIMEOUTS = Timeouts.from_config(60.0, 30.0, {"step": 5.0}, 7.0)
OPEN = Section("step", SectionAction.OPEN)
CLOSE = Section("step", SectionAction.CLOSE)


def two_sessions() -> RankSessions:
    """Of process 1: "old" with an open section, then "new", half a minute later."""
    rank = RankSessions(TIMEOUTS)
    for now, peer, message in ((0.0, "old", Init()), (1.0, "old", OPEN), (30.0, "new", Init())):
        assert not isinstance(rank.receive(peer, 1, message, now), Refused)
    return rank


def test_another_process_is_refused_while_the_first_has_a_session() -> None:
    """The answer names the first; nothing but the note of it changes. Afterwards it is welcome."""
    rank = RankSessions(TIMEOUTS)
    rank.receive("a", 1, Init(), 0.0)
    reply = rank.receive("b", 2, Init(), 5.0)
    assert isinstance(reply, Refused)
    assert "process 1 is this rank's client already; process 2" in reply.cause
    assert (rank.state.initialized_at, rank.state.error_count) == (0.0, 1)
    assert not rank.drop("b")
    assert rank.receive("a", 1, Heartbeat(), 6.0) == Ok()
    assert rank.drop("a")
    assert isinstance(rank.receive("b", 2, Init(), 7.0), Welcome)


def test_the_newest_session_of_a_process_counts() -> None:
    """Its sections are the rank's; the older one is answered by its own."""
    rank = two_sessions()
    assert (rank.state.initialized_at, rank.state.open_sections) == (30.0, ())
    assert rank.receive("new", 1, OPEN, 31.0) == Ok()
    assert rank.receive("old", 1, CLOSE, 32.0) == Ok()
    assert isinstance(rank.receive("old", 1, CLOSE, 32.0), Refused)
    assert [section.opened_at for section in rank.state.open_sections] == [31.0]


def test_a_heartbeat_on_an_older_session_is_one_of_the_rank() -> None:
    """It is the same process; limits that it sets are the rank's, too."""
    rank = two_sessions()
    rank.receive("old", 1, Heartbeat(), 33.0)
    rank.receive("old", 1, UpdateConfig(HeartbeatUpdate(9.0, 3.0, True)), 34.0)
    assert (rank.state.last_heartbeat_at, rank.state.timeouts.steady) == (33.0, 3.0)


def test_a_session_left_behind_condemns_nobody() -> None:
    """When the newest ends, the rank is not connected, until an older one speaks again."""
    rank = two_sessions()
    rank.receive("new", 1, UpdateConfig(HeartbeatUpdate(9.0, 3.0, True)), 35.0)
    assert rank.drop("new")
    assert not rank.state.is_connected
    assert rank.receive("old", 1, Heartbeat(), 40.0) == Ok()
    assert (rank.state.is_connected, rank.state.last_heartbeat_at) == (True, 40.0)
    assert (rank.state.timeouts.steady, rank.state.session_count) == (3.0, 2)
    assert [section.opened_at for section in rank.state.open_sections] == [1.0]


def test_the_end_of_an_older_session_changes_nothing() -> None:
    """The newest goes on."""
    rank = two_sessions()
    before = rank.state
    assert not rank.drop("old")
    assert rank.state == before


def test_a_second_init_on_the_same_connection_begins_anew() -> None:
    """It is the same session's connection, not another one."""
    rank = two_sessions()
    assert isinstance(rank.receive("old", 1, Init(), 50.0), Welcome)
    assert (rank.state.initialized_at, rank.state.open_sections) == (50.0, ())


def test_messages_without_a_session_change_nothing() -> None:
    """A connection that has not begun one cannot speak for the rank."""
    rank = two_sessions()
    before = rank.state
    assert isinstance(rank.receive("stray", 1, Heartbeat(), 31.0), Refused)
    assert (rank.state.heartbeat_count, rank.state.error_count) == (before.heartbeat_count, 1)
    assert rank.needs_answer("stray")


def test_only_fire_and_forget_sessions_need_no_answer() -> None:
    """Each session by what its own client said."""
    rank = RankSessions(TIMEOUTS)
    rank.receive("a", 1, Init(is_fire_and_forget=True), 0.0)
    rank.receive("b", 1, Init(), 0.0)
    assert [rank.needs_answer(peer) for peer in "ab"] == [False, True]


def test_surplus_sessions_are_named_oldest_first() -> None:
    """There are never more than one too many: the server closes it at once."""
    rank = RankSessions(TIMEOUTS)
    for number in range(MAX_SESSIONS):
        rank.receive(number, 1, Init(), 0.0)
    assert rank.surplus() is None
    rank.receive(MAX_SESSIONS, 1, Init(), 0.0)
    assert rank.surplus() == 0
    rank.drop(0)
    assert (rank.surplus(), rank.state.is_connected) == (None, True)


def test_a_new_round_forgets_all_sessions() -> None:
    """A process of the new one is welcome, whatever its pid."""
    rank = two_sessions()
    rank.begin_round()
    assert (rank.state.is_connected, "old" in rank, "new" in rank) == (False, False, False)
    assert isinstance(rank.receive("b", 2, Init(), 60.0), Welcome)

"""What a rank's messages make of its state, and which of them are refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ftrun.monitor.heartbeats import (
    Heartbeat,
    HeartbeatUpdate,
    Init,
    Message,
    Ok,
    OpenSection,
    RankHeartbeats,
    Refused,
    Reply,
    Section,
    SectionAction,
    SectionUpdate,
    Timeouts,
    UpdateConfig,
    Welcome,
    disconnect,
    next_round,
    receive,
)

TIMEOUTS = Timeouts.from_config(60.0, 30.0, {"step": 5.0, "eval": 50.0, "save": None}, 7.0)
WITH_WARMUP = Timeouts.from_config(None, None, {"step": 5.0, "warmup": 90.0}, None, warmup_iterations=2)


def opened(name: str, iteration: int | None = None) -> Section:
    return Section(name, SectionAction.OPEN, iteration)


def closed(name: str, iteration: int | None = None) -> Section:
    return Section(name, SectionAction.CLOSE, iteration)


ALL_CLOSED = Section("", SectionAction.CLOSE_ALL)


def after(*messages: tuple[float, Message], timeouts: Timeouts = TIMEOUTS) -> RankHeartbeats:
    """The state after messages that came at the given times; none may be refused."""
    state = RankHeartbeats(timeouts=timeouts)
    for now, message in messages:
        state, reply = receive(state, message, now)
        assert not isinstance(reply, Refused), reply
    return state


def refusal(reply: Reply) -> str:
    assert isinstance(reply, Refused)
    return reply.cause


def test_nothing_is_known_before_a_client_comes() -> None:
    """The limits are those that were configured."""
    state = RankHeartbeats(timeouts=TIMEOUTS)
    assert (state.is_connected, state.initialized_at, state.last_heartbeat_at) == (False, None, None)
    assert state.timeouts == TIMEOUTS


def test_a_session_begins_with_init() -> None:
    """From then on a heartbeat and a section are awaited; the answer has the limits."""
    state, reply = receive(RankHeartbeats(timeouts=TIMEOUTS), Init(3, 77, None, True), 10.0)
    assert reply == Welcome(TIMEOUTS, True)
    assert (state.is_connected, state.initialized_at, state.last_section_closed_at) == (True, 10.0, 10.0)
    assert (state.global_rank, state.pid, state.session_count) == (3, 77, 1)


@pytest.mark.parametrize("message", [Heartbeat(), opened("step"), ALL_CLOSED, UpdateConfig()])
@pytest.mark.parametrize("was_connected", [False, True])
def test_nothing_counts_outside_a_session(message: Message, was_connected: bool) -> None:
    """Before InitMsg and after the end of the connection, a message changes nothing but the note of it."""
    before = disconnect(after((0.0, Init()))) if was_connected else RankHeartbeats()
    state, reply = receive(before, message, 1.0)
    assert "InitMsg has to come first" in refusal(reply)
    assert state == replace(before, error_count=1, last_error=refusal(reply))


def test_heartbeats_are_counted_and_timed() -> None:
    """The longest wait for the first one and the longest gap are kept."""
    state = after((10.0, Init()), *((at, Heartbeat()) for at in (14.0, 15.0, 18.0, 19.0)))
    assert (state.last_heartbeat_at, state.heartbeat_count) == (19.0, 4)
    assert (state.observed.initial, state.observed.steady) == (4.0, 3.0)


def test_sections_may_overlap() -> None:
    """Each open one is kept with its own time; the last to close ends the stay in sections."""
    state = after((0.0, Init()), (1.0, opened("eval")), (2.0, opened("step", 9)), (3.0, closed("eval")))
    assert state.open_sections == (OpenSection("step", 2.0, 9),)
    assert state.last_section_closed_at == 0.0
    state, _ = receive(state, closed("step"), 6.0)
    assert (state.open_sections, state.last_section_closed_at) == ((), 6.0)
    assert dict(state.observed.sections) == {"eval": 2.0, "step": 4.0}
    assert state.has_seen_step_section


def test_time_outside_sections_is_observed_when_the_next_one_opens() -> None:
    """From the last close, or from the beginning of the session; not while another is open."""
    state = after(
        (0.0, Init()),
        (2.0, opened("eval")),
        (20.0, opened("save")),
        (21.0, closed("eval")),
        (30.0, closed("save")),
        (35.0, opened("eval")),
    )
    assert state.observed.out_of_section == 5.0


def test_all_sections_are_closed_at_once() -> None:
    """Each is observed; it is no error when none is open."""
    state = after((0.0, Init()), (1.0, ALL_CLOSED), (2.0, opened("eval")), (3.0, opened("save")))
    state, reply = receive(state, ALL_CLOSED, 8.0)
    assert (reply, state.open_sections, state.last_section_closed_at) == (Ok(), (), 8.0)
    assert dict(state.observed.sections) == {"eval": 6.0, "save": 5.0}


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (opened("odd"), "section 'odd' is not known"),
        (opened("eval"), "section 'eval' is already open"),
        (closed("step"), "section 'step' is not open"),
        (closed("odd"), "section 'odd' is not open"),
        (closed("step", 50), "section 'step' is not open"),
    ],
)
def test_wrong_section_messages_change_nothing(message: Section, cause: str) -> None:
    """Unknown, opened twice, closed twice: the answer says so, and sections and iterations stay."""
    before = after((0.0, Init()), (1.0, opened("eval")))
    state, reply = receive(before, message, 2.0)
    assert cause in refusal(reply)
    assert state == replace(before, error_count=1, last_error=refusal(reply))


def test_calculated_heartbeat_limits_replace_configured_ones() -> None:
    """They are marked as calculated; sections keep theirs."""
    update = UpdateConfig(heartbeat=HeartbeatUpdate(9.0, 3.0, True))
    timeouts = after((0.0, Init()), (1.0, update)).timeouts
    assert timeouts == replace(TIMEOUTS, initial=9.0, steady=3.0, calculated=frozenset({"initial", "steady"}))


def test_calculated_section_limits_replace_those_that_are_named() -> None:
    """Other sections keep theirs and stay known; new names become known."""
    update = UpdateConfig(section=SectionUpdate({"step": 1.0, "new": 2.0}, 3.0, frozenset({"step"}), True))
    timeouts = after((0.0, Init()), (1.0, update), (2.0, opened("save")), (2.0, opened("new"))).timeouts
    assert dict(timeouts.sections) == {"step": 1.0, "eval": 50.0, "save": None, "new": 2.0}
    assert timeouts.out_of_section == 3.0
    assert timeouts.calculated == {"section:step", "out_of_section"}


def test_limits_that_are_set_by_hand_are_not_calculated_any_more() -> None:
    """A later update that was not calculated takes the mark away."""
    timeouts = after(
        (0.0, Init()),
        (1.0, UpdateConfig(HeartbeatUpdate(9.0, 3.0, True))),
        (2.0, UpdateConfig(section=SectionUpdate({"step": 1.0}, 3.0, frozenset({"step"}), True))),
        (3.0, UpdateConfig(HeartbeatUpdate(8.0, 2.0, False))),
        (4.0, UpdateConfig(section=SectionUpdate({"step": 2.0}, None, frozenset(), False))),
    ).timeouts
    assert (timeouts.initial, timeouts.sections["step"], timeouts.out_of_section) == (8.0, 2.0, None)
    assert timeouts.calculated == frozenset()


def test_a_step_has_the_warmup_limit_in_its_first_iterations() -> None:
    """Counted from the first iteration that the session saw, which need not be 0."""
    names = []
    state = after((0.0, Init()), timeouts=WITH_WARMUP)
    for iteration in (100, 101, 102, 103):
        state, _ = receive(state, opened("step", iteration), 0.0)
        names.append(state.limit_name("step"))
        state, _ = receive(state, closed("step", iteration), iteration - 99.0)
    assert names == ["warmup", "warmup", "step", "step"]
    assert dict(state.observed.sections) == {"warmup": 2.0, "step": 4.0}


@pytest.mark.parametrize(
    ("timeouts", "iteration"),
    [(WITH_WARMUP, None), (Timeouts.from_config(None, None, {"step": 5.0}, None), 0)],
)
def test_there_is_no_warmup_without_its_limit_or_iterations(
    timeouts: Timeouts, iteration: int | None
) -> None:
    """Clients before 0.6 send no iteration: their steps have the limit of steps at once."""
    state = after((0.0, Init()), (1.0, opened("step", iteration)), timeouts=timeouts)
    assert (state.is_warming_up, state.limit_name("step")) == (False, "step")


def test_only_steps_tell_the_iteration() -> None:
    """Other sections may come before the checkpoint is loaded."""
    timeouts = replace(WITH_WARMUP, sections={**WITH_WARMUP.sections, "setup": None})
    state = after((0.0, Init()), (1.0, opened("setup", 0)), (2.0, opened("step", 500)), timeouts=timeouts)
    assert (state.first_step_iteration, state.last_step_iteration) == (500, 500)


def test_the_client_may_set_the_length_of_the_warmup() -> None:
    """It holds from then on, also in later rounds."""
    state = after((0.0, Init(warmup_iterations=1)), timeouts=WITH_WARMUP)
    assert next_round(state).timeouts.warmup_iterations == 1


def test_the_end_of_a_connection_ends_the_session() -> None:
    """Open sections are forgotten, and not observed: they were not closed."""
    state = disconnect(after((0.0, Init()), (1.0, Heartbeat()), (2.0, opened("eval"))))
    assert (state.is_connected, state.open_sections, state.last_heartbeat_at) == (False, (), 1.0)
    assert dict(state.observed.sections) == {}


def test_a_new_session_of_the_same_rank_starts_afresh() -> None:
    """First heartbeat, sections, warm-up; counts and observations of the round go on."""
    state = after(
        (0.0, Init()), (5.0, Heartbeat()), (6.0, opened("step", 8)), (10.0, Init(pid=4)), (11.0, Heartbeat())
    )
    assert (state.session_count, state.heartbeat_count, state.pid) == (2, 2, 4)
    assert (state.initialized_at, state.last_section_closed_at, state.open_sections) == (10.0, 10.0, ())
    assert (state.has_seen_step_section, state.first_step_iteration) == (False, None)
    assert (state.observed.initial, state.observed.steady) == (5.0, None)


def test_a_new_round_keeps_limits_and_observations() -> None:
    """All else belonged to the worker that has ended."""
    state = after((0.0, Init()), (5.0, Heartbeat()), (6.0, UpdateConfig(HeartbeatUpdate(9.0, 3.0, True))))
    assert next_round(state) == RankHeartbeats(timeouts=state.timeouts, observed=state.observed)


def test_no_sequence_of_messages_raises() -> None:
    """All orders of a few messages: each is taken or refused, and the open sections are always known ones."""
    messages: tuple[Message, ...] = (
        Init(),
        Heartbeat(),
        opened("step", 1),
        closed("step", 1),
        opened("odd"),
        ALL_CLOSED,
        UpdateConfig(section=SectionUpdate({"step": 1.0}, None, frozenset(), False)),
    )
    for order in itertools.product(messages, repeat=4):
        state = RankHeartbeats(timeouts=TIMEOUTS)
        for now, message in enumerate(order):
            state, _ = receive(state, message, float(now))
            assert {section.name for section in state.open_sections} <= set(state.timeouts.sections)
            assert state.is_connected == (state.initialized_at is not None)

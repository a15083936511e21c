"""Lives from the lines of a journal, also from damaged ones and those of other versions."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.monitor import events as ev
from ftrun.monitor.events import VOCABULARY, Event
from ftrun.monitor.life_fold import fold
from ftrun.monitor.lives import Life, RoundKey
from ftrun.monitor.merging import merge
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.report import make_report
from ftrun.monitor.timeline import group

FIELDS = sorted({item.name for event_type in VOCABULARY for item in dataclasses.fields(event_type)})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["success", "a", "b"]),
)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=2), SCALARS, max_size=2)
)
FITTING = st.one_of(st.integers(0, 5), st.floats(0, 100), VALUES)
LINES = st.builds(
    lambda envelope, fields: {**fields, **envelope},
    st.fixed_dictionaries(
        {
            "at": st.one_of(st.floats(0, 1e6), VALUES),
            "ts": st.one_of(st.floats(0, 2e9), VALUES),
            "event": st.one_of(st.sampled_from([event_type.kind for event_type in VOCABULARY]), VALUES),
            "node": st.one_of(st.sampled_from(["a", "b"]), VALUES),
        }
    ),
    st.dictionaries(st.sampled_from(FIELDS), FITTING, max_size=8),
)


def lines_of(*events: Event, at: float = 10.0) -> list[dict[str, object]]:
    """A journal with these events, a second apart."""
    return [json.loads(to_json(Record(1e9 + n, at + n, "n", one))) for n, one in enumerate(events)]


def one_life(*events: Event) -> Life:
    [life] = fold(lines_of(*events)).lives()
    return life


STARTED = ev.RunStarted("job", "t.py", 0, 2, "given", 77, "0.1.0", "3.11")
CLOSED = ev.RoundClosed(3, 4, 2, "host", 4711, "/c/step-20", 20, ("n", "m"), ("spare",))


@settings(max_examples=400)
@given(st.lists(LINES, max_size=25), st.lists(LINES, max_size=25))
def test_no_line_can_break_the_account(one: list[dict[str, object]], other: list[dict[str, object]]) -> None:
    """Known kinds with any values in any fields: what is odd is left out, and every second is counted."""
    # As it is read back: a float may be written so that it is read as an integer.
    lives = [fold(json.loads(json.dumps(lines))).lives() for lines in (one, other)]
    for members in group(lives):
        run = merge(members, now_ts=1e9)
        for row in segments_of(run).values():
            assert sum(segment.length_s for segment in row) == pytest.approx(run.wall_s, rel=1e-6, abs=1e-3)
        make_report(run, "name", "/d")


WHOLE = (
    STARTED,
    ev.RunConfigured(("stall",), ("60",)),
    ev.LogLocated("/logs"),
    ev.StoreConnected("h:1", True),
    ev.RendezvousAwaited("1 of 2", 10.0),
    ev.GpuMemoryAwaited("gpu 0", 1, 2.5, True, ()),
    CLOSED,
    ev.WorkerStarted(3, 5, 1, 900, False, "cold because"),
    ev.WorkerProgressed(3, 5, 21, 0.5),
    ev.CheckpointSaved(3, 5, "/c/step-30", 30, 0.25),
    ev.ProgressObserved(3, 14, 34, 0.75),
    ev.HangDetected(3, "stall", None, (), 6.0, 5.0, "learned", "no sign"),
    ev.WorkerExited(3, 5, 1, 900, -9, "SIGKILL", True, 15),
    ev.RoundStopped(3, "failure", 0.125),
    ev.IncidentDiagnosed(3, "stall", 5, 1, 900, -9, ("why", "more"), "stall|5", True, (4,), 0.5),
    ev.RestartDecided(3, "restart", "restart 3 of 9", 1.5, 3, 9),
    ev.NodeLost("m", "gone"),
    ev.NodeParked(4, ("m",)),
    ev.RunEnded(143, "told to", 3, 16.0),
)
"""A life in which everything happens that is kept."""


def test_every_field_that_is_read_is_of_the_vocabulary() -> None:
    """A renamed field cannot be missed: each of these is found where the event has put it."""
    life = one_life(*WHOLE)
    assert (life.run_id, life.script, life.slots, life.agent_pid, life.version) == (
        "job",
        "t.py",
        2,
        77,
        "0.1.0",
    )
    assert (life.settings, life.log_dir) == ((("stall", "60"),), "/logs")
    assert (life.connected_at, life.is_host, life.awaited, life.parked) == (13.0, True, (14.0,), ((27.0, 4),))
    assert (life.held[0].began_at, life.lost) == (12.5, ((26.0, "m"),))
    assert (life.exit_code, life.end_reason, life.restart_count) == (143, "told to", 3)


def test_every_field_of_a_round_is_of_the_vocabulary() -> None:
    """What a node did in it, and how it ended."""
    life = one_life(*WHOLE)
    [shift] = life.shifts
    assert shift.key == RoundKey(3, "host", 4711)
    assert (shift.world_size, shift.nodes, shift.spares, shift.restart_count) == (
        4,
        ("n", "m"),
        ("spare",),
        2,
    )
    assert (shift.resume_from, shift.resume_step, shift.ranks) == ("/c/step-20", 20, (5,))
    assert (shift.cold_reason, shift.script_at, shift.progressed_at) == ("cold because", 17.5, 18.0)
    assert (shift.first_step, shift.steps, shift.observed_at, shift.moved_at) == (21, 15, 20.0, 19.25)
    assert (shift.hung_at, shift.silent_s, shift.stop_began_at, shift.stopped_at) == (21.0, 6.0, 22.875, 23.0)
    assert (shift.cause, shift.saves[0].step, shift.saves[0].blocking_s) == ("failure", 30, 0.25)
    [judged] = life.judged
    assert (judged.kind, judged.culprit_rank, judged.reasons, judged.fingerprint) == (
        "stall", 5, ("why", "more"), "stall|5",
    )  # fmt: skip
    assert (judged.action, judged.delay_s, judged.restart_count, judged.max_restarts) == (
        "restart",
        1.5,
        3,
        9,
    )
    assert (judged.has_progressed, judged.collateral_ranks, judged.confidence) == (True, (4,), 0.5)


def test_recovery_is_read_with_all_its_parts() -> None:
    """Also from a version that did not say how old the checkpoint was."""
    event = ev.RecoveryCompleted(3, "killed", 1, 0.1, 0.2, 0.3, 0.4, 0.9, 7, 12.5)
    [shift] = one_life(STARTED, CLOSED, event).shifts
    assert shift.recovered is not None
    assert dataclasses.astuple(shift.recovered)[1:] == (0.9, 0.1, 0.2, 0.3, 0.4, 7, 12.5)
    older = [
        {k: v for k, v in line.items() if k != "checkpoint_age_s"}
        for line in lines_of(STARTED, CLOSED, event)
    ]
    [old] = fold(older).lives()[0].shifts
    assert old.recovered == dataclasses.replace(shift.recovered, checkpoint_age_s=None)


def test_each_start_of_an_agent_begins_a_life() -> None:
    """Also after one that was killed; what comes before the first start is one without a beginning."""
    lives = fold(lines_of(CLOSED, STARTED, CLOSED, STARTED, ev.RunEnded(0, "", 0, 1.0))).lives()
    assert [(life.run_id, life.exit_code, len(life.shifts)) for life in lives] == [
        ("", None, 1), ("job", None, 1), ("job", 0, 0),
    ]  # fmt: skip


def test_of_many_notes_the_first_are_kept_and_all_counted() -> None:
    """A run that says the same a thousand times stays small."""
    life = one_life(STARTED, *[ev.ProcessSwept(0, pid, "sleep", "killed") for pid in range(100)])
    assert (len(life.notes), dict(life.note_counts)) == (20, {"process.swept": 100})


def test_same_save_told_by_all_ranks_is_one() -> None:
    """It took as long as the slowest of them."""
    saves = [ev.CheckpointSaved(3, rank, "/c/30", 30, 0.1 * rank) for rank in range(4)]
    [shift] = one_life(STARTED, CLOSED, *saves).shifts
    assert [(save.step, round(save.blocking_s, 3)) for save in shift.saves] == [(30, 0.3)]

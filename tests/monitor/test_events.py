"""The vocabulary of the journal and its JSON form."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from pathlib import Path

import pytest

from ftrun.monitor import events, events_doc, log
from ftrun.monitor.events import VOCABULARY, Event, UnknownEvent
from ftrun.monitor.records import SCHEMA_VERSION, Record, from_json, to_json

_SAMPLES: dict[object, list[object]] = {
    int: [3],
    float: [0.25],
    str: ["text \udc80 é"],
    bool: [True],
    tuple[str, ...]: [("a", "b"), ()],
    tuple[int, ...]: [(1, 2), ()],
    tuple[float, ...]: [(1.5, 2.0), ()],
    str | None: ["text", None],
    int | None: [3, None],
    float | None: [0.25, None],
}


def samples(event_type: type[Event]) -> list[Event]:
    """Events of one kind that together show each form of each field."""
    hints = typing.get_type_hints(event_type)
    choices = {item.name: _SAMPLES[hints[item.name]] for item in dataclasses.fields(event_type)}
    return [event_type(**{name: values[i % len(values)] for name, values in choices.items()}) for i in (0, 1)]


@pytest.mark.parametrize("event_type", VOCABULARY, ids=lambda t: t.kind)
def test_event_survives_a_round_trip(event_type: type[Event]) -> None:
    """Each kind is read back as it was written, whichever of its optional fields are there."""
    for event in samples(event_type):
        record = Record(ts=1700000000.5, at=12.25, node="n0", event=event)
        assert from_json(to_json(record)) == record


@pytest.mark.parametrize("event_type", VOCABULARY, ids=lambda t: t.kind)
def test_event_has_a_sentence_of_its_own(event_type: type[Event]) -> None:
    """Each kind can be told to a person in one line of words."""
    for event in samples(event_type):
        text = log.sentence(event)
        assert text
        assert event_type.__name__ not in text
        assert "\n" not in text


def test_record_begins_with_version_times_node_and_kind() -> None:
    """The envelope is the documented one, and the event's fields stand beside it."""
    line = to_json(Record(ts=1.5, at=2.5, node="n0", event=events.LogLocated("/logs", "/run")))
    assert json.loads(line) == {
        "v": SCHEMA_VERSION, "ts": 1.5, "at": 2.5, "node": "n0", "event": "log.located", "path": "/logs",
        "run_dir": "/run",
    }  # fmt: skip


def test_record_is_one_line_whatever_a_field_holds() -> None:
    """Line breaks in a field do not break the line format."""
    assert "\n" not in to_json(Record(ts=0, at=0, node="n", event=events.LogLocated(path="a\nb\u2028c")))


@pytest.mark.parametrize(
    "change",
    [{"event": "worker.teleported"}, {"colour": "red"}, {"path": 7}, {"path": None}],
    ids=["new kind", "new field", "other type", "null"],
)
def test_what_another_version_wrote_is_kept_as_unknown(change: dict[str, object]) -> None:
    """A kind, a field or a type that this version does not have is kept, and written again as it was."""
    base = {"v": 9, "ts": 1.0, "at": 2.0, "node": "n0", "event": "log.located", "path": "/logs"}
    line = json.dumps({**base, **change})
    record = from_json(line)
    assert isinstance(record.event, UnknownEvent)
    assert json.loads(to_json(record)) == json.loads(line)


def test_a_missing_field_makes_the_event_unknown() -> None:
    """A known event always has all its fields."""
    record = from_json('{"v":1,"ts":1,"at":2,"node":"n0","event":"log.located"}')
    assert record.event == UnknownEvent("log.located", {})


def test_booleans_are_no_numbers() -> None:
    """JSON's true is not taken for the integer 1."""
    line = to_json(Record(ts=0, at=0, node="n", event=events.PreloadLearned(module_count=1)))
    assert isinstance(from_json(line.replace(":1}", ":true}")).event, UnknownEvent)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "7", '{"event":1}', '{"event":"run.ended"}', '{"v":1,"node":"n","event":"x"}'],
)
def test_what_is_no_record_is_refused(line: str) -> None:
    """Garbage and records without their envelope raise ValueError."""
    with pytest.raises(ValueError):
        from_json(line)


def test_vocabulary_is_complete_and_well_formed() -> None:
    """Every event class is in the vocabulary and documented; kinds are unique, dotted, in the past tense."""
    classes = [c for _, c in inspect.getmembers(events, inspect.isclass) if issubclass(c, Event)]
    assert set(classes) - {Event, UnknownEvent} == set(VOCABULARY)
    kinds = [event_type.kind for event_type in VOCABULARY]
    assert len(set(kinds)) == len(kinds)
    assert all(kind.count(".") == 1 for kind in kinds)
    irregular = {"worker.unkillable", "process.swept", "node.lost", "store.lost", "node.left"}
    assert [kind for kind in kinds if not kind.endswith("ed") and kind not in irregular] == []
    # A dataclass without a docstring is given its signature as one.
    assert not [t.__name__ for t in VOCABULARY if not t.__doc__ or t.__doc__.startswith(f"{t.__name__}(")]


def test_no_field_collides_with_the_envelope() -> None:
    """An event's field never hides the record's own."""
    names = {item.name for event_type in VOCABULARY for item in dataclasses.fields(event_type)}
    assert names.isdisjoint({"v", "ts", "at", "node", "event"})


def test_documentation_is_what_the_generator_makes() -> None:
    """docs/events.md is up to date with the vocabulary."""
    page = Path(__file__).resolve().parents[2] / "docs/events.md"
    assert page.read_text() == events_doc.render()

"""The JSON form of an event: one line of the journal, made and read back.

Tolerant of other versions when reading: what this version does not know becomes an `UnknownEvent`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import get_args, get_origin

from ftrun.monitor.events import VOCABULARY, Event, JsonValue, UnknownEvent

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning; new kinds and new fields do not raise it."""

_BY_KIND = {event_type.kind: event_type for event_type in VOCABULARY}
_ENVELOPE = ("v", "ts", "at", "node", "event")


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One line of a journal: an event, when and where."""

    ts: float
    """UTC epoch, seconds; for people, never compared between nodes."""
    at: float
    """CLOCK_MONOTONIC of the node, seconds."""
    node: str
    event: Event
    version: int = SCHEMA_VERSION


def event_fields(event: Event) -> dict[str, JsonValue]:
    """The event's own fields, tuples as lists, in the order of the vocabulary."""
    if isinstance(event, UnknownEvent):
        return dict(event.fields)
    values = ((item.name, getattr(event, item.name)) for item in dataclasses.fields(event))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


def to_json(record: Record) -> str:
    """One line of JSON without the newline; ASCII only, so that any bytes in a path survive."""
    kind = record.event.name if isinstance(record.event, UnknownEvent) else record.event.kind
    values = (record.version, round(record.ts, 6), round(record.at, 6), record.node, kind)
    envelope: dict[str, JsonValue] = dict(zip(_ENVELOPE, values, strict=True))
    return json.dumps({**envelope, **event_fields(record.event)}, separators=(",", ":"))


def from_json(line: str) -> Record:
    """The record of one line.

    A kind or a field that this version does not know, or a field of another type, makes an `UnknownEvent`,
    so that a known event always holds what its class promises. A field that an older version did not have
    yet has its default.

    Raises:
        ValueError: The line is not a record of any version.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or not isinstance(kind := data.get("event"), str):
        raise ValueError(f"not a journal record: {line[:80]!r}")
    version, ts, at, node = (data.get(name) for name in _ENVELOPE[:4])
    if not (isinstance(version, int) and isinstance(node, str)):
        raise ValueError(f"journal record without version or node: {line[:80]!r}")
    if not (isinstance(ts, (int, float)) and isinstance(at, (int, float))):
        raise ValueError(f"journal record without times: {line[:80]!r}")
    fields = {name: value for name, value in data.items() if name not in _ENVELOPE}
    return Record(float(ts), float(at), node, _event(kind, fields), version)


def _event(kind: str, fields: dict[str, JsonValue]) -> Event:
    if kind not in _BY_KIND:
        return UnknownEvent(kind, fields)
    hints = _field_types(kind)
    if fields.keys() - hints.keys() or hints.keys() - fields.keys() - _defaulted(kind):
        return UnknownEvent(kind, fields)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if not all(_is_a(value, hints[name]) for name, value in values.items()):
        return UnknownEvent(kind, fields)
    return _BY_KIND[kind](**values)


@functools.cache
def _field_types(kind: str) -> dict[str, object]:
    hints = typing.get_type_hints(_BY_KIND[kind])
    return {item.name: hints[item.name] for item in dataclasses.fields(_BY_KIND[kind])}


@functools.cache
def _defaulted(kind: str) -> frozenset[str]:
    """Fields that may be missing."""
    fields = dataclasses.fields(_BY_KIND[kind])
    return frozenset(item.name for item in fields if item.default is not dataclasses.MISSING)


def _is_a(value: object, hint: object) -> bool:
    """Whether a decoded JSON value has a field's type: a plain type, a union of them, or tuple[X, ...]."""
    if isinstance(hint, types.UnionType):
        return any(_is_a(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_a(item, get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint)

"""The JSON form of what agents tell each other, made and read back; and nothing but that form is read. Pure.

The forms follow from the types of `ftrun.launcher.messages`: a dataclass is an object with exactly its
fields, an enum its value, a tuple a list. Numbers are finite. The whole is in an envelope with the version of
the schema and the name of the type.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, cast, get_args, get_origin

from ftrun.launcher.messages import Awaited, Hello, Message, Publication, StopOrder
from ftrun.monitor.incident import Evidence, Incident

SCHEMA_VERSION = 2
"""Raised with every change of any message: agents of different versions do not talk to each other."""

_ENVELOPE = {"version", "type", "body"}
_SAME_VERSION = "all nodes must run the same version of ftrun"
_SHOWN = 80
"""Characters of a foreign text that an error shows."""

_Encode = Callable[[Any], object]
_Decode = Callable[[object], Any]


_WRITER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


class MessageError(ValueError):
    """A text is not exactly one of the expected messages, or a value cannot be sent; says where and why."""


def encode(value: Message | Publication | StopOrder | Hello | Awaited) -> str:
    """One line of ASCII, whatever bytes a path in it has.

    Raises:
        MessageError: a number in it is not finite.
    """
    kind: Any = type(value)
    envelope = {"version": SCHEMA_VERSION, "type": kind.__name__, "body": _encoder(kind)(value)}
    return _write(kind.__name__, envelope)


def to_text(value: Evidence) -> str:
    """The same form without an envelope, on many lines, for a file.

    Raises:
        MessageError: a number in it is not finite.
    """
    kind: Any = type(value)
    return json.dumps(json.loads(_write(kind.__name__, _encoder(kind)(value))), indent=1) + "\n"


def size_of(value: Evidence | Incident) -> int:
    """Bytes that the value takes in a message.

    Raises:
        MessageError: a number in it is not finite.
    """
    kind: Any = type(value)
    return len(_write(kind.__name__, _encoder(kind)(value)))


def decode_message(text: str | bytes) -> Message:
    """What an agent has told the host agent.

    Raises:
        MessageError: it is not exactly such a message.
    """
    return cast("Message", _decode(text, Message))


def decode_publication(text: str | bytes) -> Publication:
    """What the host agent has told all agents.

    Raises:
        MessageError: it is not exactly such a message.
    """
    return cast("Publication", _decode(text, Publication))


def decode_stop(text: str | bytes) -> StopOrder:
    """Why a round is stopped.

    Raises:
        MessageError: it is not exactly such a message.
    """
    return cast("StopOrder", _decode(text, StopOrder))


def decode_awaited(text: str | bytes) -> Awaited:
    """What the open round waits for.

    Raises:
        MessageError: it is not exactly such a message.
    """
    return cast("Awaited", _decode(text, Awaited))


def decode_hello(text: str | bytes) -> Hello:
    """What the host agent says to whoever connects.

    Raises:
        MessageError: it is not exactly such a message.
    """
    return cast("Hello", _decode(text, Hello))


def _write(name: str, data: object) -> str:
    try:
        return _WRITER.encode(data)
    except ValueError as error:
        raise MessageError(f"{name} cannot be sent: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise MessageError(f": {name} is no number that a message may hold")


_READER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str | bytes, hint: Any) -> Any:
    try:
        data = _READER.decode(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not a message of ftrun ({error}): {_short(text)}") from None
    if type(data) is not dict or "version" not in data:
        raise MessageError(f"not a message of ftrun: {_short(text)}")
    if type(data["version"]) is not int or data["version"] != SCHEMA_VERSION:
        raise MessageError(
            f"the message has version {_short(data['version'])}, this agent speaks version {SCHEMA_VERSION}: "
            f"{_SAME_VERSION}"
        )
    if data.keys() != _ENVELOPE:
        raise MessageError(f"not a message of ftrun: {_short(text)}")
    by_name = _types_by_name(hint)
    name = data["type"]
    if not isinstance(name, str) or name not in by_name:
        raise MessageError(f"the message is {_short(name)}, expected is {' or '.join(by_name)}")
    try:
        return _decoder(by_name[name])(data["body"])
    except MessageError as error:
        raise MessageError(f"{name}{error}; {_SAME_VERSION}") from None


@functools.cache
def _types_by_name(hint: Any) -> dict[str, Any]:
    return {option.__name__: option for option in get_args(hint) or (hint,)}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _misfit(expected: str, value: object) -> MessageError:
    return MessageError(f": expected is {expected}, found {_short(value)}")


def _fields_of(kind: Any) -> list[tuple[str, Any]]:
    """Name and type of each field, in the order in which the class takes them."""
    hints = typing.get_type_hints(kind)
    return [(item.name, hints[item.name]) for item in dataclasses.fields(kind)]


def _inner(hint: Any) -> Any:
    """X for `X | None` and None for any other type."""
    if get_origin(hint) not in (types.UnionType, typing.Union):
        return None
    options = [option for option in get_args(hint) if option is not type(None)]
    if len(options) != 1 or len(get_args(hint)) != 2:
        raise TypeError(f"{hint} has no JSON form here: of unions, only X | None has one")
    return options[0]


def _as_it_is(value: object) -> object:
    return value


@functools.cache
def _encoder(hint: Any) -> _Encode:
    """What turns a value of the type into one that `json` writes; `_as_it_is` if it does so anyway."""
    if dataclasses.is_dataclass(hint):
        return _object_encoder(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: value.value
    if get_origin(hint) is tuple:
        write = _encoder(get_args(hint)[0])
        return _as_it_is if write is _as_it_is else lambda value: [write(item) for item in value]
    if (inner := _inner(hint)) is not None:
        write_inner = _encoder(inner)
        if write_inner is _as_it_is:
            return _as_it_is
        return lambda value: None if value is None else write_inner(value)
    return _as_it_is


def _object_encoder(kind: Any) -> _Encode:
    fields = [(name, _encoder(hint)) for name, hint in _fields_of(kind)]
    plain = tuple(name for name, write in fields if write is _as_it_is)
    others = tuple((name, write) for name, write in fields if write is not _as_it_is)

    def write_object(value: object) -> dict[str, object]:
        written = {name: getattr(value, name) for name in plain}
        for name, write in others:
            written[name] = write(getattr(value, name))
        return written

    return write_object


@functools.cache
def _decoder(hint: Any) -> _Decode:
    """What turns what `json` has read into a value of the type, or raises `MessageError`."""
    if dataclasses.is_dataclass(hint):
        return _object_decoder(hint)
    if hint is float:
        return _read_float
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    if get_origin(hint) is tuple:
        return _tuple_decoder(hint)
    if (inner := _inner(hint)) is not None:
        read_inner = _decoder(inner)
        return lambda value: None if value is None else read_inner(value)
    if hint in (str, int, bool):
        return _plain_decoder(hint)
    raise TypeError(f"{hint} has no JSON form here")


def _types_as_they_are(hint: Any) -> frozenset[type]:
    """JSON values of exactly these types are values of the type `hint` already; True is no int here."""
    inner = _inner(hint)
    if inner is not None:
        return _types_as_they_are(inner) | {type(None)}
    return frozenset({hint}) if hint in (str, int, bool) else frozenset()


def _plain_decoder(kind: type) -> _Decode:
    def read_plain(value: object) -> object:
        if type(value) is not kind:
            raise _misfit(kind.__name__, value)
        return value

    return read_plain


def _read_float(value: object) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass
    raise _misfit("a finite number", value)


def _enum_decoder(kind: type[Enum]) -> _Decode:
    members = {member.value: member for member in kind}

    def read_enum(value: object) -> Enum:
        if not isinstance(value, str) or value not in members:
            raise _misfit(f"a {kind.__name__}", value)
        return members[value]

    return read_enum


def _tuple_decoder(hint: Any) -> _Decode:
    item_hint, rest = get_args(hint)
    if rest is not Ellipsis:
        raise TypeError(f"{hint} has no JSON form here: of tuples, only those of one type and any length")
    read, plain = _decoder(item_hint), _types_as_they_are(item_hint)

    def read_tuple(value: object) -> tuple[object, ...]:
        if type(value) is not list:
            raise _misfit("a list", value)
        if plain.issuperset(map(type, value)):
            return tuple(value)
        items: list[object] = []
        try:
            for item in value:
                items.append(read(item))
        except MessageError as error:
            raise MessageError(f"[{len(items)}]{error}") from None
        return tuple(items)

    return read_tuple


def _object_decoder(kind: Any) -> _Decode:
    fields = [(name, _types_as_they_are(hint), _decoder(hint)) for name, hint in _fields_of(kind)]
    names = {name for name, *_ in fields}

    def read_object(value: object) -> object:
        if type(value) is not dict or value.keys() != names:
            raise _wrong_fields(kind.__name__, names, value)
        items: list[object] = []
        try:
            for name, plain, read in fields:
                item = value[name]
                items.append(item if type(item) in plain else read(item))
        except MessageError as error:
            raise MessageError(f".{name}{error}") from None
        return kind(*items)

    return read_object


def _wrong_fields(kind: str, names: set[str], value: object) -> MessageError:
    if type(value) is not dict:
        return _misfit(f"an object ({kind})", value)
    wrong = [f"no field {name}" for name in sorted(names - value.keys())]
    wrong += [f"an unknown field {_short(name)}" for name in sorted(value.keys() - names)]
    return MessageError(f": it has {', '.join(wrong[:3])}")

"""The JSON form of what `ftctl` says, and its documentation, both from the dataclasses that hold it. Pure."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import get_args, get_origin

from ftrun.monitor.event import JsonValue

_JSON_NAMES: Mapping[object, str] = {
    int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null",
}  # fmt: skip
_DIGITS = 6
"""Of seconds: more than a clock has to say."""


def to_plain(value: object) -> JsonValue:
    """A dataclass as an object, a tuple as a list, and so on down; seconds to the microsecond."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, _DIGITS)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def document(form: type) -> str:
    """The form as Markdown tables, those that it refers to after it, each once."""
    return "\n".join(_table(one) for one in _forms(form))


def _forms(form: type) -> Iterator[type]:
    found = [form]
    for one in found:
        for hint in _hints(one).values():
            found += [other for other in _dataclasses_in(hint) if other not in found]
    yield from found


def _hints(form: type) -> Mapping[str, object]:
    hints = typing.get_type_hints(form, include_extras=True)
    return {item.name: hints[item.name] for item in dataclasses.fields(form)}


def _dataclasses_in(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _dataclasses_in(inner)


def _table(form: type) -> str:
    rows = []
    for name, hint in _hints(form).items():
        plain, meaning = get_args(hint)
        rows.append(f"| `{name}` | {_type_name(plain)} | {meaning} |")
    head = ["| field | type | meaning |", "|---|---|---|"]
    return "\n".join([f"### {form.__name__}", "", inspect.getdoc(form) or "", "", *head, *rows, ""])


def _type_name(hint: object) -> str:
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_type_name, get_args(hint)))
    if get_origin(hint) is Mapping or get_origin(hint) in (dict, typing.get_origin(Mapping[str, int])):
        return f"object of {_type_name(get_args(hint)[1])}"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint.__name__
    return _JSON_NAMES[hint]

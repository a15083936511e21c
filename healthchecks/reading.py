"""One value that a source may give or refuse, and how dataclasses of such values travel as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from types import UnionType
from typing import Generic, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
_Decoder: TypeAlias = Callable[[Json], object]


class Lack(Enum):
    """Why there is no value, as far as judges treat it differently."""

    NOT_SUPPORTED = "not_supported"
    """This device, driver or virtual machine does not have it. NVML: 3, 22 (ECC of a vGPU), 26 (deprecated),
    27 (not ready)."""
    NO_PERMISSION = "no_permission"
    """NVML: 4; files: EPERM, EACCES."""
    NOT_FOUND = "not_found"
    """No such library, function (NVML: 13, older driver), device or file."""
    GPU_LOST = "gpu_lost"
    """NVML: 15, and 999 when the device's handle was asked for."""
    RESET_REQUIRED = "reset_required"
    """NVML: 16."""
    TIMEOUT = "timeout"
    """No answer within the deadline."""
    ERROR = "error"
    """Anything else."""
    NOT_READ = "not_read"
    """Nobody asked: an earlier failure made it pointless."""


SKIPPING = frozenset({Lack.NOT_SUPPORTED, Lack.NO_PERMISSION, Lack.NOT_FOUND})
"""Lacks that say nothing of the device: its check is skipped. With any other one the answer is unknown."""


@dataclass(frozen=True, slots=True)
class Value(Generic[T]):
    """What the source said."""

    value: T


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the source said nothing."""

    lack: Lack
    reason: str = ""
    """For a person: "nvmlDeviceGetTotalEccErrors: GPU is lost"."""
    code: int | None = None
    """The source's own number: nvmlReturn_t or errno."""

    def __str__(self) -> str:
        """The reason; the kind of lack if there is none."""
        return self.reason or self.lack.value.replace("_", " ")


Reading: TypeAlias = Union[Value[T], Missing]  # noqa: UP007 (a subscripted alias of Python 3.10)

NOT_READ = Missing(Lack.NOT_READ)


def value_of(reading: Reading[T]) -> T | None:
    """The value, or None if there is none. Not for values that may themselves be None."""
    return reading.value if isinstance(reading, Value) else None


def to_json(snapshot: object) -> str:
    """One line of JSON for a dataclass of readings; `from_json` restores an equal one.

    Fields may be None, numbers, strings, enums, literals, tuples, readings and dataclasses of these. A
    reading that has a value is written as the value itself, one that has none as an object with the key
    "missing". Fields with their default value are left out.
    """
    return json.dumps(_encode(snapshot), separators=(",", ":"))


def from_json(kind: type[T], text: str) -> T:
    """The dataclass `kind` that `to_json` wrote. Fields that the text lacks get their default.

    Raises:
        ValueError: the text is not JSON, or not that dataclass.
    """
    restored = _decode(kind, json.loads(text))
    assert isinstance(restored, kind)
    return restored


def _encode(value: object) -> Json:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return _encode(value.value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Value):
        return _encode(value.value)
    if isinstance(value, Missing):
        return {"missing": value.lack.value, "reason": value.reason, "code": value.code}
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _encode(item) for field, item in pairs if item != field.default}
    raise TypeError(f"a snapshot cannot hold {value!r}")


def _decode(hint: object, data: Json) -> object:
    """`data` as the type `hint`, which is one of those that `_encode` writes."""
    return _decoder(hint)(data)


@cache
def _decoder(hint: object) -> _Decoder:
    """How values of one type are restored; made once, since a large node has thousands of each."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _union_decoder(get_args(hint))
    if origin is Value:
        return _value_decoder(get_args(hint)[0])
    if origin is tuple:
        return _tuple_decoder(get_args(hint)[0])
    if origin is Literal:
        return _choice_decoder(get_args(hint))
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return _plain_decoder(hint)


def _plain_decoder(hint: object) -> _Decoder:
    def restore(data: Json) -> object:
        if type(data) is hint:
            return data
        if hint is float and type(data) is int:
            return float(data)
        raise ValueError(f"found {data!r}, expected {hint}")

    return restore


def _value_decoder(hint: object) -> _Decoder:
    restore = _decoder(hint)
    if hint in (bool, int, str):
        return lambda data: _shared_value(restore(data))
    return lambda data: Value(restore(data))


# Most links and GPUs of a node say the same, and many readings are kept: one object does for all of them.
@lru_cache(maxsize=4096, typed=True)
def _shared_value(value: object) -> Value[object]:
    return Value(value)


@lru_cache(maxsize=1024, typed=True)
def _shared_missing(lack: str, reason: str, code: int | None) -> Missing:
    return Missing(Lack(lack), reason, code)


def _decode_missing(data: dict[str, Json]) -> Missing:
    lack, reason, code = data["missing"], data.get("reason", ""), data.get("code")
    if not isinstance(lack, str):
        raise ValueError(f"found {lack!r}, expected the kind of a lack")
    return _shared_missing(lack, str(reason), code if isinstance(code, int) else None)


def _choice_decoder(choices: tuple[object, ...]) -> _Decoder:
    def restore(data: Json) -> object:
        if data not in choices:
            raise ValueError(f"found {data!r}, expected one of {choices}")
        return data

    return restore


def _tuple_decoder(hint: object) -> _Decoder:
    restore_item = _decoder(hint)

    def restore(data: Json) -> object:
        if not isinstance(data, list):
            raise ValueError(f"found {data!r}, expected a list")
        return tuple(map(restore_item, data))

    return restore


def _union_decoder(options: tuple[object, ...]) -> _Decoder:
    """A reading, or a value that may be None."""
    (option,) = (option for option in options if option not in (Missing, type(None)))
    restore_value, may_lack, may_be_none = _decoder(option), Missing in options, type(None) in options

    def restore(data: Json) -> object:
        if may_lack and type(data) is dict and "missing" in data:
            return _decode_missing(data)
        if data is None and may_be_none:
            return None
        return restore_value(data)

    return restore


def _dataclass_decoder(kind: type) -> _Decoder:
    # Types first: a dataclass that holds itself would not end here, and none does.
    restorers = {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}

    def restore(data: Json) -> object:
        if not isinstance(data, dict):
            raise ValueError(f"found {data!r}, expected an object with the fields of {kind.__name__}")
        try:
            return kind(**{name: restorers[name](value) for name, value in data.items()})
        except KeyError:
            unknown = ", ".join(sorted(data.keys() - restorers.keys()))
            raise ValueError(f"{kind.__name__} has no field {unknown}") from None
        except TypeError as error:
            raise ValueError(str(error)) from None

    return restore

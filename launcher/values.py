"""Kinds of configuration values: what a key accepts, read from YAML data or from a command line's text.

Pure. `config` says which key is of which kind; `config_file` and `options` say where a bad value stood.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

Setting: TypeAlias = (
    "bool | int | float | str | tuple[str, ...] | tuple[tuple[str, float | str | None], ...] "
    "| tuple[tuple[str, tuple[tuple[str, float | str | None], ...]], ...] | None"
)
"""A value of the configuration tree; a tuple of pairs is a mapping, of texts a list."""

_T = TypeVar("_T")

_OFF_WORDS = frozenset({"", "none", "null"})
_TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
_FALSE_WORDS = frozenset({"false", "0", "no", "off"})
_LOG_LEVELS = {"DEBUG": 10, "DBG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B", re.ASCII | re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a mapping with known names accepts."""

    noun: str
    """What a name stands for: "check"."""
    names: Callable[[], tuple[str, ...]]
    """All that there are; asked only when such a mapping is given."""
    kind_of: Callable[[str], Kind]
    """Of the value, by name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a configuration key accepts."""

    expected: str
    """Completes the sentence "found ..., expected ..."."""
    read: Callable[[object], Setting]
    """From YAML data to the value; raises ValueError when the data is not of this kind."""
    from_text: Callable[[str], object] = str
    """From a command line's text to what YAML would have given."""
    is_mapping: bool = False
    """The value is a tuple of pairs."""
    entry: Entry | None = None
    """Of a mapping whose names are known, so that a wrong one can be told from a wrong value."""

    def read_text(self, text: str) -> Setting:
        """From a command line's text to the value; raises ValueError when the text is not of this kind."""
        return self.read(self.from_text(text))


def _read_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("too large") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError("not finite, or negative")
    return number


def _read_positive(value: object) -> float:
    number = _read_number(value)
    if number == 0:
        raise ValueError("zero")
    return number


def _read_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("not a count")
    return value


def _read_port(value: object) -> int:
    port = _read_count(value)
    if port > 65535:
        raise ValueError("too large")
    return port


def _read_exit_code(value: object) -> int:
    code = _read_count(value)
    if code > 255:
        raise ValueError("too large")
    return code


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("not a text")
    return value


def _read_size(value: object) -> int:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError("not a size")
        prefix = (match[2] or "").lower()
        base = 1024 if prefix.endswith("i") else 1000
        return int(float(match[1]) * base ** _EXPONENTS[prefix.removesuffix("i")])
    return _read_count(value)


def _read_signal(value: object) -> str:
    if isinstance(value, str) and value.upper() in signal.Signals.__members__:
        return signal.Signals[value.upper()].name
    if isinstance(value, int) and not isinstance(value, bool):
        return signal.Signals(value).name
    raise ValueError("not a signal")


def _read_log_level(value: object) -> int:
    if isinstance(value, str) and value.upper() in _LOG_LEVELS:
        return _LOG_LEVELS[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 10 <= value <= 50:
        return value
    raise ValueError("not a log level")


def _read_timeouts(value: object) -> tuple[tuple[str, float | None], ...]:
    if not isinstance(value, Mapping):
        raise ValueError("not a mapping")
    return tuple((_read_text(name), None if s is None else _read_positive(s)) for name, s in value.items())


def _read_stall(value: object) -> Setting:
    if value is False or value is None or value == "off":
        return "off"
    return "auto" if value == "auto" else _read_positive(value)


def _optional(read: Callable[[object], Setting]) -> Callable[[object], Setting]:
    return lambda value: None if value is None else read(value)


def _number_from_text(text: str) -> object:
    if text.strip().lower() in _OFF_WORDS:
        return None
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _switch_from_text(text: str) -> object:
    word = text.strip().lower()
    return True if word in _TRUE_WORDS else False if word in _FALSE_WORDS else text


def _text_from_text(text: str) -> object:
    return None if text.strip().lower() in _OFF_WORDS else text


def _timeouts_from_text(text: str) -> object:
    """NVRx's notation `name:seconds,name:null`."""
    if not text.strip():
        return {}
    pairs = [part.rpartition(":") for part in text.split(",")]
    if not all(separator for _, separator, _ in pairs):
        return text
    return {name.strip(): _number_from_text(seconds) for name, _, seconds in pairs}


def mapping_of(expected: str, entry: Entry) -> Kind:
    """A mapping with known names."""

    def read(value: object) -> Setting:
        if not isinstance(value, Mapping) or not all(name in entry.names() for name in value):
            raise ValueError("not such a mapping")
        pairs: Any = tuple((name, entry.kind_of(name).read(item)) for name, item in value.items())
        return cast("Setting", pairs)

    return Kind(expected, read, is_mapping=True, entry=entry)


def fraction() -> Kind:
    """A number from 0 to 1."""

    def read(value: object) -> Setting:
        number = _read_number(value)
        if number > 1:
            raise ValueError("above 1")
        return number

    return Kind("a number from 0 to 1", read, _number_from_text)


def choice_of(*words: str) -> Kind:
    """One of these words. YAML 1.1 reads a bare `on` or `off` as a boolean: that is understood too."""

    def read(value: object) -> Setting:
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        if not isinstance(word, str) or word not in words:
            raise ValueError("not a choice")
        return word

    return Kind("one of " + ", ".join(words), read)


SECONDS = Kind("a number of seconds, 0 or more", _read_number, _number_from_text)
INTERVAL = Kind("a number of seconds above 0", _read_positive, _number_from_text)
TIMEOUT = Kind("a number of seconds above 0, or null for off", _optional(_read_positive), _number_from_text)
FACTOR = Kind("a number above 0", _read_positive, _number_from_text)
MEGABYTES = Kind("a number of MB, 0 or more", _read_number, _number_from_text)
COUNT = Kind("a whole number, 0 or more", _read_count, _number_from_text)
COUNT_OR_OFF = Kind("a whole number, 0 or more, or null", _optional(_read_count), _number_from_text)
EXIT_CODE = Kind("an exit code from 0 to 255", _read_exit_code, _number_from_text)
EXIT_CODE_OR_OFF = Kind("an exit code from 0 to 255, or null", _optional(_read_exit_code), _number_from_text)
SWITCH = Kind("true or false", _read_switch, _switch_from_text)
TEXT = Kind("a text", _read_text)
PORT_OR_OFF = Kind("a port from 0 to 65535, or null", _optional(_read_port), _number_from_text)
TEXT_OR_OFF = Kind("a text, or null", _optional(_read_text), _text_from_text)
SIZE = Kind("a size such as 4GiB or 512MB, or a whole number of bytes", _read_size, _number_from_text)
STALL = Kind("auto, off, or a number of seconds above 0", _read_stall, _number_from_text)
SIZE_OR_OFF = Kind(
    "a size such as 4GiB or 512MB, a whole number of bytes, or null", _optional(_read_size), _number_from_text
)
SIGNAL = Kind("a signal's name or number, such as SIGKILL or 9", _read_signal, _number_from_text)
LOG_LEVEL = Kind("a log level such as INFO, or 10 to 50", _read_log_level, _number_from_text)
SECTION_TIMEOUTS = Kind(
    "section names with seconds above 0, or null: {step: 60, save: null}, as an option step:60,save:null",
    _read_timeouts,
    _timeouts_from_text,
    is_mapping=True,
)


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of one configuration key."""

    kind: Kind
    unit: str
    """Unit or notation, e.g. "seconds"."""
    why: str
    """What the value is for and why it is what it is by default."""
    inactive: str = ""
    """Why this version keeps the value but does not act on it; "" if it does."""


def setting(default: _T, kind: Kind, unit: str, why: str, inactive: str = "") -> _T:
    """A dataclass field that is also a key of the configuration file; typed like its default."""
    value: _T = field(default=default, metadata={"spec": Spec(kind, unit, why, inactive)})
    return value

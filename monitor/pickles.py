"""Reads and writes the few kinds of pickles that clients of nvidia-resiliency-ext exchange with its monitor.

Pure. Reading calls nothing and imports nothing: a pickle can only become numbers, texts, containers and
`Instance` records, in time and memory proportional to its length. (`pickle.Unpickler` with a restricted
`find_class` is not enough for that: one memo index of a few bytes makes it allocate gigabytes, and a nested
tuple as a key keeps it hashing for ever.) Only the opcodes of protocols 4 and 5 that a default
`pickle.dumps` of such messages can contain are known.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")
_STATE_PROTOCOL = 3
"""The newest without frames, so that pickles can be put together from pieces."""


class PickleError(Exception):
    """Not a pickle that this module reads. `first_class` is the name of the first class in it, "" if none."""

    def __init__(self, message: str, first_class: str = "") -> None:
        super().__init__(message)
        self.first_class = first_class


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function by its name; nothing is imported for it."""

    module: str
    name: str


@dataclass(slots=True, eq=False)
class Instance:
    """What an object was made of: the arguments of its class and its attributes."""

    of: Global
    args: tuple[object, ...] = ()
    state: dict[object, object] = field(default_factory=dict)


def read(data: bytes | bytearray | memoryview, allowed: Container[Global]) -> object:
    """The value in a pickle; objects come as `Instance`, classes as `Global`.

    Raises:
        PickleError: it is damaged, of another kind, or names something that is not `allowed`.
    """
    reader = _Reader(bytes(data), allowed)
    try:
        return reader.read()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        message = f"damaged pickle at byte {reader.position}: {type(error).__name__}: {error}"
        raise PickleError(message, reader.first_class) from error


class _Reader:
    """The stack machine of one pickle."""

    def __init__(self, data: bytes, allowed: Container[Global]) -> None:
        self._data = data
        self._allowed = allowed
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: list[object] = []
        self.position = 0
        self.first_class = ""

    def read(self) -> object:
        while True:
            code = self._data[self.position]
            self.position += 1
            if code == _STOP:
                return self._stack.pop()
            _OPERATIONS[code](self)

    def take(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > len(self._data):
            raise ValueError("it ends too early")
        return self._data[start : self.position]

    def take_counted(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "little"))

    def push(self, value: object) -> None:
        self._stack.append(value)

    def pop(self) -> object:
        return self._stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[object]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def pop_tuple(self, count: int) -> None:
        values = [self._stack.pop() for _ in range(count)]
        self._stack.append(tuple(reversed(values)))

    def memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def recall(self, width: int) -> None:
        self._stack.append(self._memo[int.from_bytes(self.take(width), "little")])

    def append(self, values: list[object]) -> None:
        _as(list, self._stack[-1]).extend(values)

    def add(self) -> None:
        values = self.pop_to_mark()
        _as(set, self._stack[-1]).update(map(_key, values))

    def set_items(self, items: list[object]) -> None:
        target = _as(dict, self._stack[-1])
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def set_one(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self.set_items([key, value])

    def find(self) -> None:
        name, module = _as(str, self._stack.pop()), _as(str, self._stack.pop())
        found = Global(module, name)
        self.first_class = self.first_class or name
        if found not in self._allowed:
            raise PickleError(f"{module[:80]}.{name[:80]} is not allowed here", self.first_class)
        self._stack.append(found)

    def make(self) -> None:
        args, of = self._stack.pop(), self._stack.pop()
        self._stack.append(Instance(_as(Global, of), _as(tuple, args)))

    def build(self) -> None:
        state = _as(dict, self._stack.pop())
        _as(Instance, self._stack[-1]).state.update(state)


def _as(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _key(value: object) -> object:
    """Only what is hashed quickly."""
    if type(value) not in (str, int):
        raise TypeError(f"a key of type {type(value).__name__}")
    return value


def _signed(reader: _Reader, count: int) -> None:
    reader.push(int.from_bytes(reader.take(count), "little", signed=True))


def _unsigned(reader: _Reader, count: int) -> None:
    reader.push(int.from_bytes(reader.take(count), "little"))


def _text(reader: _Reader, width: int) -> None:
    reader.push(reader.take_counted(width).decode("utf-8", "surrogatepass"))


# What each opcode does is documented in CPython's pickletools.
_STOP = pickle.STOP[0]
_OPERATIONS: Mapping[int, Callable[[_Reader], object]] = {
    opcode[0]: action
    for opcode, action in (
        (pickle.PROTO, lambda r: r.take(1)),
        (pickle.FRAME, lambda r: r.take(8)),
        (pickle.NONE, lambda r: r.push(None)),
        (pickle.NEWTRUE, lambda r: r.push(True)),
        (pickle.NEWFALSE, lambda r: r.push(False)),
        (pickle.BININT, lambda r: _signed(r, 4)),
        (pickle.BININT1, lambda r: _unsigned(r, 1)),
        (pickle.BININT2, lambda r: _unsigned(r, 2)),
        (pickle.LONG1, lambda r: _signed(r, r.take(1)[0])),
        (pickle.BINFLOAT, lambda r: r.push(struct.unpack(">d", r.take(8))[0])),
        (pickle.SHORT_BINUNICODE, lambda r: _text(r, 1)),
        (pickle.BINUNICODE, lambda r: _text(r, 4)),
        (pickle.SHORT_BINBYTES, lambda r: r.push(r.take_counted(1))),
        (pickle.BINBYTES, lambda r: r.push(r.take_counted(4))),
        (pickle.MARK, _Reader.mark),
        (pickle.EMPTY_TUPLE, lambda r: r.push(())),
        (pickle.TUPLE1, lambda r: r.pop_tuple(1)),
        (pickle.TUPLE2, lambda r: r.pop_tuple(2)),
        (pickle.TUPLE3, lambda r: r.pop_tuple(3)),
        (pickle.TUPLE, lambda r: r.push(tuple(r.pop_to_mark()))),
        (pickle.EMPTY_LIST, lambda r: r.push([])),
        (pickle.APPEND, lambda r: r.append([r.pop()])),
        (pickle.APPENDS, lambda r: r.append(r.pop_to_mark())),
        (pickle.EMPTY_SET, lambda r: r.push(set())),
        (pickle.ADDITEMS, _Reader.add),
        (pickle.EMPTY_DICT, lambda r: r.push({})),
        (pickle.SETITEM, _Reader.set_one),
        (pickle.SETITEMS, lambda r: r.set_items(r.pop_to_mark())),
        (pickle.MEMOIZE, _Reader.memoize),
        (pickle.BINGET, lambda r: r.recall(1)),
        (pickle.LONG_BINGET, lambda r: r.recall(4)),
        (pickle.STACK_GLOBAL, _Reader.find),
        (pickle.NEWOBJ, _Reader.make),
        (pickle.REDUCE, _Reader.make),
        (pickle.BUILD, _Reader.build),
    )
}


def write(value: object) -> bytes:
    """A pickle of `value`: an `Instance` (without arguments) or plain data.

    An instance becomes an object of its class where it is read, without the class being imported here.
    """
    return pickle.PROTO + bytes([_STATE_PROTOCOL]) + _body(value) + pickle.STOP


def _body(value: object) -> bytes:
    if not isinstance(value, Instance):
        return pickle.dumps(value, _STATE_PROTOCOL)[2:-1]
    of = pickle.GLOBAL + f"{value.of.module}\n{value.of.name}\n".encode()
    items = b"".join(_body(key) + _body(item) + pickle.SETITEM for key, item in value.state.items())
    return of + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT + items + pickle.BUILD

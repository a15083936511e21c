"""Pickles are read without calling or importing anything, and without costing more than their length."""

from __future__ import annotations

import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.pickles import Global, Instance, PickleError, read, write

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 600), 1 << 600)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
KEYS = st.text() | st.integers()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner) | st.sets(KEYS),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([4, 5]))
def test_plain_values_are_read_as_pickle_reads_them(value: object, protocol: int) -> None:
    """All that messages are made of, in the protocols that Python uses by default."""
    assert read(pickle.dumps(value, protocol), ()) == value


def test_an_object_is_read_as_what_it_was_made_of() -> None:
    """Its class by name, arguments and attributes; the class need not exist."""
    data = b"\x80\x04\x8c\x01m\x8c\x01C\x93K\x01\x85R}\x8c\x01aK\x02sb."
    found = read(data, {Global("m", "C")})
    assert isinstance(found, Instance)
    assert (found.of, found.args, found.state) == (Global("m", "C"), (1,), {"a": 2})


def test_a_name_that_is_not_allowed_ends_it() -> None:
    """The error has the name, and that of the first class, which is the message's."""
    data = b"\x80\x04\x8c\x01m\x8c\x01C\x93\x8c\x05posix\x8c\x06system\x93."
    with pytest.raises(PickleError, match=r"posix\.system is not allowed") as caught:
        read(data, {Global("m", "C")})
    assert caught.value.first_class == "C"


def nested_key() -> bytes:
    """A dict whose key is a tuple of two tuples of two tuples of ..., which takes for ever to hash."""
    return b"\x80\x04})" + b"\x94h\x00h\x00\x86" * 100 + b"Ns."


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80",
        b"N",
        b"\x80\x04N",
        b"Nr\xff\xff\xff\xff.",  # a memo index for which CPython's unpickler allocates 64 GB
        b"B\xff\xff\xff\xff.",
        b"X\xff\xff\xff\xffa.",
        b"\x8a\xffa.",
        b"h\x00.",
        b"a.",
        b"Na.",
        b"(e.",
        b"](Ne",
        b"}(Nu.",
        b"}NNs.",
        b"\x85.",
        b"N)\x81.",
        b"N}b.",
        b"NN\x93.",
        b"\x8c\x01\xff.",
        b"I1\n.",
        nested_key(),
        b"(" * 100_000,
    ],
)
def test_damaged_pickles_cost_an_error(data: bytes) -> None:
    """Quickly, and with the place of the damage."""
    began = time.process_time()
    with pytest.raises(PickleError, match="damaged pickle at byte"):
        read(data, ())
    assert time.process_time() - began < 1.0


def test_deep_nesting_is_no_recursion() -> None:
    """Reading it, and letting go of it, uses no stack."""
    depth = 200_000
    value = read(b"\x80\x04N" + b"\x85" * depth + b".", ())
    levels = 0
    while isinstance(value, tuple):
        (value,) = value
        levels += 1
    assert levels == depth


def test_an_object_is_written_without_its_class() -> None:
    """Where it is read, it is an object of the class of that name, with the attributes."""
    inner = Instance(Global("argparse", "Namespace"), state={})
    data = write(Instance(Global("types", "SimpleNamespace"), state={"a": {"b": [1.5, None]}, "c": inner}))
    found = pickle.loads(data)
    assert type(found).__name__ == "SimpleNamespace"
    assert found.a == {"b": [1.5, None]}
    assert type(found.c).__name__ == "Namespace"

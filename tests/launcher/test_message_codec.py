"""What agents tell each other survives the way there, and nothing else is taken for it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.launcher import message_codec
from ftrun.launcher.message_codec import (
    SCHEMA_VERSION,
    MessageError,
    decode_hello,
    decode_message,
    decode_publication,
    decode_stop,
    encode,
)
from ftrun.launcher.messages import (
    Agent,
    Awaited,
    Hello,
    Join,
    Leave,
    Memory,
    Message,
    Outcome,
    Publication,
    Quiet,
    SeenCheckpoint,
    StopKind,
    StopOrder,
)
from ftrun.launcher.model import PastIncident
from ftrun.monitor.incident import ErrorRecord, Evidence, IncidentKind, RankExit

DECODERS: dict[Any, Callable[[str | bytes], object]] = {
    Message: decode_message,
    Publication: decode_publication,
    StopOrder: decode_stop,
    Hello: decode_hello,
}
FORM = {2: "6529ea206f4a393a"}
"""Of all messages, by the version of their schema."""
LEAVE = Leave(Agent("node-1", "abc"), "SIGTERM")


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type of the messages, whatever texts and numbers they may hold."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, *(values_of(hints[item.name]) for item in dataclasses.fields(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=2).map(tuple)
    if isinstance(hint, types.UnionType):
        return st.one_of([values_of(option) for option in get_args(hint)])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(st.characters(exclude_categories=()), max_size=8),
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[hint]


def join_of_failed_node(ranks: int) -> Join:
    """As a node sends it after one of its ranks has raised an exception."""
    trace = "Traceback (most recent call last):\n" + '  File "/home/u/train.py", line 31, in step\n' * 12
    error = ErrorRecord("ValueError", "bad loss", trace, "train.py:31 in step", ("Exception",), 99.5)
    exits = tuple(
        RankExit(rank, rank, 4000 + rank, -15 if rank else 1, 100.5, rank > 0, None if rank else error)
        for rank in range(ranks)
    )
    memory = Memory(3, 3, (PastIncident(IncidentKind.KILLED, "killed|SIGKILL", True),) * 3)
    seen = tuple(SeenCheckpoint(f"/checkpoints/step-{step}", step) for step in (30, 20, 10))
    evidence = Evidence("node-17", 3, exits, True)
    agent = Agent("node-17", "a1b2c3d4e5f6")
    return Join(agent, ranks, "10.0.0.17", 45123, 17, Outcome.STOPPED, evidence, memory, True, seen, 4)


@pytest.mark.parametrize("hint", DECODERS, ids=lambda hint: getattr(hint, "__name__", "union"))
@settings(max_examples=30)
@given(data=st.data())
def test_every_message_survives_the_way(hint: Any, data: st.DataObject) -> None:
    """Any value comes back equal and of the same type, from text and from bytes, and is one line of ASCII."""
    value = data.draw(values_of(hint))
    text = encode(value)
    assert text.isascii()
    assert "\n" not in text
    for form in (text, text.encode()):
        back = DECODERS[hint](form)
        assert back == value
        assert type(back) is type(value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GARBAGE = st.one_of(
    st.text(),
    st.binary(),
    JSON_VALUES.map(json.dumps),
    JSON_VALUES.map(lambda body: json.dumps({"version": 1, "type": "Leave", "body": body})),
    st.integers(0, len(encode(LEAVE)) - 1).map(lambda length: encode(LEAVE)[:length]),
)


@given(GARBAGE)
def test_garbage_is_refused_in_one_way(text: str | bytes) -> None:
    """Whatever a foreign program has put into the store, the reader of it sees one kind of error."""
    for decode in DECODERS.values():
        with pytest.raises(MessageError):
            decode(text)


@given(st.data())
def test_message_with_one_part_replaced_is_read_or_refused(data: st.DataObject) -> None:
    """Anything in place of any part of a real message is refused as a message, or is a value of the part."""
    body = json.loads(encode(join_of_failed_node(2)))
    parent: Any = body
    while True:
        places = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        place = data.draw(st.sampled_from(places))
        if not isinstance(parent[place], (dict, list)) or not parent[place] or data.draw(st.booleans()):
            break
        parent = parent[place]
    parent[place] = data.draw(JSON_VALUES)
    with contextlib.suppress(MessageError):
        assert isinstance(decode_message(json.dumps(body)), Join)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '{"version": 1', "\ud800", b"\xff"])
def test_what_no_parser_likes_is_refused(text: str | bytes) -> None:
    """Depth, length and bytes that are no text are no way to end the reader."""
    with pytest.raises(MessageError, match="not a message of ftrun"):
        decode_message(text)


def changed(**changes: object) -> str:
    """A leave message with fields replaced; those set to ... are left out."""
    message = json.loads(encode(LEAVE))
    message["body"] |= changes
    message["body"] = {name: value for name, value in message["body"].items() if value is not ...}
    return json.dumps(message)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(reason=...), "Leave: it has no field reason"),
        (changed(colour=1), "Leave: it has an unknown field 'colour'"),
        (changed(reason=1), "Leave.reason: expected is str, found 1"),
        (changed(is_excluded=0), "Leave.is_excluded: expected is bool, found 0"),
        (changed(agent={"node": "a", "incarnation": None}), "Leave.agent.incarnation: expected is str"),
        (changed(agent=[]), r"Leave.agent: expected is an object \(Agent\), found \[\]"),
        (
            encode(StopOrder(StopKind.LEAVE, "a", "b")),
            "the message is 'StopOrder', expected is Join or Leave",
        ),
    ],
)
def test_error_names_the_place_and_what_is_wrong(text: str, words: str) -> None:
    """Someone who looks for the node with the other version finds it."""
    with pytest.raises(MessageError, match=words):
        decode_message(text)


def test_item_of_a_list_is_named_by_its_place() -> None:
    """The third exit of a list is not looked for in the first."""
    text = encode(join_of_failed_node(3)).replace('"rank":2', '"rank":true')
    with pytest.raises(MessageError, match=r"Join\.evidence\.exits\[2\]\.rank: expected is int, found True"):
        decode_message(text)


def test_other_version_is_told_with_both_and_what_to_do() -> None:
    """It is told before anything else is looked at, since the rest may have any form."""
    own, other = SCHEMA_VERSION, SCHEMA_VERSION + 1
    text = encode(LEAVE).replace(f'"version":{own}', f'"version":{other}')
    told = rf"version {other}, .* version {own}: all nodes must run the same version"
    with pytest.raises(MessageError, match=told):
        decode_message(text)
    with pytest.raises(MessageError, match="version 7"):
        decode_hello('{"version": 7}')


def form_of(hint: Any) -> object:
    """What the JSON form of a type depends on."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint.__name__, sorted(
            (item.name, form_of(hints[item.name])) for item in dataclasses.fields(hint)
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        return sorted(str(one.value) for one in hint)
    if get_origin(hint) is tuple:
        return "list", form_of(get_args(hint)[0])
    options = get_args(hint)
    return ["or", *map(form_of, options)] if options else hint.__name__


def test_no_message_changes_its_form_without_another_version() -> None:
    """An agent that reads another form than it was sent must say that the versions differ."""
    forms = [form_of(hint) for hint in (*DECODERS, Awaited)]
    digest = hashlib.sha256(json.dumps(forms).encode()).hexdigest()[:16]
    assert {SCHEMA_VERSION: digest} == FORM, "raise SCHEMA_VERSION, and note the digest with it"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    """A time that is not finite would make the host agent wait for ever."""
    text = encode(Quiet(Agent("a", "b"), 1, 2.5, 3.0, "")).replace("2.5", number)
    with pytest.raises(MessageError):
        decode_message(text)


def test_number_that_is_none_is_not_sent() -> None:
    """The sender's mistake is told at the sender."""
    with pytest.raises(MessageError, match="Quiet cannot be sent"):
        encode(Quiet(Agent("a", "b"), 1, float("nan"), 3.0, ""))


def test_a_thousand_joins_are_read_quickly() -> None:
    """The host agent reads all of them in one go; 0.2 ms each is wanted, ten times as much is a defect."""
    text = encode(join_of_failed_node(8))
    decode_message(text)
    begin = time.process_time()
    for _ in range(1024):
        decode_message(text)
    assert time.process_time() - begin < 2.0


@pytest.mark.parametrize("hint", [tuple[int, str], int | str, dict[str, int]], ids=str)
def test_type_without_a_form_is_a_mistake_of_ours(hint: Any) -> None:
    """A field of a type that the codec does not know is found by the first test that sends one."""
    kind = dataclasses.make_dataclass("Odd", [("field", hint)], frozen=True)
    with pytest.raises(TypeError, match="no JSON form"):
        message_codec._decoder(kind)

"""The control socket: what is sent arrives, and what is not a message is refused."""

from __future__ import annotations

import json
import os
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.launcher.control import (
    MAX_FRAME_BYTES,
    Activate,
    ControlError,
    FrameReader,
    Message,
    Preload,
    Progress,
    Ready,
    WorkerChannel,
    encode,
    pair,
    send,
)

texts = st.text(st.characters(), max_size=20)
names = st.lists(texts, max_size=4).map(tuple)
messages = st.one_of(
    st.builds(Preload, names),
    st.builds(Progress, names),
    st.builds(
        Activate,
        st.dictionaries(texts, texts | st.none(), max_size=4),
        st.lists(texts, min_size=1, max_size=4).map(tuple),
        st.sampled_from(["script", "module", "executable"]),
    ),
    st.builds(
        Ready,
        st.floats(0, 1e6),
        st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
        texts | st.none(),
    ),
)


@given(st.lists(messages, max_size=5), st.integers(1, 40))
def test_messages_survive_any_cutting_of_the_stream(sent: list[Message], size: int) -> None:
    """Whatever pieces the kernel makes of it, the same messages come out in the same order."""
    stream = b"".join(encode(message) for message in sent)
    reader = FrameReader()
    received: list[Message] = []
    for start in range(0, len(stream), size):
        received += reader.feed(stream[start : start + size])
    assert received == sent


def test_bytes_that_are_not_utf8_survive() -> None:
    """An environment variable may hold anything; os.environ escapes it with surrogates."""
    message = Activate({"NAME": os.fsdecode(b"caf\xe9")}, ("train.py",))
    assert FrameReader().feed(encode(message)) == [message]


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"type": "dance"}',
        b'{"type": "preload"}',
        b'{"type": "preload", "modules": "torch"}',
        b'{"type": "preload", "modules": [1]}',
        b'{"type": "activate", "environment": {}, "argv": [], "kind": "script"}',
        b'{"type": "activate", "environment": {}, "argv": ["a"], "kind": "shell"}',
        b'{"type": "activate", "environment": {"A": 1}, "argv": ["a"], "kind": "script"}',
        b'{"type": "ready", "preload_s": "1", "failed": [], "cuda_initialized_by": null}',
        b'{"type": "ready", "preload_s": 1, "failed": [["a"]], "cuda_initialized_by": null}',
    ],
)
def test_a_frame_that_is_no_message_is_refused(payload: bytes) -> None:
    """Every wrong shape gives the same error, never a half-built message."""
    with pytest.raises(ControlError):
        FrameReader().feed(frame(payload))


def test_a_length_beyond_the_limit_is_refused_at_once() -> None:
    """Garbage on the socket does not make the agent wait for gigabytes."""
    with pytest.raises(ControlError, match=str(MAX_FRAME_BYTES + 1)):
        FrameReader().feed(struct.pack(">I", MAX_FRAME_BYTES + 1))


def test_deeply_nested_json_is_refused() -> None:
    """It raises our error, not RecursionError."""
    with pytest.raises(ControlError):
        FrameReader().feed(frame(b"[" * 100_000))


def test_an_unknown_field_is_ignored() -> None:
    """A newer peer may say more."""
    body = {"type": "progress", "modules": ["os"], "more": 1}
    assert FrameReader().feed(frame(json.dumps(body).encode())) == [Progress(("os",))]


def test_descriptors_arrive_with_a_message_that_was_queued_behind_another() -> None:
    """The worker gets both messages, and descriptors that work and close on exec."""
    ours, theirs = pair()
    with ours, theirs:
        channel = WorkerChannel(theirs)
        activate = Activate({}, ("train.py",))
        read_end, write_end = os.pipe()
        send(ours, Preload(("os",)))
        send(ours, activate, (read_end, write_end))
        assert [channel.receive(), channel.receive()] == [Preload(("os",)), activate]
        fds = channel.take_fds()
        assert len(fds) == 2
        assert channel.take_fds() == ()
        assert not any(os.get_inheritable(fd) for fd in fds)
        os.write(fds[1], b"through")
        assert os.read(read_end, 10) == b"through"
        for fd in (*fds, read_end, write_end):
            os.close(fd)


def test_a_message_larger_than_the_socket_buffer_arrives() -> None:
    """Sending goes on while the peer reads, on a non-blocking socket too."""
    ours, theirs = pair()
    with ours, theirs:
        ours.setblocking(False)
        message = Activate({"LARGE": "x" * 5_000_000}, ("train.py",))
        sender = threading.Thread(target=send, args=(ours, message))
        sender.start()
        assert WorkerChannel(theirs).receive() == message
        sender.join(10)
        assert not sender.is_alive()


def test_a_peer_that_does_not_read_is_an_error_after_a_time() -> None:
    """The agent is not held up for ever."""
    ours, theirs = pair()
    with ours, theirs, pytest.raises(ControlError, match="read nothing"):
        send(ours, Preload(("x" * 5_000_000,)), timeout_s=0.05)


def test_a_peer_that_is_gone_is_an_error_when_sending_and_none_when_receiving() -> None:
    """Both ends tell a closed socket from a message, without SIGPIPE."""
    ours, theirs = pair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        send(ours, Preload())
    ours, theirs = pair()
    ours.close()
    with theirs:
        assert WorkerChannel(theirs).receive() is None

"""NVRx's protocol: real clients' bytes become messages, answers can be read by them, nothing else gets in."""

from __future__ import annotations

import math
import pickle
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor import heartbeats as hb
from ftrun.monitor import wire
from tests.support.nvrx_frames import (
    AUTHKEY,
    DATA,
    HEARTBEAT,
    Member,
    Object,
    answer_in,
    framed,
    init,
    pickled,
    section,
    update,
)

# As a client of 0.4.1 on CPython 3.11 sent them.
RECORDED = {
    "init": (
        b"\x80\x04\x95\x9b\x00\x00\x00\x00\x00\x00\x00\x8c*nvidia_resiliency_ext.fault_tolerance.data\x94"
        b"\x8c\x07InitMsg\x94\x93\x94)\x81\x94}\x94\x8c\trank_info\x94h\x00\x8c\x08RankInfo\x94\x93\x94)\x81"
        b"\x94}\x94(\x8c\x0bglobal_rank\x94\x8c\x010\x94\x8c\nlocal_rank\x94K\x00\x8c\x04host\x94\x8c\x04node"
        b"\x94\x8c\x03pid\x94KMubsb."
    ),
    "heartbeat": (
        b"\x80\x04\x95Z\x00\x00\x00\x00\x00\x00\x00\x8c*nvidia_resiliency_ext.fault_tolerance.data\x94"
        b"\x8c\x0cHeartbeatMsg\x94\x93\x94)\x81\x94}\x94(\x8c\x04rank\x94K\x03\x8c\x05state\x94}\x94ub."
    ),
    "section": (
        b"\x80\x04\x95\x82\x00\x00\x00\x00\x00\x00\x00\x8c*nvidia_resiliency_ext.fault_tolerance.data\x94"
        b"\x8c\nSectionMsg\x94\x93\x94)\x81\x94}\x94(\x8c\x04rank\x94K\x01\x8c\x07section\x94\x8c\x04eval\x94"
        b"\x8c\x06action\x94h\x00\x8c\rSectionAction\x94\x93\x94K\x01\x85\x94R\x94ub."
    ),
    "update": (
        b"\x80\x04\x95[\x01\x00\x00\x00\x00\x00\x00\x8c*nvidia_resiliency_ext.fault_tolerance.data\x94"
        b"\x8c\x0fUpdateConfigMsg\x94\x93\x94)\x81\x94}\x94(\x8c\x0bhb_timeouts\x94h\x00\x8c\x11"
        b"HeartbeatTimeouts\x94\x93\x94)\x81\x94}\x94(\x8c\x07initial\x94G?\xf8\x00\x00\x00\x00\x00\x00\x8c\n"
        b"subsequent\x94G@\x04\x00\x00\x00\x00\x00\x00\x8c\x0fwere_calculated\x94\x88ub\x8c\x10"
        b"section_timeouts\x94h\x00\x8c\x0fSectionTimeouts\x94\x93\x94)\x81\x94}\x94(\x8c\x07section\x94}\x94("
        b"\x8c\x01a\x94G?\xf0\x00\x00\x00\x00\x00\x00\x8c\x01b\x94Nu\x8c\x0eout_of_section\x94G@\x08\x00\x00"
        b"\x00\x00\x00\x00\x8c\x13calculated_sections\x94\x8f\x94(h\x14\x90\x8c\x1c"
        b"is_out_of_section_calculated\x94\x88ubub."
    ),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("init", hb.Init(global_rank=0, pid=77)),
        ("heartbeat", hb.Heartbeat()),
        ("section", hb.Section("eval", hb.SectionAction.OPEN)),
        (
            "update",
            hb.UpdateConfig(
                hb.HeartbeatUpdate(1.5, 2.5, True),
                hb.SectionUpdate({"a": 1.0, "b": None}, 3.0, frozenset({"a"}), True),
            ),
        ),
    ],
)
def test_recorded_messages_are_understood(name: str, expected: hb.Message) -> None:
    """What a real client sent; its rank was a text, since torch.distributed was not initialised."""
    assert wire.decode(RECORDED[name]) == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (AUTHKEY, wire.Authkey()),
        (HEARTBEAT, hb.Heartbeat()),
        (init(pid=5), hb.Init(0, 5, None, False)),
        (init(is_new=True, pid=5), hb.Init(0, 5, None, True)),
        (init(is_new=True, pid=5, num_warmup_iters=3), hb.Init(0, 5, 3, True)),
        (Object("InitMsg"), hb.Init()),
        (section("step", "CLOSE", 7), hb.Section("step", hb.SectionAction.CLOSE, 7)),
        (section(None, "CLOSE_ALL"), hb.Section("", hb.SectionAction.CLOSE_ALL)),
        (
            Object("SectionMsg", section="a", action=Member("SectionAction", "OPEN")),
            hb.Section("a", hb.SectionAction.OPEN),
        ),
        (update(), hb.UpdateConfig()),
        (update(heartbeat=(3, None)), hb.UpdateConfig(hb.HeartbeatUpdate(3.0, None, True))),
        (update(heartbeat=(math.inf, 1e400)), hb.UpdateConfig(hb.HeartbeatUpdate(None, None, True))),
    ],
)
def test_messages_of_all_versions_are_understood(sent: Object, expected: object) -> None:
    """Old and new clients differ in which attributes there are; a limit that is infinite is off."""
    assert wire.decode(pickled(sent)) == expected


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (update(heartbeat=("30", 5.0)), "UpdateConfigMsg: timeout 'initial' is a str"),
        (update(heartbeat=(30.0, True)), "timeout 'subsequent' is a bool"),
        (update(heartbeat=(30.0, -1.0)), "timeout 'subsequent' is -1.0"),
        (update(heartbeat=(0, 1.0)), "timeout 'initial' is 0"),
        (update(heartbeat=(math.nan, 1.0)), "timeout 'initial' is nan"),
        (update(sections={"a": "x"}), "timeout 'a' is a str"),
        (Object("UpdateConfigMsg", hb_timeouts=3), "an object is expected, not int"),
        (Object("UpdateConfigMsg", section_timeouts=Object("SectionTimeouts", section=[])), "not a dict"),
        (section("x" * 300, "OPEN"), "at most 256 characters"),
        (Object("SectionMsg", section=3, action=Member("SectionAction", 1)), "is a text"),
        (Object("SectionMsg", section="a", action=Member("SectionAction", 9)), "action is not known"),
        (Object("SectionMsg", section="a", action=1), "action is not known"),
        (Object("RankInfo"), "RankInfo: not a message"),
        (Object("OkMsg"), "OkMsg is not allowed here"),
        (Object("HeartbeatMsg", module="elsewhere"), "elsewhere.HeartbeatMsg is not allowed here"),
        ("text", "an object is expected, not str"),
    ],
)
def test_what_makes_no_sense_is_named(sent: object, error: str) -> None:
    """The error says which value of which message is wrong, and how."""
    with pytest.raises(wire.WireError, match=error):
        wire.decode(pickled(sent))


def test_errors_tell_which_messages_wait_for_no_answer() -> None:
    """An answer that a fire-and-forget client does not read would be taken for that to its next message."""
    for sent, is_silent in ((section("a", "OPEN"), True), (HEARTBEAT, True), (update(), False)):
        broken = pickled(sent)[:-1] + b"N\x81."
        with pytest.raises(wire.WireError) as caught:
            wire.decode(broken)
        assert caught.value.may_be_unanswered is is_silent


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x06exit 1\x85R.",
        b"cposix\nsystem\n(S'exit 1'\ntR.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x03x()\x85R.",
        pickle.dumps(ValueError("x")),
        pickle.dumps(signal.SIGKILL),
    ],
)
def test_only_nvrx_messages_are_unpickled(content: bytes) -> None:
    """Functions and other classes are refused by name; nothing is imported or called."""
    with pytest.raises(wire.WireError):
        wire.decode(content)
    with pytest.raises(wire.WireError):
        wire.decode_control(content)


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_else(content: bytes) -> None:
    """Whatever the bytes are."""
    for decode in (wire.decode, wire.decode_control):
        with pytest.raises(wire.WireError):
            decode(content)


@given(st.sampled_from(sorted(RECORDED)), st.data())
def test_a_damaged_message_is_an_error_or_a_message(name: str, data: st.DataObject) -> None:
    """One byte that is wrong never does more than that."""
    content = bytearray(RECORDED[name])
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = wire.decode(bytes(content))
    except wire.WireError:
        return
    assert isinstance(found, (hb.Init, hb.Heartbeat, hb.Section, hb.UpdateConfig, wire.Authkey))


@pytest.mark.parametrize("code", [0, 1, 2, "Continue", "ExcludeThisNode", "ShutdownWorkload"])
def test_control_requests_are_understood(code: int | str) -> None:
    """The enum's members by value or by name; the rank as number or text."""
    request = Object("WorkloadControlRequest", action=Member("WorkloadAction", code), description="é")
    found = wire.decode_control(pickled(("12", request)))
    assert (found.global_rank, found.description) == (12, "é")
    assert found.action.value == (
        ("Continue", "ExcludeThisNode", "ShutdownWorkload").index(code) if isinstance(code, str) else code
    )


@pytest.mark.parametrize(
    "sent",
    [
        HEARTBEAT,
        (0, 1),
        (0,),
        (0, Object("WorkloadControlRequest", action=Member("WorkloadAction", 3))),
        (0, Object("WorkloadControlRequest", action="ShutdownWorkload")),
    ],
)
def test_other_control_requests_are_refused(sent: object) -> None:
    """Nothing is guessed: a request concerns the whole job."""
    with pytest.raises(wire.WireError):
        wire.decode_control(pickled(sent))


def test_frames_are_cut_out_of_any_pieces() -> None:
    """Whole frames come out in order; the beginning of the next stays."""
    stream = framed(b"one") + framed(b"") + framed(b"x" * 300)
    for size in range(1, len(stream) + 1):
        buffer = bytearray()
        found: list[bytes] = []
        for start in range(0, len(stream), size):
            buffer += stream[start : start + size]
            found += wire.split_frames(buffer)
        assert found == [b"one", b"", b"x" * 300]
        assert not buffer


def test_frames_before_a_length_that_cannot_be_are_kept() -> None:
    """The error comes when its turn comes."""
    buffer = bytearray(framed(b"one") + b"\xff\xff\xff\xff")
    frames = wire.split_frames(buffer)
    assert next(frames) == b"one"
    with pytest.raises(wire.FrameTooLongError, match="4294967295"):
        next(frames)
    assert list(wire.split_frames(bytearray((wire.MAX_FRAME_BYTES).to_bytes(4, "big")))) == []


def test_answers_are_what_nvrx_reads() -> None:
    """OkMsg, ErrorMsg with its cause, and OkMsg with a FaultToleranceConfig; b'ok' for control requests."""
    settings = wire.ClientSettings(safety_factor=3.0, rank_termination_signal=signal.SIGTERM)
    timeouts = hb.Timeouts.from_config(60.0, None, {"a": 1.0, "ü": None}, 5.0, warmup_iterations=2)

    def sent(reply: hb.Reply) -> bytes:
        frame = wire.encode(reply, settings)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        return frame[4:]

    okay, refused = answer_in(sent(hb.Ok())), answer_in(sent(hb.Refused("not so: 'é'")))
    assert (type(okay).__module__, type(okay).__name__, vars(okay)) == (DATA, "OkMsg", {})
    assert (type(refused).__name__, refused.cause) == ("ErrorMsg", "not so: 'é'")
    config = answer_in(sent(hb.Welcome(timeouts, True))).cfg
    assert type(config).__module__ == "nvidia_resiliency_ext.fault_tolerance.config"
    assert vars(config) == {
        "initial_rank_heartbeat_timeout": 60.0,
        "rank_heartbeat_timeout": None,
        "rank_section_timeouts": {"a": 1.0, "ü": None},
        "rank_out_of_section_timeout": 5.0,
        "num_warmup_iterations": 2,
        "safety_factor": 3.0,
        "workload_check_interval": 5.0,
        "rank_termination_signal": signal.SIGTERM,
        "skip_section_response": True,
        "install_exception_hook": False,
    }
    assert pickle.loads(wire.CONTROL_TAKEN[4:]) == b"ok"

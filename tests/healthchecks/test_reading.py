"""Readings with and without a value, and their way through JSON."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from ftrun.healthchecks.reading import Lack, Missing, Value, from_json, to_json, value_of
from ftrun.healthchecks.snapshots import (
    Fabric,
    Gpu,
    GpuProcess,
    MigDevice,
    NvmlSnapshot,
    RetiredPages,
    XidEvent,
    failed_snapshot,
)
from tests.support.nvml_snapshots import ERROR, LOST, gpu, link, node, uuid


def full() -> NvmlSnapshot:
    """A snapshot with every kind of value."""
    process = GpuProcess(4242, "compute", None, "python train.py")
    one = gpu(
        0,
        processes=Value((process,)),
        mig_devices=Value((MigDevice("MIG-1", 3, 0),)),
        retired_pages=Value(RetiredPages(1, 2, True)),
        fabric=Value(Fabric(3, 0)),
        nvlinks=Value((link(0), link(1, ERROR))),
    )
    event = XidEvent(79, uuid(0), "", 99.5, gpu_instance=1, detail='GPU has fallen "off" the bus, 100 °C')
    return node(one, gpu(1, ecc=LOST), xids=(event,))


def test_a_snapshot_survives_json() -> None:
    """What the probe prints is what the agent gets, missing readings with their reasons included."""
    assert from_json(NvmlSnapshot, to_json(full())) == full()
    failed = failed_snapshot(7.0, Missing(Lack.TIMEOUT, "no answer within 10 s"))
    assert from_json(NvmlSnapshot, to_json(failed)) == failed


def test_a_snapshot_is_one_line_without_what_was_not_read() -> None:
    """A probe answers in lines, and defaults say nothing."""
    text = to_json(node(Gpu(0, handle=LOST)))
    assert "\n" not in text
    assert json.loads(text)["gpus"] == [
        {"index": 0, "handle": {"missing": "gpu_lost", "reason": "GPU is lost", "code": 15}}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"taken_at": 1.0}',
        '{"taken_at": "now", "init": true}',
        '{"taken_at": 1.0, "init": 1}',
        '{"taken_at": 1.0, "init": true, "colour": 3}',
        '{"taken_at": 1.0, "init": {"missing": "lunch", "reason": "", "code": null}}',
        '{"taken_at": 1.0, "init": {"missing": ["error"], "reason": "", "code": null}}',
        '{"taken_at": 1.0, "init": true, "gpus": {"index": 0}}',
        '{"taken_at": 1.0, "init": true, "gpus": [{"index": true}]}',
        '{"taken_at": 1.0, "init": true, "device_count": 8.0}',
        '{"taken_at": 1.0, "init": true, "gpus": [{"index": 0, "processes": [{"pid": 1, "kind": "fun"}]}]}',
        '{"taken_at": 1.0, "init": true, "gpus": [{"index": 0, "processes": [{"pid": 1, "kind": []}]}]}',
    ],
)
def test_garbage_is_a_value_error(text: str) -> None:
    """A probe that prints something else is told from one that prints a snapshot."""
    with pytest.raises(ValueError):
        from_json(NvmlSnapshot, text)


def test_whole_numbers_are_accepted_as_seconds() -> None:
    """JSON has one kind of number."""
    assert from_json(NvmlSnapshot, '{"taken_at": 5, "init": true}') == NvmlSnapshot(5.0, Value(True))


def test_a_reading_has_a_value_or_a_reason() -> None:
    """A missing one reads as its reason, or as the kind of lack."""
    assert value_of(Value(3)) == 3
    assert value_of(LOST) is None
    assert str(LOST) == "GPU is lost"
    assert str(Missing(Lack.NOT_SUPPORTED)) == "not supported"


def test_nothing_is_assumed_of_a_gpu_that_was_not_read() -> None:
    """A reader that forgets a field gives a reading without a value, not a healthy one."""
    bare = Gpu(0)
    readings = [getattr(bare, field.name) for field in fields(bare) if field.name != "index"]
    assert {reading.lack for reading in readings} == {Lack.NOT_READ}

"""Which GPUs are the job's."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.gpu_findings import JobGpus, known_gpus
from ftrun.healthchecks.reading import Value
from ftrun.healthchecks.result import is_known
from ftrun.healthchecks.snapshots import MigDevice
from ftrun.healthchecks.visible_gpus import gpus_of_devices, job_uuids, visible_uuids
from tests.support.nvml_snapshots import LOST, gpu, node, uuid

MIG = tuple(MigDevice(f"MIG-{index:08x}-0000-0000-0000-000000000000", index + 1, 0) for index in range(2))
PLAIN = node(*(gpu(index) for index in range(4)))
SPLIT = node(gpu(0, mig_devices=Value(MIG)), gpu(1, mig_devices=Value(())))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("2,0", (2, 0)),
        (" 3 , 1 ", (3, 1)),
        (f"{uuid(2)},{uuid(1)}", (2, 1)),
        ("GPU-00000003", (3,)),
        ("GPU-0000000", ()),
        ("1,-1,2", (1,)),
        ("1,9,2", (1,)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_list_of_visible_devices_is_read_as_cuda_does(visible: str | None, expected: tuple[int, ...]) -> None:
    """By index, UUID or its unique beginning, up to the first entry that means nothing."""
    assert visible_uuids(visible, "", PLAIN) == tuple(uuid(index) for index in expected)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (MIG[1].uuid, (MIG[1].uuid,)),
        ("MIG-00000001", (MIG[1].uuid,)),
        (f"MIG-{uuid(0)}/2/0", (MIG[1].uuid,)),
        (f"MIG-{uuid(0)}/7/0", ()),
        (None, None),
        ("0", None),
    ],
)
def test_mig_devices_have_uuids_of_their_own(visible: str | None, expected: tuple[str, ...] | None) -> None:
    """Without one it is not known which instances CUDA numbers, so the whole node counts."""
    assert visible_uuids(visible, "", SPLIT) == expected


def test_mig_devices_are_parts_of_gpus() -> None:
    """What is found of the GPU concerns all of them."""
    assert gpus_of_devices(SPLIT) == {device.uuid: uuid(0) for device in MIG}
    assert gpus_of_devices(PLAIN) == {}


def test_a_gpu_that_is_lost_at_the_begin_still_is_one_of_the_job_s() -> None:
    """By index it has a name that none has; by its whole UUID it keeps that."""
    dead = node(gpu(0), gpu(1, handle=LOST, uuid=LOST), gpu(2))
    found = visible_uuids("0,1,2", "", dead)
    assert found is not None
    assert [is_known(name) for name in found] == [True, False, True]
    assert known_gpus(dead, None, JobGpus("n0", frozenset(found)))[1].subject().name == found[1]
    gone = uuid(9)
    assert visible_uuids(f"{uuid(0)},{gone}", "", dead) == (uuid(0), gone)


def test_order_of_unlike_gpus_is_not_guessed() -> None:
    """CUDA counts the fastest first unless it is told to count by bus."""
    mixed = node(gpu(0), gpu(1, name=Value("NVIDIA T400")))
    assert visible_uuids("0", "", mixed) is None
    assert visible_uuids("0", "PCI_BUS_ID", mixed) == (uuid(0),)
    assert visible_uuids(uuid(1), "", mixed) == (uuid(1),)


@pytest.mark.parametrize(
    ("visible", "workers", "expected"),
    [
        (None, 2, (None, 1)),
        (("a", "b", "c"), 0, ({"a", "b", "c"}, 1)),
        (("a", "b", "c"), 2, ({"a", "b"}, 1)),
        (("a", "b"), 4, ({"a", "b"}, 2)),
        (("a", "b"), 3, ({"a", "b"}, 2)),
        ((), 4, (set(), 1)),
    ],
)
def test_workers_use_the_devices_of_their_local_ranks(
    visible: tuple[str, ...] | None, workers: int, expected: tuple[set[str] | None, int]
) -> None:
    """What no worker uses is not the job's; more workers than devices share them."""
    uuids, most = job_uuids(visible, workers)
    assert (None if uuids is None else set(uuids), most) == expected

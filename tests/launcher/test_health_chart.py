"""What follows from the results of a node's checks over the whole job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.result import Result, Status, Subject, nameless
from ftrun.launcher.health_chart import (
    Chart,
    find_ailments,
    find_fatal,
    find_reason_to_stop,
    find_sick_slots,
    find_slots_of,
    needs_second_look,
    take_in,
)
from ftrun.monitor.events import HealthChanged

HEALTHY, DEGRADED, UNHEALTHY = Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY
UNKNOWN, SKIPPED = Status.UNKNOWN, Status.SKIPPED
TWO_GPUS = Chart(devices=("GPU-a", "GPU-b"), slot_count=2, slots=(0, 1))


def on_gpu(
    status: Status, check: str = "gpu.lost", uuid: str = "GPU-b", observed: str = "it is so", **more: bool
) -> Result:
    return Result(check, status, Subject("gpu", uuid, 1), observed, "", "reboot", **more)


def on_node(status: Status, check: str = "gpu.driver", observed: str = "it is so") -> Result:
    return Result(check, status, Subject("node", "n"), observed)


def after(*checks: list[Result], chart: Chart = TWO_GPUS) -> tuple[Chart, list[HealthChanged]]:
    """The chart after these checks, ten seconds apart from 10 s on, and all that was to be journalled."""
    told: list[HealthChanged] = []
    for place, results in enumerate(checks):
        chart, changes = take_in(chart, results, 10.0 * (place + 1))
        told += changes
    return chart, told


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ([HEALTHY, HEALTHY], []),
        ([SKIPPED, HEALTHY, SKIPPED], []),
        ([UNHEALTHY, UNHEALTHY], [("", "unhealthy")]),
        ([HEALTHY, DEGRADED, DEGRADED, HEALTHY], [("healthy", "degraded"), ("degraded", "healthy")]),
        (
            [DEGRADED, UNHEALTHY, UNKNOWN],
            [("", "degraded"), ("degraded", "unhealthy"), ("unhealthy", "unknown")],
        ),
        ([UNKNOWN, SKIPPED], [("", "unknown"), ("unknown", "skipped")]),
    ],
)
def test_each_change_is_told_once(statuses: list[Status], told: list[tuple[str, str]]) -> None:
    """Not each check; what is well and what does not apply are the same to the journal."""
    _, changes = after(*([on_gpu(status)] for status in statuses))
    assert [(change.before, change.status) for change in changes] == told


def test_change_says_all_that_the_check_does() -> None:
    """The journal needs nothing else."""
    _, [change] = after([on_gpu(UNHEALTHY, observed="GPU is lost", is_persistent=True)])
    assert change == HealthChanged(
        "gpu.lost", "gpu 1 (GPU-b)", "unhealthy", "", "GPU is lost", "", "reboot", True
    )


def test_check_that_was_not_made_says_what_it_did() -> None:
    """Some are made before rounds only, or seldom."""
    chart, told = after([on_gpu(UNHEALTHY)], [on_node(HEALTHY)], [on_gpu(UNHEALTHY)])
    assert len(told) == 1
    assert [ailment.check for ailment in find_fatal(chart)] == ["gpu.lost"]


def test_of_two_results_about_one_thing_the_graver_counts() -> None:
    """Two judges may look at the same."""
    _, told = after([on_node(HEALTHY), on_node(UNHEALTHY), on_node(DEGRADED)])
    assert [change.status for change in told] == ["unhealthy"]


def test_gpu_is_the_same_without_its_index() -> None:
    """A lost one may have none any more."""
    gone = Result("gpu.lost", UNHEALTHY, Subject("gpu", "GPU-b"), "no GPU of this node has this UUID")
    _, told = after([on_gpu(HEALTHY)], [gone], [gone])
    assert [(change.before, change.subject) for change in told] == [("healthy", "gpu GPU-b")]


def test_only_what_is_unhealthy_is_fatal() -> None:
    """What could not be read is no evidence against the node."""
    results = [
        on_gpu(DEGRADED, "gpu.ecc"),
        on_node(UNKNOWN),
        on_gpu(UNHEALTHY),
        on_gpu(SKIPPED, "gpu.fabric"),
    ]
    chart, _ = after(results)
    [fatal] = find_fatal(chart)
    assert (fatal.check, fatal.subject, fatal.local_ranks) == ("gpu.lost", "gpu 1 (GPU-b)", (1,))
    assert (fatal.remedy, fatal.is_fatal) == ("reboot", True)


@pytest.mark.parametrize(
    ("devices", "workers", "uuid", "ranks"),
    [
        (("GPU-a", "GPU-b"), 2, "GPU-b", (1,)),
        (("GPU-b", "GPU-a"), 2, "GPU-b", (0,)),
        (("GPU-a", "GPU-b"), 1, "GPU-b", ()),
        (("GPU-a", "GPU-b"), 4, "GPU-b", (1, 3)),
        (("GPU-a",), 2, "GPU-a", (0, 1)),
        ((), 2, "GPU-a", ()),
        (None, 2, "GPU-a", ()),
    ],
)
def test_worker_uses_the_device_of_its_local_rank(
    devices: tuple[str, ...] | None, workers: int, uuid: str, ranks: tuple[int, ...]
) -> None:
    """By CUDA's own numbers; more workers than devices share them."""
    chart, _ = after(
        [on_gpu(UNHEALTHY, uuid=uuid)],
        chart=Chart(devices=devices, slot_count=workers, slots=tuple(range(workers))),
    )
    assert find_fatal(chart)[0].local_ranks == ranks


@pytest.mark.parametrize(
    ("checks", "has_reason", "wants_look"),
    [
        ([[on_gpu(HEALTHY)]], False, False),
        ([[on_gpu(HEALTHY)], [on_gpu(UNHEALTHY)]], False, True),
        ([[on_gpu(HEALTHY)], [on_gpu(UNHEALTHY)], [on_gpu(UNHEALTHY)]], True, False),
        ([[on_gpu(UNHEALTHY)], [on_gpu(HEALTHY)], [on_gpu(UNHEALTHY)]], False, True),
        ([[on_gpu(HEALTHY)], *[[on_gpu(UNHEALTHY, uuid="GPU-c")]] * 3], False, False),
        ([[on_gpu(HEALTHY)], *[[on_gpu(DEGRADED)]] * 3], False, False),
        ([[on_gpu(HEALTHY)], *[[on_gpu(UNHEALTHY, "gpu.row_remap")]] * 3], False, False),
        ([[on_gpu(HEALTHY)], *[[on_gpu(UNHEALTHY, "gpu.reset")]] * 3], True, False),
        ([[on_gpu(HEALTHY)], *[[on_gpu(UNHEALTHY, "gpu.ecc")]] * 3], True, False),
        ([[on_node(HEALTHY)], *[[on_node(UNHEALTHY)]] * 3], False, False),
        ([[on_gpu(UNHEALTHY)], [on_gpu(UNHEALTHY)], [on_gpu(UNHEALTHY)]], False, False),
    ],
    ids=[
        "well",
        "seen once",
        "seen twice",
        "seen twice, but not in a row",
        "a GPU that no worker uses",
        "degraded",
        "what can wait for the next round",
        "a GPU that needs a reset",
        "an error that the driver could not repair",
        "the driver hangs, which it may do under load",
        "known before the round began",
    ],
)
def test_what_ends_a_running_round(checks: list[list[Result]], has_reason: bool, wants_look: bool) -> None:
    """Only a worker's own GPU that cannot compute any more, seen twice in a row since the round began."""
    chart, _ = after(*checks)
    assert bool(find_reason_to_stop(chart, began_at=15.0)) == has_reason
    assert needs_second_look(chart, began_at=15.0) == wants_look


def test_reason_to_stop_is_a_sentence() -> None:
    """All nodes show it."""
    chart, _ = after(*[[on_gpu(UNHEALTHY, observed="GPU is lost")]] * 2)
    assert find_reason_to_stop(chart, 0.0) == (
        "the GPU of local rank 1 failed: gpu 1 (GPU-b): GPU is lost (gpu.lost)"
    )


def test_ailments_of_a_failure_are_the_fatal_and_the_recent_ones() -> None:
    """The gravest first, then those of GPUs in use; an old warning has nothing to do with it."""
    old = [on_gpu(DEGRADED, "gpu.pcie_width"), on_gpu(UNHEALTHY, "gpu.row_remap")]
    new = [
        Result("host.memory", DEGRADED, Subject("node", "n"), "little memory"),
        on_gpu(DEGRADED, "gpu.ecc"),
        on_gpu(UNHEALTHY),
        on_gpu(HEALTHY, "gpu.xid", observed="Xid 31 (memory page fault)"),
        on_gpu(HEALTHY, "gpu.temperature", observed="40 C"),
        on_node(UNKNOWN),
    ]
    chart, _ = take_in(TWO_GPUS, old, 10.0)
    chart, _ = take_in(chart, new, 995.0)
    found = find_ailments(chart, ended_at=1000.0)
    assert [ailment.check for ailment in found] == [
        "gpu.lost",
        "gpu.row_remap",
        "gpu.ecc",
        "host.memory",
        "gpu.xid",
    ]
    assert [ailment.is_fatal for ailment in found] == [True, True, False, False, False]
    assert [ailment.age_s for ailment in found] == [5.0, 990.0, 5.0, 5.0, 5.0]


def test_more_of_the_same_is_recent_again() -> None:
    """Further errors on a GPU that had some before say something about this failure."""
    chart, _ = take_in(TWO_GPUS, [on_gpu(DEGRADED, "gpu.ecc", observed="1 error")], 10.0)
    chart, _ = take_in(chart, [on_gpu(DEGRADED, "gpu.ecc", observed="2 errors")], 990.0)
    [ailment] = find_ailments(chart, ended_at=1000.0)
    assert (ailment.observed, ailment.age_s) == ("2 errors", 10.0)


def test_what_is_told_of_a_sick_node_is_bounded() -> None:
    """A thousand nodes tell one."""
    many = [on_gpu(UNHEALTHY, uuid=f"GPU-{number}", observed="x" * 5000) for number in range(100)]
    chart, _ = after(many)
    for ailments in (find_fatal(chart), find_ailments(chart, 10.0)):
        assert len(ailments) == 6
        assert all(len(ailment.observed) < 400 for ailment in ailments)


@pytest.mark.parametrize(
    ("results", "sick"),
    [
        ([on_gpu(HEALTHY)], frozenset()),
        ([on_gpu(UNHEALTHY)], frozenset({1})),
        ([on_gpu(UNHEALTHY), on_gpu(UNHEALTHY, "gpu.ecc", "GPU-a")], frozenset({0, 1})),
        ([on_gpu(UNHEALTHY), on_gpu(DEGRADED, "gpu.ecc", "GPU-a")], frozenset({1})),
        ([on_gpu(UNHEALTHY), on_node(UNHEALTHY)], None),
        ([on_gpu(UNHEALTHY, uuid="GPU-c")], None),
    ],
    ids=["well", "one GPU", "two GPUs", "a warning", "the driver, too", "a GPU of no worker"],
)
def test_slots_to_leave_out(results: list[Result], sick: frozenset[int] | None) -> None:
    """Only where nothing but the GPUs of some workers is to blame."""
    chart, _ = after(results)
    assert find_sick_slots(chart) == sick


@pytest.mark.parametrize(
    ("chart", "gpus", "slots"),
    [
        (TWO_GPUS, {"GPU-b"}, {1}),
        (TWO_GPUS, {"GPU-z"}, set()),
        (replace(TWO_GPUS, slot_count=4), {"GPU-b"}, {1, 3}),
        (replace(TWO_GPUS, devices=None), {"GPU-b"}, set()),
    ],
    ids=["one", "of another node", "shared by two workers", "not known here"],
)
def test_slots_of_gpus_that_the_job_goes_on_without(chart: Chart, gpus: set[str], slots: set[int]) -> None:
    """By UUID, whatever their numbers are now."""
    assert find_slots_of(chart, frozenset(gpus)) == slots


@pytest.mark.parametrize(("times", "is_out"), [(2, False), (3, True)])
def test_gpu_that_fails_again_and_again_is_not_used_any_more(times: int, is_out: bool) -> None:
    """It looks well whenever nothing runs on it; single readings do not count."""
    once = [[on_gpu(UNHEALTHY)], [on_gpu(HEALTHY)]]
    again = [[on_gpu(UNHEALTHY, observed="GPU is lost")], [on_gpu(UNHEALTHY)], [on_gpu(HEALTHY)]]
    chart, _ = after(*(once * 5), *(again * times))
    assert find_sick_slots(chart) == (frozenset({1}) if is_out else frozenset())
    assert [ailment.observed for ailment in find_fatal(chart)] == (
        [f"has failed {times} times in this job, last: it is so"] if is_out else []
    )
    assert find_ailments(chart, 1000.0) == (), "it is not why another round ends"


def test_gpu_that_was_lost_before_it_was_known_is_left_out_and_comes_back() -> None:
    """Until it says its UUID it goes by its number; what was found of it then is over with that."""
    unknown = Result("gpu.lost", UNHEALTHY, Subject("gpu", nameless(1), 1), "GPU is lost")
    before = replace(TWO_GPUS, devices=("GPU-a", nameless(1)))
    chart, _ = after([unknown], chart=before)
    assert find_sick_slots(chart) == {1}
    chart, _ = after([on_gpu(HEALTHY)], chart=replace(chart, devices=TWO_GPUS.devices))
    assert find_fatal(chart) == ()


def test_mig_devices_are_left_out_with_their_gpu() -> None:
    """Those of the other GPU stay; one that alone is gone is left out alone."""
    parts = Chart(
        devices=("MIG-a", "MIG-b", "MIG-c"),
        gpus=("GPU-a", "GPU-b", "GPU-b"),
        slot_count=3,
        slots=(0, 1, 2),
    )
    chart, _ = after(*[[on_gpu(UNHEALTHY)]] * 2, chart=parts)
    assert find_sick_slots(chart) == {1, 2}
    assert "local ranks 1, 2" in find_reason_to_stop(chart, 0.0)
    chart, _ = after([on_gpu(UNHEALTHY, uuid="MIG-c")], chart=parts)
    assert find_sick_slots(chart) == {2}


def test_workers_of_a_round_without_a_gpu_are_known_by_the_others() -> None:
    """Local rank 0 has the second GPU; the one that was left out has nothing to do with this round's end."""
    chart, _ = after([on_gpu(UNHEALTHY, uuid="GPU-a")], chart=replace(TWO_GPUS, slots=(1,)))
    assert find_ailments(chart, 10.0) == ()
    assert find_reason_to_stop(chart, 0.0) == ""
    assert find_sick_slots(chart) == {0}
    chart, _ = after(*[[on_gpu(UNHEALTHY)]] * 2, chart=chart)
    [ailment] = find_ailments(chart, 20.0)
    assert ailment.local_ranks == (0,)
    assert "local rank 0" in find_reason_to_stop(chart, 0.0)

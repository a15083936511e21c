"""Jobs on several nodes of which some are not healthy: who leaves, who takes over, and when nobody does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.fakenvml.build import FakeNvml, build
from tests.support.nodes import WORKER, ended, job, node_of
from tests.support.run import Run

WORKS = "work_until('end')"
OFTEN = ("--ft-set", "health.interval=0.5")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fakenvml"))


@pytest.fixture
def fakes(library: Path, tmp_path: Path) -> list[FakeNvml]:
    """Three nodes with a GPU each."""
    found = [FakeNvml(library, tmp_path / f"state{place}") for place in range(3)]
    for fake in found:
        fake.set("device_count", 1)
    return found


def of_kind(runs: list[Run], kind: type[events.Event]) -> list[events.Event]:
    """Events of that kind on any node."""
    return [event for run in runs for event in run.events(kind)]


@pytest.mark.slow
def test_spare_takes_the_place_of_a_node_whose_gpu_is_lost(fakes: list[FakeNvml], tmp_path: Path) -> None:
    """The node ends with 94 and says why; the others train on, with a spare in its place."""
    options = ("--nnodes", "2", "--ft-spares", "1", *OFTEN)
    with job(tmp_path, *options, script=(WORKER, WORKS)) as this:
        runs = [this.start(place, environment=fakes[place].environment) for place in range(3)]
        seated = {one.place for one in this.wait_said("works", 2, restart=0)}
        this.wait_until(lambda: all(run.events(events.StoreConnected) for run in runs), "the spare is there")
        place = next(place for place in seated if runs[place] is not this.host())
        fakes[place].set("gpu.0.lost", 1)
        this.wait_said("works", 2, restart=1)
        assert this.codes(runs[place]) == [94], this.account()
        assert "GPU is lost (gpu.lost)" in ended(runs[place]).reason
        this.release("end")
        assert this.codes(*this.others(runs[place])) == [0, 0], this.account()
        this.check_one_world()
    kinds = {event.incident_kind for event in of_kind(runs, events.IncidentDiagnosed)}
    assert kinds == {"gpu_lost"}
    [excluded] = of_kind(runs, events.NodeExcluded)
    assert excluded.name == node_of(runs[place])


@pytest.mark.slow
def test_spare_that_is_not_healthy_any_more_gets_no_seat(fakes: list[FakeNvml], tmp_path: Path) -> None:
    """It says so while it waits, and leaves with 94 as soon as a round is formed; the running one goes on."""
    options = ("--nnodes", "2", "--ft-spares", "1", *OFTEN)
    with job(tmp_path, *options, script=(WORKER, WORKS)) as this:
        runs = [this.start(place, environment=fakes[place].environment) for place in range(3)]
        working = this.wait_said("works", 2, restart=0)
        [place] = {0, 1, 2} - {one.place for one in working}
        spare = runs[place]
        this.wait_event(spare, events.NodeParked)
        fakes[place].set("gpu.0.lost", 1)
        this.wait_until(
            lambda: any(one.status == "unhealthy" for one in spare.events(events.HealthChanged)), "it is seen"
        )
        assert spare.process.poll() is None
        os.kill(working[0].pid, signal.SIGKILL)
        this.wait_said("works", 2, restart=1)
        assert this.codes(spare) == [94], this.account()
        assert "GPU is lost (gpu.lost)" in ended(spare).reason
        this.release("end")
        assert this.codes(*this.others(spare)) == [0, 0], this.account()
    assert spare.events(events.WorkerStarted) == []


@pytest.mark.slow
def test_node_that_serves_the_store_serves_on_without_a_seat(fakes: list[FakeNvml], tmp_path: Path) -> None:
    """The job does not end because the GPU of just that node is lost."""
    options = ("--nnodes", "1:2", *OFTEN)
    with job(tmp_path, *options, script=(WORKER, WORKS)) as this:
        host = this.start(0, environment=fakes[0].environment)
        this.wait_event(host, events.StoreConnected)
        other = this.start(1, environment=fakes[1].environment)
        this.wait_said("works", 2, restart=0)
        fakes[0].set("gpu.0.lost", 1)
        [again] = this.wait_said("works", 1, restart=1)
        assert again.world == 1
        assert host.process.poll() is None
        this.release("end")
        assert this.codes(host, other) == [94, 0], this.account()
    assert "left out" in host.stderr


@pytest.mark.slow
def test_check_that_most_nodes_fail_excludes_none(fakes: list[FakeNvml], tmp_path: Path) -> None:
    """It is told once, with their names, and the job runs."""
    for fake in fakes[:2]:
        fake.set("gpu.0.remap.failed", 1)
    with job(tmp_path, "--nnodes", "3", script=(WORKER, WORKS)) as this:
        runs = [this.start(place, environment=fakes[place].environment) for place in range(3)]
        this.wait_said("works", 3)
        this.release("end")
        assert this.codes() == [0, 0, 0], this.account()
    [withheld] = of_kind(runs, events.ExclusionSuspended)
    assert withheld.check == "gpu.row_remap"
    assert len(withheld.nodes) == 2
    assert of_kind(runs, events.NodeExcluded) == []

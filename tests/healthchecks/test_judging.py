"""From evidence to results: which judge says what, mistakes of ours, and what a configuration makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.healthchecks.evidence import Evidence, PathEvidence
from ftrun.healthchecks.gpu_findings import JobGpus
from ftrun.healthchecks.host_snapshots import HostSnapshot, Mount, PathReading, StorageStep
from ftrun.healthchecks.judging import JUDGES, Judge, as_configured, judge_all, without_echoes
from ftrun.healthchecks.reading import Value
from ftrun.healthchecks.registry import NAMES, Severity, Source, severities
from ftrun.healthchecks.result import Result, Status, Subject
from ftrun.healthchecks.thresholds import Thresholds
from tests.support.network_snapshots import history, interface, network, nic
from tests.support.nvml_snapshots import LOST, gpu, node, uuid

DONE = PathReading("/ckpt", 1.0, StorageStep.DONE, "/ckpt", total_bytes=1 << 40, free_bytes=1 << 39)
HOST = HostSnapshot(1.0, 1.0, mounts=(Mount("/", "ext4", "/dev/sda"),), lustre_health="healthy")
NETWORK = history(*[network(nic(0), nic(1), interfaces=(interface("eth0"),))] * 3)
WHOLE = Evidence(
    node="n0",
    job=JobGpus("n0"),
    thresholds=Thresholds(),
    gpu=(node(at=70.0), node()),
    gpu_baseline=node(at=70.0),
    network=NETWORK,
    network_baseline=NETWORK[0],
    host=(HOST,),
    paths=(PathEvidence((DONE,), None, True),),
)
"""A healthy node."""
SOURCES = (Source.GPU, Source.NETWORK, Source.HOST, Source.PATH)


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.checks[0])
def test_a_judge_gives_only_the_results_that_it_is_listed_with(judge: Judge) -> None:
    """Nothing that a configuration switches off comes under another name."""
    assert {result.check for result in judge.judge(WHOLE)} <= set(judge.checks)


def test_a_healthy_node_is_healthy() -> None:
    """No judge complains of a node to which nothing has happened."""
    results = judge_all(WHOLE, SOURCES, NAMES)
    bad = [
        r for r in results if r.status not in (Status.HEALTHY, Status.SKIPPED) and r.check != "host.memory"
    ]
    assert [(r.check, r.observed) for r in bad] == [("host.shm", "no /dev/shm")]


def test_only_sources_that_were_read_are_judged() -> None:
    """A judge must not take an old reading for a new one."""
    checks = {result.check.partition(".")[0] for result in judge_all(WHOLE, {Source.NETWORK}, NAMES)}
    assert checks == {"nic"}
    stale = replace(WHOLE, paths=(PathEvidence((DONE,), None, True, is_fresh=False),))
    assert judge_all(stale, {Source.PATH}, NAMES) == ()


def test_a_mistake_in_a_judge_says_nothing_of_the_node() -> None:
    """Its checks are unknown; the others go on."""
    broken = replace(WHOLE, gpu=())
    results = judge_all(broken, {Source.GPU, Source.HOST}, {"gpu.ecc", "host.oom"})
    assert [(r.check, r.status) for r in results] == [
        ("gpu.ecc", Status.UNKNOWN),
        ("host.oom", Status.SKIPPED),
    ]
    assert results[0].observed.startswith("the check failed: IndexError")


def test_a_lost_gpu_is_one_finding() -> None:
    """That nothing else could be read of it is no news; what others say stays."""
    dead = gpu(1, handle=LOST, uuid=Value(uuid(1)), ecc=LOST, recovery_action=LOST, nvlinks=LOST)
    results = judge_all(replace(WHOLE, gpu=(node(gpu(0), dead),)), {Source.GPU}, NAMES)
    of_dead = [r for r in without_echoes(results) if r.subject.name == uuid(1)]
    assert [r.check for r in of_dead if r.status is Status.UNHEALTHY] == ["gpu.lost"]
    assert [r.check for r in of_dead if r.status is Status.UNKNOWN] == []
    assert any(r.check == "gpu.ecc" and r.subject.name == uuid(0) for r in without_echoes(results))


def test_configuration_makes_findings_milder_and_orders_them() -> None:
    """Off is left out, warn is degraded, and the order is the registry's."""
    subject = Subject("gpu", uuid(0), 0)
    found = [Result(check, Status.UNHEALTHY, subject, "bad") for check in ("gpu.sram", "gpu.ecc", "gpu.lost")]
    chosen = severities({"gpu.ecc": Severity.OFF, "gpu.sram": Severity.WARN})
    results = as_configured(found, chosen)
    assert [(r.check, r.status) for r in results] == [
        ("gpu.lost", Status.UNHEALTHY),
        ("gpu.sram", Status.DEGRADED),
    ]


def test_a_path_that_the_job_can_do_without_warns() -> None:
    """A full disk of logs stops no training."""
    full = replace(DONE, path="/logs", step=StorageStep.WRITE, error="no space", errno_name="ENOSPC")
    paths = tuple(PathEvidence((full,), None, is_needed) for is_needed in (True, False))
    results = judge_all(replace(WHOLE, paths=paths), {Source.PATH}, {"storage.probe"})
    assert [r.status for r in results] == [Status.UNHEALTHY, Status.DEGRADED]


def test_a_lost_mount_is_looked_for_where_the_path_was() -> None:
    """The newest reading is already of what lies under the mount point."""
    mounts = (Mount("/", "ext4", "/dev/sda"), Mount("/ckpt", "lustre", "fs"))
    before = replace(DONE, directory="/ckpt/job")
    path = PathEvidence((before, replace(DONE, directory="/")), before, True)
    evidence = replace(WHOLE, host_baseline=replace(HOST, mounts=mounts), paths=(path,))
    [result] = judge_all(evidence, {Source.HOST}, {"storage.mount"})
    assert (result.status, result.subject.name) == (Status.UNHEALTHY, "/ckpt/job")

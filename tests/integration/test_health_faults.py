"""Each check of the GPUs on the fake library: a fault comes, is found, goes, and is found gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.healthchecks.policy import HealthPolicy, Scope
from ftrun.healthchecks.readers import Places
from ftrun.healthchecks.registry import CHECKS, Occasion, Severity, Source, severities
from ftrun.healthchecks.result import Status
from ftrun.healthchecks.runner import Health
from tests.support.fakenvml.build import FakeNvml, build

DEADLINE_S = 20.0
STRANGER = 4242
DEGRADED, UNHEALTHY = Status.DEGRADED, Status.UNHEALTHY
ELSEWHERE = {"gpu.driver", "gpu.xid", "gpu.persistence"}
"""A driver that hangs, and an Xid, whose verdict stays, have their own tests; the last never complains."""


class Bench:
    """A node of three GPUs, and its health; judged after one reading where a check has a window."""

    def __init__(self, fake: FakeNvml, root: Path) -> None:
        self.fake = fake
        fake.set("device_count", 3)
        fake.set("gpu.*.nvlink.count", 3)
        policy = HealthPolicy(
            severities=severities(dict.fromkeys(("host", "nic", "storage"), Severity.OFF)),
            thresholds={
                "gpu_speed.slowdown_window_s": 0,
                "gpu_speed.slowdown_min_samples": 1,
                "nvlink.expected_links": 3,
            },
        )
        self.health = Health(policy, Scope("n0"), places=Places(root=str(root)))
        self.health.begin(DEADLINE_S)

    def bad(self) -> dict[tuple[str, str], Status]:
        """What is not well, by check and subject."""
        report = self.health.check(Occasion.BY_HAND, DEADLINE_S, frozenset({1}))
        return {
            (r.check, f"{r.subject.kind} {r.subject.index}"): r.status
            for r in report.results
            if r.status not in (Status.HEALTHY, Status.SKIPPED)
        }


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("root")
    stranger = root / "proc" / str(STRANGER)
    stranger.mkdir(parents=True)
    (stranger / "cmdline").write_bytes(b"python\0other.py\0")
    fake = FakeNvml(build(root), root / "state")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fake.environment.items():
            patch.setenv(name, value)
        bench = Bench(fake, root)
        yield bench
        bench.health.close()


ONE, NODE, LINKS = "gpu 1", "node None", "nvlink 1"
CASES = [
    ("gpu.count", NODE, ["device_count 2"], UNHEALTHY),
    ("gpu.lost", ONE, ["gpu.1.lost 1"], UNHEALTHY),
    ("gpu.lost", ONE, ["gpu.1.call.nvmlDeviceGetHandleByIndex_v2.ret 999"], UNHEALTHY),
    ("gpu.reset", ONE, ["gpu.1.call.nvmlDeviceGetTemperature.ret 16"], UNHEALTHY),
    ("gpu.recovery", ONE, ["gpu.1.field.230 1"], UNHEALTHY),
    ("gpu.recovery", ONE, ["gpu.1.field.230 3"], DEGRADED),
    ("gpu.ecc", ONE, ["gpu.1.ecc.volatile.uncorrected 5"], DEGRADED),
    ("gpu.ecc", ONE, ["gpu.1.ecc.volatile.uncorrected 5", "gpu.1.remap.failed 1"], UNHEALTHY),
    ("gpu.ecc_corrected", ONE, ["gpu.1.ecc.volatile.corrected 1000000"], DEGRADED),
    ("gpu.sram", ONE, ["gpu.1.sram.threshold 1"], UNHEALTHY),
    ("gpu.row_remap", ONE, ["gpu.1.remap.failed 1"], UNHEALTHY),
    ("gpu.row_remap", ONE, ["gpu.1.remap.pending 1"], DEGRADED),
    ("gpu.retired_pages", ONE, ["gpu.1.retired.single 63"], UNHEALTHY),
    ("gpu.repair", ONE, ["gpu.1.unrepairable 1"], UNHEALTHY),
    ("gpu.repair", ONE, ["gpu.1.repair.channel 1"], DEGRADED),
    ("gpu.slowdown", ONE, ["gpu.1.clocks.reasons 0x40"], DEGRADED),
    ("gpu.slowdown", ONE, ["gpu.1.clocks.reasons 0x80"], UNHEALTHY),
    ("gpu.temperature", ONE, ["gpu.1.temperature 91"], DEGRADED),
    ("gpu.pcie_width", ONE, ["gpu.1.pcie.width 8"], DEGRADED),
    ("gpu.pcie_generation", ONE, ["gpu.1.pcie.generation 3"], DEGRADED),
    ("gpu.pcie_replay", ONE, ["gpu.1.pcie.replays 1000"], DEGRADED),
    ("gpu.compute_mode", ONE, ["gpu.1.compute_mode 2"], UNHEALTHY),
    ("gpu.mig", ONE, ["gpu.1.mig.pending 1"], DEGRADED),
    ("gpu.memory", ONE, [f"gpu.1.mem.used {3 << 30}"], DEGRADED),
    ("gpu.processes", ONE, [f"gpu.1.processes {STRANGER}:1"], DEGRADED),
    ("gpu.inforom", ONE, ["gpu.1.call.nvmlDeviceValidateInforom.ret 14"], DEGRADED),
    ("gpu.fabric", ONE, ["gpu.1.fabric.state 1"], UNHEALTHY),
    ("gpu.p2p", NODE, ["gpu.0.p2p.1 4", "gpu.0.p2p.2 4", "gpu.1.p2p.2 4"], UNHEALTHY),
    ("nvlink.state", LINKS, ["gpu.1.nvlink.1.state 0"], UNHEALTHY),
    ("nvlink.count", LINKS, ["gpu.1.nvlink.1.state 0"], UNHEALTHY),
    ("nvlink.errors", LINKS, ["gpu.1.field.163.1 100000"], UNHEALTHY),
    ("nvlink.errors", LINKS, ["gpu.1.field.161.1 5"], DEGRADED),
]


@pytest.mark.parametrize(
    ("check", "subject", "fault", "status"), CASES, ids=[f"{c[0]} {c[3].value}" for c in CASES]
)
def test_fault_is_found_and_found_cleared(
    bench: Bench, check: str, subject: str, fault: list[str], status: Status
) -> None:
    """On the one GPU that it happens to; what else it leads to goes away with it."""
    lines = dict(line.split(" ", 1) for line in fault)
    assert bench.bad() == {}
    for key, value in lines.items():
        bench.fake.set(key, value)
    found = bench.bad()
    for key in lines:
        if key == "device_count":
            bench.fake.set(key, 3)
        else:
            bench.fake.clear(key)
    assert found.get((check, subject)) is status, found
    assert {name for name, _ in found} <= {check, *CONSEQUENCES.get(check, ())}
    assert {where for _, where in found} <= {subject, "gpu None"}
    assert bench.bad() == {}


CONSEQUENCES = {
    "gpu.count": ("gpu.lost",),
    "gpu.ecc": ("gpu.row_remap",),
    "gpu.reset": ("gpu.temperature",),
    "nvlink.state": ("nvlink.count",),
    "nvlink.count": ("nvlink.state",),
}
"""Other checks that the same fault concerns."""


def test_every_check_of_gpus_has_a_fault() -> None:
    """A new check is not done before its fault is in the table."""
    checks = {check.name for check in CHECKS if check.source is Source.GPU}
    assert {case[0] for case in CASES} | ELSEWHERE == checks

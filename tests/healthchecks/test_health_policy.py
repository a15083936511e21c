"""What is checked for a job by default, and where."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.policy import HealthPolicy, JobPath, Scope, job_paths
from ftrun.healthchecks.registry import NAMES


def test_a_policy_knows_every_check() -> None:
    """None is on or off by accident."""
    assert set(HealthPolicy().severities) == set(NAMES)


@pytest.mark.parametrize(
    ("policy", "deadline_s"),
    [
        (HealthPolicy(), 5.0),
        (HealthPolicy(command=("true",)), 60.0),
        (HealthPolicy(nvhcd_endpoint="/run/x.sock", external_timeout_s=30.0), 30.0),
        (HealthPolicy(command=("true",), external_timeout_s=1.0), 5.0),
    ],
)
def test_a_round_waits_longer_for_checks_of_others(policy: HealthPolicy, deadline_s: float) -> None:
    """Whoever configures one wants its answer."""
    assert policy.round_deadline_s == deadline_s


@pytest.mark.parametrize(
    ("scope", "paths", "expected"),
    [
        (Scope("n0"), (), []),
        (
            Scope("n0", checkpoint_dir="/ckpt", log_dir="/logs", run_dir="/run/j"),
            ("/data",),
            [("/ckpt", True, True), ("/data", False, True), ("/run/j", True, False), ("/logs", True, False)],
        ),
        (Scope("n0", log_dir="/run/job/logs", run_dir="/run/job"), (), [("/run/job", True, False)]),
        (Scope("n0", checkpoint_dir="/a", run_dir="/a/run", log_dir="/ab"), ("/a", "/a"), [
            ("/a", True, True), ("/ab", True, False),
        ]),
        (Scope("n0", run_dir="/data/run"), ("/data",), [("/data", False, True), ("/data/run", True, False)]),
    ],
)  # fmt: skip
def test_each_path_is_probed_once(
    scope: Scope, paths: tuple[str, ...], expected: list[tuple[str, bool, bool]]
) -> None:
    """Path, whether it is written to, whether the job needs it; data sets are only read."""
    assert job_paths(HealthPolicy(paths=paths), scope) == tuple(JobPath(*row) for row in expected)

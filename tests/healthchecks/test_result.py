"""Results of several checks together, and those of things that the job does not depend on."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.result import Result, Status, Subject, as_warning, worst


def result(status: Status) -> Result:
    return Result("gpu.ecc", status, Subject("gpu", "GPU-1", 3), "5 errors", "none", "reset the GPU")


@pytest.mark.parametrize(
    ("found", "together"),
    [
        ([], Status.SKIPPED),
        ([Status.SKIPPED], Status.SKIPPED),
        ([Status.SKIPPED, Status.HEALTHY], Status.HEALTHY),
        ([Status.HEALTHY, Status.DEGRADED], Status.DEGRADED),
        ([Status.UNKNOWN, Status.DEGRADED, Status.HEALTHY], Status.UNKNOWN),
        ([Status.UNKNOWN, Status.UNHEALTHY], Status.UNHEALTHY),
    ],
)
def test_the_worst_result_counts_and_unknown_is_never_healthy(found: list[Status], together: Status) -> None:
    """A check that could not tell outweighs those that found nothing."""
    assert worst(result(status) for status in found) is together


@pytest.mark.parametrize("status", list(Status))
def test_what_is_not_the_jobs_gives_a_warning_at_most(status: Status) -> None:
    """The observation says why it does not condemn; what was no complaint stays as it is."""
    found = as_warning(result(status), "not a GPU of this job")
    if status in (Status.UNHEALTHY, Status.UNKNOWN):
        assert (found.status, found.observed) == (Status.DEGRADED, "5 errors (not a GPU of this job)")
    else:
        assert found == result(status)


def test_a_subject_reads_well() -> None:
    """Kind, index if there is one, and name."""
    assert str(Subject("gpu", "GPU-1", 3)) == "gpu 3 (GPU-1)"
    assert str(Subject("node", "n0")) == "node n0"

"""Results of health checks as a person sees them."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.result import Result, Status, Subject
from ftrun.monitor.check_table import exit_code, render_check

NODE, GPU = Subject("node", "n0"), Subject("gpu", "GPU-1", 3)
FINE = Result("gpu.driver", Status.HEALTHY, NODE, "driver 570")
NO_DRIVER = Result("gpu.driver", Status.SKIPPED, NODE, "no NVIDIA driver here")
BAD = Result("gpu.lost", Status.UNHEALTHY, GPU, "GPU is lost", "a GPU that answers", "reboot the node")
DULL = Result("host.limits", Status.DEGRADED, NODE, "20000 files", "65536", "ulimit", is_persistent=True)
DARK = Result("gpu.ecc", Status.UNKNOWN, GPU, "no answer", "a reading")


@pytest.mark.parametrize(
    ("results", "code"),
    [((), 0), ((FINE, NO_DRIVER, DULL), 0), ((FINE, DARK), 2), ((DARK, BAD, FINE), 1)],
)
def test_exit_code_says_healthy_unhealthy_or_could_not_tell(results: tuple[Result, ...], code: int) -> None:
    """As prologs and probes read it; a warning is no failure."""
    assert exit_code(results) == code


def test_table_shows_subjects_findings_and_a_summary() -> None:
    """The worst comes first, with what was expected and what to do."""
    assert render_check((FINE, DULL, DARK, BAD), 0.25).splitlines() == [
        "STATUS     SUBJECT        RESULTS",
        "degraded   node n0        1 degraded, 1 healthy",
        "unhealthy  gpu 3 (GPU-1)  1 unhealthy, 1 unknown",
        "",
        "STATUS     CHECK        SUBJECT        OBSERVED",
        "unhealthy  gpu.lost     gpu 3 (GPU-1)  GPU is lost",
        "                                         expected: a GPU that answers",
        "                                         remedy: reboot the node",
        "unknown    gpu.ecc      gpu 3 (GPU-1)  no answer",
        "                                         expected: a reading",
        "degraded   host.limits  node n0        20000 files (since before this job)",
        "                                         expected: 65536",
        "                                         remedy: ulimit",
        "",
        "unhealthy: 1 unhealthy, 1 unknown, 1 degraded, 1 healthy, in 0.25 s",
    ]


def test_a_machine_without_a_gpu_is_one_line() -> None:
    """Unless something is wrong with it, or everything is asked for."""
    assert render_check((NO_DRIVER, DULL), 0.1) == "no GPU on this machine; 1 degraded, 1 skipped\n"
    assert render_check((NO_DRIVER, DARK), 0.1).count("\n") > 2
    assert "no NVIDIA driver here" in render_check((NO_DRIVER,), 0.1, show_all=True)


def test_healthy_results_are_shown_when_asked_for() -> None:
    """With what they saw."""
    assert "driver 570" not in render_check((FINE,), 0.1)
    assert "driver 570" in render_check((FINE,), 0.1, show_all=True)


def test_output_of_others_stays_on_its_line() -> None:
    """A command may print colours and line breaks."""
    noisy = Result("external.command", Status.UNHEALTHY, NODE, "\x1b[31mbad\nworse\x07 \u202e")
    assert " [31mbad worse\n" in render_check((noisy,), 0.1)

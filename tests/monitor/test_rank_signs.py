"""When a worker that was asked to end loses its grace, because it cannot act on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.monitor.rank_signs import Signs, may_end_grace

BEFORE = Signs(10.0, 0.0, 7, 5.0, bytecode_changes=40, sampler_at=9.8, io_bytes=1000, process_state="S")
STILL = replace(BEFORE, at=10.5, sampler_at=10.3)

GRACE: dict[str, tuple[Signs, Signs, float, bool]] = {
    "nothing moves": (BEFORE, STILL, 0.5, True),
    "ended": (BEFORE, replace(STILL, is_alive=False), 0.1, True),
    "too early": (BEFORE, STILL, 0.49, False),
    "bytecode moves": (BEFORE, replace(STILL, bytecode_changes=41), 0.5, False),
    "a step is made": (BEFORE, replace(STILL, progress_count=8), 0.5, False),
    "one byte is written": (BEFORE, replace(STILL, io_bytes=1001), 0.5, False),
    "waits for the disk": (BEFORE, replace(STILL, is_in_disk_wait=True), 0.5, False),
    "a child compresses": (BEFORE, replace(STILL, children_cpu_s=0.3), 0.5, False),
    "another thread copies": (BEFORE, replace(STILL, other_threads_cpu_s=0.3), 0.5, False),
    "a thread polls": (BEFORE, replace(STILL, other_threads_cpu_s=0.02), 0.5, True),
    "main thread spins in a collective": (BEFORE, replace(STILL, main_cpu_s=0.5), 0.5, True),
    "sampler has not looked since": (BEFORE, replace(STILL, sampler_at=9.8), 0.5, False),
    "sampler is gone, so the GIL is held": (
        BEFORE, replace(STILL, at=11.5, sampler_at=9.8), 1.5, True
    ),
    "no sampler": (replace(BEFORE, sampler_at=None), replace(STILL, sampler_at=None), 5.0, False),
    "sampler came since": (replace(BEFORE, sampler_at=None), STILL, 0.5, False),
    "I/O unknown": (replace(BEFORE, io_bytes=None), replace(STILL, io_bytes=None), 5.0, False),
    "stopped by a signal": (BEFORE, replace(STILL, process_state="T"), 0.5, True),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "interval_s", "may_end"), GRACE.values(), ids=GRACE.keys())
def test_grace_ends_early(before: Signs, after: Signs, interval_s: float, may_end: bool) -> None:
    """Only a worker in which nothing moves, as far as everything about it is known, loses its grace."""
    assert may_end_grace(before, after, interval_s) is may_end

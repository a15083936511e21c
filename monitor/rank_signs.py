"""What one rank shows of life at one moment, and whether it stands still between two such moments.

Pure data; read by `signs`, judged by `stall` and `liveness`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.monitor.heartbeats import OpenSection

STILL_S = 0.5
"""How long nothing may move before a worker that was asked to end is taken to be unable to."""
_SAMPLES_APART_S = 0.4
"""Two looks of a worker's sampler: they are 0.5 s apart, less what a busy machine shortens that by."""
_SAMPLER_GONE_S = 1.5
"""Three looks of the sampler that did not come: nothing in that worker runs Python."""
_WORKING_SHARE = 0.1
"""CPUs in use beside the main thread that are work, such as compressing or copying, and not housekeeping."""


@dataclass(frozen=True, slots=True)
class Signs:
    """One rank of this node since its worker began. Counters only grow; times are CLOCK_MONOTONIC seconds."""

    at: float
    """When this was read."""
    started_at: float
    """When the worker was told its rank."""
    progress_count: int = 0
    """Optimizer steps or heartbeats, and checkpoints."""
    last_progress_at: float | None = None
    has_client: bool = False
    """The script has sent a heartbeat, or opened a section, by ftrun's own client."""
    open_sections: tuple[OpenSection, ...] = ()
    """Sections of ftrun's own client that the script is in; those of nvidia-resiliency-ext's are not here."""
    section_closed_at: float | None = None
    """When the last of them was closed; None before that."""
    bytecode_changes: int = 0
    """How often the worker's sampler found that the main thread had moved since its look before."""
    sampler_at: float | None = None
    """The sampler's last look; None if there is no sampler. If it has stopped, the GIL is held."""
    io_bytes: int | None = 0
    """Bytes read and written by the worker and its descendants; None if the system does not tell."""
    children_cpu_s: float = 0.0
    """CPU time of its descendants, ended ones included."""
    other_threads_cpu_s: float = 0.0
    """CPU time of its own threads without the main one and those that spin while they wait (`signs`)."""
    main_cpu_s: float = 0.0
    """CPU time of its main thread, which may spin while it waits."""
    process_state: str = ""
    """Main thread's state letter of proc(5): "R", "S", "D", "T", "t", "Z"; "" if unknown."""
    is_in_disk_wait: bool = False
    """Some thread or descendant is in state D."""
    is_waiting_for_child: bool = False
    """The main thread sleeps until a child process, which lives, ends or says something."""
    is_alive: bool = True

    @property
    def is_waiting_outside(self) -> bool:
        """It waits for storage or for another program, whose work need not show on this node."""
        return self.is_waiting_for_child or self.is_in_disk_wait or self.process_state == "D"

    @property
    def background_cpu_s(self) -> float:
        """CPU time that counts as work: not the main thread's, unless nothing better is known of it."""
        main = 0.0 if self.tells_all else self.main_cpu_s
        return self.children_cpu_s + self.other_threads_cpu_s + main

    @property
    def tells_all(self) -> bool:
        """Both a sampler and the I/O counters are there."""
        return self.sampler_at is not None and self.io_bytes is not None


def may_end_grace(before: Signs, after: Signs, interval_s: float) -> bool:
    """Whether a worker that was asked to end cannot act on it, so that the rest of its grace is of no use.

    True when over `interval_s` (at least `STILL_S`) its main thread's bytecode has stood still and neither
    file I/O nor the CPU time of its children and helper threads has moved: a Python signal handler can only
    run between two bytecodes. What is not known counts as movement.
    """
    if not after.is_alive:
        return True
    if interval_s < STILL_S or not (before.tells_all and after.tells_all):
        return False
    return _is_bytecode_still(before, after) and not (
        after.progress_count != before.progress_count
        or after.io_bytes != before.io_bytes
        or after.is_in_disk_wait
        or after.background_cpu_s - before.background_cpu_s > _WORKING_SHARE * interval_s
    )


def _is_bytecode_still(before: Signs, after: Signs) -> bool:
    """Whether the sampler has looked since, and found nothing; one that is gone could not have looked."""
    if before.sampler_at is None or after.sampler_at is None:
        return False
    if after.bytecode_changes != before.bytecode_changes:
        return False
    is_gone = after.at - after.sampler_at >= _SAMPLER_GONE_S
    return is_gone or after.sampler_at - before.sampler_at >= _SAMPLES_APART_S

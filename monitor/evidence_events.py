"""Events about the evidence of a failure; part of the vocabulary in `ftrun.monitor.events`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.event import Event, Round


@dataclass(frozen=True, slots=True)
class EvidenceGathered(Event):
    """What this node knows of the end of a round was taken down; not after one in which all went well."""

    kind: ClassVar[str] = "evidence.gathered"
    round: Round
    file: Annotated[str, "All of it as JSON, with secrets masked; empty if it could not be written."]
    oom_kills: Annotated[int, "OOM kills that the kernel counted in the job's cgroup in the round."]
    memory_limit_bytes: Annotated[int | None, "Memory limit of that cgroup; null if there is none."]
    memory_some_percent: Annotated[
        float | None, "Of the last 10 s in which some task waited for memory; null if not measured."
    ]
    memory_full_percent: Annotated[float | None, "The same for all tasks."]
    spaces: Annotated[tuple[str, ...], "How full shared memory, logs and checkpoints were, in words."]
    resume_from: Annotated[str, "Checkpoint that the round began from; empty if none."]
    recorder_files: Annotated[tuple[str, ...], "Dumps of flight recorders that were written in the round."]

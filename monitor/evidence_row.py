"""What a node's evidence of a failure says besides how its ranks ended, as its journal has it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from ftrun.monitor.case import format_bytes
from ftrun.monitor.durations import plural
from ftrun.monitor.lines import Line, number, text, texts, whole


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """What one node took down when the round had ended there."""

    node: Annotated[str, "The node."]
    file: Annotated[str, "All of it as JSON, on that node; empty if it could not be written."]
    oom_kills: Annotated[int, "OOM kills that the kernel counted in the job's cgroup in the round."]
    memory_limit_bytes: Annotated[int | None, "Memory limit of that cgroup; null if there is none."]
    memory_some_percent: Annotated[
        float | None, "Of the last 10 s in which some task waited for memory; null if not measured."
    ]
    memory_full_percent: Annotated[float | None, "The same for all tasks."]
    spaces: Annotated[tuple[str, ...], "How full shared memory, logs and checkpoints were, in words."]
    resume_from: Annotated[str, "Checkpoint that the round began from; empty if none."]
    recorder_files: Annotated[tuple[str, ...], "Dumps of flight recorders that were written in the round."]


def read_row(line: Line, node: str) -> EvidenceRow:
    """Of a line of the event `evidence.gathered`."""
    return EvidenceRow(
        node=node,
        file=text(line, "file"),
        oom_kills=whole(line, "oom_kills") or 0,
        memory_limit_bytes=whole(line, "memory_limit_bytes"),
        memory_some_percent=number(line, "memory_some_percent"),
        memory_full_percent=number(line, "memory_full_percent"),
        spaces=texts(line, "spaces"),
        resume_from=text(line, "resume_from"),
        recorder_files=texts(line, "recorder_files"),
    )


def sentences(row: EvidenceRow) -> Iterator[str]:
    """It in words, what matters most first; nothing of what is as it should be."""
    if row.oom_kills:
        limit = row.memory_limit_bytes
        below = "" if limit is None else f", below a limit of {format_bytes(limit)}"
        yield f"the kernel counted {plural(row.oom_kills, 'OOM kill')} in the job's cgroup{below}"
    if row.memory_some_percent:
        some, full = row.memory_some_percent, row.memory_full_percent or 0.0
        yield f"memory was short: some task waited for it in {some:g} % of the last 10 s, all in {full:g} %"
    yield from row.spaces
    if row.resume_from:
        yield f"the round had begun from {row.resume_from}"
    if row.recorder_files:
        yield f"flight recorders have written {', '.join(row.recorder_files)}"
    yield f"all of it: {row.file}" if row.file else "its file could not be written"

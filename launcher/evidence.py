"""Gathers what this node knows of the end of a round, and keeps it in a file beside the round's logs.

Reads only; `ftrun.monitor.diagnosis` judges. Secrets are masked before anything is told.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ftrun.healthchecks.cgroup import OomCounter
from ftrun.launcher.error_file import read_error_file
from ftrun.launcher.message_codec import to_text
from ftrun.launcher.model import Plan
from ftrun.launcher.process import ExitStatus
from ftrun.launcher.surroundings import Surroundings
from ftrun.launcher.workers import Worker
from ftrun.monitor.case import describe_space
from ftrun.monitor.evidence_events import EvidenceGathered
from ftrun.monitor.excerpts import shorten_exit
from ftrun.monitor.incident import Evidence, FaultReport, MemoryPressure, RankExit
from ftrun.monitor.page import PageSnapshot
from ftrun.monitor.redaction import Redactor

_LOOK_TIMEOUT_S = 0.2
"""Longest wait for a file system to say how full it is: local ones answer in microseconds, and a restart is
not held up for one that does not answer."""
_FILE_NAME = "evidence.json"
_TAIL_LINES = 50
_MOST_CHARACTERS = 64 << 10
"""Of a message, a traceback and the last lines: a thousand frames have less, and what is larger is a dumped
tensor. Masking and judging them is on the way to a restart."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How the workers of a round ended, with their pages and stderr as they last were; by local rank."""

    workers: Sequence[Worker]
    statuses: Mapping[int, ExitStatus]
    pages: Mapping[int, PageSnapshot]
    tails: Mapping[int, tuple[str, ...]]


class Gatherer:
    """The evidence of one round after the other; for the agent's main thread."""

    def __init__(self, node: str, oom: OomCounter, surroundings: Surroundings, redactor: Redactor) -> None:
        self._node = node
        self._oom = oom
        self._surroundings = surroundings
        self._redactor = redactor
        self._round_number = -1
        self._resume_from = ""
        self._directory: Path | None = None
        self._began_at = 0.0
        self._oom_kills_before = 0
        self._has_looked = False

    def begin_round(self, plan: Plan, directory: Path | None) -> None:
        """The workers of a round are about to start; their files are in `directory`, if they have one."""
        self._round_number = plan.round_number
        self._resume_from = plan.resume_from or ""
        self._directory = directory
        self._began_at = time.monotonic()
        self._oom_kills_before = self._oom.read() or 0
        self._has_looked = False

    def note_exits(self, workers: Collection[Worker]) -> None:
        """These have just ended: at the first failure, see how full things are, before others let go."""
        if any(worker.exit_code for worker in workers):
            self._look_for_room()

    def note_end(self, workers: Collection[Worker]) -> None:
        """The round is over; what takes time to look at is begun."""
        self._look_for_room()
        since_ts = time.time() - (time.monotonic() - self._began_at)
        self._surroundings.look_for_dumps(sorted(worker.rank for worker in workers), since_ts)

    def _look_for_room(self) -> None:
        if not self._has_looked:
            self._has_looked = True
            self._surroundings.look_for_room(str(self._directory or ""))

    def gather(self, ends: Ends, seen_at: float) -> Evidence:
        """All that is known of the ranks and the node; why the round was stopped, the caller adds.

        `seen_at` is when the agent began to stop it (CLOCK_MONOTONIC, seconds).
        """
        spaces = self._surroundings.room(_LOOK_TIMEOUT_S)
        dumps = self._surroundings.dumps(_LOOK_TIMEOUT_S)
        exits = tuple(self._exit_of(worker, ends, seen_at) for worker in ends.workers)
        return Evidence(
            node=self._node,
            round_number=self._round_number,
            exits=tuple(replace(exit, recorder_file=dumps.get(exit.rank, "")) for exit in exits),
            has_progressed=any(page.has_progressed for page in ends.pages.values()),
            oom_kills=max(0, (self._oom.read() or 0) - self._oom_kills_before),
            memory_limit_bytes=self._oom.limit_bytes(),
            wall_offset_s=time.time() - time.monotonic(),
            resume_from=self._resume_from,
            spaces=spaces,
            pressure=self._pressure(),
        )

    def _pressure(self) -> MemoryPressure | None:
        found = self._oom.memory_pressure()
        if found is None:
            return None
        pressure, is_of_cgroup = found
        return MemoryPressure(pressure.some_avg10, pressure.full_avg10, is_of_cgroup)

    def _exit_of(self, worker: Worker, ends: Ends, seen_at: float) -> RankExit:
        status, page = ends.statuses[worker.local_rank], ends.pages[worker.local_rank]
        error = read_error_file(worker.error_file) if status.code != 0 else None
        found = RankExit(
            rank=worker.rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            exit_code=status.code,
            exited_at=worker.exited_at,
            is_stopped_by_agent=worker.is_stopped_by_agent,
            error=error,
            error_file=worker.error_file if error is not None else "",
            stderr_tail=ends.tails[worker.local_rank][-_TAIL_LINES:],
            max_rss_bytes=status.max_rss_bytes,
            steps=page.steps,
            last_step=page.reported_step,
            sections=tuple(section.name for section in page.sections),
            stacks_file=worker.stacks_file if _has_content(worker.stacks_file) else "",
        )
        found = self._mask(found)
        since_start_s = max(0.0, found.failed_at - self._began_at)
        beat_at = page.last_progress_at
        return replace(
            found,
            since_start_s=since_start_s,
            beat_age_s=None if beat_at is None else max(0.0, found.failed_at - beat_at),
            # It had failed by itself before it was told to stop, and was only slow to end.
            is_stopped_by_agent=worker.is_stopped_by_agent and found.failed_at > seen_at,
        )

    def _mask(self, exit: RankExit) -> RankExit:
        """Without secrets, and not too long for what is to be done with it before the ranks run again.

        Values that are known go first, since one that is cut would not be known any more.
        """
        exit = _map_texts(self._redactor.mask_values, exit)
        return _map_texts(self._redactor.mask, shorten_exit(exit, _MOST_CHARACTERS, self._resume_from))

    def mask(self, text: str) -> str:
        """What a script says, without secrets."""
        return self._redactor.mask(text)

    def with_report(self, evidence: Evidence, report: FaultReport | None) -> Evidence:
        """With what the script reported, if it did, in its own words but for secrets."""
        masked = None if report is None else replace(report, reason=self._redactor.mask(report.reason))
        return replace(evidence, report=masked)

    def keep(self, evidence: Evidence) -> Evidence:
        """Write all of it beside the round's logs, in place of what was written before; says where."""
        if self._directory is None or not self._directory.is_dir():
            return evidence
        path = self._directory / _FILE_NAME
        kept = replace(evidence, file=str(path))
        try:
            write_whole(path, to_text(kept))
        except OSError:
            return evidence
        return kept


def _map_texts(mask: Callable[[str], str], exit: RankExit) -> RankExit:
    error = exit.error
    if error is not None:
        error = replace(error, message=mask(error.message), traceback=mask(error.traceback))
    return replace(exit, error=error, stderr_tail=tuple(map(mask, exit.stderr_tail)))


def is_worth_keeping(evidence: Evidence) -> bool:
    """Not all went well."""
    has_ended_well = all(exit.exit_code == 0 for exit in evidence.exits)
    other_reasons = (evidence.hang, evidence.start_failure, evidence.unreachable, evidence.report)
    return not has_ended_well or any(other_reasons)


def evidence_event(evidence: Evidence) -> EvidenceGathered:
    """What the journal says of it."""
    pressure = evidence.pressure
    return EvidenceGathered(
        round=evidence.round_number,
        file=evidence.file,
        oom_kills=evidence.oom_kills,
        memory_limit_bytes=evidence.memory_limit_bytes,
        memory_some_percent=None if pressure is None else pressure.some_percent,
        memory_full_percent=None if pressure is None else pressure.full_percent,
        spaces=tuple(map(describe_space, evidence.spaces)),
        resume_from=evidence.resume_from,
        recorder_files=tuple(exit.recorder_file for exit in evidence.exits if exit.recorder_file),
    )


def write_whole(path: Path, text: str) -> None:
    """The file is there with all of the text, or as it was before.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "w", encoding="ascii", opener=_open_private) as file:
            file.write(text)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _open_private(path: str, flags: int) -> int:
    """It holds tracebacks and output, which are nobody else's business."""
    return os.open(path, flags, 0o600)


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False

"""Folds what a node's journal says of one round into a `Shift`. Pure.

Only the handful of numbers is kept from which an account is made: a thousand nodes with eight workers each
have as many rounds to remember as a long run has restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ftrun.monitor import events as ev
from ftrun.monitor import worker_lines
from ftrun.monitor.lines import Line, is_true, number, text, texts, whole
from ftrun.monitor.lives import Recovered, RoundKey, Save, Shift

Shared: TypeAlias = dict[tuple[str, ...], tuple[str, ...]]
"""Lists of names that have been seen: a thousand journals name the same thousand nodes."""


_MOST_STEPS = 10**12
"""More than any job makes: a damaged number is not taken for steps."""


class ShiftFold:
    """One node's part in one round so far."""

    __slots__ = (
        "_cause",
        "_closed_at",
        "_cold_reason",
        "_first_step",
        "_hung_at",
        "_key",
        "_line",
        "_moved_at",
        "_observed_at",
        "_progressed_at",
        "_ranks",
        "_recovered",
        "_saves",
        "_script_at",
        "_silent_s",
        "_steps",
        "_steps_before",
        "_stop_began_at",
        "_stopped_at",
    )

    def __init__(self, key: RoundKey, at: float) -> None:
        self._key = key
        self._closed_at = at
        self._line: Line = {}
        self._ranks: list[int] = []
        self._cold_reason = ""
        self._script_at: float | None = None
        self._progressed_at: float | None = None
        self._first_step: int | None = None
        self._steps = -1
        self._steps_before: int | None = None
        self._observed_at: float | None = None
        self._moved_at: float | None = None
        self._hung_at: float | None = None
        self._silent_s = 0.0
        self._stop_began_at: float | None = None
        self._stopped_at: float | None = None
        self._cause = ""
        self._recovered: Recovered | None = None
        self._saves: dict[object, Save] = {}

    def close(self, at: float, line: Line) -> None:
        """`round.closed`: who takes part is known."""
        self._closed_at, self._line = at, line

    def start(self, ranks: Sequence[int], cold_reason: str) -> None:
        """Workers were started; `cold_reason` is "" if they had done their imports."""
        self._ranks += ranks
        if cold_reason and not self._cold_reason:
            self._cold_reason = cold_reason

    def progress(self, at: float, script_at: float, step: int | None) -> None:
        """Workers made their first progress, the last now; the last ran the script then."""
        if self._script_at is None or script_at > self._script_at:
            self._script_at = script_at
        self._progressed_at = at
        if step is not None and (self._first_step is None or step < self._first_step):
            self._first_step = step

    def count(self, steps: int) -> None:
        """A worker has done so many steps in the round."""
        if self._steps < steps < _MOST_STEPS:
            self._steps = steps

    def start_worker(self, at: float, line: Line) -> None:
        """`worker.started`."""
        rank = whole(line, "rank")
        ranks = () if rank is None else (rank,)
        self.start(ranks, "" if is_true(line, "is_warm") else text(line, "reason"))

    def progress_worker(self, at: float, line: Line) -> None:
        """`worker.progressed`."""
        since_s = number(line, "since_start_s") or 0.0
        step = whole(line, "step")
        known = step if step is not None and step >= 0 else None
        self.progress(at, worker_lines.ran_at(at, since_s), known)

    def exit_worker(self, at: float, line: Line) -> None:
        """`worker.exited`."""
        self.count(whole(line, "steps") or 0)

    def observe_progress(self, at: float, line: Line) -> None:
        """`progress.observed`."""
        self.exit_worker(at, line)
        step, steps = whole(line, "step"), whole(line, "steps")
        if step is not None and steps is not None:
            self._steps_before = step - steps
        since_s = number(line, "since_progress_s")
        if since_s is not None:
            self._observed_at, self._moved_at = at, at - max(0.0, since_s)

    def save(self, at: float, line: Line) -> None:
        """`checkpoint.saved`: one save, though each rank may tell of it; it took as long as the longest."""
        step = whole(line, "step")
        name: object = step if step is not None else text(line, "path")
        blocking_s = max(0.0, number(line, "blocking_s") or 0.0)
        at -= max(0.0, number(line, "age_s") or 0.0)
        count = max(1, whole(line, "count") or 1)
        known = self._saves.get(name)
        self._saves[name] = Save(
            at if known is None else max(known.at, at),
            step,
            blocking_s if known is None else max(known.blocking_s, blocking_s),
            count if known is None else max(known.count, count),
        )

    def hang(self, at: float, line: Line) -> None:
        """`hang.detected`: the first counts."""
        if self._hung_at is None:
            self._hung_at, self._silent_s = at, max(0.0, number(line, "silent_s") or 0.0)

    def order_stop(self, at: float, line: Line) -> None:
        """`round.stop_ordered`: the workers here are asked to end from now on."""
        if self._stop_began_at is None:
            self._stop_began_at = at

    def fail_start(self, at: float, line: Line) -> None:
        """`round.failed`: its workers could not be started."""
        self._stop_began_at = at

    def stop(self, at: float, line: Line) -> None:
        """`round.stopped`: all workers are gone."""
        self._stopped_at = at
        self._stop_began_at = at - max(0.0, number(line, "stop_s") or 0.0)
        self._cause = text(line, "cause")

    def recover(self, at: float, line: Line) -> None:
        """`recovery.completed`."""
        total_s = number(line, "total_s")
        if total_s is not None:
            stop_s, start_s, first_step_s = (
                number(line, name) or 0.0 for name in ("stop_s", "start_s", "first_step_s")
            )
            detect_s, redone = number(line, "detect_s"), whole(line, "steps_redone")
            age_s = number(line, "checkpoint_age_s")
            self._recovered = Recovered(at, total_s, detect_s, stop_s, start_s, first_step_s, redone, age_s)

    def shift(self, shared: Shared) -> Shift:
        """All of it."""
        line = self._line
        nodes, spares = texts(line, "nodes"), texts(line, "spares")
        resume_step = whole(line, "resume_step")
        return Shift(
            key=self._key,
            closed_at=self._closed_at,
            world_size=whole(line, "world_size") or 0,
            nodes=shared.setdefault(nodes, nodes),
            spares=shared.setdefault(spares, spares),
            restart_count=whole(line, "restart_count") or 0,
            resume_from=text(line, "resume_from"),
            resume_step=resume_step if resume_step is None or resume_step >= 0 else None,
            is_resume_known=is_true(line, "is_resume_known"),
            ranks=tuple(sorted(self._ranks)),
            cold_reason=self._cold_reason,
            script_at=self._script_at,
            progressed_at=self._progressed_at,
            first_step=self._first_step,
            steps=self._steps if self._steps >= 0 else None,
            steps_before=self._steps_before,
            observed_at=self._observed_at,
            moved_at=self._moved_at,
            hung_at=self._hung_at,
            silent_s=self._silent_s,
            stop_began_at=self._stop_began_at,
            stopped_at=self._stopped_at,
            cause=self._cause,
            recovered=self._recovered,
            saves=tuple(sorted(self._saves.values(), key=lambda save: save.at)),
        )


HANDLERS: Mapping[str, Callable[[ShiftFold, float, Line], None]] = {
    ev.WorkerStarted.kind: ShiftFold.start_worker,
    ev.WorkerProgressed.kind: ShiftFold.progress_worker,
    ev.WorkerExited.kind: ShiftFold.exit_worker,
    ev.HangDetected.kind: ShiftFold.hang,
    ev.RoundStopOrdered.kind: ShiftFold.order_stop,
    ev.RoundFailed.kind: ShiftFold.fail_start,
    ev.RoundStopped.kind: ShiftFold.stop,
    ev.RecoveryCompleted.kind: ShiftFold.recover,
    ev.ProgressObserved.kind: ShiftFold.observe_progress,
    ev.CheckpointSaved.kind: ShiftFold.save,
}
"""What to do with a line about a round, by its kind."""

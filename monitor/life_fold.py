"""Folds the lines of one node's journal into the lives of its agents (`ftrun.monitor.lives`). Pure.

One look at each line, and a handful of numbers kept per round, so that a million lines take seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ftrun.monitor import events as ev
from ftrun.monitor import shift_fold, worker_lines
from ftrun.monitor.lines import Line, is_true, number, text, texts, whole, wholes
from ftrun.monitor.lives import Judged, Life, Note, RoundKey, Stretch
from ftrun.monitor.shift_fold import Shared, ShiftFold

_KEPT_NOTES = 20
"""Of each kind and life: of what comes more often, a person wants the count."""
_LATEST = 1e12
"""No time is above it; NaN is not below it either."""

_NOTED = frozenset(
    event_type.kind
    for event_type in (
        ev.OptionIgnored, ev.StandbySuspended, ev.CheckpointSkipped, ev.CheckpointUnverified,
        ev.CheckpointQuarantined, ev.CheckpointRenamed, ev.WorkerUnkillable, ev.ProcessSwept,
        ev.SignalReceived, ev.OutputDegraded, ev.StoreFailed, ev.GuardDegraded, ev.NumaDegraded,
        ev.RoundFailed, ev.RoundStopOrdered, ev.GraceEnded, ev.RequestReceived, ev.HeartbeatsDegraded,
        ev.StoreLost, ev.StoreDegraded, ev.NodeLost, ev.NodeLeft, ev.NodeRefused, ev.HealthChanged,
        ev.HealthCheckDelayed, ev.GpuMemoryAwaited, ev.NodeExcluded, ev.ExclusionSuspended, ev.SlotsReduced,
        ev.LogsDropped, ev.JournalReduced, ev.MetricsDegraded,
    )
)  # fmt: skip


class LifeFold:
    """The lives in one journal: give it the lines in order, then take `lives`.

    Folds that are given the same `shared` keep what their journals have in common once.
    """

    def __init__(self, shared: Shared | None = None) -> None:
        self._shared: Shared = {} if shared is None else shared
        self.skipped = 0
        """Lines that are no records."""
        self._done: list[Life] = []
        self._life: _OneLife | None = None

    def take(self, lines: Iterable[Line]) -> None:
        """Take the next lines."""
        for line in lines:
            at, kind = line.get("at"), line.get("event")
            if type(at) is not float or not 0 <= at < _LATEST:
                at = number(line, "at")
            if at is None or at < 0 or type(kind) is not str:
                self.skipped += 1
                continue
            if self._life is None or kind == ev.RunStarted.kind:
                self._end_life()
                self._life = _OneLife(at, line)
            self._life.add(kind, at, line)

    def take_workers(self, kind: bytes, digits: bytes, row: bytes) -> bool:
        """Take lines that `worker_lines.WORKER_LINES` has found; returns whether that was possible."""
        return self._life is not None and self._life.add_workers(kind, digits, row)

    def lives(self) -> tuple[Life, ...]:
        """Those so far, oldest first; the last may be going on."""
        self._end_life()
        return tuple(self._done)

    def _end_life(self) -> None:
        if self._life is not None:
            self._done.append(self._life.life(self._shared))
            self._life = None


def fold(lines: Iterable[Line], shared: Shared | None = None) -> LifeFold:
    """A fold that has taken all the lines."""
    lives = LifeFold(shared)
    lives.take(lines)
    return lives


class _OneLife:
    """The life that the lines are about at present."""

    def __init__(self, at: float, line: Line) -> None:
        self._first_at = self._last_at = at
        self._first = self._last = line
        self._last_row = b""
        """Of lines that were not decoded, if they are the last."""
        self._started: Line = {}
        self._ended: Line = {}
        self._settings: tuple[tuple[str, str], ...] = ()
        self._log_dir = ""
        self._shifts: dict[RoundKey, ShiftFold] = {}
        self._by_number: dict[int | bytes, ShiftFold] = {}
        """Of each round number the last one, also by the number's digits."""
        self._judged: list[tuple[float, Line, Line]] = []
        self._parked: list[tuple[float, int]] = []
        self._awaited: list[float] = []
        self._held: list[Stretch] = []
        self._lost: list[tuple[float, str]] = []
        self._connected_at: float | None = None
        self._is_host = False
        self._notes: list[Note] = []
        self._note_counts: Counter[str] = Counter()

    def add(self, kind: str, at: float, line: Line) -> None:
        self._last_at, self._last, self._last_row = at, line, b""
        of_round = shift_fold.HANDLERS.get(kind)
        if of_round is not None:
            round_number = line.get("round")
            if type(round_number) is int:
                shift = self._by_number.get(round_number) or self._shift(RoundKey(round_number), at)
                of_round(shift, at, line)
        elif (handler := _HANDLERS.get(kind)) is not None:
            handler(self, at, line)
        if kind in _NOTED:
            self._note_counts[kind] += 1
            if self._note_counts[kind] <= _KEPT_NOTES:
                self._notes.append(Note(at, kind, line))

    def add_workers(self, kind: bytes, digits: bytes, row: bytes) -> bool:
        shift = self._by_number.get(digits)
        if shift is None:
            return False
        if kind == worker_lines.EXITED:
            steps = worker_lines.exited(row)
            if steps is None:
                return False
            shift.count(steps)
        elif kind == worker_lines.PROGRESSED:
            progress = worker_lines.progressed(row)
            if progress is None:
                return False
            shift.progress(progress.at, progress.script_at, progress.first_step)
        else:
            started = worker_lines.started(row)
            if started is None:
                return False
            shift.start(*started)
        self._last_row = row
        return True

    def _shift(self, key: RoundKey, at: float) -> ShiftFold:
        shift = self._shifts.get(key)
        if shift is None:
            shift = self._shifts[key] = self._by_number[key.number] = ShiftFold(key, at)
            self._by_number[b"%d" % key.number] = shift
        return shift

    def start(self, at: float, line: Line) -> None:
        self._started = line

    def configure(self, at: float, line: Line) -> None:
        self._settings = tuple(zip(texts(line, "names"), texts(line, "values"), strict=False))

    def locate_logs(self, at: float, line: Line) -> None:
        self._log_dir = text(line, "path")

    def close_round(self, at: float, line: Line) -> None:
        round_number = whole(line, "round")
        if round_number is not None:
            key = RoundKey(round_number, text(line, "master_addr"), whole(line, "master_port") or 0)
            self._shift(key, at).close(at, line)

    def judge(self, at: float, line: Line) -> None:
        if whole(line, "round") is not None:
            self._judged.append((at, line, {}))

    def decide(self, at: float, line: Line) -> None:
        """The decision follows its incident at once."""
        if self._judged:
            at, incident, _ = self._judged[-1]
            if whole(incident, "round") == whole(line, "round"):
                self._judged[-1] = at, incident, line

    def park(self, at: float, line: Line) -> None:
        round_number = whole(line, "round")
        if round_number is not None:
            self._parked.append((at, round_number))

    def await_nodes(self, at: float, line: Line) -> None:
        self._awaited.append(at)

    def hold(self, at: float, line: Line) -> None:
        waited_s = max(0.0, number(line, "waited_s") or 0.0)
        self._held.append(Stretch(at - waited_s, at, text(line, "subject")))

    def lose(self, at: float, line: Line) -> None:
        self._lost.append((at, text(line, "name")))

    def connect(self, at: float, line: Line) -> None:
        if self._connected_at is None:
            self._connected_at = at
        self._is_host = self._is_host or is_true(line, "is_host")

    def end(self, at: float, line: Line) -> None:
        self._ended = line

    def life(self, shared: Shared) -> Life:
        started, ended = self._started, self._ended
        last_ts, last_at = number(self._last, "ts") or 0.0, self._last_at
        if self._last_row:
            last_ts, last_at = worker_lines.times(self._last_row)
        return Life(
            node=text(self._first, "node"),
            run_id=text(started, "run_id"),
            script=text(started, "script"),
            slots=whole(started, "nproc_per_node") or 0,
            agent_pid=whole(started, "agent_pid") or 0,
            version=text(started, "ftrun_version"),
            settings=self._settings,
            log_dir=self._log_dir,
            began_at=self._first_at,
            began_ts=number(self._first, "ts") or 0.0,
            last_at=last_at,
            last_ts=last_ts,
            exit_code=(whole(ended, "exit_code") or 0) if ended else None,
            end_reason=text(ended, "reason"),
            restart_count=whole(ended, "restart_count") or 0,
            shifts=tuple(shift.shift(shared) for shift in self._shifts.values()),
            judged=tuple(_judged(*one, shared) for one in self._judged),
            parked=tuple(self._parked),
            awaited=tuple(self._awaited),
            held=tuple(self._held),
            lost=tuple(self._lost),
            connected_at=self._connected_at,
            is_host=self._is_host,
            notes=tuple(self._notes),
            note_counts=tuple(sorted(self._note_counts.items())),
        )


def _judged(at: float, incident: Line, decision: Line, shared: Shared) -> Judged:
    rank, reasons = whole(incident, "culprit_rank"), texts(incident, "reasons")
    return Judged(
        at=at,
        round_number=whole(incident, "round") or 0,
        kind=text(incident, "incident_kind") or "unknown",
        culprit_rank=-1 if rank is None else rank,
        culprit_pid=whole(incident, "culprit_pid") or 0,
        exit_code=whole(incident, "exit_code") or 0,
        reasons=shared.setdefault(reasons, reasons),
        fingerprint=text(incident, "fingerprint"),
        has_progressed=is_true(incident, "has_progressed"),
        collateral_ranks=wholes(incident, "collateral_ranks"),
        confidence=number(incident, "confidence"),
        action=text(decision, "action"),
        decision_reason=text(decision, "reason"),
        delay_s=max(0.0, number(decision, "delay_s") or 0.0),
        restart_count=whole(decision, "restart_count") or 0,
        max_restarts=whole(decision, "max_restarts"),
    )


_Handler: TypeAlias = Callable[[_OneLife, float, Line], None]
_HANDLERS: Mapping[str, _Handler] = {
    ev.RunStarted.kind: _OneLife.start,
    ev.RunConfigured.kind: _OneLife.configure,
    ev.LogLocated.kind: _OneLife.locate_logs,
    ev.RoundClosed.kind: _OneLife.close_round,
    ev.IncidentDiagnosed.kind: _OneLife.judge,
    ev.RestartDecided.kind: _OneLife.decide,
    ev.NodeParked.kind: _OneLife.park,
    ev.RendezvousAwaited.kind: _OneLife.await_nodes,
    ev.GpuMemoryAwaited.kind: _OneLife.hold,
    ev.NodeLost.kind: _OneLife.lose,
    ev.NodeLeft.kind: _OneLife.lose,
    ev.StoreConnected.kind: _OneLife.connect,
    ev.RunEnded.kind: _OneLife.end,
}

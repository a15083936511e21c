"""What each node of a run did at every moment, as a gapless row of segments. Pure.

A node's row goes from the run's beginning to its end. What its own journal does not tell, such as how long
the last of the others took to come, follows from theirs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from ftrun.monitor.goodput import Bucket, Segment
from ftrun.monitor.history import Node, NodeShift, Presence, Run, State
from ftrun.monitor.lives import RoundKey

_FORMING = (Bucket.RENDEZVOUS, Bucket.WAITING, Bucket.PAUSING)
_BEFORE_WORK = (*_FORMING, Bucket.STARTING)
_TRAINING = (Bucket.PRODUCTIVE, Bucket.REDONE)
_SLOW_STEPS = 3.0
"""Steps vary by less: after so many without progress, training had stopped, though nothing else says so."""


def segments_of(run: Run) -> dict[str, tuple[Segment, ...]]:
    """The row of each node, by its name; each sums to the run's wall time."""
    known = _Known(run)
    return {node.name: tuple(_Row(run, node, known).segments()) for node in run.nodes}


class _Known:
    """What all nodes together know about the rounds."""

    def __init__(self, run: Run) -> None:
        self.ready: dict[RoundKey, float] = {}
        """When the last of a round's nodes could have begun it."""
        self.quiet: dict[RoundKey, float] = {}
        """When training had stopped, if it stopped before somebody knew."""
        self.ends: dict[RoundKey, tuple[float | None, float]] = {}
        """Part of its steps that counted (None: unknown), and the step that the job had then come to."""
        self.delays: dict[int, float] = {}
        """The pause before a round, by its number."""
        self.awaited = sorted(
            one.placed.time(at) for node in run.nodes for one in node.presences for at in one.life.awaited
        )
        for node in run.nodes:
            for presence in node.presences:
                self._note_ready(presence)
        by_number: dict[int, RoundKey] = {}
        for one, work in zip(run.rounds, run.work, strict=True):
            by_number[one.number] = one.key
            part = work.counted / work.steps if work.steps and work.counted is not None else None
            self.ends[one.key] = part, work.base + (work.counted or 0)
            for of_node in one.shifts:
                self._note_quiet(of_node)
        for incident in run.incidents:
            if incident.next_round is not None:
                self.delays[incident.next_round] = incident.delay_s
            key = by_number.get(incident.round_number)
            if key is not None and incident.detect_s is not None:
                self.quiet.setdefault(key, incident.seen - incident.detect_s)
        last = run.rounds[-1].stopped if run.rounds else None
        self.last_stopped = run.began if last is None else last

    def _note_quiet(self, one: NodeShift) -> None:
        """What a hung rank, or a node that is gone, is to the others: they can make no step any more."""
        signs = []
        if (hung := one.time(one.shift.hung_at)) is not None:
            signs.append(hung - one.shift.silent_s)
        if one.presence.state is State.KILLED and one.shift.stopped_at is None:
            signs.append(one.presence.ended)
        if signs:
            self.quiet[one.shift.key] = min([*signs, self.quiet.get(one.shift.key, signs[0])])

    def _note_ready(self, presence: Presence) -> None:
        ready = connected(presence)
        for shift in presence.life.shifts:
            closed = presence.placed.time(shift.closed_at)
            self.ready[shift.key] = max(self.ready.get(shift.key, ready), min(ready, closed))
            stopped = shift.stopped_at if shift.stopped_at is not None else shift.stop_began_at
            ready = closed if stopped is None else presence.placed.time(stopped)

    def is_awaited(self, began: float, ended: float) -> bool:
        """Whether the host agent said in that time that it waits for nodes."""
        return bisect_left(self.awaited, began) < bisect_right(self.awaited, ended)


class _Row:
    """The segments of one node."""

    def __init__(self, run: Run, node: Node, known: _Known) -> None:
        self._run = run
        self._node = node
        self._known = known
        self._now = run.began
        self._done: list[Segment] = []

    def segments(self) -> Sequence[Segment]:
        first_closed = min((one.closed for one in self._run.rounds), default=self._run.ended)
        for place, presence in enumerate(self._node.presences):
            if place == 0 and not presence.life.run_id:
                self._add(presence.began, Bucket.UNTOLD)
            elif place == 0:
                is_late = presence.began > first_closed or not self._node.has_worked
                self._add(presence.began, Bucket.ABSENT if is_late else Bucket.DOWN)
            else:
                self._be_away(presence.began)
            self._live(presence)
        last = self._node.presences[-1]
        if last.is_cut:
            self._add(self._run.ended, Bucket.UNTOLD)
        elif last.state is State.ENDED and not _has_left(last):
            self._add(self._run.ended, Bucket.STOPPING)
        else:
            self._be_away(self._run.ended)
        return self._done

    def _add(self, until: float, bucket: Bucket, round_number: int | None = None) -> None:
        """All from now on `until` then is `bucket`; nothing, if that is over already."""
        until = min(until, self._run.ended)
        if until > self._now:
            self._done.append(Segment(self._now, until, bucket, round_number))
            self._now = until

    def _be_away(self, until: float) -> None:
        """No agent is there: missed, until others have filled the node's place."""
        if not self._node.has_worked:
            self._add(until, Bucket.ABSENT)
            return
        with_it = [
            one for one in self._run.rounds if self._node.name in one.nodes and one.closed <= self._now
        ]
        size = len(with_it[-1].nodes) if with_it else 0
        replaced = (
            one.closed
            for one in self._run.rounds
            if one.closed >= self._now and self._node.name not in one.nodes and len(one.nodes) >= size
        )
        self._add(min(until, next(replaced, until)), Bucket.DOWN)
        self._add(until, Bucket.ABSENT)

    def _live(self, presence: Presence) -> None:
        place = len(self._done)
        self._add(min(connected(presence), presence.ended), Bucket.RENDEZVOUS)
        shifts = presence.life.shifts
        for number, shift in enumerate(shifts):
            self._form(min(presence.placed.time(shift.closed_at), presence.ended), shift.key)
            after = shifts[number + 1] if number + 1 < len(shifts) else None
            # If its own end is not in the journal, it is over when the next begins.
            limit = presence.ended if after is None else presence.placed.time(after.closed_at)
            self._work(NodeShift(self._node.name, presence, shift), min(presence.ended, limit))
        self._finish(presence)
        for number, (at, _) in enumerate(presence.life.parked):
            parked = presence.placed.time(at)
            if number == 0 and not any(
                presence.placed.time(s.closed_at) < parked for s in presence.life.shifts
            ):
                parked = presence.began  # nobody waited for it before either
            closings = (presence.placed.time(shift.closed_at) for shift in presence.life.shifts)
            until = next((closed for closed in closings if closed > presence.placed.time(at)), presence.ended)
            self._overlay(place, parked, until, Bucket.SPARE, _FORMING)
        for held in presence.life.held:
            began, ended = presence.placed.time(held.began_at), presence.placed.time(held.ended_at)
            self._overlay(place, began, ended, Bucket.HEALTH, _BEFORE_WORK)

    def _form(self, closed: float, key: RoundKey) -> None:
        """Up to the closing of a round: for the last node to come, for a pause to end, for an agreement."""
        number = key.number
        self._add(min(closed, self._known.ready.get(key, closed)), Bucket.WAITING, number)
        self._add(min(closed, self._now + self._known.delays.get(number, 0.0)), Bucket.PAUSING, number)
        is_awaited = self._known.is_awaited(self._now, closed)
        self._add(closed, Bucket.WAITING if is_awaited else Bucket.RENDEZVOUS, number)

    def _work(self, one: NodeShift, limit: float) -> None:
        shift, number = one.shift, one.shift.key.number
        stop_began, stopped = one.time(shift.stop_began_at), one.time(shift.stopped_at)
        ended = min(limit, next((t for t in (stop_began, stopped) if t is not None), limit))
        quiet = self._quiet_of(one, ended)
        progressed, script = one.time(shift.progressed_at), one.time(shift.script_at)
        if progressed is None or script is None:
            self._add(min(quiet, ended), Bucket.STARTING if shift.cold_reason else Bucket.LOADING, number)
        else:
            self._add(min(script, ended), Bucket.STARTING, number)
            self._add(min(progressed, ended), Bucket.LOADING, number)
            self._train(one, min(quiet, ended))
        self._add(ended, Bucket.DETECTING, number)
        self._add(min(limit, ended if stopped is None else stopped), Bucket.STOPPING, number)

    def _quiet_of(self, one: NodeShift, ended: float) -> float:
        """When the node's training had stopped; `ended` is when that was known, or later."""
        shift = one.shift
        if shift.cause == "success" or shift.stop_began_at is None:
            return ended
        quiet = self._known.quiet.get(shift.key, ended)
        moved, step_s = one.time(shift.moved_at), _step_s(one)
        if (
            moved is None
            or shift.observed_at is None
            or shift.observed_at < shift.stop_began_at
            or not step_s
        ):
            return quiet
        # The step that was under way belongs to training; a failure in the midst of one is no silence.
        is_silent = ended - moved > _SLOW_STEPS * step_s
        return min(quiet, moved + step_s) if is_silent else quiet

    def _train(self, one: NodeShift, until: float) -> None:
        place, number, began = len(self._done), one.shift.key.number, self._now
        part, end_step = self._known.ends[one.shift.key]
        boundary = until if part is None else began + (until - began) * part
        for save in one.shift.saves:
            if save.step == end_step and part is not None and part < 1:
                boundary = one.presence.placed.time(save.at)
        self._add(min(boundary, until), Bucket.PRODUCTIVE, number)
        self._add(until, Bucket.REDONE, number)
        for save in one.shift.saves:
            saved = one.presence.placed.time(save.at)
            blocked_s = save.blocking_s * save.count
            self._overlay(place, saved - blocked_s, saved, Bucket.CHECKPOINT, _TRAINING)

    def _finish(self, presence: Presence) -> None:
        """After the last round of a life."""
        until = presence.ended
        if presence.state is State.ENDED and presence.life.shifts and not _has_left(presence):
            self._add(min(until, self._known.last_stopped), Bucket.WAITING)
        if self._known.is_awaited(self._now, until):
            self._add(until, Bucket.WAITING)
        is_over = presence.state is State.ENDED and bool(presence.life.shifts)
        self._add(until, Bucket.STOPPING if is_over else Bucket.RENDEZVOUS)

    def _overlay(
        self, place: int, began: float, ended: float, bucket: Bucket, over: Iterable[Bucket]
    ) -> None:
        """Between two times, put what is in one of the buckets `over` into `bucket`; from `place` on."""
        found: list[Segment] = []
        for one in self._done[place:]:
            left, right = max(one.began, began), min(one.ended, ended)
            if one.bucket not in over or left >= right:
                found.append(one)
                continue
            cuts = (one.began, left, right, one.ended)
            buckets = (one.bucket, bucket, one.bucket)
            for a, b, kind in zip(cuts, cuts[1:], buckets, strict=False):
                if b > a:
                    found.append(Segment(a, b, kind, one.round_number))
        self._done[place:] = found


def connected(presence: Presence) -> float:
    """When an agent had found the others; of one node alone, when it began."""
    at = presence.life.connected_at
    return presence.began if at is None else presence.placed.time(at)


def _step_s(one: NodeShift) -> float:
    """Mean seconds of a step in the round; 0 if that is not known."""
    shift = one.shift
    if shift.moved_at is None or shift.progressed_at is None or shift.steps is None or shift.steps < 2:
        return 0.0
    return max(0.0, (shift.moved_at - shift.progressed_at) / (shift.steps - 1))


def _has_left(presence: Presence) -> bool:
    """The node was told to leave, or not healthy; the job goes on without it."""
    code = presence.life.exit_code
    return code is not None and (code >= 128 or code == 94)

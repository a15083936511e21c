"""The incidents of a run: each with its cause, its decision, and what became of it. Pure.

Every agent journals the host agent's verdict; here they become one incident again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from ftrun.monitor.history import Incident, Outcome, Presence, Round, State, Work
from ftrun.monitor.lives import Judged


def find_incidents(
    presences: Sequence[Presence], rounds: Sequence[Round], work: Sequence[Work]
) -> tuple[Incident, ...]:
    """All incidents in the order of their rounds, numbered from 1; `work` is of each round."""
    told: dict[int, list[tuple[float, Judged]]] = {}
    for presence in presences:
        for judged in presence.life.judged:
            told.setdefault(judged.round_number, []).append((presence.placed.time(judged.at), judged))
    is_open = any(presence.state is not State.ENDED for presence in presences)
    numbers = [one.number for one in rounds]
    found = []
    for number, round_number in enumerate(sorted(told), start=1):
        place = bisect_right(numbers, round_number)  # of the round after it
        own = (rounds[place - 1], work[place - 1]) if place and numbers[place - 1] == round_number else None
        after = (rounds[place], work[place]) if place < len(rounds) else None
        found.append(_incident(number, told[round_number], own, after, is_open))
    return tuple(found)


_Worked: TypeAlias = "tuple[Round, Work] | None"


def _incident(
    number: int,
    told: Sequence[tuple[float, Judged]],
    own_work: _Worked,
    next_work: _Worked,
    is_open: bool,
) -> Incident:
    told_at, judged = _most_told(told)
    own = None if own_work is None else own_work[0]
    after = None if next_work is None else next_work[0]
    stop_began = None if own is None else own.stop_began
    seen = told_at if stop_began is None else min(stop_began, told_at)
    parts = _Recovery(after, own)
    return Incident(
        number=number,
        round_number=judged.round_number,
        seen=seen,
        kind=judged.kind,
        node=_culprit_node(judged, own),
        culprit_rank=judged.culprit_rank,
        culprit_pid=judged.culprit_pid,
        exit_code=judged.exit_code,
        reasons=judged.reasons,
        fingerprint=judged.fingerprint,
        has_progressed=judged.has_progressed,
        collateral_ranks=judged.collateral_ranks,
        confidence=judged.confidence,
        action=judged.action,
        decision_reason=judged.decision_reason,
        delay_s=judged.delay_s,
        restart_count=judged.restart_count,
        max_restarts=judged.max_restarts,
        outcome=_outcome(judged, after, is_open),
        next_round=None if after is None else after.number,
        detect_s=parts.detect_s,
        stop_s=parts.stop_s,
        start_s=parts.start_s,
        first_step_s=parts.first_step_s,
        recover_s=parts.recover_s(seen),
        steps_lost=_steps_lost(own_work, next_work),
        checkpoint_age_s=parts.checkpoint_age_s,
    )


def _most_told(told: Sequence[tuple[float, Judged]]) -> tuple[float, Judged]:
    """What most agents say; one that left before the verdict came has judged by itself."""
    counts = Counter(judged.fingerprint for _, judged in told)
    return min(told, key=lambda one: (-counts[one[1].fingerprint], not one[1].action, one[0]))


def _culprit_node(judged: Judged, own: Round | None) -> str:
    if own is None:
        return ""
    of_rank = [one.node for one in own.shifts if judged.culprit_rank in one.shift.ranks]
    if of_rank:
        return of_rank[0]
    named = judged.fingerprint.partition("|")[2]  # as diagnosis writes it for a node that was lost
    if named in own.nodes:
        return named
    return own.nodes[0] if len(own.nodes) == 1 else ""


def _outcome(judged: Judged, after: Round | None, is_open: bool) -> Outcome:
    if after is None:
        return Outcome.PENDING if is_open and judged.action != "stop" else Outcome.ENDED
    if after.progressed is not None:
        return Outcome.RECOVERED
    return Outcome.PENDING if after.stop_began is None and is_open else Outcome.FAILED_RESTART


def _steps_lost(own: _Worked, after: _Worked) -> int | None:
    if own is None or after is None or own[1].steps is None or not after[1].is_base_known:
        return None
    return max(0, own[1].base + own[1].steps - after[1].base)


class _Recovery:
    """How long the parts of a recovery took; None for what is not known."""

    def __init__(self, after: Round | None, own: Round | None) -> None:
        accounts = [] if after is None else [one.shift.recovered for one in after.shifts]
        known = [account for account in accounts if account is not None]
        slowest = max(known, key=lambda account: account.total_s, default=None)
        self._total_s = None if slowest is None else slowest.total_s
        self._after = after
        self.stop_s = None if slowest is None else slowest.stop_s
        self.start_s = None if slowest is None else slowest.start_s
        self.first_step_s = None if slowest is None else slowest.first_step_s
        ages = [account.checkpoint_age_s for account in known if account.checkpoint_age_s is not None]
        self.checkpoint_age_s = max(ages, default=None)
        detected = [account.detect_s for account in known if account.detect_s is not None]
        silent = [] if own is None else [s.shift.silent_s for s in own.shifts if s.shift.hung_at is not None]
        self.detect_s = max([*detected, *silent], default=None)

    def recover_s(self, seen: float) -> float | None:
        """To the first step; by the nodes' own accounts if there are any, since each is by one clock."""
        if self._after is None or self._after.progressed is None:
            return None
        return self._total_s if self._total_s is not None else max(0.0, self._after.progressed - seen)

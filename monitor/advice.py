"""What a person should change after what has happened: rules over a run and its ledger. Pure.

Each rule looks at one thing, says what it saw with its numbers, and what to do; none says anything if there
is too little to go by. The order is that of what it costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import mean, median
from typing import TypeAlias

from ftrun.monitor.checkpoint_interval import best_interval_s, cost
from ftrun.monitor.durations import percent, short
from ftrun.monitor.goodput import Bucket, Ledger
from ftrun.monitor.history import Incident, Outcome, Run
from ftrun.monitor.lives import Save
from ftrun.monitor.remedies import remedy_of

_NOTABLE = 0.02
"""Part of all node-seconds from which a bucket is worth a word."""
_WORTH_IT = 0.005
"""Part of the training time that another interval between saves must save at least."""
_KEPT_BACK_S = 7.0
"""Longest that an agent keeps a save back: 5 s since the last that it told of, and 2 s for other ranks."""
_SLOW_STOP_S = 4.0
_SLOW_DETECTION_S = 60.0
_FAST_START_S = 2.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    rule: str
    """Short name of the rule, for programs."""
    text: str
    """For a person: what was seen, and what to do."""


@dataclass(frozen=True, slots=True)
class Saving:
    """How the run saves, as measured."""

    interval_steps: int
    step_s: float
    save_s: float | None
    """Seconds in which training stood still for a save; None if nothing tells."""


def advise(run: Run, ledger: Ledger) -> tuple[Advice, ...]:
    """All that the rules have to say, the most useful first."""
    found = (rule(run, ledger) for rule in _RULES)
    return tuple(one for one in found if one is not None)


def how_it_saves(run: Run, ledger: Ledger) -> Saving | None:
    """None if there were not two saves in a round, or no step."""
    steps = sum(work.steps or 0 for work in run.work)
    active_s = sum(ledger.total[bucket] for bucket in (Bucket.PRODUCTIVE, Bucket.REDONE))
    nodes = max((len(one.shifts) for one in run.rounds), default=0)
    intervals: list[float] = []
    blocking: list[float] = []
    for one in run.rounds:
        saves = max((node.shift.saves for node in one.shifts), key=len, default=())
        steps_between, blocking_s = _measure(saves)
        intervals += steps_between
        blocking += blocking_s
    if not intervals or not steps or not nodes or active_s <= 0:
        return None
    return Saving(
        max(1, round(median(intervals))), active_s / nodes / steps, mean(blocking) if blocking else None
    )


def _measure(saves: Sequence[Save]) -> tuple[list[float], list[float]]:
    """Steps between the saves of a round, and the seconds that those took for which that is known.

    Counts and seconds are of reports, and a script may report several files of one step: at least as many as
    leave no more saves between two that were told of than there can have been.
    """
    known = sorted((save.step, save.at, save.count) for save in saves if save.step is not None)
    pairs = [(b - a, until - since, count) for (a, since, _), (b, until, count) in pairwise(known) if b > a]
    files = max((ceil(count / _most_saves(steps, apart_s)) for steps, apart_s, count in pairs), default=1)
    intervals = [steps / max(1.0, count / files) for steps, _, count in pairs]
    return intervals, [save.blocking_s * files for save in saves if save.blocking_s > 0]


def _most_saves(steps: int, apart_s: float) -> int:
    """How many there were at most from one that was told of to the next, at even distances.

    No more than steps; and the first of them would have been told of, had it come after `_KEPT_BACK_S`.
    """
    if apart_s <= _KEPT_BACK_S:
        return steps
    return min(steps, int(apart_s / (apart_s - _KEPT_BACK_S)))


def _main_cause(run: Run, _: Ledger) -> Advice | None:
    count = len(run.incidents)
    if not count:
        return None
    kind, often = Counter(one.kind for one in run.incidents).most_common(1)[0]
    if count > 1 and often < 2:
        return _costliest(run)
    where = _where([one.node for one in run.incidents if one.kind == kind], run)
    share = f"{often} of {count} incidents" if count > 1 else "the incident"
    return Advice("main_cause", f"{share}: {kind}{where}. {remedy_of(kind, _has_spares(run))}")


def _costliest(run: Run) -> Advice:
    """No two incidents are alike: the one that took longest."""
    worst = max(run.incidents, key=lambda one: (one.detect_s or 0.0) + (one.recover_s or 0.0))
    where = _where([worst.node], run)
    return Advice(
        "costliest",
        f"no two incidents are alike; number {worst.number} took longest: {worst.kind}{where}. "
        f"{remedy_of(worst.kind, _has_spares(run))}",
    )


def _has_spares(run: Run) -> bool:
    return any(one.life.parked for node in run.nodes for one in node.presences)


def _where(nodes: Sequence[str], run: Run) -> str:
    """The node, if it is the same for all and the run has others."""
    return f" on node {nodes[0]}" if len(run.nodes) > 1 and len(set(nodes)) == 1 and nodes[0] else ""


def _bad_node(run: Run, _: Ledger) -> Advice | None:
    nodes = Counter(one.node for one in run.incidents if one.node)
    if len(run.nodes) < 2 or not nodes:
        return None
    node, often = nodes.most_common(1)[0]
    kinds = {one.kind for one in run.incidents if one.node == node}
    if often < 3 or often / len(run.incidents) < 0.6 or len(kinds) < 2:
        return None
    return Advice(
        "bad_node",
        f"{often} of {len(run.incidents)} incidents began on node {node}, in {len(kinds)} different ways: "
        "check that machine, or leave it out.",
    )


def _same_failure(run: Run, _: Ledger) -> Advice | None:
    prints = Counter(one.fingerprint for one in run.incidents if one.fingerprint and one.exit_code > 0)
    if not prints:
        return None
    fingerprint, often = prints.most_common(1)[0]
    if often < 3:
        return None
    example = next(one for one in run.incidents if one.fingerprint == fingerprint)
    first = example.reasons[0] if example.reasons else example.kind
    return Advice(
        "same_failure", f"the same failure came {often} times: {first}. It is the script's or its data's."
    )


def _interval(run: Run, ledger: Ledger) -> Advice | None:
    lost = [one.steps_lost for one in run.incidents if one.steps_lost is not None]
    saving = how_it_saves(run, ledger)
    if saving is None or saving.save_s is None or not lost or saving.step_s <= 0:
        return _redone(run, ledger, lost)
    now_s = saving.interval_steps * saving.step_s
    between_s = run.wall_s / len(run.incidents)
    best_s = best_interval_s(saving.save_s, between_s)
    best_steps = max(1, round(best_s / saving.step_s))
    now = cost(now_s, saving.save_s, between_s)
    best = cost(best_steps * saving.step_s, saving.save_s, between_s)
    gain = sum(now) - sum(best)
    if gain < _WORTH_IT or best_steps == saving.interval_steps:
        return None
    return Advice(
        "checkpoint_interval",
        f"a checkpoint every {saving.interval_steps} steps ({short(now_s)}) loses {round(mean(lost))} steps "
        f"per incident on average and costs {percent(now[0])} in saves; every {best_steps} steps would cost "
        f"{percent(best[0])} and win back about {percent(gain)} of the time (Young/Daly: a save takes "
        f"{short(saving.save_s)}, a failure comes every {short(between_s)}).",
    )


def _redone(run: Run, ledger: Ledger, lost: Sequence[int]) -> Advice | None:
    if not lost or ledger.asked_s <= 0 or ledger.total[Bucket.REDONE] / ledger.asked_s < _NOTABLE:
        return None
    redone = ledger.total[Bucket.REDONE] / ledger.asked_s
    if not any(one.resume_from for one in run.rounds):
        return Advice(
            "no_checkpoint",
            f"every restart began from nothing: {sum(lost)} steps were done again, {percent(redone)} of the "
            "time. Save checkpoints, and name their directory with --ft-checkpoint-dir.",
        )
    return Advice(
        "save_more_often",
        f"{percent(redone)} of the time went into {sum(lost)} steps done again, {round(mean(lost))} per "
        "incident: save more often. (What a save costs is not in the journals, so which interval is best "
        "cannot be told.)",
    )


def _cold_starts(run: Run, ledger: Ledger) -> Advice | None:
    restarts = [one for one in run.rounds if one.number > 0 and one.shifts]
    cold = [one for one in restarts if any(node.shift.cold_reason for node in one.shifts)]
    spent_s = [
        (one.first_step_s or 0.0) + (one.start_s or 0.0)
        for one in run.incidents
        if one.next_round in {later.number for later in cold}
    ]
    if not cold or len(cold) * 2 < len(restarts) or max(spent_s, default=0.0) < _FAST_START_S:
        return None
    reasons = Counter(node.shift.cold_reason for one in cold for node in one.shifts if node.shift.cold_reason)
    return Advice(
        "cold_starts",
        f"{len(cold)} of {len(restarts)} restarts started workers cold, with all imports still to do: "
        f"{reasons.most_common(1)[0][0]}.",
    )


def _slow_detection(run: Run, _: Ledger) -> Advice | None:
    slow = [one.detect_s for one in run.incidents if one.detect_s is not None and _is_hang(one)]
    if not slow or median(slow) < _SLOW_DETECTION_S:
        return None
    return Advice(
        "slow_detection",
        f"hangs were seen after {short(median(slow))}. `ftctl timeouts` has limits that this job's own times "
        "allow.",
    )


def _is_hang(incident: Incident) -> bool:
    return incident.kind.startswith("hang_") or incident.kind == "stall"


def _slow_stop(run: Run, _: Ledger) -> Advice | None:
    stops = [one.stop_s for one in run.incidents if one.stop_s is not None]
    if not stops or median(stops) < _SLOW_STOP_S:
        return None
    return Advice(
        "slow_stop",
        f"after a failure it took {short(median(stops))} to end the other workers: they ran until the grace "
        "was over. Let the script end on SIGTERM, or shorten --ft-workers-stop-timeout.",
    )


def _waiting(run: Run, ledger: Ledger) -> Advice | None:
    waited_s = ledger.total[Bucket.WAITING]
    if not run.incidents or ledger.asked_s <= 0 or waited_s / ledger.asked_s < 0.05:
        return None
    return Advice(
        "waiting",
        f"{percent(waited_s / ledger.asked_s)} of the time was spent waiting for nodes. A spare "
        "(ftrun.world.spares) or a smaller minimum (--nnodes MIN:MAX) lets the job go on without one.",
    )


def _budget(run: Run, _: Ledger) -> Advice | None:
    if run.max_restarts is None or not run.incidents:
        return None
    last = run.incidents[-1]
    if last.outcome is Outcome.ENDED and last.restart_count >= run.max_restarts > 0:
        return Advice("budget", f"all {run.max_restarts} restarts are used up (--max-restarts).")
    left = run.max_restarts - last.restart_count
    if run.exit_code is None and run.max_restarts > 1 and left <= 1:
        which = "no restart is" if left <= 0 else "one restart is"
        return Advice("budget", f"{which} left of {run.max_restarts} (--max-restarts).")
    return None


_Rule: TypeAlias = Callable[[Run, Ledger], "Advice | None"]
_RULES: Sequence[_Rule] = (
    _main_cause, _bad_node, _same_failure, _budget, _interval, _cold_starts, _slow_detection, _slow_stop,
    _waiting,
)  # fmt: skip

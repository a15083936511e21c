"""From the evidence of all nodes to one incident: what failed first, and what only fell with it. Pure.

What a single exit was is `ftrun.monitor.failures`'; what to do about the incident is decided elsewhere. Times
are never compared between nodes, since each has its own clock: causes are told from their echoes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.monitor import hardware
from ftrun.monitor.durations import plural
from ftrun.monitor.failures import (
    ECHO_WINDOW_S,
    Suspect,
    crashed_in_stop,
    fingerprint,
    root_of,
    without_noise,
)
from ftrun.monitor.incident import (
    Ailment,
    ErrorRecord,
    Evidence,
    FaultReport,
    Host,
    Incident,
    IncidentKind,
    RankExit,
)
from ftrun.monitor.liveness import Rule, Verdict
from ftrun.monitor.rank_lists import list_ranks, name_ranks
from ftrun.monitor.signature import CONFIDENCE

__all__ = ["CONFIDENCE", "ECHO_WINDOW_S", "LostNode", "asked_to_stop", "diagnose"]

_UNKNOWN_RANK = -1
_FAILED = 1
"""Exit code of a rank that stands for its node: of any failure, as a script that raises has it."""

_HANG_KINDS = {
    Rule.INITIAL: IncidentKind.HANG_INITIAL,
    Rule.STEADY: IncidentKind.HANG_STEADY,
    Rule.SECTION: IncidentKind.HANG_SECTION,
    Rule.OUT_OF_SECTION: IncidentKind.HANG_SECTION,
    Rule.STALL: IncidentKind.STALL,
}


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node of the round that did not come back from it as it was."""

    node: str
    first_rank: int
    slots: int
    """Ranks that it had."""
    reason: str
    """How that is known, e.g. "no keep-alive for 5.2 s" or "its agent was started again"."""
    is_left: bool
    """It said so itself: it was told to leave."""


@dataclass(frozen=True, slots=True)
class _Cause:
    """What may have ended the round."""

    kind: IncidentKind
    node: str
    culprit: RankExit
    reasons: tuple[str, ...]
    fingerprint: str
    confidence: float
    is_echo: bool = False
    """It may be what another node's end looks like from here."""

    @property
    def is_hang(self) -> bool:
        return self.kind in _HANG_KINDS.values()


@dataclass(frozen=True, slots=True)
class _Round:
    """All that is known of the end of a round."""

    evidences: Sequence[Evidence]
    lost: Sequence[LostNode]
    first_node: str

    @property
    def has_several_nodes(self) -> bool:
        names = {evidence.node for evidence in self.evidences} | {lost.node for lost in self.lost}
        return len(names) > 1

    @property
    def number(self) -> int:
        return max((evidence.round_number for evidence in self.evidences), default=-1)


def diagnose(
    evidences: Sequence[Evidence],
    lost: Sequence[LostNode] = (),
    first_node: str = "",
    stop_reason: str = "",
) -> Incident:
    """The incident behind a failed round; `evidences` holds one entry per node, in the order of their ranks.

    `first_node` is the node that ordered the stop because of a failure of its own, or that was lost; "" if
    that is not known. `stop_reason` is why the round was stopped, for an end in which nothing failed.

    On each node the root cause is the failure that happened first. A communication error is the echo of
    another rank's failure when there is one before it or within `ECHO_WINDOW_S` after it. Of all nodes, the
    first of these that there is:

    1. what failed on `first_node` and is no echo, where a fault that the script has reported comes before how
       its ranks ended; then, unless a node is lost, which causes much, a GPU whose
       health check failed, anywhere, and silence of the ranks of `first_node`;
    2. a lost node;
    3. a GPU whose health check failed; ranks that hang; the start of workers, or a rank, that failed and is
       no echo;
    4. no way from a node to the store by which the workers find each other;
    5. a rank that crashed while it was being stopped, if there are echoes to explain;
    6. an echo, as a communication error of its own;
    7. nothing that is known, with `stop_reason`.

    Among equals `first_node` comes first, then the order given.

    Raises:
        ValueError: Nothing failed, every exit is 0 or the agent's own doing, and no `stop_reason` is given.
    """
    round_ = _Round(evidences, lost, first_node)
    cause = _find_cause(round_)
    if cause is None and stop_reason:
        cause = _without_rank(round_, IncidentKind.UNKNOWN, stop_reason, CONFIDENCE["unknown"])
    if cause is None:
        raise ValueError("no rank failed by itself: every exit is 0 or was caused by the agent")
    return _incident(round_, cause)


def asked_to_stop(evidences: Sequence[Evidence], reason: str, first_node: str = "") -> Incident:
    """The incident behind a round that was ended, and the job with it, because its script asked for that.

    However its ranks then ended, they only did as they were told.
    """
    round_ = _Round(evidences, (), first_node)
    return _incident(round_, _without_rank(round_, IncidentKind.USER_STOP, reason, CONFIDENCE["found"]))


def _incident(round_: _Round, cause: _Cause) -> Incident:
    collateral, hosts = _fallen(round_, cause)
    evidences = round_.evidences
    return Incident(
        kind=cause.kind,
        round_number=round_.number,
        node=cause.node,
        culprit=cause.culprit,
        reasons=(*cause.reasons, *_reasons_around(round_, cause, collateral)),
        fingerprint=cause.fingerprint,
        has_progressed=any(evidence.has_progressed for evidence in evidences),
        collateral=collateral,
        confidence=cause.confidence,
        wall_offset_s=next((one.wall_offset_s for one in evidences if one.node == cause.node), 0.0),
        hosts=hosts,
        left_out=sum(evidence.left_out for evidence in evidences),
    )


def _find_cause(round_: _Round) -> _Cause | None:
    evidences = sorted(round_.evidences, key=lambda one: one.node != round_.first_node)
    lost = sorted(round_.lost, key=lambda one: one.node != round_.first_node)
    hung = [(one, one.hang) for one in evidences if one.hang is not None]
    hangs = [_hang(round_, *pair) for pair in sorted(hung, key=lambda pair: not pair[1].culprits)]
    # What ranks did when they were ended for a hang says nothing.
    failures = [_own_failure(round_, one) for one in evidences if one.hang is None]
    own = [cause for cause in failures if cause is not None and not cause.is_echo]
    echoes = [cause for cause in failures if cause is not None and cause.is_echo]
    sick = [_sick(round_, one, fault) for one in evidences for fault in hardware.find_faults(one)]
    is_nobody_lost = all(one.is_left for one in lost)
    is_explained = any(one.node == round_.first_node for one, _ in hung) and is_nobody_lost
    ranked: tuple[Sequence[_Cause], ...] = (
        [cause for cause in own if cause.node == round_.first_node],
        sick if is_nobody_lost else (),
        hangs if is_explained else (),
        [_lost(one) for one in lost],
        sick,
        hangs,
        own,
        [cause for cause in echoes if cause.kind is IncidentKind.UNREACHABLE],
        _crashes(round_, evidences) if echoes else (),
        echoes,
    )
    return next((cause for causes in ranked for cause in causes), None)


def _own_failure(round_: _Round, evidence: Evidence) -> _Cause | None:
    if evidence.report is not None:
        return _reported(round_, evidence, evidence.report)
    if evidence.start_failure:
        return _failed_start(round_, evidence)
    root = root_of(evidence)
    failed = None if root is None else _failed_rank(round_, root)
    if evidence.unreachable and (failed is None or failed.is_echo):
        return _no_way(evidence)
    return failed


def _crashes(round_: _Round, evidences: Sequence[Evidence]) -> list[_Cause]:
    crashes = (crashed_in_stop(evidence) for evidence in evidences)
    return [_failed_rank(round_, crash) for crash in crashes if crash is not None]


def _failed_rank(round_: _Round, root: Suspect) -> _Cause:
    exit, finding, node = root.exit, root.finding, root.evidence.node
    where = f" on node {node}" if round_.has_several_nodes else ""
    reasons = [f"rank {exit.rank}{where} (pid {exit.pid}) {finding.what}"]
    if finding.hint:
        reasons.append(finding.hint)
    fault = hardware.explain(finding.kind, exit, root.evidence)
    if fault is not None:
        reasons.insert(0, _gpu_of(round_, node, exit, fault.ailment))
    reasons += hardware.hints_of(exit, root.evidence, None if fault is None else fault.ailment)
    reasons.append(_steps(exit, root.evidence))
    if fault is not None:
        return _of_fault(fault, node, exit, reasons, CONFIDENCE["confirmed"])
    same = fingerprint(finding.kind, exit)
    return _Cause(finding.kind, node, exit, tuple(reasons), same, finding.confidence, finding.is_echo)


def _sick(round_: _Round, evidence: Evidence, fault: hardware.Fault) -> _Cause:
    """A failed check as the cause, where no rank has failed by itself that would tell more."""
    exit, node = fault.exit, evidence.node
    if exit is None:
        what = hardware.describe(fault.ailment)
        where = f"node {node}" if round_.has_several_nodes else "this node"
        stand_in = _stand_in(_first_rank(evidence), what)
        reasons = [f"{where} is not healthy: {what}"]
        return _of_fault(fault, node, stand_in, reasons, CONFIDENCE["found"])
    reasons = [_gpu_of(round_, node, exit, fault.ailment)]
    if evidence.unhealthy:
        reasons.append("no rank had failed by itself yet: the health check ended the round")
    reasons += [*hardware.hints_of(exit, evidence, fault.ailment), _steps(exit, evidence)]
    return _of_fault(fault, node, exit, reasons, CONFIDENCE["found"])


def _of_fault(
    fault: hardware.Fault, node: str, exit: RankExit, reasons: Sequence[str], sure: float
) -> _Cause:
    # The same fault of another GPU is another failure.
    same = f"{fault.kind.value}|{node}|{fault.ailment.subject}"
    return _Cause(fault.kind, node, exit, tuple(reasons), same, sure)


def _gpu_of(round_: _Round, node: str, exit: RankExit, ailment: Ailment) -> str:
    where = f" on node {node}" if round_.has_several_nodes else ""
    return f"the GPU of rank {exit.rank}{where} (pid {exit.pid}) failed: {hardware.describe(ailment)}"


def _steps(exit: RankExit, evidence: Evidence) -> str:
    steps = f"done {plural(exit.steps, 'step')}" if exit.steps else "not done a step"
    return f"it had {steps} in round {evidence.round_number}"


def _hang(round_: _Round, evidence: Evidence, hang: Verdict) -> _Cause:
    """A hang is known before anything fails."""
    blamed = [*hang.culprits, *([] if hang.rank is None else [hang.rank])]
    exits = sorted(
        evidence.exits, key=lambda exit: blamed.index(exit.rank) if exit.rank in blamed else len(blamed)
    )
    kind = _HANG_KINDS[hang.rule]
    return _Cause(
        kind,
        evidence.node,
        exits[0] if exits else _stand_in(blamed[0] if blamed else _UNKNOWN_RANK),
        (hang.sentence, f"seen on node {evidence.node}") if round_.has_several_nodes else (hang.sentence,),
        f"{kind.value}|{','.join(map(str, hang.culprits))}",
        CONFIDENCE["named" if hang.culprits else "silent"],
    )


def _reported(round_: _Round, evidence: Evidence, report: FaultReport) -> _Cause:
    """What the script itself has found comes before how its ranks then ended."""
    kind = report.kind
    exit = next((one for one in evidence.exits if one.rank == report.rank), None)
    who = "a worker" if report.rank is None else f"rank {report.rank}"
    where = f" on node {evidence.node}" if round_.has_several_nodes else ""
    reasons = [f"{who}{where} reported {kind.value}: {report.reason}"]
    if exit is not None:
        reasons.append(_steps(exit, evidence))
    return _Cause(
        kind,
        evidence.node,
        exit or _stand_in(_first_rank(evidence), report.reason),
        tuple(reasons),
        f"{kind.value}|{without_noise(report.reason)}",
        CONFIDENCE["found"],
    )


def _failed_start(round_: _Round, evidence: Evidence) -> _Cause:
    kind, reason = IncidentKind.START_FAILED, evidence.start_failure
    where = f" on node {evidence.node}" if round_.has_several_nodes else ""
    return _Cause(
        kind,
        evidence.node,
        _stand_in(_first_rank(evidence), reason),
        (f"the workers could not be started{where}: {reason}",),
        f"{kind.value}|{without_noise(reason)}",
        CONFIDENCE["found"],
    )


def _no_way(evidence: Evidence) -> _Cause:
    kind, reason = IncidentKind.UNREACHABLE, evidence.unreachable
    culprit = _stand_in(_first_rank(evidence), reason)
    same = f"{kind.value}|{without_noise(reason)}"
    return _Cause(kind, evidence.node, culprit, (reason,), same, CONFIDENCE["found"], is_echo=True)


def _lost(lost: LostNode) -> _Cause:
    kind = IncidentKind.PREEMPTED if lost.is_left else IncidentKind.NODE_LOST
    ranks = name_ranks(range(lost.first_rank, lost.first_rank + lost.slots))
    reasons = (_loss(lost), f"it had {ranks}")
    same, sure = f"{kind.value}|{lost.node}", CONFIDENCE["found"]
    return _Cause(kind, lost.node, _stand_in(lost.first_rank), reasons, same, sure)


def _loss(lost: LostNode) -> str:
    return f"node {lost.node} {'left the job' if lost.is_left else 'was lost'}: {lost.reason}"


def _without_rank(round_: _Round, kind: IncidentKind, stop_reason: str, sure: float) -> _Cause:
    """No rank is to blame: the first of the node that stopped the round stands for it."""
    ordered = sorted(round_.evidences, key=lambda one: one.node != round_.first_node)
    rank = _first_rank(ordered[0]) if ordered else _UNKNOWN_RANK
    node = ordered[0].node if ordered else round_.first_node
    return _Cause(
        kind, node, _stand_in(rank), (stop_reason,), f"{kind.value}|{without_noise(stop_reason)}", sure
    )


def _first_rank(evidence: Evidence) -> int:
    return min((exit.rank for exit in evidence.exits), default=_UNKNOWN_RANK)


def _stand_in(rank: int, text: str = "") -> RankExit:
    """The culprit of an incident that is a whole node's: no process, and the exit code of any failure."""
    error = ErrorRecord("", text, "") if text else None
    return RankExit(rank, 0, 0, _FAILED, 0.0, is_stopped_by_agent=False, error=error)


def _fallen(round_: _Round, cause: _Cause) -> tuple[tuple[RankExit, ...], tuple[Host, ...]]:
    """The other ranks that failed or were stopped, and where those of other nodes that failed ran."""
    collateral: list[RankExit] = []
    hosts = []
    for evidence in round_.evidences:
        others = [exit for exit in evidence.exits if exit is not cause.culprit]
        fallen = [exit for exit in others if exit.exit_code != 0 or exit.is_stopped_by_agent or cause.is_hang]
        collateral += fallen
        failed = tuple(exit.rank for exit in fallen if exit.has_failed)
        if failed and evidence.node != cause.node:
            hosts.append(Host(evidence.node, failed, evidence.wall_offset_s))
    return tuple(collateral), tuple(hosts)


def _reasons_around(round_: _Round, cause: _Cause, collateral: Sequence[RankExit]) -> tuple[str, ...]:
    reasons = [f"also, {_loss(lost)}" for lost in round_.lost if lost.node != cause.node]
    if cause.is_echo:
        exits = (exit for evidence in round_.evidences for exit in evidence.exits)
        early = [exit.rank for exit in exits if exit.exit_code == 0 and not exit.is_stopped_by_agent]
        if early:
            who = name_ranks(early)
            reasons.append(f"{who} had ended well before the others were done, who may have waited for it")
    # Those of a job that its script ended did as they were told, the one that asked for it among them.
    if collateral and not cause.is_hang and cause.kind is not IncidentKind.USER_STOP:
        ranks = list_ranks(exit.rank for exit in collateral)
        others = "rank" if cause.kind is IncidentKind.UNKNOWN else "other rank"
        reasons.append(f"{plural(len(collateral), others)} fell with it: {ranks}")
    return tuple(reasons)

"""Failed health checks as causes of failures: which of them explain one, and what kind it then is. Pure.

The rules for the process that failed are `ftrun.monitor.failures`'. A check says what is, not what has ended
a process: it explains only an end at about the time when it was found, on the GPU of the rank in question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun.healthchecks.xid import XidEffect, classify
from ftrun.monitor import failure_texts
from ftrun.monitor.incident import Ailment, ErrorRecord, Evidence, IncidentKind, RankExit

RECENT_S = 60.0
"""How long before the end of a round a check may have been found failed and still explain that end: twice
the interval of checks while training runs (`ftrun.health.interval`)."""

_KINDS: Mapping[str, IncidentKind] = {
    **dict.fromkeys(("gpu.lost", "gpu.count", "gpu.reset", "gpu.recovery"), IncidentKind.GPU_LOST),
    **dict.fromkeys(
        ("gpu.ecc", "gpu.sram", "gpu.row_remap", "gpu.retired_pages", "gpu.repair"), IncidentKind.ECC_ERROR
    ),
}
_OFF_THE_BUS = 79
_ECC_XIDS = frozenset({48, 64, 94, 95, 140, 171, 172})
"""Uncorrectable errors, contained or not, and repairs that failed (`ftrun.healthchecks.xid`)."""
_GRAVE_EFFECTS = frozenset({XidEffect.RESTART, XidEffect.GPU, XidEffect.NODE, XidEffect.LINK})
_XID = re.compile(r"\bXid (\d+)\b")
_ORDER = (IncidentKind.GPU_LOST, IncidentKind.ECC_ERROR, IncidentKind.XID, IncidentKind.NODE_UNHEALTHY)

_UNCLEAR = frozenset(
    {
        IncidentKind.GPU_LOST,
        IncidentKind.ECC_ERROR,
        IncidentKind.CUDA_ERROR,
        IncidentKind.NCCL_TIMEOUT,
        IncidentKind.NCCL_ERROR,
        IncidentKind.GLOO_PEER_LOST,
        IncidentKind.COMMUNICATION_ERROR,
        IncidentKind.SEGFAULT,
        IncidentKind.ABORT,
        IncidentKind.BUS_ERROR,
        IncidentKind.SIGNAL,
        IncidentKind.EXIT_CODE,
        IncidentKind.HANG_INITIAL,
        IncidentKind.HANG_STEADY,
        IncidentKind.HANG_SECTION,
        IncidentKind.STALL,
    }
)
"""Ends that tell little of their cause, or that speak of the GPU: one that failed is a better explanation. An
import error, a process killed from outside or for want of memory has its own; an exception only if it speaks
of the device."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed check as the cause of a round's end."""

    kind: IncidentKind
    ailment: Ailment
    exit: RankExit | None
    """The rank whose GPU it is; None if it is the whole node's."""


def find_faults(evidence: Evidence) -> tuple[Fault, ...]:
    """Fatal ones that came up about when the round ended, the gravest first (one per check and subject).

    Of checks that say nothing about a GPU, such as those of network cards, only the ones for which the agent
    stopped the round: they may come with whatever else has happened to a node.
    """
    found = []
    for ailment in evidence.health:
        kind = _kind_of(ailment)
        if not ailment.is_fatal or not _is_recent(ailment, evidence):
            continue
        exit = _rank_of(ailment, evidence)
        if exit is None and (kind is not None or evidence.unhealthy):
            kind = IncidentKind.NODE_UNHEALTHY
        if kind is not None:
            found.append(Fault(kind, ailment, exit))
    return tuple(sorted(found, key=lambda fault: _ORDER.index(fault.kind)))


def explain(kind: IncidentKind, exit: RankExit, evidence: Evidence) -> Fault | None:
    """What a rank's GPU had to do with its end, which by itself was of that kind; None if nothing."""
    # Memory that ran out is its own explanation, though it speaks of the device.
    may_be_device_s = kind.is_of_exception and kind is not IncidentKind.CUDA_OOM
    is_unclear = kind in _UNCLEAR or (may_be_device_s and _is_of_device(exit.error))
    faults = [
        Fault(found, ailment, exit)
        for ailment in evidence.health
        if exit.local_rank in ailment.local_ranks
        and _is_recent(ailment, evidence)
        and (found := _kind_of(ailment)) is not None
        and (is_unclear or (ailment.is_fatal and kind.is_of_exception))
    ]
    return min(faults, key=lambda fault: _ORDER.index(fault.kind), default=None)


def hints_of(exit: RankExit, evidence: Evidence, without: Ailment | None = None) -> tuple[str, ...]:
    """What else was found about the rank's GPU at the time, also errors of the application's own."""
    return tuple(
        f"its GPU: {describe(ailment)}"
        for ailment in evidence.health
        if exit.local_rank in ailment.local_ranks and _is_recent(ailment, evidence) and ailment != without
    )


def describe(ailment: Ailment) -> str:
    """Whom, what, and by which check it is known."""
    return f"{ailment.subject}: {ailment.observed} ({ailment.check})"


def _kind_of(ailment: Ailment) -> IncidentKind | None:
    """The kind of incident that it makes; None if it makes none by itself."""
    if ailment.check != "gpu.xid":
        return _KINDS.get(ailment.check)
    return _kind_of_xids([int(number) for number in _XID.findall(ailment.observed)])


def _kind_of_xids(numbers: Sequence[int]) -> IncidentKind | None:
    if _OFF_THE_BUS in numbers:
        return IncidentKind.GPU_LOST
    if _ECC_XIDS.intersection(numbers):
        return IncidentKind.ECC_ERROR
    kinds = [classify(number) for number in numbers]
    is_grave = any(one.effect in _GRAVE_EFFECTS and not one.blames_application for one in kinds)
    return IncidentKind.XID if is_grave else None


def _is_recent(ailment: Ailment, evidence: Evidence) -> bool:
    silent_s = evidence.hang.silent_s if evidence.hang is not None else 0.0
    return ailment.age_s <= RECENT_S + silent_s


def _rank_of(ailment: Ailment, evidence: Evidence) -> RankExit | None:
    """Of several ranks on that GPU, one that failed by itself first."""
    exits = [exit for exit in evidence.exits if exit.local_rank in ailment.local_ranks]
    return min(exits, key=lambda exit: (not exit.has_failed, exit.failed_at, exit.rank), default=None)


def _is_of_device(error: ErrorRecord | None) -> bool:
    if error is None:
        return False
    return failure_texts.DEVICE_ERROR.search(f"{error.type_name}: {error.message}") is not None

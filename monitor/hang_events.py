"""Events about heartbeats, hangs and workers' wishes; part of the vocabulary in `ftrun.monitor.events`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.event import Event, Rank, Reason, Round


@dataclass(frozen=True, slots=True)
class HangDetected(Event):
    """Workers run and do not move; written before anything is ended for it."""

    kind: ClassVar[str] = "hang.detected"
    round: Round
    rule: Annotated[str, "Which limit passed: initial, steady, section, out_of_section or stall."]
    rank: Annotated[int | None, "Rank whose limit passed; null when it is the whole job's."]
    culprit_ranks: Annotated[tuple[int, ...], "Ranks that the others probably wait for; empty if unknown."]
    silent_s: Annotated[float, "Seconds without a sign."]
    limit_s: Annotated[float, "Seconds that were allowed."]
    limit_origin: Annotated[str, "The key that set the limit, or how it was learned."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class StacksSaved(Event):
    """The stacks of all threads of the node's workers were asked for, before the workers were ended."""

    kind: ClassVar[str] = "stacks.saved"
    round: Round
    ranks: Annotated[tuple[int, ...], "Ranks whose stacks are on disk."]
    missing_ranks: Annotated[tuple[int, ...], "Ranks that did not answer: not Python, or not started yet."]
    flight_recorder_ranks: Annotated[tuple[int, ...], "Ranks whose NCCL flight recorder was told to dump."]
    files: Annotated[tuple[str, ...], "The files, in the order of `ranks`."]


@dataclass(frozen=True, slots=True)
class GraceEnded(Event):
    """A worker was ended before its grace was over, because it could not act on being asked."""

    kind: ClassVar[str] = "grace.ended"
    round: Round
    rank: Rank
    after_s: Annotated[float, "Seconds since it was asked to end."]


@dataclass(frozen=True, slots=True)
class RequestReceived(Event):
    """A worker asked for something about the job (workload control of nvidia-resiliency-ext)."""

    kind: ClassVar[str] = "request.received"
    round: Round
    rank: Annotated[int | None, "Rank that asked; null if it does not say."]
    action: Annotated[str, "Continue, ExcludeThisNode, ShutdownWorkload or ReportFault."]
    description: Annotated[str, "Its reason, in its own words."]


@dataclass(frozen=True, slots=True)
class TimeoutsCalculated(Event):
    """The script's client has set new timeouts from what it observed; they hold in later rounds too."""

    kind: ClassVar[str] = "timeouts.calculated"
    round: Round
    rank: Rank
    initial_s: Annotated[float | None, "Longest wait for the first heartbeat; null is off."]
    steady_s: Annotated[float | None, "Longest gap between heartbeats; null is off."]
    out_of_section_s: Annotated[float | None, "Longest stay outside all sections; null is off."]
    section_names: Annotated[tuple[str, ...], "Sections that have a timeout."]
    section_limits_s: Annotated[tuple[float, ...], "Their timeouts, in the order of `section_names`."]


@dataclass(frozen=True, slots=True)
class TimeoutsObserved(Event):
    """The longest that each phase has taken on this node so far, over all rounds; at the end of a round."""

    kind: ClassVar[str] = "timeouts.observed"
    round: Round
    initialisation_s: Annotated[float | None, "Worker start to first progress; null if not seen."]
    step_gap_s: Annotated[float | None, "Between two signs of progress of a rank; null if not seen."]
    out_of_section_s: Annotated[float | None, "Outside all sections; null if not seen."]
    quiet_s: Annotated[float | None, "No sign from any rank, and then progress; null if not seen."]
    section_names: Annotated[tuple[str, ...], "Sections that were seen."]
    section_longest_s: Annotated[tuple[float, ...], "Longest stay in each, in the order of `section_names`."]


@dataclass(frozen=True, slots=True)
class HeartbeatsDegraded(Event):
    """Clients of nvidia-resiliency-ext cannot be served; the job goes on without their timeouts."""

    kind: ClassVar[str] = "heartbeats.degraded"
    reason: Reason

"""Whose doing failures are: nodes and GPUs that are named again and again, and what follows for them. Pure.

A restart cures a fault of the moment, and what is broken comes again in the same place. One place that is
named `exclude_after` times within `exclude_window` is taken out, if the job can do without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ftrun.launcher.model import Case, PastIncident
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor.diagnosis import CONFIDENCE
from ftrun.monitor.incident import Incident

_SURE = CONFIDENCE["named"]
"""Surer than a hang that nobody can be named for: below, the node only stands for the job."""

NOT_OF_A_PLACE = frozenset(
    {
        "exception",
        "import_or_syntax_error",
        "exit_code",
        "cuda_oom",
        "checkpoint_load",
        "checkpoint_save",
        "data_loader",
        "nan_loss",
        "user_stop",
        "preempted",
        "unreachable",
        "unknown",
    }
)
"""Kinds of incident that are the script's or its data's doing, a scheduler's wish, or between two nodes, by
their values in `IncidentKind`: on another node they would come again."""


OF_A_GPU = frozenset(
    {
        "gpu_lost",
        "ecc_error",
        "xid",
        "cuda_error",
        "nccl_error",
        "nccl_timeout",
        "hang_initial",
        "hang_steady",
        "hang_section",
        "abort",
    }
)
"""Of the others, those that may be the doing of the rank's GPU; NCCL's watchdog ends processes by SIGABRT."""


def gpu_of(incident: Incident) -> str:
    """UUID of the GPU that may have done it; "" if none has, or it is unknown."""
    return incident.culprit.gpu if incident.kind.value in OF_A_GPU else ""


def is_blamed(incident: Incident) -> bool:
    """Whether the culprit's node, or its GPU, is to blame as far as can be told."""
    return incident.kind.value not in NOT_OF_A_PLACE and incident.confidence >= _SURE


@dataclass(frozen=True, slots=True)
class Blame:
    """What follows from whom a failure and those before it are the doing of."""

    node: str = ""
    """To be taken out of the job."""
    gpu: str = ""
    """To be taken out of the job, alone."""
    note: str = ""
    """How often it was named and what comes of it, for people; "" if there is nothing to say."""


def hold_responsible(case: Case, config: RestartConfig) -> Blame:
    """Who is taken out after this failure, if anybody: rather a GPU alone than its node."""
    now, leeway = case.now, case.leeway
    if not config.exclude_after or not now.is_blamed:
        return Blame()
    of_node = [
        one
        for one in _recent(case, config.exclude_window)
        if one.is_blamed and one.node == now.node and one.gpu not in case.excluded_gpus
    ]
    of_gpu = [one for one in of_node if one.gpu and one.gpu == now.gpu]
    most = config.exclude_after
    if len(of_gpu) >= most and not leeway.gpu:
        count = f"{ordinal(len(of_gpu))} time on {now.gpu} of node {now.node}"
        return Blame(gpu=now.gpu, note=f"{count}, which is left out from now on")
    if leeway.is_alone:
        return Blame()
    count = f"{ordinal(len(of_node))} time on node {now.node}"
    if len(of_node) < most:
        return Blame(note=f"{count}, which is excluded at {most}" if len(of_node) > 1 else "")
    if leeway.node:
        return Blame(note=f"{count}, which stays, since {leeway.node}")
    return Blame(node=now.node, note=f"{count}, which is excluded from now on")


def _recent(case: Case, window_s: float) -> Iterator[PastIncident]:
    """This failure and those before it within the window, newest first."""
    yield case.now
    age_s = case.now.after_s
    for past in reversed(case.history):
        if age_s > window_s:
            return
        yield past
        age_s += past.after_s


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

"""What the ranks of a node show at one moment, for those who look at a run while it goes on. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ftrun.monitor.page import PageSnapshot


@dataclass(frozen=True, slots=True)
class RankLevel:
    """A rank of the round that runs. Times are CLOCK_MONOTONIC seconds of the node."""

    rank: Annotated[int, "Global rank."]
    local_rank: Annotated[int, "Rank on its node."]
    pid: Annotated[int, "Process id on its node."]
    is_running: Annotated[bool, "Its process has not ended."]
    steps: Annotated[int, "Optimizer steps or heartbeats in this round."]
    step: Annotated[int | None, "Step number as the script reports it; null if it reports none."]
    started_at: Annotated[float | None, "When it ran the script; null before that."]
    first_progress_at: Annotated[float | None, "Its first progress of the round; null before it."]
    last_progress_at: Annotated[float | None, "Its last progress; null before the first."]
    checkpoint_at: Annotated[float | None, "When it last reported a checkpoint; null if it has not."]
    checkpoint_step: Annotated[int | None, "Step of that checkpoint; null if unknown."]
    checkpoint_path: Annotated[str, "Where that is; empty if unknown."]
    section: Annotated[str, "Innermost section that the script is in; empty if it is in none."]


@dataclass(frozen=True, slots=True)
class Levels:
    """The ranks of a node."""

    at: Annotated[float, "When they were looked at: CLOCK_MONOTONIC of the node, seconds."]
    ranks: Annotated[tuple[RankLevel, ...], "Of the round that runs, by local rank; none between rounds."]


NO_LEVELS = Levels(0.0, ())


def rank_level(rank: int, local_rank: int, pid: int, is_running: bool, page: PageSnapshot) -> RankLevel:
    """What a rank shows."""
    return RankLevel(
        rank=rank,
        local_rank=local_rank,
        pid=pid,
        is_running=is_running,
        steps=page.steps,
        step=page.reported_step,
        started_at=page.main_started_at,
        first_progress_at=page.first_progress_at,
        last_progress_at=page.last_progress_at,
        checkpoint_at=page.checkpoint_at,
        checkpoint_step=page.checkpoint_step,
        checkpoint_path=page.checkpoint_path or "",
        section=page.sections[-1].name if page.sections else "",
    )

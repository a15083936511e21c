"""How a node and its ranks are at one moment, as data: what `/status` and `ftctl watch` show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ftrun.monitor.levels import Levels, RankLevel
from ftrun.monitor.present import Present, SavedNow, WorkerNow
from ftrun.monitor.signal_names import signal_name

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class RankStatus:
    """A rank of the round that runs, or ran last."""

    rank: Annotated[int, "Global rank."]
    local_rank: Annotated[int, "Rank on its node."]
    pid: Annotated[int, "Process id on its node."]
    state: Annotated[str, "starting (no progress yet), training, or how it ended: exit 1, SIGKILL."]
    step: Annotated[int | None, "Steps of the job that it has come to; null if unknown."]
    steps: Annotated[int | None, "Steps in this round; null if its page cannot be read."]
    steps_per_s: Annotated[float | None, "Recent rate, or the round's mean; null if unknown."]
    progress_age_s: Annotated[float | None, "Seconds since its last progress; null before the first."]
    section: Annotated[str, "Innermost section that the script is in; empty if it is in none."]


@dataclass(frozen=True, slots=True)
class AilmentStatus:
    """A health check whose finding is not healthy."""

    check: Annotated[str, "Name of the check, such as gpu.ecc."]
    subject: Annotated[str, "A GPU, a network card, a path or the node."]
    status: Annotated[str, "degraded, unhealthy or unknown."]
    observed: Annotated[str, "What was found."]


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The newest checkpoint."""

    step: Annotated[int | None, "Step that it holds; null if unknown."]
    path: Annotated[str, "Where it is."]
    age_s: Annotated[float | None, "Seconds since it was saved; null if that was in an earlier run."]


@dataclass(frozen=True, slots=True)
class NewsStatus:
    """Something that a person at the terminal was told."""

    ts: Annotated[float, "When: UTC epoch, seconds."]
    node: Annotated[str, "Whose agent."]
    text: Annotated[str, "The event in words."]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node of a run."""

    schema: Annotated[int, "Version of this form, now 1."]
    run_id: Annotated[str, "Id of the run."]
    node: Annotated[str, "Name of the node."]
    script: Annotated[str, "Training script, module or program."]
    phase: Annotated[
        str, "joining, spare, running, stopping, ended, or killed: its agent is gone without a word."
    ]
    exit_code: Annotated[int | None, "Exit code of the agent; null before its end."]
    end_reason: Annotated[str, "Why it ended; empty before."]
    round: Annotated[int | None, "Number of the round; null before the first."]
    world_size: Annotated[int, "Its ranks, on all nodes."]
    nodes: Annotated[tuple[str, ...], "Its nodes, in group-rank order."]
    spares: Annotated[tuple[str, ...], "Nodes that have joined and have no part in it."]
    restarts: Annotated[int, "Restarts of the job that count so far."]
    max_restarts: Annotated[int | None, "Restarts allowed; null if not told yet."]
    standbys_ready: Annotated[int, "Worker processes that wait for a rank."]
    standbys_loading: Annotated[int, "Those that still do their imports."]
    ailments: Annotated[tuple[AilmentStatus, ...], "What its health checks find that is not healthy."]
    is_live: Annotated[bool, "Its ranks' pages were read; else only what the journal says is here."]
    ranks: Annotated[tuple[RankStatus, ...], "Its ranks."]
    checkpoint: Annotated[CheckpointStatus | None, "The newest checkpoint that it knows; null if none."]
    rollback_steps: Annotated[int | None, "Steps that a failure now would cost; null if unknown."]
    news: Annotated[tuple[NewsStatus, ...], "The last that a person was told, the oldest first."]

    @property
    def is_over(self) -> bool:
        """Its agent is not there any more."""
        return self.phase in ("ended", "killed")


@dataclass(frozen=True, slots=True)
class View:
    """A run at one moment."""

    schema: Annotated[int, "Version of this form, now 1."]
    run: Annotated[str, "How to ask for the run: what RUN is in `ftctl watch RUN`."]
    directory: Annotated[str, "Its run directory."]
    ts: Annotated[float, "When it was looked at: UTC epoch, seconds."]
    nodes: Annotated[tuple[NodeStatus, ...], "Its nodes that have a journal here, by name."]

    @property
    def is_over(self) -> bool:
        """No agent of it is there any more."""
        return bool(self.nodes) and all(one.is_over for one in self.nodes)


def make_status(
    present: Present,
    levels: Levels | None,
    now: float,
    now_ts: float,
    rates: Mapping[int, float] | None = None,
    is_gone: bool = False,
) -> NodeStatus:
    """A node's status.

    Args:
        present: what its journal says.
        levels: what its ranks' pages say; None if they cannot be read here.
        now: CLOCK_MONOTONIC of the node; not used without levels.
        now_ts: UTC epoch.
        rates: steps per second of a rank lately, by rank, where that is known.
        is_gone: its agent's process is not there any more.
    """
    by_rank = {} if levels is None else {one.rank: one for one in levels.ranks}
    ranks = tuple(
        _rank(present, worker, by_rank.get(worker.rank), now, rates or {})
        for worker in sorted(present.workers.values(), key=lambda one: one.rank)
    )
    checkpoint = _checkpoint(present, levels, now_ts)
    ready = sum(present.standbys.values())
    return NodeStatus(
        schema=SCHEMA_VERSION,
        run_id=present.run_id,
        node=present.node,
        script=present.script,
        phase="killed" if is_gone and present.exit_code is None else present.phase,
        exit_code=present.exit_code,
        end_reason=present.end_reason,
        round=present.round,
        world_size=present.world_size,
        nodes=present.nodes,
        spares=present.spares,
        restarts=present.restart_count,
        max_restarts=present.max_restarts,
        standbys_ready=ready,
        standbys_loading=len(present.standbys) - ready,
        ailments=tuple(AilmentStatus(*key, *found) for key, found in sorted(present.ailments.items())),
        is_live=levels is not None,
        ranks=ranks,
        checkpoint=checkpoint,
        rollback_steps=_rollback(present, checkpoint, ranks),
        news=tuple(NewsStatus(one.ts, one.node, one.text) for one in present.news),
    )


def _rank(
    present: Present, worker: WorkerNow, level: RankLevel | None, now: float, rates: Mapping[int, float]
) -> RankStatus:
    state = "training" if worker.has_progressed else "starting"
    if worker.exit_code is not None:
        state = signal_name(worker.exit_code) or f"exit {worker.exit_code}"
    step = rate = age_s = None
    if level is not None:
        step, rate = present.step_of(level), rates.get(worker.rank, _mean_rate(level))
        age_s = None if level.last_progress_at is None else max(0.0, now - level.last_progress_at)
    elif present.progress is not None:
        step, rate = present.progress.step, present.progress.steps_per_s
    return RankStatus(
        rank=worker.rank,
        local_rank=worker.local_rank,
        pid=worker.pid,
        state=state,
        step=step,
        steps=None if level is None else level.steps,
        steps_per_s=rate,
        progress_age_s=age_s,
        section="" if level is None else level.section,
    )


def _mean_rate(level: RankLevel) -> float | None:
    """Over the round so far."""
    if level.first_progress_at is None or level.last_progress_at is None or level.steps < 2:
        return None
    spent_s = level.last_progress_at - level.first_progress_at
    return (level.steps - 1) / spent_s if spent_s > 0 else None


def _checkpoint(present: Present, levels: Levels | None, now_ts: float) -> CheckpointStatus | None:
    """The journal tells of saves a few seconds late, the pages at once."""
    saved = present.saved
    told_at = None if saved is None else saved.at
    for one in () if levels is None else levels.ranks:
        if one.checkpoint_at is not None and (told_at is None or one.checkpoint_at > told_at):
            told_at = one.checkpoint_at
            age_s = max(0.0, levels.at - told_at) if levels is not None else 0.0
            saved = SavedNow(one.checkpoint_step, one.checkpoint_path, told_at, now_ts - age_s)
    if saved is None:
        return None
    return CheckpointStatus(saved.step, saved.path, None if saved.ts is None else max(0.0, now_ts - saved.ts))


def _rollback(present: Present, saved: CheckpointStatus | None, ranks: tuple[RankStatus, ...]) -> int | None:
    """From the newest checkpoint, or from where the round began, to where the job has come."""
    base = saved.step if saved is not None else present.base_step
    steps = [one.step for one in ranks if one.step is not None]
    return max(0, max(steps) - base) if base is not None and steps else None

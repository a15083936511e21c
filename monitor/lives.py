"""What one agent did from its start to its end, folded from the lines of its node's journal. Pure.

A journal holds several lives if the agent was started again on its node. Times are CLOCK_MONOTONIC of the
node, as in the journal; how those of several nodes lie to each other is `ftrun.monitor.timeline`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.monitor.lines import Line


@dataclass(frozen=True, slots=True)
class RoundKey:
    """What tells a round from all others of a job, on every node of it."""

    number: int
    master_addr: str = ""
    master_port: int = 0
    """Free ports are taken for each round anew, so two rounds of one number do not have the same."""


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint that was reported as saved."""

    at: float
    step: int | None
    blocking_s: float
    """Seconds in which training stood still for it; 0 if that is not known."""
    count: int = 1
    """Saves that this one stands for, itself included."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A node's account of a recovery (`recovery.completed`), in seconds."""

    at: float
    total_s: float
    detect_s: float | None
    stop_s: float
    start_s: float
    first_step_s: float
    steps_redone: int | None
    checkpoint_age_s: float | None
    """How old the checkpoint was when the failure was seen."""


@dataclass(frozen=True, slots=True)
class Shift:
    """What one node did in one round; None is what the journal does not say."""

    key: RoundKey
    closed_at: float
    """When the round was closed, else the first that is known of it."""
    world_size: int
    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    restart_count: int
    resume_from: str
    resume_step: int | None
    is_resume_known: bool
    """The launcher knew where checkpoints are."""
    ranks: tuple[int, ...]
    cold_reason: str
    """Why a worker had not done its imports before; "" if all had."""
    script_at: float | None
    """When the last of its workers ran the script; None if none made progress."""
    progressed_at: float | None
    """When the last of those that made progress made the first."""
    first_step: int | None
    """Lowest step that a worker reported with its first progress."""
    steps: int | None
    """Steps done in the round, of the worker that did most."""
    steps_before: int | None
    """Steps of the job before the round: those that the script had come to, less those done in the round."""
    observed_at: float | None
    """When the agent last said how far it had come."""
    moved_at: float | None
    """The last sign of progress that it knew of then."""
    hung_at: float | None
    """When a hang was seen."""
    silent_s: float
    """How long nothing had moved then."""
    stop_began_at: float | None
    stopped_at: float | None
    cause: str
    """Of the stop; "" if it was not stopped, or the workers could not be started."""
    recovered: Recovered | None
    saves: tuple[Save, ...]

    @property
    def has_progressed(self) -> bool:
        """Some worker of the node made progress."""
        return self.progressed_at is not None


@dataclass(frozen=True, slots=True)
class Judged:
    """An incident and what was decided about it, as one agent has journalled it."""

    at: float
    round_number: int
    kind: str
    culprit_rank: int
    culprit_pid: int
    exit_code: int
    reasons: tuple[str, ...]
    fingerprint: str
    has_progressed: bool
    collateral_ranks: tuple[int, ...]
    confidence: float | None
    action: str
    """"" if the decision is not in the journal."""
    decision_reason: str
    delay_s: float
    restart_count: int
    max_restarts: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """An event that is rare and told as it is."""

    at: float
    kind: str
    line: Line


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time with a name: from, to, what."""

    began_at: float
    ended_at: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """One agent's life on its node."""

    node: str
    run_id: str
    """"" if the journal does not have the life's beginning."""
    script: str
    slots: int
    agent_pid: int
    version: str
    settings: tuple[tuple[str, str], ...]
    """What was configured, by key; none if the journal does not say."""
    log_dir: str
    began_at: float
    began_ts: float
    """UTC epoch by the node's own clock."""
    last_at: float
    last_ts: float
    exit_code: int | None
    """None: the life has no end in the journal."""
    end_reason: str
    restart_count: int
    shifts: tuple[Shift, ...]
    judged: tuple[Judged, ...]
    parked: tuple[tuple[float, int], ...]
    """When it was told to wait as a spare, and in which round."""
    awaited: tuple[float, ...]
    """When it said, as the host agent, which nodes it waits for."""
    held: tuple[Stretch, ...]
    """Times in which it waited for its own health or for memory of its GPUs."""
    lost: tuple[tuple[float, str], ...]
    """Nodes that it saw lost or leaving, as the host agent."""
    connected_at: float | None
    """When it had first found the host agent's store."""
    is_host: bool
    """It was the host agent."""
    notes: tuple[Note, ...]
    note_counts: tuple[tuple[str, int], ...]
    """How often there was a note of a kind; of many, only the first are kept."""

    @property
    def is_ended(self) -> bool:
        """It said so."""
        return self.exit_code is not None

    @property
    def first_round(self) -> int | None:
        """Number of the first round that it took part in or waited beside."""
        numbers = [shift.key.number for shift in self.shifts] + [number for _, number in self.parked]
        return min(numbers, default=None)

    @property
    def last_round(self) -> int | None:
        """Number of the last one."""
        numbers = [shift.key.number for shift in self.shifts] + [number for _, number in self.parked]
        return max(numbers, default=None)

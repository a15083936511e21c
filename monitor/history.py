"""A run as a whole: its nodes, rounds, incidents, and how it ended. Pure data.

`Run` is what everything that a person sees is made from; `ftrun.monitor.merging` makes it from journals. All
its times are on the run's common time (`ftrun.monitor.timeline`): seconds, about UTC epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ftrun.monitor.lives import Life, Note, RoundKey, Shift
from ftrun.monitor.timeline import Placed


class Pulse(Enum):
    """Whether an agent that has not said that it ended is still there."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """It is on another machine, or in another container."""


class State(Enum):
    """How a run is."""

    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"
    """Its agents are gone and have not said why: SIGKILL, or the machine was lost."""
    UNKNOWN = "unknown"
    """No end is recorded, and its agents are not on this machine."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A life with its end."""

    placed: Placed
    ended: float
    state: State
    is_cut: bool = False
    """Its journal ends before its part in the run did: others name its node in later rounds."""

    @property
    def life(self) -> Life:
        """What the agent did."""
        return self.placed.life

    @property
    def began(self) -> float:
        """When the life began."""
        return self.placed.began


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the run and the agents that it had, one after the other."""

    name: str
    presences: tuple[Presence, ...]
    has_worked: bool
    """It had a part in some round; else it was only ever a spare, or never came so far."""


@dataclass(frozen=True, slots=True)
class NodeShift:
    """A node's part in a round."""

    node: str
    presence: Presence
    shift: Shift

    def time(self, at: float | None) -> float | None:
        """The common time of a moment in it."""
        return None if at is None else self.presence.placed.time(at)


@dataclass(frozen=True, slots=True)
class Round:
    """A round as all its nodes saw it."""

    key: RoundKey
    closed: float
    world_size: int
    nodes: tuple[str, ...]
    """In group-rank order, also those without a journal here."""
    resume_from: str
    resume_step: int | None
    shifts: tuple[NodeShift, ...]
    progressed: float | None
    """When the last of its nodes that made progress made the first."""
    stop_began: float | None
    """When the first node began to stop it."""
    stopped: float | None
    """When the workers of the last node were gone."""
    cause: str
    """Of the stop, as the node that began it has it."""

    @property
    def number(self) -> int:
        """Of the round, from 0 over the whole job."""
        return self.key.number

    @property
    def is_success(self) -> bool:
        """All of its nodes that are known ended well."""
        return bool(self.shifts) and all(one.shift.cause == "success" for one in self.shifts)


@dataclass(frozen=True, slots=True)
class Work:
    """The steps of one round."""

    base: int
    """Steps of the job that were done before it."""
    is_base_known: bool
    """Else the round is taken to go on where the one before it ended."""
    steps: int | None
    """Done in it; None if unknown."""
    counted: int | None
    """Of those, the ones that no later round did again."""

    @property
    def lost(self) -> int:
        """Steps that were done again later, as far as is known."""
        return 0 if self.steps is None or self.counted is None else self.steps - self.counted


class Outcome(Enum):
    """What became of an incident."""

    RECOVERED = "recovered"
    FAILED_RESTART = "failed_restart"
    """The round after it failed before its first step."""
    ENDED = "ended"
    """It ended the job."""
    PENDING = "pending"
    """Training does not move again yet, or the journals end here."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure of the job, what was decided about it, and what became of it."""

    number: int
    """From 1, in the order of time: the name by which people ask for it."""
    round_number: int
    seen: float
    """When the first agent saw it."""
    kind: str
    node: str
    """The culprit's; "" if that is not known."""
    culprit_rank: int
    """-1 if no rank is to blame."""
    culprit_pid: int
    exit_code: int
    reasons: tuple[str, ...]
    fingerprint: str
    has_progressed: bool
    collateral_ranks: tuple[int, ...]
    confidence: float | None
    action: str
    """What was decided: "restart" or "stop"; "" if that is not in the journals."""
    decision_reason: str
    delay_s: float
    restart_count: int
    max_restarts: int | None
    outcome: Outcome
    next_round: int | None
    detect_s: float | None
    """From the failure until it was seen; None if unknown."""
    stop_s: float | None
    start_s: float | None
    first_step_s: float | None
    recover_s: float | None
    """From when it was seen to the first step of all ranks after it; None if there was none."""
    steps_lost: int | None
    """Steps done again for it; None if unknown."""
    checkpoint_age_s: float | None
    """How old the checkpoint was to which the job went back; None if unknown."""


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that is known of a run."""

    run_id: str
    script: str
    version: str
    settings: tuple[tuple[str, str], ...]
    state: State
    exit_code: int | None
    """Of the job; None if it has not ended."""
    end_reason: str
    began: float
    ended: float
    """Now, for one that runs; the last that is known, for one without an end."""
    nodes: tuple[Node, ...]
    rounds: tuple[Round, ...]
    work: tuple[Work, ...]
    """Of each round."""
    incidents: tuple[Incident, ...]
    restart_count: int
    max_restarts: int | None
    notes: tuple[tuple[str, float, Note], ...] = field(repr=False)
    """Node, time and note, in the order of time."""
    gaps: tuple[str, ...]
    """What the journals do not say, as sentences."""

    @property
    def wall_s(self) -> float:
        """Seconds from its beginning to its end."""
        return self.ended - self.began

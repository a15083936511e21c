"""What one rank's heartbeats and sections say so far: messages in, new state and the answer out.

Pure. The meaning of each message is that of nvidia-resiliency-ext's rank monitor, versions 0.4.1 to 0.7.
Whether the state is a hang is judged by `liveness`. Times are CLOCK_MONOTONIC seconds of this node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

STEP_SECTION = "step"
WARMUP_SECTION = "warmup"
"""Section names with a meaning of their own: the convention of Megatron-LM's use of nvidia-resiliency-ext."""


class SectionAction(Enum):
    """What a `Section` message does."""

    OPEN = 1
    CLOSE = 2
    CLOSE_ALL = 3


@dataclass(frozen=True, slots=True)
class Timeouts:
    """One rank's limits in seconds; None switches a limit off."""

    initial: float | None = None
    """From the client's initialisation to its first heartbeat."""
    steady: float | None = None
    """Between two heartbeats."""
    sections: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    """Longest stay in each section; other names are not known. Read-only."""
    out_of_section: float | None = None
    """Longest stay outside all sections."""
    warmup_iterations: int = 5
    """First iterations of a session, in which "step" has the limit of "warmup" if that is configured."""
    calculated: frozenset[str] = frozenset()
    """Which were calculated and not configured: "initial", "steady", "out_of_section", "section:<name>"."""

    @classmethod
    def from_config(
        cls,
        initial: float | None,
        steady: float | None,
        sections: Mapping[str, float | None],
        out_of_section: float | None,
        warmup_iterations: int = 5,
    ) -> Timeouts:
        """Limits as the user configured them."""
        return cls(initial, steady, MappingProxyType(dict(sections)), out_of_section, warmup_iterations)


@dataclass(frozen=True, slots=True)
class Init:
    """A client begins a session."""

    global_rank: int | None = None
    pid: int | None = None
    """As the client says, in its own pid namespace."""
    warmup_iterations: int | None = None
    is_fire_and_forget: bool = False
    """The client can do without answers to heartbeats and sections (0.6 and later)."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The rank is alive."""


@dataclass(frozen=True, slots=True)
class Section:
    """The rank enters or leaves a section; `name` is "" for CLOSE_ALL."""

    name: str
    action: SectionAction
    iteration: int | None = None


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Limits that the client has calculated, or restored from a checkpoint. None leaves them as they are."""

    heartbeat: HeartbeatUpdate | None = None
    section: SectionUpdate | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatUpdate:
    """New limits for heartbeats, seconds."""

    initial: float | None
    steady: float | None
    is_calculated: bool


@dataclass(frozen=True, slots=True)
class SectionUpdate:
    """New limits for sections, seconds; sections that are not named keep theirs."""

    sections: Mapping[str, float | None]
    out_of_section: float | None
    calculated_sections: frozenset[str]
    is_out_of_section_calculated: bool


Message = Init | Heartbeat | Section | UpdateConfig


@dataclass(frozen=True, slots=True)
class Ok:
    """The answer to a message that was taken."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `Init`: what the client has to know."""

    timeouts: Timeouts
    is_fire_and_forget: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a message that changed nothing."""

    cause: str


Reply = Ok | Welcome | Refused


@dataclass(frozen=True, slots=True)
class OpenSection:
    """A section that the rank is in."""

    name: str
    opened_at: float
    iteration: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The longest that each phase of this rank has taken, seconds; None or absent if it never ended."""

    initial: float | None = None
    steady: float | None = None
    sections: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """By the name whose limit held: a "step" while warming up counts as "warmup". Read-only."""
    out_of_section: float | None = None


@dataclass(frozen=True, slots=True)
class RankHeartbeats:
    """One rank in one round. A session begins with `Init` and ends with the connection."""

    timeouts: Timeouts = Timeouts()
    observed: Observed = Observed()
    """Over all rounds."""
    is_connected: bool = False
    """A session is going on: only then do heartbeat and section limits of a client hold."""
    initialized_at: float | None = None
    """The last `Init`; None if no client has come in this round."""
    global_rank: int | None = None
    pid: int | None = None
    is_fire_and_forget: bool = False
    session_count: int = 0
    last_heartbeat_at: float | None = None
    """In the last session; None before its first heartbeat."""
    heartbeat_count: int = 0
    """Of the round, over all sessions."""
    open_sections: tuple[OpenSection, ...] = ()
    """In the order of opening; several may be open at once."""
    last_section_closed_at: float | None = None
    """Since when the rank is outside all sections, if none is open: the last close, or `Init`."""
    has_seen_step_section: bool = False
    """"step" was opened in the last session."""
    first_step_iteration: int | None = None
    last_step_iteration: int | None = None
    error_count: int = 0
    """Messages of the round that were refused or could not be read."""
    last_error: str = ""

    @property
    def is_warming_up(self) -> bool:
        """A "step" section has the limit of "warmup" now (nvidia-resiliency-ext 0.6 and later)."""
        if WARMUP_SECTION not in self.timeouts.sections:
            return False
        if self.first_step_iteration is None or self.last_step_iteration is None:
            return False
        return self.last_step_iteration - self.first_step_iteration < self.timeouts.warmup_iterations

    def limit_name(self, section: str) -> str:
        """The key in `timeouts.sections` whose limit holds for the section now."""
        return WARMUP_SECTION if section == STEP_SECTION and self.is_warming_up else section


def receive(state: RankHeartbeats, message: Message, now: float) -> tuple[RankHeartbeats, Reply]:
    """The state after `message`, and the answer: a message that is wrong is refused, and raises nothing."""
    match message:
        case Init():
            return _begin(state, message, now)
        case Heartbeat() | Section() | UpdateConfig() if not state.is_connected:
            return refuse(state, "the session is not initialized: InitMsg has to come first")
        case Heartbeat():
            return _beat(state, now), Ok()
        case Section():
            return _move(state, message, now)
        case UpdateConfig():
            return replace(state, timeouts=_updated(state.timeouts, message)), Ok()


def disconnect(state: RankHeartbeats) -> RankHeartbeats:
    """The state after the session's connection is gone: no limit of the client holds any more."""
    return replace(state, is_connected=False, open_sections=())


def next_round(state: RankHeartbeats) -> RankHeartbeats:
    """The state for a new worker: limits and observations stay, all else is forgotten."""
    return RankHeartbeats(timeouts=state.timeouts, observed=state.observed)


def refuse(state: RankHeartbeats, cause: str) -> tuple[RankHeartbeats, Refused]:
    """Nothing but the note of an error changes."""
    return replace(state, error_count=state.error_count + 1, last_error=cause), Refused(cause)


def _begin(state: RankHeartbeats, message: Init, now: float) -> tuple[RankHeartbeats, Reply]:
    timeouts = state.timeouts
    if message.warmup_iterations is not None:
        timeouts = replace(timeouts, warmup_iterations=message.warmup_iterations)
    begun = RankHeartbeats(
        timeouts=timeouts,
        observed=state.observed,
        is_connected=True,
        initialized_at=now,
        global_rank=message.global_rank,
        pid=message.pid,
        is_fire_and_forget=message.is_fire_and_forget,
        session_count=state.session_count + 1,
        heartbeat_count=state.heartbeat_count,
        last_section_closed_at=now,
        error_count=state.error_count,
        last_error=state.last_error,
    )
    return begun, Welcome(timeouts, message.is_fire_and_forget)


def _beat(state: RankHeartbeats, now: float) -> RankHeartbeats:
    observed = state.observed
    if state.last_heartbeat_at is not None:
        gap = now - state.last_heartbeat_at
        if observed.steady is None or gap > observed.steady:
            observed = replace(observed, steady=gap)
    elif state.initialized_at is not None:
        observed = replace(observed, initial=_longest(observed.initial, now - state.initialized_at))
    return replace(state, observed=observed, last_heartbeat_at=now, heartbeat_count=state.heartbeat_count + 1)


def _move(state: RankHeartbeats, message: Section, now: float) -> tuple[RankHeartbeats, Reply]:
    if message.action is SectionAction.CLOSE_ALL:
        for section in state.open_sections:
            state = _close(state, section, now)
        return state, Ok()
    found = next((section for section in state.open_sections if section.name == message.name), None)
    if message.action is SectionAction.OPEN:
        if message.name not in state.timeouts.sections:
            return refuse(state, _unknown(message.name))
        if found is not None:
            return refuse(state, f"section {message.name!r} is already open")
        return _open(_count_step(state, message), message, now), Ok()
    if found is None:
        return refuse(state, f"section {message.name!r} is not open")
    return _close(_count_step(state, message), found, now), Ok()


def _unknown(name: str) -> str:
    return (
        f"section {name!r} is not known: name it under fault_tolerance: rank_section_timeouts: "
        "(null for no limit)"
    )


def _count_step(state: RankHeartbeats, message: Section) -> RankHeartbeats:
    """Only "step" counts: other sections may come before the checkpoint is loaded, with a wrong iteration."""
    if message.name != STEP_SECTION or message.iteration is None:
        return state
    first = state.first_step_iteration
    return replace(
        state,
        first_step_iteration=message.iteration if first is None else first,
        last_step_iteration=message.iteration,
    )


def _open(state: RankHeartbeats, message: Section, now: float) -> RankHeartbeats:
    observed = state.observed
    if not state.open_sections and state.last_section_closed_at is not None:
        gap = now - state.last_section_closed_at
        observed = replace(observed, out_of_section=_longest(observed.out_of_section, gap))
    return replace(
        state,
        observed=observed,
        open_sections=(*state.open_sections, OpenSection(message.name, now, message.iteration)),
        has_seen_step_section=state.has_seen_step_section or message.name == STEP_SECTION,
    )


def _close(state: RankHeartbeats, closed: OpenSection, now: float) -> RankHeartbeats:
    name = state.limit_name(closed.name)
    longest = _longest(state.observed.sections.get(name), now - closed.opened_at)
    sections = MappingProxyType({**state.observed.sections, name: longest})
    remaining = tuple(section for section in state.open_sections if section.name != closed.name)
    return replace(
        state,
        observed=replace(state.observed, sections=sections),
        open_sections=remaining,
        last_section_closed_at=state.last_section_closed_at if remaining else now,
    )


def _updated(timeouts: Timeouts, message: UpdateConfig) -> Timeouts:
    calculated = set(timeouts.calculated)
    if message.heartbeat is not None:
        calculated -= {"initial", "steady"}
        calculated |= {"initial", "steady"} if message.heartbeat.is_calculated else set()
        timeouts = replace(timeouts, initial=message.heartbeat.initial, steady=message.heartbeat.steady)
    if message.section is not None:
        new = message.section
        calculated -= {"out_of_section", *(f"section:{name}" for name in new.sections)}
        calculated |= {f"section:{name}" for name in new.calculated_sections if name in new.sections}
        calculated |= {"out_of_section"} if new.is_out_of_section_calculated else set()
        sections = MappingProxyType({**timeouts.sections, **new.sections})
        timeouts = replace(timeouts, sections=sections, out_of_section=new.out_of_section)
    return replace(timeouts, calculated=frozenset(calculated))


def _longest(before: float | None, seconds: float) -> float:
    return seconds if before is None else max(before, seconds)

"""What one failed exit was, and which of a node's exits came first. Pure.

The rules are the tables of `ftrun.monitor.signatures`; `ftrun.monitor.diagnosis` compares the nodes.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.monitor import failure_texts, signatures
from ftrun.monitor.case import Case, error_of, essence, exit_name, first_line, tells_of_others
from ftrun.monitor.incident import Evidence, IncidentKind, RankExit
from ftrun.monitor.signature import Signature

ECHO_WINDOW_S = 5.0
"""How much later than its echo a root cause may be seen. The peers of a dying process notice its closed
sockets before the agent sees its exit: writing a core file or freeing the memory and device mappings of a
large process takes seconds. 5 s is also the default grace after a failure, after which the agent kills."""

_FINGERPRINT_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank's exit was, seen by itself."""

    kind: IncidentKind
    what: str
    """Follows "rank 1 (pid 4242) "."""
    hint: str = ""
    confidence: float = 1.0
    is_echo: bool = False
    """It only says that another rank is gone, or what another rank has told."""
    signature: str = ""
    """Name of the row by which it was recognised."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A failed exit with what is known around it."""

    exit: RankExit
    evidence: Evidence
    finding: Finding


def fingerprint(kind: IncidentKind, exit: RankExit) -> str:
    """Equal for two failures that are the same: without numbers, addresses and names of temporary files."""
    error = error_of(exit)
    if error is None:
        return f"{kind.value}|{exit_name(exit.exit_code)}"
    return f"{kind.value}|{error.type_name}|{without_noise(essence(error))}|{error.frame}"


def without_noise(text: str) -> str:
    """What two occurrences of the same failure have in common of their message, at most 300 characters."""
    for pattern, replacement in failure_texts.FINGERPRINT_NOISE:
        text = pattern.sub(replacement, text)
    return text.strip()[:_FINGERPRINT_LENGTH]


def root_of(evidence: Evidence) -> Suspect | None:
    """The node's own first failure."""
    failed = [exit for exit in evidence.exits if exit.exit_code != 0]
    own = [exit for exit in failed if not exit.is_stopped_by_agent]
    if not own:
        return None
    # The agent stops a group when it sees the first exit. A rank whose exception is older than that was
    # failing by itself and was only slow to leave.
    stop_at = min(exit.exited_at for exit in own)
    slow = [exit for exit in failed if exit.is_stopped_by_agent and exit.error and exit.failed_at < stop_at]
    suspects = _suspects([*own, *slow], evidence)
    horizon = suspects[0].exit.failed_at + ECHO_WINDOW_S
    window = [suspect for suspect in suspects if suspect.exit.failed_at <= horizon]
    crashed = [exit for exit in failed if exit.exited_at <= horizon and _is_no_stop(exit, evidence)]
    candidates = [*window, *_suspects(crashed, evidence)]
    return next((suspect for suspect in candidates if not suspect.finding.is_echo), suspects[0])


def crashed_in_stop(evidence: Evidence) -> Suspect | None:
    """A rank that crashed while the agent stopped a group in which nothing had failed before.

    It explains the echoes on other nodes, if these are all that is known: writing a core file takes time.
    """
    failed = [exit for exit in evidence.exits if exit.exit_code != 0]
    if any(not exit.is_stopped_by_agent for exit in failed):
        return None
    crashed = _suspects([exit for exit in failed if _is_no_stop(exit, evidence)], evidence)
    return next((suspect for suspect in crashed if not suspect.finding.is_echo), None)


def _suspects(exits: Sequence[RankExit], evidence: Evidence) -> list[Suspect]:
    ordered = sorted(exits, key=lambda exit: exit.failed_at)
    return [Suspect(exit, evidence, judge(exit, evidence)) for exit in ordered]


def _is_no_stop(exit: RankExit, evidence: Evidence) -> bool:
    """Whether a rank that ended while the agent stopped the group must have died of something else.

    Only asked when all others are echoes: a stopped process may also crash in its own tear-down.
    """
    is_crash = -exit.exit_code in failure_texts.CRASH_SIGNALS
    is_oom = exit.exit_code == -signal.SIGKILL and evidence.oom_kills > 0
    return exit.is_stopped_by_agent and (is_crash or is_oom)


def judge(exit: RankExit, evidence: Evidence) -> Finding:
    """What the exit was; `evidence` is its node's, for what the whole node shares."""
    case = Case.of(exit, evidence)
    # An uncaught exception is the cause even when the interpreter then died of a signal on its way out.
    table: tuple[Signature, ...] = signatures.EXCEPTIONS
    if case.error is None:
        table = signatures.SIGNALS if exit.exit_code < 0 else signatures.EXIT_CODES
    row = next(row for row in table if row.fits(case))
    line = first_line(exit.stderr_tail, row.line) if row.line is not None else None
    words = case.words(line or "")
    return Finding(
        row.kind,
        row.sentence.format_map(words),
        row.hint.format_map(words),
        row.confidence,
        row.is_echo or tells_of_others(case),
        row.name,
    )

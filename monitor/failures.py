"""What one failed exit was, and which of a node's exits came first. Pure.

The rules are the tables of `ftrun.monitor.signatures`; `ftrun.monitor.diagnosis` compares the nodes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.monitor import signatures
from ftrun.monitor.incident import ErrorRecord, Evidence, IncidentKind, RankExit
from ftrun.monitor.signal_names import signal_name

ECHO_WINDOW_S = 5.0
"""How much later than its echo a root cause may be seen. The peers of a dying process notice its closed
sockets before the agent sees its exit: writing a core file or freeing the memory and device mappings of a
large process takes seconds. 5 s is also the default grace after a failure, after which the agent kills."""

_FINGERPRINT_LENGTH = 300
_MESSAGE_LENGTH = 300
_EXCEPTION_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (?P<message>.*))?$")
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""torch.distributed's excepthook puts it before each line of a traceback."""
TRACEBACK_HEAD = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank's exit was, seen by itself."""

    kind: IncidentKind
    what: str
    """Follows "rank 1 (pid 4242) "."""
    hint: str = ""

    @property
    def is_echo(self) -> bool:
        """Whether it only says that another rank is gone."""
        return self.kind is IncidentKind.COMMUNICATION_ERROR


@dataclass(frozen=True, slots=True)
class Suspect:
    """A failed exit with what is known around it."""

    exit: RankExit
    evidence: Evidence
    finding: Finding


def fingerprint(kind: IncidentKind, exit: RankExit) -> str:
    """Equal for two failures that are the same: without numbers, addresses and names of temporary files."""
    error = _error_of(exit)
    if error is None:
        return f"{kind.value}|{_exit_name(exit.exit_code)}"
    return f"{kind.value}|{error.type_name}|{without_noise(error.message)}|{error.frame}"


def without_noise(text: str) -> str:
    """What two occurrences of the same failure have in common of their message, at most 300 characters."""
    for pattern, replacement in signatures.FINGERPRINT_NOISE:
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
    is_crash = -exit.exit_code in signatures.CRASH_SIGNALS
    is_oom = exit.exit_code == -signal.SIGKILL and evidence.oom_kills > 0
    return exit.is_stopped_by_agent and (is_crash or is_oom)


def judge(exit: RankExit, evidence: Evidence) -> Finding:
    """What the exit was; `evidence` is its node's, for what the whole node shares."""
    # An uncaught exception is the cause even when the interpreter then died of a signal on its way out.
    if (error := _error_of(exit)) is not None:
        return _judge_exception(error, evidence, exit)
    if exit.exit_code < 0:
        return _judge_signal(-exit.exit_code, evidence, exit)
    return _judge_exit_code(exit.exit_code, evidence, exit)


def _judge_exception(error: ErrorRecord, evidence: Evidence, exit: RankExit) -> Finding:
    for row in signatures.EXCEPTIONS:
        if row.pattern.search(error.message) and (evidence.oom_kills > 0 or not row.needs_oom_kill):
            is_oom = row.kind is IncidentKind.HOST_OOM
            hint = _memory(evidence, exit) if is_oom else signatures.SIGNALS[signal.SIGBUS].hint
            return Finding(row.kind, f"lost a data loader: {_shown(error)}", hint)
    names = {error.type_name, *error.bases}
    if names & (signatures.IMPORT_OR_SYNTAX_TYPES | signatures.IMPORT_OR_SYNTAX_SUBTYPES):
        return Finding(IncidentKind.IMPORT_OR_SYNTAX_ERROR, f"raised {_shown(error)}")
    if is_communication_error(error):
        what = f"lost its connection to another rank: {_shown(error)}"
        return Finding(IncidentKind.COMMUNICATION_ERROR, what)
    oom = f"in the same round {_memory(evidence, exit)}" if evidence.oom_kills > 0 else ""
    return Finding(IncidentKind.EXCEPTION, f"raised {_shown(error)}", oom)


def is_communication_error(error: ErrorRecord) -> bool:
    """Whether the exception says that another rank or the store is gone: by type, origin or what it says."""
    names = {error.type_name, *error.bases}
    if names & signatures.COMMUNICATION_TYPES:
        return True
    if names & signatures.CONNECTION_TYPES:
        return _is_raised_by_torch_distributed(error)
    if error.type_name not in signatures.COMMUNICATION_MESSAGE_TYPES:
        return False
    return any(row.pattern.search(error.message) for row in signatures.COMMUNICATION_MESSAGES)


def _is_raised_by_torch_distributed(error: ErrorRecord) -> bool:
    """Whether the innermost frame that is not the standard library's is torch.distributed's."""
    paths = [match["path"] for match in signatures.TRACEBACK_FRAME.finditer(error.traceback)]
    innermost = next((path for path in reversed(paths) if not signatures.STANDARD_LIBRARY.search(path)), "")
    return signatures.TORCH_DISTRIBUTED.search(innermost) is not None


def _judge_signal(number: int, evidence: Evidence, exit: RankExit) -> Finding:
    if number == signal.SIGKILL and evidence.oom_kills > 0:
        what = f"was killed by SIGKILL because host memory ran out: {_memory(evidence, exit)}"
        return Finding(IncidentKind.HOST_OOM, what)
    row = signatures.SIGNALS.get(number, signatures.OTHER_SIGNAL)
    if row.kind is IncidentKind.ABORT and (echo := _abort_echo(exit.stderr_tail)):
        return Finding(IncidentKind.COMMUNICATION_ERROR, f"was taken down by c10d (SIGABRT): {echo}")
    return Finding(row.kind, row.sentence.format(name=_exit_name(-number)), row.hint)


def _judge_exit_code(code: int, evidence: Evidence, exit: RankExit) -> Finding:
    number = code - 128
    if not 0 < number < signal.NSIG:
        return Finding(IncidentKind.EXIT_CODE, f"ended with exit code {code}")
    shell = f"exit code {code}, by which a shell reports that its program was ended by {_exit_name(-number)}"
    if number == signal.SIGKILL and evidence.oom_kills > 0:
        return Finding(IncidentKind.HOST_OOM, f"ended with {shell}: {_memory(evidence, exit)}")
    return Finding(IncidentKind.EXIT_CODE, f"ended with {shell}")


def _abort_echo(tail: Sequence[str]) -> str:
    """The stderr line that shows the abort to be another rank's doing; "" if none does."""
    if any(row.pattern.search(line) for row in signatures.LOCAL_ABORTS for line in tail):
        return ""
    hits = (line for line in tail for row in signatures.COMMUNICATION_ABORTS if row.pattern.search(line))
    return next(hits, "").strip()[:_MESSAGE_LENGTH]


def _error_of(exit: RankExit) -> ErrorRecord | None:
    """The recorded exception, else the one that ends a Python traceback on stderr (`--no-python`)."""
    if exit.error is not None or exit.exit_code != 1:
        return exit.error
    lines = [RANK_PREFIX.sub("", line) for line in exit.stderr_tail if line.strip()]
    has_traceback = any(line.startswith(TRACEBACK_HEAD) for line in lines)
    match = _EXCEPTION_LINE.match(lines[-1]) if has_traceback else None
    if match is None:
        return None
    return ErrorRecord(match["type"].rpartition(".")[2], match["message"] or "", "\n".join(lines))


def _memory(evidence: Evidence, exit: RankExit) -> str:
    parts = [f"the kernel counted {count(evidence.oom_kills, 'OOM kill')} in this cgroup"]
    if evidence.memory_limit_bytes is not None:
        parts.append(f"memory limit {format_bytes(evidence.memory_limit_bytes)}")
    if exit.max_rss_bytes > 0:
        parts.append(f"largest resident size of rank {exit.rank} {format_bytes(exit.max_rss_bytes)}")
    return ", ".join(parts)


def format_bytes(count: int) -> str:
    """A size for people, in binary units: "1.5 GiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _shown(error: ErrorRecord) -> str:
    message = " ".join(error.message.split())
    short = message if len(message) <= _MESSAGE_LENGTH else f"{message[:_MESSAGE_LENGTH]}..."
    text = ": ".join(part for part in (error.type_name, short) if part)
    return f"{text} ({error.frame})" if error.frame else text


def _exit_name(exit_code: int) -> str:
    """ "SIGKILL" for -9, "exit code 3" for 3."""
    return signal_name(exit_code) or f"exit code {exit_code}"


def count(number: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

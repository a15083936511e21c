"""One rank's end as the signatures look at it, and the words in which it is told. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun.monitor import failure_texts as texts
from ftrun.monitor.durations import plural
from ftrun.monitor.incident import ErrorRecord, Evidence, RankExit, Space
from ftrun.monitor.signal_names import signal_name

MESSAGE_LENGTH = 300
_EXCEPTION_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (?P<message>.*))?$")
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""torch.distributed's excepthook puts it before each line of a traceback."""
TRACEBACK_HEAD = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Case:
    """How one rank ended, with what its node shares."""

    exit: RankExit
    evidence: Evidence
    error: ErrorRecord | None

    @classmethod
    def of(cls, exit: RankExit, evidence: Evidence) -> Case:
        """With the recorded exception, else the one that ends a Python traceback on stderr."""
        return cls(exit, evidence, error_of(exit))

    @property
    def text(self) -> str:
        """What the exception says; "" if there is none."""
        return "" if self.error is None else self.error.message

    @property
    def type_names(self) -> frozenset[str]:
        """Of the exception and its bases."""
        return frozenset() if self.error is None else frozenset({self.error.type_name, *self.error.bases})

    @property
    def trace(self) -> str:
        """The exception's traceback, and those of other ranks that its message holds."""
        return "" if self.error is None else f"{self.error.traceback}\n{self.error.message}"

    @property
    def number(self) -> int:
        """The signal that ended it, or by which a shell reports that its program was ended; 0 if none."""
        code = self.exit.exit_code
        number = -code if code < 0 else code - 128
        return number if 0 < number < signal.NSIG else 0

    def words(self, line: str = "") -> Mapping[str, str]:
        """What sentences about it may name; `line` is what was found on stderr."""
        return {
            "error": "" if self.error is None else shown(self.error),
            "name": exit_name(-self.number) if self.number else "",
            "code": str(self.exit.exit_code),
            "line": line.strip()[:MESSAGE_LENGTH],
            "memory": self._memory(),
            "pressure": self._pressure(),
            "shm": describe_space(self.evidence.space_of("shared memory"), "/dev/shm"),
            "full": self._full(),
            "resume": self.evidence.resume_from or "a checkpoint",
        }

    def _memory(self) -> str:
        evidence, exit = self.evidence, self.exit
        parts = [f"the kernel counted {plural(evidence.oom_kills, 'OOM kill')} in this cgroup"]
        if evidence.memory_limit_bytes is not None:
            parts.append(f"memory limit {format_bytes(evidence.memory_limit_bytes)}")
        if exit.max_rss_bytes > 0:
            parts.append(f"largest resident size of rank {exit.rank} {format_bytes(exit.max_rss_bytes)}")
        return ", ".join(parts)

    def _pressure(self) -> str:
        """After a sentence: whether memory was short, where the kernel knows; else nothing."""
        pressure = self.evidence.pressure
        if pressure is None or pressure.some_percent == 0:
            return ""
        whose = "the job's cgroup" if pressure.is_of_cgroup else "the machine"
        some, full = pressure.some_percent, pressure.full_percent
        return (
            f"; memory was short on {whose}: in the last 10 s some tasks waited for it {some:g} % of the "
            f"time, all of them {full:g} %"
        )

    def _full(self) -> str:
        found = [describe_space(space) for space in self.evidence.spaces if space.is_full]
        if found:
            return "; ".join(found)
        known = [describe_space(space) for space in self.evidence.spaces]
        return f"when the round had ended there was room again: {'; '.join(known)}" if known else ""


def describe_space(space: Space | None, path: str = "") -> str:
    """How much room there is, in words: "/dev/shm (shared memory) is full: 0 KiB of 64.0 MiB are free"."""
    if space is None:
        return f"how full {path} was is not known"
    state = "is full" if space.is_full else "is not full"
    inodes = ", and no inode" if space.free_inodes == 0 else ""
    free, total = format_bytes(space.free_bytes), format_bytes(space.total_bytes)
    return f"{space.path} ({space.what}) {state}: {free} of {total} are free{inodes}"


def error_of(exit: RankExit) -> ErrorRecord | None:
    """The recorded exception, else the one that ends a Python traceback on stderr (`--no-python`)."""
    if exit.error is not None or exit.exit_code != 1:
        return exit.error
    lines = [RANK_PREFIX.sub("", line) for line in exit.stderr_tail if line.strip()]
    has_traceback = any(line.startswith(TRACEBACK_HEAD) for line in lines)
    match = _EXCEPTION_LINE.match(lines[-1]) if has_traceback else None
    if match is None:
        return None
    return ErrorRecord(match["type"].rpartition(".")[2], match["message"] or "", "\n".join(lines))


def has_oom_kill(case: Case) -> bool:
    """The kernel killed for want of memory in the round."""
    return case.evidence.oom_kills > 0


def is_from_torch_distributed(case: Case) -> bool:
    """The innermost frame that is not the standard library's is torch.distributed's."""
    trace = "" if case.error is None else case.error.traceback
    paths = [match["path"] for match in texts.TRACEBACK_FRAME.finditer(trace)]
    innermost = next((path for path in reversed(paths) if not texts.STANDARD_LIBRARY.search(path)), "")
    return texts.TORCH_DISTRIBUTED.search(innermost) is not None


def is_any_space_full(case: Case) -> bool:
    """Some file system that the job needs has no room."""
    return any(space.is_full for space in case.evidence.spaces)


def is_loading(case: Case) -> bool:
    """It read tensors, before any progress of a round that began from a checkpoint, or by DCP's loader."""
    is_script_s = texts.MISFIT.search(case.text) or texts.NOT_ALLOWED.search(case.text)
    if case.evidence.has_progressed or is_script_s:
        return False
    if texts.DCP_LOADER.search(case.trace):
        return True
    begins_from = case.evidence.resume_from
    return bool(begins_from) and (begins_from in case.trace or texts.LOADER.search(case.trace) is not None)


def is_of_damaged_checkpoint(case: Case) -> bool:
    """It says what readers say of damaged files, and it read what the round began from.

    That is known where DCP's loader raised it, or where it names the checkpoint.
    """
    is_damage = texts.DAMAGE.search(case.text) is not None
    if not (is_damage or case.type_names & texts.DAMAGE_TYPES) or not is_loading(case):
        return False
    begins_from = case.evidence.resume_from
    return texts.DCP_LOADER.search(case.trace) is not None or (
        bool(begins_from) and begins_from in case.trace
    )


def is_in_loading_section(case: Case) -> bool:
    """The script said that it was loading, before any progress of a round that began from a checkpoint."""
    has_checkpoint = bool(case.evidence.resume_from) and not case.evidence.has_progressed
    return has_checkpoint and texts.LOADING_SECTION.search(_telling_section(case)) is not None


def is_in_saving_section(case: Case) -> bool:
    """The script said that it was saving: "load_checkpoint" names both, and is loading."""
    name = _telling_section(case)
    return not texts.LOADING_SECTION.search(name) and texts.SAVING_SECTION.search(name) is not None


def _telling_section(case: Case) -> str:
    """The innermost whose name says that it loads or saves: "resume" may hold a "save"; "" if none does."""
    names = reversed(case.exit.sections)
    patterns = (texts.LOADING_SECTION, texts.SAVING_SECTION)
    return next((name for name in names if any(one.search(name) for one in patterns)), "")


def tells_of_others(case: Case) -> bool:
    """It is the exception by which torch DCP tells each rank of what others, not this one, have raised."""
    match = texts.RANKS_THAT_FAILED.search(case.text)
    return match is not None and str(case.exit.rank) not in match["ranks"].split(", ")


def format_bytes(count: int) -> str:
    """A size for people, in binary units: "1.5 GiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def essence(error: ErrorRecord) -> str:
    """What the exception says, without the tracebacks that some exceptions tell of others.

    Of one in which torch DCP tells what ranks have raised, that of the first rank; of a data loader's, that
    of its worker.
    """
    told = texts.RANKS_THAT_FAILED.match(error.message) and texts.TOLD_BY_RANK.search(error.message)
    if told is not None:
        return f"rank {told['rank']} raised {told['what']}"
    told = texts.TOLD_BY_LOADER.match(error.message)
    return error.message if told is None else f"{told['head']}: {told['what']}"


def shown(error: ErrorRecord) -> str:
    """The exception in a line of bounded length, with its innermost user frame."""
    message = " ".join(essence(error).split())
    short = message if len(message) <= MESSAGE_LENGTH else f"{message[:MESSAGE_LENGTH]}..."
    text = ": ".join(part for part in (error.type_name, short) if part)
    return f"{text} ({error.frame})" if error.frame else text


def exit_name(exit_code: int) -> str:
    """ "SIGKILL" for -9, "exit code 3" for 3."""
    return signal_name(exit_code) or f"exit code {exit_code}"


def first_line(lines: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    """The first of the lines that has it."""
    return next((line for line in lines if pattern.search(line)), None)

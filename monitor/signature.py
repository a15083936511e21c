"""What a signature is: conditions by which one rank's end is recognised, and how sure that is. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.monitor.case import Case, first_line
from ftrun.monitor.incident import IncidentKind as Kind

CONFIDENCE = {
    "confirmed": 0.95,  # a rank failed, and a health check says the same of its GPU
    "found": 0.9,  # by the kernel's count, a health check, a start that failed, or a node that is gone
    "failed": 0.8,  # a rank failed by itself: its exception or signal is known, what led to it is not
    "named": 0.6,  # ranks hang and their stacks or signs tell who is waited for; or a likely guess
    "silent": 0.3,  # a hang that nobody can be named for, or what looks like the echo of a failure
    "unknown": 0.1,
}
"""How sure a cause is, by what it rests on: for people, and for what is held against a GPU or node that is
named again and again. An ordering rather than a measured frequency."""

FOUND, FAILED, NAMED, SILENT = (CONFIDENCE[name] for name in ("found", "failed", "named", "silent"))


@dataclass(frozen=True, slots=True)
class Signature:
    """One way in which a rank ends. Whatever is given must hold; `types` and `named` are one condition."""

    name: str
    kind: Kind
    sentence: str
    """Follows "rank 1 (pid 4242) "; names of `Case.words` in braces."""
    source: str
    """Where that end is made: the program or library, and its file."""
    confidence: float = FAILED
    hint: str = ""
    """A second sentence, with the same names; not said if it comes out empty."""
    is_echo: bool = False
    """It only says that another rank is gone."""
    types: frozenset[str] = frozenset()
    """The exception's class, or a base, has one of these names .."""
    named: frozenset[str] = frozenset()
    """.. or the class itself has one of these."""
    text: re.Pattern[str] | None = None
    """In the exception's message."""
    frame: re.Pattern[str] | None = None
    """In its traceback, or in one that its message holds."""
    line: re.Pattern[str] | None = None
    """In one of the last lines of stderr."""
    signals: frozenset[int] = frozenset()
    """It was ended by one of them, or a shell says so of its program."""
    needs: Callable[[Case], bool] | None = None
    """What else must hold."""

    def fits(self, of: Case) -> bool:
        """Whether the rank ended in this way."""
        return (
            self._is_type(of)
            and (self.text is None or self.text.search(of.text) is not None)
            and (self.frame is None or self.frame.search(of.trace) is not None)
            and (not self.signals or of.number in self.signals)
            and (self.line is None or first_line(of.exit.stderr_tail, self.line) is not None)
            and (self.needs is None or self.needs(of))
        )

    def _is_type(self, of: Case) -> bool:
        if not self.types and not self.named:
            return True
        is_named = of.error is not None and of.error.type_name in self.named
        return is_named or bool(self.types & of.type_names)

    @property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """What it looks for in texts."""
        return tuple(one for one in (self.text, self.frame, self.line) if one is not None)


SHM = (
    "most often /dev/shm is full (data loaders and NCCL use it; containers give it 64 MiB by default) or a "
    "memory-mapped file was truncated: {shm}"
)
"""Second sentence of what is told of a bus error."""

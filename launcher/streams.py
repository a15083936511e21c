"""Which output streams of which local rank are redirected or tee'd: `--redirects` and `--tee`, parsed.

Pure; opening files and pumping pipes is the work of `ftrun.launcher.output`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntFlag

EXPECTED = (
    "0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all local ranks, "
    "or LOCAL_RANK:VALUE pairs such as 0:3,10:1 with each local rank once"
)
"""Completes "found ..., expected ..." for a map of streams."""
_VALUE = re.compile(r"[0-3]", re.ASCII)
_PAIR = re.compile(r"(\d+):([0-3])", re.ASCII)


class Std(IntFlag):
    """A set of a worker's output streams; the numbers are torchrun's."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class StdMap:
    """Streams per local rank."""

    default: Std = Std.NONE
    """For local ranks that `by_rank` does not name."""
    by_rank: tuple[tuple[int, Std], ...] = ()
    """Sorted by local rank."""

    @classmethod
    def parse(cls, text: str) -> StdMap:
        """Read torchrun's notation; local ranks may have any number of digits (torchrun's own has one).

        Raises:
            ValueError: the text is not in that notation, or names a local rank twice.
        """
        if _VALUE.fullmatch(text):
            return cls(default=Std(int(text)))
        by_rank: dict[int, Std] = {}
        for part in text.split(","):
            pair = _PAIR.fullmatch(part)
            if pair is None:
                raise ValueError(f"found {part!r} in {text!r}, expected {EXPECTED}")
            local_rank = int(pair[1])
            if local_rank in by_rank:
                raise ValueError(f"found local rank {local_rank} twice in {text!r}, expected {EXPECTED}")
            by_rank[local_rank] = Std(int(pair[2]))
        return cls(by_rank=tuple(sorted(by_rank.items())))

    def of(self, local_rank: int) -> Std:
        """Streams of one local rank; with a mapping, ranks that it does not name get none."""
        return dict(self.by_rank).get(local_rank, self.default)

    def __str__(self) -> str:
        """The notation that `parse` reads."""
        if not self.by_rank:
            return str(int(self.default))
        return ",".join(f"{local_rank}:{int(std)}" for local_rank, std in self.by_rank)

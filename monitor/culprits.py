"""Which ranks do the others wait for? An answer from their signs and, if there are any, their stacks.

Pure. Names a suspect; that there is a hang at all is decided elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ftrun.monitor.rank_signs import Signs

SAMPLER_SILENT_S = 3.0
"""Six looks of a worker's sampler that did not come: the GIL is held, not just fought for."""

_FRAME = re.compile(r'\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)')
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-fA-F]+")
_COLLECTIVE_FILES = re.compile(r"/torch/distributed/(?!checkpoint/|elastic/|launcher/)")
"""Checkpoints' own code writes files; where it calls a collective, that one's frame is further in."""
_DISPATCH_FILE = "/torch/_ops.py"
_COLLECTIVE_FUNCTIONS = frozenset({"_engine_run_backward"})
"""Where torch waits for a collective that C++ has started, as DistributedDataParallel's reducer does."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread's Python frames of one rank, innermost first; at least one."""

    frames: tuple[Frame, ...]

    @property
    def place(self) -> Frame:
        """The innermost frame, or the one that called torch's operator dispatch from Python."""
        called = (frame for frame in self.frames if not frame.file.endswith(_DISPATCH_FILE))
        return next(called, self.frames[0])

    @property
    def is_in_collective(self) -> bool:
        """The main thread waits inside torch.distributed, or in a backward pass that may do so.

        Not one that reads or writes a checkpoint.
        """
        if self.place.function in _COLLECTIVE_FUNCTIONS:
            return True
        return _COLLECTIVE_FILES.search(self.place.file) is not None


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Ranks that are probably to blame, and why; none if nothing tells the ranks apart."""

    ranks: tuple[int, ...] = ()
    reason: str = ""


def read_stack(text: str) -> Stack | None:
    """The main thread's stack in what faulthandler wrote of all threads; None if there is none.

    The main thread is the oldest, and faulthandler writes the oldest last. Of several dumps in one file, the
    last one counts.
    """
    frames: list[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
        elif found := _FRAME.fullmatch(line):
            number = int(found["line"]) if found["line"].isdecimal() else 0
            frames.append(Frame(found["file"], number, found["function"]))
    return Stack(tuple(frames)) if frames else None


def find_culprits(signs: Mapping[int, Signs], stacks: Mapping[int, Stack], now: float) -> Suspicion:
    """The ranks that the others probably wait for, by rank; the surest kind of evidence decides alone.

    Stacks come before step counts: a rank that left out a collective is often a step ahead of the others.
    """
    alive = {rank: one for rank, one in sorted(signs.items()) if one.is_alive}
    stacks = {rank: stack for rank, stack in sorted(stacks.items()) if rank in alive}
    return (
        _part(alive, _with_state(alive, "Tt"), "stopped by a signal or a debugger (state T)")
        or _part(alive, _with_state(alive, "D"), "in an uninterruptible system call (state D)")
        or _part(alive, _without_python(alive, now), "inside C code that holds the GIL: no Python runs there")
        or _outside_collective(stacks)
        or _elsewhere(stacks)
        or _behind(alive)
        or Suspicion()
    )


def _part(alive: Collection[int], ranks: Collection[int], what: str) -> Suspicion | None:
    """A suspicion if `ranks` are some of the ranks and not all; a rank that is alone is all there is."""
    if not ranks or (len(ranks) == len(alive) and len(alive) > 1):
        return None
    return Suspicion(tuple(ranks), f"{_named(ranks)} {'is' if len(ranks) == 1 else 'are'} {what}")


def _with_state(alive: Mapping[int, Signs], letters: str) -> list[int]:
    return [rank for rank, one in alive.items() if one.process_state and one.process_state in letters]


def _without_python(alive: Mapping[int, Signs], now: float) -> list[int]:
    return [
        rank
        for rank, one in alive.items()
        if one.sampler_at is not None and min(now, one.at) - one.sampler_at > SAMPLER_SILENT_S
    ]


def _outside_collective(stacks: Mapping[int, Stack]) -> Suspicion | None:
    outside = [rank for rank, stack in stacks.items() if not stack.is_in_collective]
    inside = [stack.place for stack in stacks.values() if stack.is_in_collective]
    if len(inside) < len(outside) or not inside:
        return None
    return _part(stacks, outside, f"not in the collective that the others wait in, {inside[0]}")


def _elsewhere(stacks: Mapping[int, Stack]) -> Suspicion | None:
    places = Counter(stack.place for stack in stacks.values())
    if not places:
        return None
    place, count = places.most_common(1)[0]
    if count <= len(stacks) / 2:
        return None
    elsewhere = [rank for rank, stack in stacks.items() if stack.place != place]
    return _part(stacks, elsewhere, f"not where most ranks wait, {place}")


def _behind(alive: Mapping[int, Signs]) -> Suspicion | None:
    fewest = min((one.progress_count for one in alive.values()), default=0)
    most = max((one.progress_count for one in alive.values()), default=0)
    if fewest == most:
        return None
    behind = [rank for rank, one in alive.items() if one.progress_count == fewest]
    return _part(alive, behind, f"behind: {fewest} steps, others have up to {most}")


def _named(ranks: Collection[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"

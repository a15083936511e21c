"""Lists of ranks for people, short also for thousands of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_SHORTEST_RANGE = 3
"""Two neighbours are as short by themselves."""


def name_ranks(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 2" or "ranks 0-7, 9"; "no rank" for none."""
    numbers = sorted(set(ranks))
    if not numbers:
        return "no rank"
    return f"rank{'s' if len(numbers) > 1 else ''} {list_ranks(numbers)}"


def list_ranks(ranks: Iterable[int]) -> str:
    """ "0, 2" or "0-7, 9", in ascending order; "" for none."""
    parts: list[str] = []
    run: list[int] = []
    for rank in [*sorted(set(ranks)), None]:
        if run and rank != run[-1] + 1:
            parts += [f"{run[0]}-{run[-1]}"] if len(run) >= _SHORTEST_RANGE else map(str, run)
            run = []
        if rank is not None:
            run.append(rank)
    return ", ".join(parts)

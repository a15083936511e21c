"""Which steps of each round counted in the end, and which had to be done again. Pure.

A round that begins from step b makes void whatever earlier rounds did beyond b. Where a round began is known
from its checkpoint, from the account of its recovery, or from the step that the script itself reports first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.monitor.history import Round, Work


def count_steps(rounds: Sequence[Round]) -> tuple[Work, ...]:
    """The work of each round, in their order."""
    works: list[Work] = []
    done = 0
    for place, one in enumerate(rounds):
        base = _base(one, is_first=place == 0)
        counts = [node.shift.steps for node in one.shifts if node.shift.steps is not None]
        steps = max(counts, default=None)
        works.append(Work(done if base is None else base, base is not None, steps, steps))
        done = works[-1].base + (steps or 0)
    end: int | None = None
    for place in range(len(works) - 1, -1, -1):
        work = works[place]
        if work.steps is not None and end is not None:
            counted = min(work.steps, max(0, end - work.base))
            works[place] = Work(work.base, work.is_base_known, work.steps, counted)
        if work.is_base_known and place > 0:
            end = work.base if end is None else min(end, work.base)
    return tuple(works)


def _base(one: Round, is_first: bool) -> int | None:
    """Steps done before the round; None if nothing tells."""
    if one.resume_step is not None:
        return one.resume_step
    if not one.resume_from:
        if is_first and one.number == 0:
            return _reported_base(one) or 0
        if any(node.shift.is_resume_known for node in one.shifts):
            return 0
        accounts = [node.shift.recovered for node in one.shifts if node.shift.recovered is not None]
        if any(account.steps_redone is not None for account in accounts):
            return 0  # the agent knew where checkpoints would be, and there was none
    return _reported_base(one)


def _reported_base(one: Round) -> int | None:
    """The first progress that a script reports is made with the step after those that were done before.

    The agent may hear of it some steps late. What the script had come to, less the steps counted, does not
    have that fault, but is nonsense if the two count different things, such as parts of a batch.
    """
    reported = [node.shift.first_step for node in one.shifts if node.shift.first_step is not None]
    if not reported:
        return None
    first = max(0, min(reported) - 1)
    counted = [node.shift.steps_before for node in one.shifts if node.shift.steps_before is not None]
    return min((before for before in counted if 0 <= before <= first), default=first)

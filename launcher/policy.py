"""What to do about an incident: the one function that decides restarts. Pure.

A job is started again unless a limit says no (`ftrun.launcher.budgets`), without a node or GPU that fails
again and again (`ftrun.launcher.blame`), and after a pause if nothing has progressed. The table of decisions
is in `docs/policy.md`.
"""

from __future__ import annotations

from itertools import takewhile

from ftrun.launcher.blame import Blame, hold_responsible, ordinal
from ftrun.launcher.budgets import MAX_STARTS, NOT_BEGUN, Situation, find_stop, is_counted
from ftrun.launcher.model import Action, Case, Decision
from ftrun.launcher.restart_config import RestartConfig


def decide(case: Case, max_restarts: int, config: RestartConfig) -> Decision:
    """Restart or stop after a failure."""
    here = Situation(case, max_restarts, config)
    stop = find_stop(here)
    if stop is not None:
        return stop
    counts = is_counted(here.kind, config)
    blame = hold_responsible(case, config)
    delay_s = _pause_s(here)
    reason = "".join((_number(here, counts), here.what, *_notes(here, blame), _pause(here, delay_s)))
    return Decision(
        Action.RESTART,
        reason,
        delay_s,
        is_counted=counts,
        excluded_node=blame.node,
        excluded_gpu=blame.gpu,
    )


def _number(here: Situation, counts: bool) -> str:
    if here.kind in NOT_BEGUN:
        return f"start {here.starts + 1} of {MAX_STARTS}: "
    if not counts:
        return "restart that does not count (restart.kinds): "
    return f"restart {here.used + 1} of {here.max_restarts}: "


def _notes(here: Situation, blame: Blame) -> list[str]:
    """How near the other limits are, where one has begun to count."""
    config = here.config
    found = [blame.note] if blame.note else []
    if not is_counted(here.kind, config):
        return [f"; {note}" for note in found]
    if config.max_same_failure and here.alike > 1:
        time = f"{ordinal(here.alike)} time at step {here.case.now.step}"
        found.append(f"{time}, given up at {config.max_same_failure}")
    if config.max_no_progress and here.fruitless > 0:
        in_a_row = f"{ordinal(here.fruitless)} restart in a row that brought nothing new"
        found.append(f"{in_a_row}, given up at {config.max_no_progress}")
    return [f"; {note}" for note in found]


def _pause(here: Situation, delay_s: float) -> str:
    if not delay_s:
        return ""
    is_usual = here.kind not in NOT_BEGUN and here.config.rule_of(here.kind.value).delay is None
    return f", after a pause of {delay_s:g} s{' because nothing has progressed' if is_usual else ''}"


def _pause_s(here: Situation) -> float:
    """As configured for the kind; else 0 for the first failure without progress in a row, then doubling.

    The doubling begins with `backoff_initial`, or with 1 s where no worker has begun.
    """
    config, case, now = here.config, here.case, here.case.now
    given = config.rule_of(here.kind.value).delay
    if given is not None:
        return given
    if here.kind in NOT_BEGUN:
        return float(2.0 ** (here.starts - 1))
    if now.has_progressed or now.after_s >= config.backoff_below:
        return 0.0
    rounds = [past for past in case.history if past.kind not in NOT_BEGUN]
    in_a_row = sum(1 for _ in takewhile(lambda past: not past.has_progressed, reversed(rounds)))
    if in_a_row == 0:
        return 0.0
    # The exponent is capped only to keep a job with thousands of restarts out of float overflow.
    return min(config.backoff_max, config.backoff_initial * 2.0 ** min(in_a_row - 1, 60))

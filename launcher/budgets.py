"""The limits of restarts: a table of rules, each of which ends the job or says nothing. Pure.

The first rule that speaks decides. What a rule says has its numbers, and what a person can do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from ftrun.launcher import exit_codes
from ftrun.launcher.blame import ordinal
from ftrun.launcher.model import Action, Case, Decision, PastIncident, count_counted
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor.incident import IncidentKind

MAX_STARTS = 5
"""With pauses of 1, 2, 4 and 8 s between them; twice as many where both of `NOT_BEGUN` take turns."""
NOT_BEGUN = {
    IncidentKind.START_FAILED: ("could not be started", exit_codes.NODE_UNHEALTHY),
    IncidentKind.UNREACHABLE: ("could not find each other", exit_codes.NO_RENDEZVOUS),
}
"""Incidents before which no worker has done anything: what is said of them, and the job's exit code."""


OF_THE_PROGRAM = frozenset(
    {
        "exception",
        "import_or_syntax_error",
        "exit_code",
        "cuda_oom",
        "cuda_error",
        "host_oom",
        "segfault",
        "abort",
        "bus_error",
        "data_loader",
        "checkpoint_load",
        "checkpoint_save",
        "nan_loss",
    }
)
"""Kinds, by their values in `IncidentKind`, that a program and its data bring about at a step of their own.
What comes from outside, comes at a step by chance; of two hangs nobody knows whether they are the same."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A failure, and the limits."""

    case: Case
    max_restarts: int
    config: RestartConfig

    @property
    def kind(self) -> IncidentKind:
        """Of the failure."""
        return self.case.incident.kind

    @property
    def what(self) -> str:
        """The failure in a sentence."""
        return self.case.incident.reasons[0]

    @property
    def earlier(self) -> Sequence[PastIncident]:
        """Failures before it that the limits count, oldest first."""
        return [past for past in self.case.history if past.is_counted]

    @property
    def used(self) -> int:
        """Restarts of the job that the limits count."""
        return count_counted(self.case.history, self.case.forgotten)

    @property
    def starts(self) -> int:
        """How often workers were tried to be started in a row that never began, this time included."""
        before = takewhile(lambda past: past.kind is self.kind, reversed(self.case.history))
        return 1 + sum(1 for _ in before)

    @property
    def idle_rounds(self) -> int:
        """Rounds in a row in which no worker has begun, this one included, for whichever reason."""
        return 1 + sum(1 for _ in takewhile(lambda past: past.kind in NOT_BEGUN, reversed(self.case.history)))

    @property
    def fruitless(self) -> int:
        """Restarts in a row, until now, that brought neither a step nor a checkpoint that was new."""
        rounds = [*self.earlier, self.case.now]
        streak = sum(1 for _ in takewhile(lambda one: not self._has_gained(one), reversed(rounds)))
        # The job's first round is no restart.
        return streak - (streak == len(rounds) and not self.case.forgotten)

    def _has_gained(self, one: PastIncident) -> bool:
        return one.has_moved_on or (one.has_progressed and self.config.progress == "any")

    @property
    def alike(self) -> int:
        """How often this failure has come at this step of training; 0 if that says nothing.

        Nor does it before any progress, when the step is only that with which the round began.
        """
        now = self.case.now
        if now.step is None or not now.has_progressed or self.kind.value not in OF_THE_PROGRAM:
            return 0
        same = (now.fingerprint, now.step)
        rounds = [past for past in self.earlier if past.has_progressed]
        return 1 + sum((past.fingerprint, past.step) == same for past in rounds)

    @property
    def within_window(self) -> int:
        """Restarts in the last `window` seconds that the limits count."""
        count, age_s = 0, self.case.now.after_s
        for past in reversed(self.case.history):
            if age_s > self.config.window:
                break
            count += past.is_counted
            age_s += past.after_s
        return count


def is_counted(kind: IncidentKind, config: RestartConfig) -> bool:
    """Whether the limits count a restart after such an incident: as configured, and not if no worker ran."""
    return kind not in NOT_BEGUN and config.rule_of(kind.value).counts


def _asked_for(here: Situation) -> Decision | None:
    if here.kind is not IncidentKind.USER_STOP:
        return None
    return _stop(here.what, exit_codes.FUTILE)


def _kind_is_used_up(here: Situation) -> Decision | None:
    most = here.config.rule_of(here.kind.value).max
    history, forgotten = here.case.history, here.case.forgotten
    used = sum(past.kind is here.kind for past in history)
    used += sum(tally.count for tally in forgotten if tally.kind is here.kind)
    if most is None or used < most:
        return None
    _, own_code = NOT_BEGUN.get(here.kind, ("", _own_code(here)))
    limit = f"restart.kinds allows {most} after {here.kind.value}"
    return _stop(f"{here.what}; {'no restart, ' if most == 0 else ''}{limit}", own_code)


def _start_failed_too_often(here: Situation) -> Decision | None:
    if here.kind not in NOT_BEGUN or (here.starts < MAX_STARTS and here.idle_rounds < 2 * MAX_STARTS):
        return None
    error = here.case.incident.culprit.error
    why = here.what if error is None else error.message
    what, exit_code = NOT_BEGUN[here.kind]
    if here.starts < MAX_STARTS:
        return _stop(
            f"no worker has begun in {here.idle_rounds} rounds in a row, the last time: {why}", exit_code
        )
    return _stop(f"the workers {what} {here.starts} times in a row: {why}", exit_code)


def _restarts_are_off(here: Situation) -> Decision | None:
    if here.max_restarts > 0:
        return None
    return _stop(f"{here.what}; restarts are off (max_restarts 0)", _own_code(here))


def _name_is_missing(here: Situation) -> Decision | None:
    if here.kind is not IncidentKind.IMPORT_OR_SYNTAX_ERROR or here.case.incident.has_progressed:
        return None
    why = "before any progress, so a restart would fail the same way: repair the script or its environment"
    return _stop(f"{here.what}; {why}", exit_codes.FUTILE)


def _exception_is_repeated(here: Situation) -> Decision | None:
    incident, earlier = here.case.incident, here.earlier
    if not here.kind.is_of_exception or incident.has_progressed or not earlier:
        return None
    if earlier[-1].has_progressed or earlier[-1].fingerprint != here.case.now.fingerprint:
        return None
    why = "the same exception twice in a row without progress: restarting does not help, its traceback may"
    return _stop(f"{here.what}; {why}", exit_codes.FUTILE)


def _failure_is_repeated(here: Situation) -> Decision | None:
    most = here.config.max_same_failure
    if not most or here.alike < most:
        return None
    why = (
        f"the same failure for the {ordinal(here.alike)} time at step {here.case.now.step} "
        f"(restart.max_same_failure {most}): look at what that step does, and with which data"
    )
    return _stop(f"{here.what}; {why}", exit_codes.FUTILE)


def _nothing_is_gained(here: Situation) -> Decision | None:
    most = here.config.max_no_progress
    if not most or here.fruitless < most:
        return None
    why = (
        f"{here.fruitless} restarts in a row brought no new step and no new checkpoint "
        f"(restart.max_no_progress {most}): find the cause, or save more often if there was too little time"
    )
    return _stop(f"{here.what}; {why}", exit_codes.FUTILE)


def _restarts_are_used_up(here: Situation) -> Decision | None:
    if here.used < here.max_restarts:
        return None
    return _stop(
        f"{here.what}; all {here.max_restarts} restarts are used up (--max-restarts)", _own_code(here)
    )


def _restarts_are_too_many(here: Situation) -> Decision | None:
    most, window_s = here.config.max_in_window, here.config.window
    if not most or here.within_window < most:
        return None
    why = (
        f"{here.within_window} restarts in the last {window_s:g} s (restart.max_in_window {most}): "
        "see what it is that fails so often, or allow more"
    )
    return _stop(f"{here.what}; {why}", _own_code(here))


def _stop(reason: str, exit_code: int) -> Decision:
    return Decision(Action.STOP, reason, exit_code=exit_code)


def _own_code(here: Situation) -> int:
    return exit_codes.of_failure(here.case.incident.culprit.exit_code)


_Rule: TypeAlias = Callable[[Situation], Decision | None]

OF_ALL: tuple[_Rule, ...] = (_asked_for, _kind_is_used_up, _start_failed_too_often)
"""Rules for every failure, in their order."""
OF_COUNTED: tuple[_Rule, ...] = (
    _restarts_are_off,
    _name_is_missing,
    _exception_is_repeated,
    _failure_is_repeated,
    _nothing_is_gained,
    _restarts_are_used_up,
    _restarts_are_too_many,
)
"""Then those for failures that the limits count. What no restart can cure comes before what has only had too
many: the exit code tells a scheduler which of both it is."""


def find_stop(here: Situation) -> Decision | None:
    """The end of the job, if any rule calls for it."""
    rules = (*OF_ALL, *OF_COUNTED) if is_counted(here.kind, here.config) else OF_ALL
    return next((stop for rule in rules if (stop := rule(here)) is not None), None)

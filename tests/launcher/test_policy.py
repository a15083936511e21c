"""Restart or stop: every rule of the policy with its near miss."""

from __future__ import annotations

import pytest

from ftrun.launcher.config import RestartConfig
from ftrun.launcher.model import Action, PastIncident
from ftrun.launcher.policy import decide
from ftrun.monitor.incident import Incident, IncidentKind, RankExit

CONFIG = RestartConfig(backoff_initial=0.25, backoff_max=5.0)
KIND = IncidentKind


def incident(
    kind: IncidentKind = KIND.KILLED, *, progressed: bool = False, fingerprint: str = "f", code: int = -9
) -> Incident:
    """An incident of rank 1."""
    culprit = RankExit(1, 1, 4242, code, 10.0, is_stopped_by_agent=False)
    return Incident(kind, 0, "node-a", culprit, ("rank 1 died",), fingerprint, progressed)


def past(count: int, *, progressed: bool = False, fingerprint: str = "f") -> tuple[PastIncident, ...]:
    """`count` earlier incidents, all alike."""
    return (PastIncident(KIND.KILLED, fingerprint, progressed),) * count


def test_kill_after_progress_is_restarted_at_once():
    """The common case has no pause in it, however often it came before."""
    decision = decide(incident(progressed=True), past(2, progressed=True), 3, CONFIG)
    assert (decision.action, decision.delay_s) == (Action.RESTART, 0.0)


def test_budget_counts_the_restarts_of_the_job():
    """With all restarts used the job stops, and says so."""
    decision = decide(incident(progressed=True), past(3, progressed=True), 3, CONFIG)
    assert (decision.action, decision.exit_code) == (Action.STOP, 1)
    assert "all 3 restarts" in decision.reason


def test_no_restarts_behaves_as_torchrun():
    """With `--max-restarts 0` nothing is judged: the job fails with 1 or the worker's own code."""
    assert decide(incident(KIND.IMPORT_OR_SYNTAX_ERROR, code=1), (), 0, CONFIG).exit_code == 1
    assert decide(incident(KIND.EXIT_CODE, code=42), (), 0, CONFIG).exit_code == 42


def test_missing_import_before_progress_is_never_retried():
    """A name that does not exist will not exist after a restart either."""
    decision = decide(incident(KIND.IMPORT_OR_SYNTAX_ERROR, code=1), (), 3, CONFIG)
    assert (decision.action, decision.exit_code) == (Action.STOP, 93)


def test_missing_import_after_progress_is_retried():
    """A lazy import that fails in the middle of training may be a file system's fault."""
    decision = decide(incident(KIND.IMPORT_OR_SYNTAX_ERROR, progressed=True, code=1), (), 3, CONFIG)
    assert decision.action is Action.RESTART


def test_exception_before_progress_is_retried_once():
    """The first time may be chance."""
    assert decide(incident(KIND.EXCEPTION, code=1), (), 3, CONFIG).action is Action.RESTART


def test_same_exception_twice_without_progress_stops():
    """The second time it is the program."""
    decision = decide(incident(KIND.EXCEPTION, code=1), past(1), 3, CONFIG)
    assert (decision.action, decision.exit_code) == (Action.STOP, 93)


@pytest.mark.parametrize(
    "earlier",
    [past(1, fingerprint="another"), past(1, progressed=True)],
    ids=["another exception", "had progressed"],
)
def test_exception_that_is_not_the_same_twice_is_retried(earlier: tuple[PastIncident, ...]):
    """Near misses of the rule above."""
    assert decide(incident(KIND.EXCEPTION, code=1), earlier, 3, CONFIG).action is Action.RESTART


@pytest.mark.parametrize("kind", [KIND.KILLED, KIND.COMMUNICATION_ERROR, KIND.SEGFAULT, KIND.EXIT_CODE])
def test_faults_before_progress_are_retried_with_a_growing_pause(kind: IncidentKind):
    """Deaths by signal, exit codes and communication errors are faults, also when they repeat."""
    delays = [decide(incident(kind), past(n), 100, CONFIG).delay_s for n in range(8)]
    assert delays == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_progress_resets_the_pause():
    """Only failures in a row without progress count."""
    history = past(4) + past(1, progressed=True)
    assert decide(incident(), history, 100, CONFIG).delay_s == 0.0


@pytest.mark.parametrize(
    ("code", "expected"), [(42, 42), (1, 1), (2, 1), (93, 1), (94, 1), (95, 1), (-9, 1), (255, 255)]
)
def test_own_exit_code_is_passed_on_unless_it_is_one_of_ours(code: int, expected: int):
    """A script's `sys.exit(42)` reaches the scheduler; codes with a meaning of ours and signals become 1."""
    assert (
        decide(incident(KIND.EXIT_CODE, progressed=True, code=code), past(3), 3, CONFIG).exit_code == expected
    )

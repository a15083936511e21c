"""Restart or stop: every rule of the policy with its near miss."""

from __future__ import annotations

import pytest

from ftrun.launcher import policy
from ftrun.launcher.budgets import is_counted
from ftrun.launcher.model import Action, Decision, PastIncident
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor.incident import ErrorRecord, Incident, IncidentKind, RankExit
from tests.support.cases import case_of

CONFIG = RestartConfig(backoff_initial=0.25, backoff_max=5.0)
KIND = IncidentKind


def incident(
    kind: IncidentKind = KIND.KILLED, *, progressed: bool = False, fingerprint: str = "f", code: int = -9
) -> Incident:
    """An incident of rank 1."""
    culprit = RankExit(1, 1, 4242, code, 10.0, is_stopped_by_agent=False)
    return Incident(kind, 0, "node-a", culprit, ("rank 1 died",), fingerprint, progressed)


def past(
    count: int, *, progressed: bool = False, fingerprint: str = "f", kind: IncidentKind = KIND.KILLED
) -> tuple[PastIncident, ...]:
    """`count` earlier incidents, all alike."""
    return (PastIncident(kind, fingerprint, progressed, is_counted=is_counted(kind, CONFIG)),) * count


def decide(
    incident: Incident, history: tuple[PastIncident, ...], max_restarts: int, config: RestartConfig
) -> Decision:
    """Of failures of which no more is known."""
    return policy.decide(case_of(incident, history), max_restarts, config)


def failed_start() -> Incident:
    """A start of workers that the system would not allow, as diagnosis tells it."""
    error = ErrorRecord("", "[Errno 11] no processes", "")
    culprit = RankExit(0, 0, 0, 1, 0.0, is_stopped_by_agent=False, error=error)
    reasons = ("the workers could not be started: [Errno 11] no processes",)
    return Incident(KIND.START_FAILED, 0, "node-a", culprit, reasons, "f", False)


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


@pytest.mark.parametrize("kind", [kind for kind in KIND if kind.is_of_exception])
def test_same_exception_twice_without_progress_stops(kind: IncidentKind):
    """The second time it is the program, wherever in the script's own work it was raised."""
    decision = decide(incident(kind, code=1), past(1), 3, CONFIG)
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


@pytest.mark.parametrize("kind", [KIND.NODE_LOST, KIND.PREEMPTED, KIND.UNKNOWN])
def test_lost_nodes_are_faults(kind: IncidentKind):
    """Retried within the budget, at once after progress; the job fails as any other when it is used up."""
    lost = incident(kind, progressed=True, code=1)
    decision = decide(lost, past(2), 3, CONFIG)
    assert (decision.action, decision.delay_s) == (Action.RESTART, 0.0)
    stopped = decide(lost, past(3, kind=kind), 3, CONFIG)
    assert (stopped.action, stopped.exit_code) == (Action.STOP, 1)
    assert decide(incident(kind, code=1), past(1, kind=kind), 3, CONFIG).delay_s == 0.25


@pytest.mark.parametrize("max_restarts", [0, 3, 100])
def test_failed_starts_are_tried_again_a_few_times_whatever_the_budget(max_restarts: int):
    """No worker has run, so it is no restart; the pause doubles while they follow each other."""
    decisions = [
        decide(failed_start(), past(n, kind=KIND.START_FAILED), max_restarts, CONFIG) for n in range(5)
    ]
    assert [decision.delay_s for decision in decisions] == [1.0, 2.0, 4.0, 8.0, 0.0]
    assert [decision.action for decision in decisions] == [Action.RESTART] * 4 + [Action.STOP]
    assert decisions[-1].exit_code == 94
    assert decisions[-1].reason == (
        "the workers could not be started 5 times in a row: [Errno 11] no processes"
    )
    assert decisions[0].reason == (
        "start 2 of 5: the workers could not be started: [Errno 11] no processes, after a pause of 1 s"
    )


def test_workers_that_cannot_find_each_other_are_started_again_a_few_times() -> None:
    """The way between two nodes may come back; if it does not, another set of nodes has to be found."""
    reason = "node b cannot reach the workers' store on node a: 10.9.9.9:4321: connection timed out"
    culprit = RankExit(1, 0, 0, 1, 0.0, is_stopped_by_agent=False, error=ErrorRecord("", reason, ""))
    apart = Incident(KIND.UNREACHABLE, 0, "b", culprit, (reason,), "f", False)
    decisions = [decide(apart, past(n, kind=KIND.UNREACHABLE), 0, CONFIG) for n in range(5)]
    assert [decision.delay_s for decision in decisions] == [1.0, 2.0, 4.0, 8.0, 0.0]
    assert decisions[0].reason == f"start 2 of 5: {reason}, after a pause of 1 s"
    assert (decisions[-1].action, decisions[-1].exit_code) == (Action.STOP, 95)
    assert decisions[-1].reason == f"the workers could not find each other 5 times in a row: {reason}"
    assert decide(apart, past(4, kind=KIND.START_FAILED), 0, CONFIG).delay_s == 1.0


def test_failed_starts_that_do_not_follow_each_other_begin_anew():
    """A round that ran in between has shown that it works."""
    history = past(4, kind=KIND.START_FAILED) + past(1)
    assert decide(failed_start(), history, 3, CONFIG).delay_s == 1.0


def test_failed_starts_use_no_restart_and_do_not_lengthen_the_pause():
    """Only incidents that count are counted, named and waited for."""
    history = past(2, kind=KIND.START_FAILED) + past(2, progressed=True) + past(2, kind=KIND.START_FAILED)
    decision = decide(incident(), history, 3, CONFIG)
    assert (decision.action, decision.delay_s) == (Action.RESTART, 0.0)
    assert decision.reason.startswith("restart 3 of 3: ")


def test_same_exception_around_a_failed_start_is_the_same_twice_in_a_row():
    """The program has not changed because the machine was short of something."""
    history = past(1) + past(1, kind=KIND.START_FAILED)
    decision = decide(incident(KIND.EXCEPTION, code=1), history, 3, CONFIG)
    assert (decision.action, decision.exit_code) == (Action.STOP, 93)


def test_only_rounds_that_did_not_begin_do_not_count():
    """Every other kind of incident uses up a restart."""
    uncounted = [kind for kind in IncidentKind if not is_counted(kind, CONFIG)]
    assert uncounted == [KIND.START_FAILED, KIND.UNREACHABLE]

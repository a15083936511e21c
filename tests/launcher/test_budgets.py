"""The limits of restarts: each rule with what it stops, and with the nearest thing that it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ftrun.launcher import budgets
from ftrun.launcher.budgets import Situation, find_stop, is_counted
from ftrun.launcher.model import Action, PastIncident, Tally
from ftrun.launcher.policy import decide
from ftrun.launcher.restart_config import RestartConfig
from ftrun.monitor.incident import Incident, IncidentKind, RankExit
from tests.support.cases import case_of

K = IncidentKind
CONFIG = RestartConfig()
GAINED = PastIncident(K.KILLED, "killed|SIGKILL", True, after_s=3600.0)
LOST = replace(GAINED, has_moved_on=False)
"""A round that did steps again and came to none that was new."""
EXCEPTION = PastIncident(K.EXCEPTION, "exception|ValueError|bad sample|train.py:31", True, step=120)


def incident(kind: IncidentKind = K.KILLED, code: int = -9, progressed: bool = True) -> Incident:
    """Of rank 1 on node b."""
    culprit = RankExit(1, 0, 4242, code, 10.0, is_stopped_by_agent=False)
    return Incident(kind, 3, "b", culprit, ("rank 1 died",), "killed|SIGKILL", progressed, confidence=0.8)


@dataclass(frozen=True)
class Row:
    """A failure after a history; the rule that ends the job for it, and with which exit code."""

    history: tuple[PastIncident, ...]
    now: PastIncident
    rule: str | None
    code: int = 0
    max_restarts: int = 100
    config: RestartConfig = CONFIG
    forgotten: tuple[Tally, ...] = ()

    def situation(self) -> Situation:
        """What the rules look at."""
        now = self.now
        this = replace(incident(now.kind), fingerprint=now.fingerprint, has_progressed=now.has_progressed)
        case = replace(case_of(this, self.history), now=now, forgotten=self.forgotten)
        return Situation(case, self.max_restarts, self.config)


def kinds(**rules: dict[str, float]) -> RestartConfig:
    """A configuration with these `restart.kinds`."""
    return RestartConfig(kinds=tuple((kind, tuple(rule.items())) for kind, rule in rules.items()))


EARLY = replace(LOST, kind=K.EXCEPTION, fingerprint="e", has_progressed=False, step=0)
STARTS = (PastIncident(K.START_FAILED, "s", False, is_counted=False),)
OOM = replace(GAINED, kind=K.CUDA_OOM)
ONCE = kinds(cuda_oom={"max": 1})
FREE = kinds(preempted={"counts": False})
QUICK = replace(GAINED, after_s=20.0)
LESS_QUICK = replace(GAINED, after_s=20.7)
KILLED_AT_7 = replace(GAINED, step=7)
ROWS = {
    "the script asks": Row((), replace(GAINED, kind=K.USER_STOP), "_asked_for", 93),
    "kind used up": Row((OOM,), OOM, "_kind_is_used_up", 1, config=ONCE),
    "kind used up long ago": Row(
        (), OOM, "_kind_is_used_up", 1, config=ONCE, forgotten=(Tally(K.CUDA_OOM, 1, 1),)
    ),
    "kind has one left": Row((GAINED,), OOM, None, config=ONCE),
    "kind never restarted": Row((), OOM, "_kind_is_used_up", 1, config=kinds(cuda_oom={"max": 0})),
    "fifth start": Row(STARTS * 4, STARTS[0], "_start_failed_too_often", 94),
    "fourth start": Row(STARTS * 3, STARTS[0], None),
    "both sorts of failed starts in turn": Row(
        (STARTS[0], replace(STARTS[0], kind=K.UNREACHABLE)) * 5, STARTS[0], "_start_failed_too_often", 94
    ),
    "both in turn, not so often": Row(
        (STARTS[0], replace(STARTS[0], kind=K.UNREACHABLE)) * 4, STARTS[0], None
    ),
    "restarts off": Row((), GAINED, "_restarts_are_off", 1, max_restarts=0),
    "one restart": Row((), GAINED, None, max_restarts=1),
    "missing name": Row((), replace(EARLY, kind=K.IMPORT_OR_SYNTAX_ERROR), "_name_is_missing", 93),
    "missing name late": Row((), replace(GAINED, kind=K.IMPORT_OR_SYNTAX_ERROR), None),
    "same exception at once": Row((EARLY,), EARLY, "_exception_is_repeated", 93),
    "same exception after another": Row((EARLY, LOST), EARLY, None),
    "same step for the 3rd time": Row((EXCEPTION, GAINED, EXCEPTION), EXCEPTION, "_failure_is_repeated", 93),
    "same step for the 2nd time": Row((EXCEPTION, GAINED), EXCEPTION, None),
    "other steps": Row((EXCEPTION, replace(EXCEPTION, step=121)), EXCEPTION, None),
    "unknown steps": Row((replace(EXCEPTION, step=None),) * 2, replace(EXCEPTION, step=None), None),
    "same step without progress": Row(
        (replace(GAINED, has_progressed=False),) * 3, replace(GAINED, has_progressed=False), None
    ),
    "hung at the same step": Row(
        (replace(KILLED_AT_7, kind=K.HANG_STEADY),) * 4, replace(KILLED_AT_7, kind=K.HANG_STEADY), None
    ),
    "killed at the same step": Row((KILLED_AT_7,) * 4, KILLED_AT_7, None),
    "same step, no limit": Row((EXCEPTION,) * 4, EXCEPTION, None, config=RestartConfig(max_same_failure=0)),
    "5 restarts for nothing": Row((GAINED, *(LOST,) * 4), LOST, "_nothing_is_gained", 93),
    "4 restarts for nothing": Row((GAINED, *(LOST,) * 3), LOST, None),
    "4 restarts, of the job's first round on": Row((LOST,) * 4, LOST, None),
    "5 restarts, of the job's first round on": Row((LOST,) * 5, LOST, "_nothing_is_gained", 93),
    "5 restarts, those before forgotten": Row(
        (LOST,) * 4, LOST, "_nothing_is_gained", 93, forgotten=(Tally(K.KILLED, 9, 9),)
    ),
    "something in between": Row((LOST, LOST, GAINED, LOST, LOST), LOST, None),
    "nothing, no limit": Row((LOST,) * 9, LOST, None, config=RestartConfig(max_no_progress=0)),
    "steps replayed on purpose": Row((LOST,) * 9, LOST, None, config=RestartConfig(progress="any")),
    "replayed, and none done": Row(
        (replace(LOST, has_progressed=False),) * 9,
        replace(LOST, has_progressed=False),
        "_nothing_is_gained",
        93,
        config=RestartConfig(progress="any"),
    ),
    "all used up": Row((GAINED,) * 3, GAINED, "_restarts_are_used_up", 1, max_restarts=3),
    "all used up long ago": Row(
        (), GAINED, "_restarts_are_used_up", 1, max_restarts=3, forgotten=(Tally(K.KILLED, 4, 3),)
    ),
    "last one": Row((GAINED,) * 2, GAINED, None, max_restarts=3),
    "free ones do not count": Row(
        (replace(GAINED, kind=K.PREEMPTED, is_counted=False),) * 9, GAINED, None, max_restarts=1, config=FREE
    ),
    "free though all are used up": Row(
        (GAINED,) * 3, replace(GAINED, kind=K.PREEMPTED), None, max_restarts=3, config=FREE
    ),
    "free though restarts are off": Row(
        (), replace(GAINED, kind=K.PREEMPTED), None, max_restarts=0, config=FREE
    ),
    "30 in 10 minutes": Row((QUICK,) * 30, QUICK, "_restarts_are_too_many", 1),
    "30 in a little more": Row((LESS_QUICK,) * 30, LESS_QUICK, None),
    "29 in 10 minutes": Row((GAINED, *(QUICK,) * 28), QUICK, None),
    "30 in 10 minutes, no limit": Row((QUICK,) * 40, QUICK, None, config=RestartConfig(max_in_window=0)),
    "a longer window": Row(
        (LESS_QUICK,) * 30, LESS_QUICK, "_restarts_are_too_many", 1, config=RestartConfig(window=700.0)
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_rule_stops_what_it_is_for_and_nothing_else(name: str) -> None:
    """The decision is that of the rule, and of no other that would come later."""
    row = ROWS[name]
    here = row.situation()
    # Only in the rows that end the job do rules of this order speak; several may, and the first one decides.
    spoken = [rule.__name__ for rule in (*budgets.OF_ALL, *budgets.OF_COUNTED) if rule(here) is not None]
    decision = decide(here.case, row.max_restarts, row.config)
    assert (decision.action is Action.STOP) == (row.rule is not None), decision.reason
    assert decision.exit_code == row.code
    if row.rule is not None:
        assert spoken[0] == row.rule
        assert find_stop(here) == decision


def test_every_rule_has_a_row_that_it_stops() -> None:
    """A rule that is added is added here."""
    rules = {rule.__name__ for rule in (*budgets.OF_ALL, *budgets.OF_COUNTED)}
    assert rules == {row.rule for row in ROWS.values()} - {None}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kind used up", "rank 1 died; restart.kinds allows 1 after cuda_oom"),
        ("kind never restarted", "rank 1 died; no restart, restart.kinds allows 0 after cuda_oom"),
        (
            "same step for the 3rd time",
            "rank 1 died; the same failure for the 3rd time at step 120 (restart.max_same_failure 3): look "
            "at what that step does, and with which data",
        ),
        (
            "5 restarts for nothing",
            "rank 1 died; 5 restarts in a row brought no new step and no new checkpoint "
            "(restart.max_no_progress 5): find the cause, or save more often if there was too little time",
        ),
        ("all used up", "rank 1 died; all 3 restarts are used up (--max-restarts)"),
        (
            "30 in 10 minutes",
            "rank 1 died; 30 restarts in the last 600 s (restart.max_in_window 30): see what it is that "
            "fails so often, or allow more",
        ),
    ],
)
def test_stop_says_its_numbers_and_what_can_be_done(name: str, said: str) -> None:
    """Also the key by which the limit is another."""
    row = ROWS[name]
    assert decide(row.situation().case, row.max_restarts, row.config).reason == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one restart", "restart 1 of 1: rank 1 died"),
        (
            "4 restarts for nothing",
            "restart 5 of 100: rank 1 died; 4th restart in a row that brought nothing new, given up at 5",
        ),
        (
            "same step for the 2nd time",
            "restart 3 of 100: rank 1 died; 2nd time at step 120, given up at 3",
        ),
        (
            "free though all are used up",
            "restart that does not count (restart.kinds): rank 1 died",
        ),
    ],
)
def test_restart_says_how_near_the_limits_are(name: str, said: str) -> None:
    """As soon as one of them has begun to count."""
    row = ROWS[name]
    assert decide(row.situation().case, row.max_restarts, row.config).reason == said


def test_crash_loop_is_stopped_whatever_it_does_in_its_rounds() -> None:
    """With 1000 restarts allowed: without progress, with the same steps again, or with a few new ones."""
    crash = replace(GAINED, after_s=3.0)
    for loop, code in (
        (replace(crash, has_progressed=False, has_moved_on=False), 93),
        (replace(crash, has_moved_on=False), 93),
        (replace(crash, step=None), 1),
    ):
        history: list[PastIncident] = []
        while (decision := decide(Row(tuple(history), loop, None).situation().case, 1000, CONFIG)).action is (
            Action.RESTART
        ):
            history.append(loop)
        assert (len(history) <= 30, decision.exit_code) == (True, code), decision.reason


def test_healthy_job_with_a_fault_a_day_is_never_stopped() -> None:
    """A year of it, each on a node of its own; the window and the limits of progress see single faults."""
    for day in range(365):
        history = [
            replace(GAINED, step=1000 * past, after_s=86400.0) for past in range(max(0, day - 64), day)
        ]
        now = replace(GAINED, step=1000 * day, after_s=86400.0)
        forgotten = (Tally(K.KILLED, max(0, day - 64), max(0, day - 64)),)
        row = Row(tuple(history), now, None, max_restarts=1000, forgotten=forgotten)
        decision = decide(row.situation().case, row.max_restarts, CONFIG)
        assert decision.action is Action.RESTART
        assert decision.reason == f"restart {day + 1} of 1000: rank 1 died"


@pytest.mark.parametrize(
    ("now", "config", "delay_s"),
    [
        pytest.param(LOST, kinds(killed={"delay": 10.0}), 10.0, id="as configured, though it progressed"),
        pytest.param(LOST, kinds(segfault={"delay": 10.0}), 0.0, id="configured for another kind"),
        pytest.param(replace(LOST, has_progressed=False, after_s=59.0), CONFIG, 0.25, id="quick"),
        pytest.param(replace(LOST, has_progressed=False, after_s=60.0), CONFIG, 0.0, id="slow"),
    ],
)
def test_pause_is_for_quick_deaths_and_as_configured(
    now: PastIncident, config: RestartConfig, delay_s: float
) -> None:
    """A round that took a minute has had its pause."""
    row = Row((GAINED, replace(LOST, has_progressed=False)), now, None, config=config)
    assert decide(row.situation().case, 100, config).delay_s == delay_s


def test_free_restarts_have_their_pause_too() -> None:
    """Nothing starts again at full speed for ever."""
    config = kinds(killed={"counts": False})
    quick = replace(LOST, has_progressed=False, is_counted=False, after_s=0.1)
    delays = [decide(Row((quick,) * n, quick, None).situation().case, 1, config).delay_s for n in range(4)]
    assert delays == [0.0, 0.25, 0.5, 1.0]


def test_rule_of_a_kind_has_the_usual_where_nothing_is_said() -> None:
    """An override of one thing leaves the others."""
    config = kinds(nccl_timeout={"max": 5, "delay": 10.0}, preempted={"counts": False})
    assert (config.rule_of("nccl_timeout").max, config.rule_of("nccl_timeout").delay) == (5, 10.0)
    assert config.rule_of("nccl_timeout").counts
    assert config.rule_of("killed") == RestartConfig().rule_of("killed")
    assert [is_counted(kind, config) for kind in (K.PREEMPTED, K.KILLED)] == [False, True]

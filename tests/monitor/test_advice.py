"""What a person is told to change, by rule; and how often to save."""

from __future__ import annotations

import dataclasses

import pytest

from ftrun.monitor.advice import Advice, advise, how_it_saves
from ftrun.monitor.checkpoint_interval import best_interval_s, cost
from ftrun.monitor.events import CheckpointSaved
from ftrun.monitor.goodput import Bucket, Ledger, make_ledger
from ftrun.monitor.history import Incident, Outcome, Run
from ftrun.monitor.incident import IncidentKind
from ftrun.monitor.merging import merge
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.records import Record, to_json
from ftrun.monitor.remedies import remedy_of
from ftrun.monitor.timeline import group
from tests.support.journals import run_of
from tests.support.simulated_journals import EPOCH, Part, Simulation


@pytest.mark.parametrize(("mtbf_min", "best_min"), [(24 * 60, 117.0), (6 * 60, 57.0), (15, 9.1)])
def test_best_interval_is_that_of_dalys_figures(mtbf_min: float, best_min: float) -> None:
    """Figures 3 to 5 of the paper: a save of 5 minutes, failures every 24 h, 6 h and 15 min."""
    assert best_interval_s(5 * 60, mtbf_min * 60) / 60 == pytest.approx(best_min, abs=0.5)


def test_saves_that_take_longer_than_a_failure_needs() -> None:
    """There the estimate ends, and the interval is the time between failures."""
    assert best_interval_s(200.0, 100.0) == 100.0


def test_best_interval_costs_least() -> None:
    """Neither a longer nor a shorter one is cheaper, to first order."""
    best = best_interval_s(10.0, 36000.0)
    assert all(
        sum(cost(best, 10.0, 36000.0)) <= sum(cost(best * f, 10.0, 36000.0)) for f in (0.5, 0.8, 1.25, 2)
    )
    assert cost(90.0, 10.0, 1000.0) == pytest.approx((0.1, 0.05))


def ledger_of(run: Run) -> Ledger:
    return make_ledger(run, segments_of(run))


def simulate(*parts: Part, nodes: int = 2) -> Run:
    names = [f"n{number}" for number in range(nodes)]
    [members] = group(Simulation(names, 2).run(parts).lives())
    return merge(members)


def advice_on(run: Run, ledger: Ledger | None = None) -> dict[str, str]:
    return {one.rule: one.text for one in advise(run, ledger or ledger_of(run))}


def changed(run: Run, *incidents: Incident, **fields: object) -> Run:
    """The run with other incidents."""
    return dataclasses.replace(run, incidents=incidents or run.incidents, **fields)  # type: ignore[arg-type]


def alike(run: Run, count: int, **fields: object) -> tuple[Incident, ...]:
    """So many incidents like the run's first, changed by `fields`."""
    first = dataclasses.replace(run.incidents[0], **fields)  # type: ignore[arg-type]
    return tuple(dataclasses.replace(first, number=number) for number in range(1, count + 1))


ONCE = simulate(Part(steps=200, kept=200), Part(steps=200))


def test_run_without_incidents_needs_no_advice() -> None:
    """A quiet run is left alone."""
    assert advise(simulate(Part()), ledger_of(simulate(Part()))) == ()


def test_most_frequent_kind_is_named_with_its_node_and_what_to_do() -> None:
    """If all of that kind began on one node of several."""
    oom = alike(ONCE, 3, kind="host_oom", node="n1")
    other = dataclasses.replace(oom[0], number=4, kind="exception", node="n0")
    text = advice_on(changed(ONCE, *oom, other))["main_cause"]
    assert text.startswith("3 of 4 incidents: host_oom on node n1. Give the container more memory")
    elsewhere = dataclasses.replace(oom[2], node="n0")
    assert advice_on(changed(ONCE, *oom[:2], elsewhere))["main_cause"].startswith(
        "3 of 3 incidents: host_oom. "
    )


def test_of_incidents_that_are_all_different_the_costliest_is_named() -> None:
    """There is no common cause, but one to begin with."""
    quick, slow = alike(ONCE, 2, recover_s=1.0)
    slow = dataclasses.replace(slow, kind="stall", node="n1", recover_s=2.0, detect_s=600.0)
    text = advice_on(changed(ONCE, quick, slow))["costliest"]
    assert text.startswith("no two incidents are alike; number 2 took longest: stall on node n1.")


def test_node_on_which_much_goes_wrong_in_different_ways_is_suspect() -> None:
    """One kind alone may be the script's."""
    kinds = ("xid", "segfault", "killed")
    bad = [
        dataclasses.replace(one, kind=kind, node="n1")
        for one, kind in zip(alike(ONCE, 3), kinds, strict=True)
    ]
    assert "3 of 3 incidents began on node n1" in advice_on(changed(ONCE, *bad))["bad_node"]
    assert "bad_node" not in advice_on(changed(ONCE, *alike(ONCE, 3, kind="xid", node="n1")))


def test_same_exception_again_and_again_is_the_scripts() -> None:
    """A signal from outside that comes again is not."""
    bugs = alike(
        ONCE, 3, kind="exception", exit_code=1, fingerprint="exception|ValueError", reasons=("rank 1 raised",)
    )
    assert "the same failure came 3 times: rank 1 raised" in advice_on(changed(ONCE, *bugs))["same_failure"]
    assert "same_failure" not in advice_on(
        changed(ONCE, *alike(ONCE, 3, exit_code=-9, fingerprint="killed|SIGKILL"))
    )


def saving_run(every: int, blocking_s: float | None, count: int = 1) -> Run:
    """1000 steps of a second on one node, a save every so often, and one failure in the middle.

    Each is told of as `count` reports.
    """
    parts = Part(steps=500, step_s=1.0, kept=500 - 500 % every or 500), Part(steps=500, step_s=1.0)
    journals = Simulation(["a"], 1).run(parts)
    lines = []
    for line in journals.lines["a"]:
        lines.append(line)
        if '"worker.progressed"' in line:
            number = int('"round":1' in line)
            base = number * parts[0].kept
            for step in range(every, 501, every):
                at = 1000.0 + step + number * 503.4
                save = CheckpointSaved(number, 0, f"/c/{base + step}", base + step, blocking_s, count=count)
                lines.append(to_json(Record(EPOCH + at, at, "a", save)))
    journals.lines["a"] = lines
    [members] = group(journals.lives())
    return merge(members)


def test_interval_between_saves_is_measured_and_a_better_one_named() -> None:
    """Saves that hold training up for two seconds every ten steps are too many for one failure in a while."""
    run = saving_run(10, 2.0)
    saving = how_it_saves(run, ledger_of(run))
    assert saving is not None
    assert (saving.interval_steps, saving.save_s, round(saving.step_s, 1)) == (10, 2.0, 0.8)
    text = advice_on(run)["checkpoint_interval"]
    assert "a checkpoint every 10 steps" in text
    assert "costs 20.0 % in saves" in text
    assert "Young/Daly: a save takes 2.00 s, a failure comes every 16 min 46 s" in text


@pytest.mark.parametrize(("every", "count"), [(50, 1), (50, 3), (50, 200), (20, 30)])
def test_several_files_of_one_step_are_one_save(every: int, count: int) -> None:
    """Their reports are counted one by one; a save of step 50 in 200 files is not one every quarter step."""
    run = saving_run(every, 0.05, count)
    saving = how_it_saves(run, ledger_of(run))
    assert saving is not None
    assert saving.interval_steps == every
    assert saving.save_s == pytest.approx(0.05 * count)


def test_saves_between_those_that_are_told_are_counted() -> None:
    """Of a script that saves each second or two, only some are told of."""
    run = saving_run(6, 0.5, 3)
    saving = how_it_saves(run, ledger_of(run))
    assert saving is not None
    assert saving.interval_steps == 2


def test_interval_is_never_nothing() -> None:
    """There are no more saves than steps, whatever is counted."""
    run = saving_run(2, 0.05, 8)
    saving = how_it_saves(run, ledger_of(run))
    assert saving is not None
    assert saving.interval_steps == 1


def test_interval_that_is_about_right_is_left_alone() -> None:
    """Half a percent is not worth a word."""
    assert "checkpoint_interval" not in advice_on(saving_run(50, 1.0))


def test_without_the_time_of_a_save_only_the_loss_is_told() -> None:
    """Which interval is best cannot be known then."""
    run = saving_run(250, None)
    lost = changed(run, *alike(run, 1, steps_lost=210))
    ledger = ledger_of(lost)
    ledger = dataclasses.replace(ledger, total={**ledger.total, Bucket.REDONE: 0.1 * ledger.asked_s})
    text = advice_on(lost, ledger)["save_more_often"]
    assert "210 steps done again, 210 per incident: save more often" in text


def test_restarts_from_nothing_ask_for_checkpoints() -> None:
    """With the option that names their directory."""
    run = simulate(Part(steps=200, kept=0), Part(steps=200))
    assert "--ft-checkpoint-dir" in advice_on(run)["no_checkpoint"]


def test_cold_starts_are_named_with_their_reason() -> None:
    """If the restarts took long for it."""
    slow = alike(ONCE, 1, start_s=8.0, first_step_s=3.0)
    assert advice_on(changed(ONCE, *slow))["cold_starts"].endswith("with all imports still to do: first.")
    assert "cold_starts" not in advice_on(changed(ONCE, *alike(ONCE, 1, start_s=0.2, first_step_s=0.5)))


def test_hangs_that_are_seen_late_ask_for_limits() -> None:
    """Seconds are no reason to."""
    late = alike(ONCE, 2, kind="hang_steady", detect_s=900.0)
    assert "hangs were seen after 15 min" in advice_on(changed(ONCE, *late))["slow_detection"]
    assert "slow_detection" not in advice_on(changed(ONCE, *alike(ONCE, 2, kind="stall", detect_s=20.0)))


def test_workers_that_do_not_end_on_sigterm_are_told() -> None:
    """They cost the whole grace at each failure."""
    assert "it took 5.00 s to end" in advice_on(changed(ONCE, *alike(ONCE, 2, stop_s=5.0)))["slow_stop"]


def test_time_spent_waiting_for_nodes_asks_for_spares() -> None:
    """If it is a notable part of all."""
    ledger = ledger_of(ONCE)
    waiting = dataclasses.replace(ledger, total={**ledger.total, Bucket.WAITING: 0.2 * ledger.asked_s})
    assert "ftrun.world.spares" in advice_on(ONCE, waiting)["waiting"]


@pytest.mark.parametrize(
    ("used", "outcome", "exit_code", "text"),
    [
        (3, Outcome.ENDED, 1, "all 3 restarts are used up (--max-restarts)."),
        (2, Outcome.RECOVERED, None, "one restart is left of 3 (--max-restarts)."),
        (3, Outcome.RECOVERED, None, "no restart is left of 3 (--max-restarts)."),
        (1, Outcome.RECOVERED, None, None),
        (3, Outcome.RECOVERED, 0, None),
    ],
)
def test_budget_is_told_when_it_matters(
    used: int, outcome: Outcome, exit_code: int | None, text: str | None
) -> None:
    """When it has ended the job, or soon may."""
    incidents = alike(ONCE, 1, restart_count=used, max_restarts=3, outcome=outcome)
    run = changed(ONCE, *incidents, max_restarts=3, exit_code=exit_code)
    assert advice_on(run).get("budget") == text


def test_there_is_a_remedy_for_every_kind() -> None:
    """Also for one that another version knows."""
    assert all(remedy_of(kind.value).endswith((".", "?")) for kind in IncidentKind)
    assert remedy_of("from_another_version") == remedy_of("unknown")


def test_spare_is_not_asked_for_by_a_job_that_has_one() -> None:
    """It has just taken the place."""
    run = run_of("spare")
    assert "spare" not in advice_on(run)["main_cause"]
    assert "A spare node" in remedy_of("preempted")


def test_advice_is_data() -> None:
    """For programs that read the JSON."""
    run = run_of("crash_loop")
    assert advise(run, ledger_of(run))[1] == Advice("budget", "all 2 restarts are used up (--max-restarts).")

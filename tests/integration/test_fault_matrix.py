"""Whatever of the fault matrix happens has its right name, and training goes on or is given up as is right.

The matrix is that of `benchmarks/faults.py`, which prints it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faults_job import Course, Outcome, carry_out, objections
from faults_matrix import TRIALS, UNDISTURBED, Fault, Trial
from faults_places import NotHereError


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same training with no fault."""
    outcome = carry_out(UNDISTURBED, tmp_path_factory.mktemp("undisturbed"))
    assert objections(UNDISTURBED, outcome, outcome) == [], outcome.output
    return outcome


@pytest.mark.parametrize(
    "trial",
    [pytest.param(one, id=one.name, marks=() if one.is_quick else pytest.mark.slow) for one in TRIALS],
)
def test_fault_is_named_and_costs_no_more_than_it_must(
    trial: Trial, undisturbed: Outcome, tmp_path: Path
) -> None:
    """Kind, culprit and decision are right, at most the steps since the last whole checkpoint are lost, the
    weights are bit for bit those of the undisturbed run, and a job that is given up has the right exit code.
    """
    try:
        outcome = carry_out(trial, tmp_path, has_time=False)
    except NotHereError as reason:
        pytest.skip(str(reason))
    assert objections(trial, outcome, undisturbed) == [], outcome.output


KILLED = Trial("killed", (Fault("SIGKILL", "is_killed:1", (("killed", 1),), says="OOM"),))
RIGHT = Outcome(
    exit_codes=(0,),
    restarts=1,
    reason="all ranks finished",
    courses=(Course("killed", 1, "restart", 7, 7, 0.2, "no OOM kill"),),
    last_step=KILLED.steps,
    digests={(10, 0): frozenset({"bits"}), (10, 1): frozenset({"bits"})},
    left=(),
    is_agreed=True,
    output="",
)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("left behind", {"left": ("python train.py",)}),
        ("different incidents", {"is_agreed": False}),
        ("exit codes", {"exit_codes": (1,)}),
        ("restarts, expected 1", {"restarts": 2}),
        ("incidents", {"courses": ()}),
        ("weights", {"digests": {(10, 0): frozenset({"bits", "others"})}}),
        ("ended after step", {"last_step": KILLED.steps - 1}),
        ("segfault of rank 1", {"courses": (replace(RIGHT.courses[0], kind="segfault"),)}),
        ("killed of rank 0", {"courses": (replace(RIGHT.courses[0], culprit=0),)}),
        ("decision 'stop'", {"courses": (replace(RIGHT.courses[0], action="stop"),)}),
        ("the account is", {"courses": (replace(RIGHT.courses[0], account="nothing"),)}),
        ("11 steps lost", {"courses": (replace(RIGHT.courses[0], lost_steps=11, told_lost_steps=11),)}),
        ("the journal has 6", {"courses": (replace(RIGHT.courses[0], told_lost_steps=6),)}),
    ],
)
def test_what_is_not_as_the_matrix_has_it_is_named(what: str, wrong: dict[str, Any]) -> None:
    """Each thing that the matrix promises is looked at, and by itself."""
    assert objections(KILLED, RIGHT, RIGHT) == []
    [objection] = objections(KILLED, replace(RIGHT, **wrong), RIGHT)
    assert what in objection

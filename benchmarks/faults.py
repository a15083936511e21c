"""What ftrun makes of each fault of the matrix: kind, culprit, decision, what it costs, and the weights.

    python benchmarks/faults.py [--only WORD]

Each trial is a job of two ranks on gloo that has one fault after another, each in a round of its own, and is
compared with a job that has none: every checkpoint of every rank, the last one too, must have the same bits.
A trial whose place cannot be had here is named with the reason: memory cgroups and mounts need root. Exits
with 1 if anything is not as the matrix has it. Nothing that this starts is left when it ends.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faults_job import Outcome, TrialError, carry_out, objections
from faults_matrix import TRIALS, UNDISTURBED, Trial
from faults_places import NotHereError
from job import leaving_nothing
from machine import describe_machine

HEAD = (
    "fault",
    "nodes",
    "kind",
    "culprit",
    "decision",
    "restarts",
    "exit code",
    "steps lost",
    "back after",
    "weights equal",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="WORD", default="", help="only trials with this word in their name")
    wanted = parser.parse_args().only
    for name, fact in describe_machine().items():
        print(f"{name}: {fact}")
    print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    notes: list[str] = []
    with leaving_nothing(), tempfile.TemporaryDirectory(prefix="ftrun-faults-") as directory:
        undisturbed = carry_out(UNDISTURBED, _make(directory, UNDISTURBED))
        for trial in (one for one in TRIALS if wanted in one.name):
            try:
                outcome = carry_out(trial, _make(directory, trial))
            except NotHereError as reason:
                print(f"| {trial.name} | not here: {reason} |{' |' * (len(HEAD) - 2)}", flush=True)
                continue
            except TrialError as error:
                notes.append(str(error))
                continue
            for row in rows(trial, outcome, undisturbed):
                print(f"| {' | '.join(row)} |", flush=True)
            notes += [f"{trial.name}: {what}" for what in objections(trial, outcome, undisturbed)]
    print("\nAll as the matrix has it." if not notes else "\nNot as the matrix has it:")
    for note in notes:
        print(f"- {note}")
    return 1 if notes else 0


def _make(parent: str, trial: Trial) -> Path:
    directory = Path(parent, trial.name.replace(" ", "-"))
    directory.mkdir()
    return directory


def rows(trial: Trial, outcome: Outcome, undisturbed: Outcome) -> Iterator[tuple[str, ...]]:
    """Of the table, one for each fault."""
    codes = " ".join(map(str, sorted(set(outcome.exit_codes))))
    if not trial.faults:
        yield (trial.name, str(trial.nodes), *["-"] * 2, "stop", str(outcome.restarts), codes, *["-"] * 3)
    equal = "-"
    if trial.exit_code == 0:
        equal = "yes" if outcome.is_equal_to(undisturbed) else "no"
    for number, (fault, course) in enumerate(zip(trial.faults, outcome.courses, strict=False), 1):
        restarts = str(min(number, outcome.restarts))
        code = codes if number == len(trial.faults) else ""
        what = (fault.name, str(trial.nodes), course.kind, f"rank {course.culprit}", course.action)
        lost = "-" if course.lost_steps is None else str(course.lost_steps)
        back = "-" if course.recovered_s is None else f"{course.recovered_s:.2f} s"
        yield (*what, restarts, code, lost, back, equal)


if __name__ == "__main__":
    sys.exit(main())

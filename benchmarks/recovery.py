"""How long a job takes to train again after SIGKILL of a rank, under torchrun, ft_launcher and ftrun.

    python benchmarks/recovery.py --launchers torchrun,ft_launcher,ftrun --faults 5

Same script, same kills, one launcher at a time in rotating order. torchrun runs with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because its restarts fail or hang without it; --torchrun-default shows
how many do. torchrun-2, ft_launcher-2 and ftrun-2 are the same job on two nodes of one rank each, two
launchers side by side on this machine. Nothing that this starts is left when it ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from job import WORLD_SIZE, JobLostError, Launcher, known_launchers, leaving_nothing
from machine import describe_machine
from recovery_job import Recovery, RecoveryJob

REFERENCES = ("ftrun", "ftrun-2")
PARTS = ("detect", "stop", "start", "import", "group", "load", "step")


@dataclass(slots=True)
class Samples:
    """What was measured under one launcher."""

    first_steps_s: list[float] = field(default_factory=list)
    """Command to first step (per job)."""
    recoveries: list[Recovery] = field(default_factory=list)
    """Per kill that the job came back from."""
    losses: list[str] = field(default_factory=list)
    """Why, per kill that the job did not come back from."""

    @property
    def totals_s(self) -> list[float]:
        return [recovery.total_s for recovery in self.recoveries]


def measure(launcher: Launcher, faults: int, settle_s: float, deadline_s: float, samples: Samples) -> None:
    """Adds one kill per fault; a job that does not come back is replaced by a new one."""
    left = faults
    while left > 0:
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as out:
            with RecoveryJob(launcher, Path(out), deadline_s) as job:
                left -= measure_job(launcher.name, job, left, settle_s, samples)


def measure_job(name: str, job: RecoveryJob, faults: int, settle_s: float, samples: Samples) -> int:
    """Kills until `faults` are done or the job is lost; returns how many faults that was, at least one."""
    kills = 0
    try:
        samples.first_steps_s.append(job.wait_for_first_step())
        while kills < faults:
            job.train_for(settle_s)
            kills += 1
            samples.recoveries.append(job.kill_and_measure())
            report_progress(name, samples.recoveries[-1])
    except JobLostError as error:
        if not samples.first_steps_s:
            raise SystemExit(f"{name} did not start: {error}") from error
        samples.losses.append(str(error))
        print(f"  {name}: lost: {error}", flush=True)
    return max(kills, 1)


def report_progress(name: str, recovery: Recovery) -> None:
    parts = " ".join(f"{part} {show(value)}" for part, value in recovery.split().items())
    print(f"  {name}: {recovery.total_s:.3f} s = {parts} ({recovery.starts} start(s))", flush=True)


def show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def print_report(facts: dict[str, str], measured: dict[str, Samples]) -> None:
    """The table of medians, with what it depends on above it.

    lost: the job did not come back before the deadline; retried: it did, after restarts that failed as well.
    """
    print("\n" + "\n".join(f"{name}: {value}" for name, value in facts.items()))
    print(f"{WORLD_SIZE} ranks on one machine, gloo, no GPU; seconds; parts are medians\n")
    reference = next((median(measured[name].totals_s) for name in REFERENCES if name in measured), None)
    totals = ("kills", "lost", "retried", "median", "min", "max")
    head = ("launcher", *totals, *PARTS, "x ftrun", "command to first step")
    rows = [head, *(table_row(name, samples, reference) for name, samples in measured.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def table_row(name: str, samples: Samples, reference_s: float | None) -> tuple[str, ...]:
    totals = samples.totals_s
    middle = median(totals)
    splits = [recovery.split() for recovery in samples.recoveries]
    first = samples.first_steps_s
    return (
        name,
        str(len(totals) + len(samples.losses)),
        str(len(samples.losses)),
        str(sum(recovery.starts > 1 for recovery in samples.recoveries)),
        show(middle),
        show(min(totals, default=None)),
        show(max(totals, default=None)),
        *(show(median([split[part] for split in splits])) for part in PARTS),
        f"{middle / reference_s:.1f}" if middle and reference_s else "-",
        f"{show(median(first))} ({show(min(first))} to {show(max(first))}, n={len(first)})",
    )


def to_json(facts: dict[str, str], measured: dict[str, Samples]) -> str:
    launchers = {
        name: {
            "first_steps_s": samples.first_steps_s,
            "losses": samples.losses,
            "recoveries": [
                {**asdict(recovery), "total_s": recovery.total_s, "parts_s": recovery.split()}
                for recovery in samples.recoveries
            ],
        }
        for name, samples in measured.items()
    }
    return json.dumps({"machine": facts, "launchers": launchers}, indent=2)


def parse_args() -> argparse.Namespace:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--launchers", default="torchrun,ft_launcher,ftrun", help="comma separated")
    parser.add_argument("--faults", type=int, default=5, help="kills per launcher and round")
    parser.add_argument("--rounds", type=int, default=1, help="jobs per launcher; the order rotates")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds to train before each kill")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds until a job counts as lost")
    parser.add_argument("--torchrun-default", action="store_true", help="also without the workaround")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    args.launchers = [name.strip() for name in args.launchers.split(",")]
    if args.torchrun_default:
        args.launchers.append("torchrun-default")
    unknown = set(args.launchers) - set(known_launchers())
    if unknown:
        parser.error(f"unknown launcher {', '.join(sorted(unknown))}; known: {', '.join(known_launchers())}")
    return args


def main() -> None:
    args = parse_args()
    with leaving_nothing():
        run(args)


def run(args: argparse.Namespace) -> None:
    facts = describe_machine()
    launchers = [known_launchers()[name] for name in args.launchers]
    measured = {launcher.name: Samples() for launcher in launchers}
    for turn in range(args.rounds):
        first = turn % len(launchers)
        for launcher in launchers[first:] + launchers[:first]:
            print(f"round {turn + 1} of {args.rounds}: {launcher.name}", flush=True)
            measure(launcher, args.faults, args.settle, args.deadline, measured[launcher.name])
    print_report(facts, measured)
    if args.json:
        args.json.write_text(to_json(facts, measured) + "\n")


if __name__ == "__main__":
    main()

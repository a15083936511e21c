"""What a launcher costs a job that trains: step times of examples/train_fsdp.py under torchrun and ftrun.

    python benchmarks/overhead.py --rounds 5 --steps 500

In each round both jobs are started anew, and then take turns of two seconds: while one trains, every process
of the other is stopped, its launcher too, so that both meet the same machine and neither pays for the other.
Steps count from when the launcher has no more processes to start. The second launcher is compared with the
first; `--launchers torchrun,torchrun` shows what the machine's own noise is. Nothing that this starts is left
when it ends.

Ratios are medians over pairs of turns, so that a load from elsewhere that comes and goes counts little. A
median of steps does not show what disturbs few of them, such as a thread that wakes up twice a second: that
is in the mean, which is noisier.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path

from job import WORLD_SIZE, Job, JobLostError, Launcher, known_launchers, leaving_nothing
from machine import describe_machine

SCRIPT = Path(__file__).with_name("overhead_train.py")
ENDLESS = ("--steps", "1000000000")
TURN_S = 2.0
"""Long enough for what launchers do once a second, short enough for the machine to stay the same."""
LEAD_IN_S = 0.3
"""Begin of a turn that does not count: caches fill, timers that ran out meanwhile go off."""
LOOK_EVERY_S = 0.1
SETTLE_S = 3.0
IDLE_SHARE = 0.01
"""CPUs in use by the launcher's waiting processes when all of them are ready."""


@dataclass(frozen=True, slots=True)
class Round:
    """Step times of the two jobs of one round, seconds, turn by turn, in the order of the launchers."""

    turns_s: tuple[list[list[float]], list[list[float]]]

    def steps_s(self, index: int) -> list[float]:
        """All step times of one job."""
        return list(chain.from_iterable(self.turns_s[index]))

    def ratio(self, average: Callable[[list[float]], float]) -> float:
        """The second job's average step by the first's, each turn compared with the one beside it."""
        pairs = zip(*self.turns_s, strict=True)
        return statistics.median(average(second) / average(first) for first, second in pairs)

    @property
    def median_ratio(self) -> float:
        return self.ratio(statistics.median)

    @property
    def mean_ratio(self) -> float:
        return self.ratio(statistics.fmean)


class SteadyJob(Job):
    """A job that trains until it is told to stop."""

    def __init__(self, launcher: Launcher, out: Path, deadline_s: float) -> None:
        super().__init__(launcher, (str(SCRIPT), *ENDLESS), out, deadline_s)

    def settle(self) -> None:
        """Trains until the processes beside the ranks, those that wait for their time, are ready and idle.

        Raises:
            JobLostError: they are not before the deadline.
        """
        until = time.monotonic() + self.deadline_s
        before = self._waiting_cpu_s()
        while time.monotonic() < until:
            self.train_for(SETTLE_S, LOOK_EVERY_S)
            after = self._waiting_cpu_s()
            used_s = sum(after.values()) - sum(before.values())
            if after.keys() == before.keys() and used_s <= IDLE_SHARE * SETTLE_S:
                return
            before = after
        raise JobLostError(f"processes beside the ranks still busy after {self.deadline_s:.0f} s")

    def _waiting_cpu_s(self) -> dict[int, float]:
        """CPU seconds that each process has used that is neither a rank nor the launcher itself."""
        ranks = {pid for rank in self.ranks for pid in rank.pids()}
        waiting = [process for process in self.processes()[1:] if process.pid not in ranks]
        return {process.pid: sum(process.cpu_times()[:2]) for process in waiting}

    def take_turn(self) -> list[float]:
        """Goes on for a while; step times in seconds.

        Raises:
            JobLostError: the job has ended, was restarted, or made no steps.
        """
        self.resume()
        began_at = time.monotonic()
        self.train_for(TURN_S, LOOK_EVERY_S)
        ended_at = time.monotonic()
        self.pause()
        if any(len(rank.pids()) != 1 for rank in self.ranks):
            raise JobLostError("it was restarted")
        stamps = [event.stamps["stepped_at"] for event in self.ranks[0].events if event.kind == "step"]
        counted = [at for at in stamps if began_at + LEAD_IN_S <= at <= ended_at]
        if len(counted) < 2:
            raise JobLostError(f"fewer than two steps in {TURN_S:.0f} s")
        return [later - earlier for earlier, later in pairwise(counted)]


def measure_round(pair: tuple[Launcher, Launcher], steps: int, out: Path, deadline_s: float) -> Round:
    """One job of each launcher, `steps` steps or a few more each.

    Raises:
        JobLostError: a job did not go on.
    """
    found = Round(([], []))
    with ExitStack() as stack:
        jobs = []
        for name, launcher in zip(("first", "second"), pair, strict=True):
            (out / name).mkdir()
            jobs.append(stack.enter_context(SteadyJob(launcher, out / name, deadline_s)))
            jobs[-1].wait_for_first_step()
            jobs[-1].settle()
            jobs[-1].pause()
        turn = 0
        while min(len(found.steps_s(index)) for index in (0, 1)) < steps:
            for index in ((0, 1), (1, 0))[turn % 2]:
                found.turns_s[index].append(jobs[index].take_turn())
            turn += 1
    return found


def show_round(names: list[str], one: Round) -> str:
    """Medians, means and ratios of one round."""
    parts = []
    for index, name in enumerate(names):
        steps_s = one.steps_s(index)
        middle_ms, mean_ms = statistics.median(steps_s) * 1e3, statistics.fmean(steps_s) * 1e3
        parts.append(f"{name} {middle_ms:.3f} ms (mean {mean_ms:.3f}, n={len(steps_s)})")
    return f"{', '.join(parts)}: ratio {one.median_ratio:.4f} (of means {one.mean_ratio:.4f})"


def show_ratios(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"


def to_json(facts: dict[str, str], names: list[str], rounds: list[Round]) -> str:
    found = [
        {**asdict(one), "median_ratio": one.median_ratio, "mean_ratio": one.mean_ratio} for one in rounds
    ]
    return json.dumps({"machine": facts, "launchers": names, "rounds": found}, indent=2)


def parse_args() -> argparse.Namespace:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--launchers", default="torchrun,ftrun", help="two, separated by a comma")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of jobs")
    parser.add_argument("--steps", type=int, default=500, help="steps per job and round, at least")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds until a job counts as lost")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    args.launchers = [name.strip() for name in args.launchers.split(",")]
    if len(args.launchers) != 2 or not set(args.launchers) <= known_launchers().keys():
        parser.error(f"--launchers: expected two of {', '.join(known_launchers())}, separated by a comma")
    return args


def main() -> None:
    args = parse_args()
    with leaving_nothing():
        run(args)


def run(args: argparse.Namespace) -> None:
    facts = describe_machine()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print(f"{WORLD_SIZE} ranks on one machine, gloo, no GPU; time of a step\n", flush=True)
    first, second = (known_launchers()[name] for name in args.launchers)
    rounds = []
    for number in range(1, args.rounds + 1):
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as out:
            try:
                rounds.append(measure_round((first, second), args.steps, Path(out), args.deadline))
            except JobLostError as error:
                raise SystemExit(f"round {number}: a job was lost: {error}") from error
        print(f"round {number}: {show_round(args.launchers, rounds[-1])}", flush=True)
    print(f"\n{second.name} / {first.name}, median of the rounds (least to greatest):")
    print(f"  median step {show_ratios([one.median_ratio for one in rounds])}")
    print(f"  mean step   {show_ratios([one.mean_ratio for one in rounds])}")
    if args.json:
        args.json.write_text(to_json(facts, args.launchers, rounds) + "\n")


if __name__ == "__main__":
    main()

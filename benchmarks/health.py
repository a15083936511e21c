"""What the health checks before a round add to a restart, on a fake node of eight GPUs.

    python benchmarks/health.py --faults 9

Two jobs of ftrun, with checks and without, take turns: while one is hurt, every process of the other is
stopped, so that both meet the same machine. A rank is killed, and the time until the first step of the next
round is taken. The workers do not import torch and die at once, so that next to nothing of the checks is
hidden behind their end. The GPUs are those of the tests' library (it needs a C compiler); the checks of the
host and of the path of the job are real. Nothing that this starts is left when it ends. Milliseconds are
drowned by other load; `chrt -r 10` in front keeps that out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from job import WORLD_SIZE, Job, JobLostError, Launcher, known_launchers, leaving_nothing
from machine import describe_machine

SCRIPT = Path(__file__).with_name("health_train.py")
SOURCES = Path(__file__).parents[1] / "tests/support/fakenvml"
MODES = ("off", "on")
LIMIT_S = 0.06
"""What the checks may add."""
LOOK_EVERY_S = 0.1


class HurtJob(Job):
    """A job whose ranks are killed."""

    def restart(self) -> float:
        """Seconds from SIGKILL of the last rank to rank 0's first step of the next round.

        Raises:
            JobLostError: no step before the deadline.
        """
        old_pids = frozenset(pid for rank in self.ranks for pid in rank.pids())
        killed_at = time.monotonic()
        os.kill(self.ranks[-1].pids()[-1], signal.SIGKILL)
        return self.wait_for_step(old_pids, killed_at) - killed_at


def build_library(directory: Path) -> None:
    """The fake libnvidia-ml.so.1 of the tests, by default eight H100 that nothing is wrong with."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("there is no C compiler (gcc or cc), which the fake NVML library needs")
    sources = [str(SOURCES / name) for name in ("fakenvml.c", "state.c")]
    flags = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden"]
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, *flags, "-o", str(library), *sources], check=True, timeout=60)


def launchers(library: Path) -> dict[str, Launcher]:
    """ftrun on the fake node, by whether it checks."""
    base = known_launchers()["ftrun"]
    environment = (("LD_LIBRARY_PATH", str(library)), ("FAKE_NVML_STATE", str(library / "state")))
    return {
        mode: Launcher(mode, (*base.command, "--ft-health", mode), base.notices, environment)
        for mode in MODES
    }


def measure(faults: int, settle_s: float, deadline_s: float, directory: Path) -> dict[str, list[float]]:
    """Restart times in seconds, by mode; the order of the two changes from fault to fault.

    Raises:
        JobLostError: a job did not come back.
    """
    build_library(directory)
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    with ExitStack() as stack:
        jobs: dict[str, HurtJob] = {}
        for mode, launcher in launchers(directory).items():
            (directory / mode).mkdir()
            job = HurtJob(launcher, (str(SCRIPT),), directory / mode, deadline_s)
            jobs[mode] = stack.enter_context(job)
            jobs[mode].wait_for_first_step()
            jobs[mode].pause()
        for fault in range(faults):
            for mode in MODES if fault % 2 else reversed(MODES):
                jobs[mode].resume()
                jobs[mode].train_for(settle_s, LOOK_EVERY_S)
                found[mode].append(jobs[mode].restart())
                jobs[mode].pause()
            off_ms, on_ms = (found[mode][-1] * 1e3 for mode in MODES)
            print(f"fault {fault + 1}: without {off_ms:.0f} ms, with {on_ms:.0f} ms", flush=True)
    return found


def show(times_s: list[float]) -> str:
    least, most = min(times_s) * 1e3, max(times_s) * 1e3
    return f"{statistics.median(times_s) * 1e3:.0f} ms ({least:.0f} to {most:.0f}, n={len(times_s)})"


def parse_args() -> argparse.Namespace:
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=keep_lines)
    parser.add_argument("--faults", type=int, default=9, help="kills per job")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds to run before each kill")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds until a job counts as lost")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    facts = describe_machine()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print(f"{WORLD_SIZE} ranks without torch, fake NVML with 8 GPUs; kill to first step\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        try:
            found = measure(args.faults, args.settle, args.deadline, Path(name))
        except JobLostError as error:
            raise SystemExit(f"a job was lost: {error}") from error
    added_s = statistics.median(found["on"]) - statistics.median(found["off"])
    print(f"\nwithout checks {show(found['off'])}\nwith checks    {show(found['on'])}")
    print(f"checks add {added_s * 1e3:.0f} ms (medians; limit {LIMIT_S * 1e3:.0f} ms)")
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "seconds": found}, indent=2) + "\n")
    return int(added_s > LIMIT_S)


def main() -> int:
    args = parse_args()
    with leaving_nothing():
        return run(args)


if __name__ == "__main__":
    sys.exit(main())

"""Trains the example on two CPU ranks under ftrun, kills one of them in the middle, and tells what happened.

    python examples/demo.py

Everything that is told is read from ftrun's journal (JSON lines in the run directory), except the time of the
kill, which is this script's own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORLD_SIZE = 2
VICTIM = 1
STEPS = 400
CHECKPOINT_EVERY = 25
KILL_AFTER_STEP = 60
KILL_BEFORE_STEP = 300  # the kill waits for new standbys, but not for ever


def read_journal(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """All events of one kind so far, oldest first."""
    lines = [line for path in sorted(run_dir.glob("*.jsonl")) for line in path.read_text().splitlines(True)]
    events = (json.loads(line) for line in lines if line.endswith("\n"))
    return [event for event in events if event["event"] == kind]


def may_kill(run_dir: Path, step: int) -> bool:
    """There is something to resume from, and standbys are ready, as they are in a run of ordinary length."""
    if not KILL_AFTER_STEP <= step < KILL_BEFORE_STEP:
        return step >= KILL_BEFORE_STEP
    used = {event["pid"] for event in read_journal(run_dir, "worker.started")}
    ready = {event["pid"] for event in read_journal(run_dir, "standby.readied")}
    return len(ready - used) >= WORLD_SIZE


def kill_victim(run_dir: Path, step: int) -> float:
    """SIGKILL to one rank; returns when, CLOCK_MONOTONIC in seconds as in the journal."""
    workers = [event for event in read_journal(run_dir, "worker.started") if event["rank"] == VICTIM]
    print(f"demo: kill -9 {workers[-1]['pid']}  (rank {VICTIM}, after step {step})", flush=True)
    os.kill(workers[-1]["pid"], signal.SIGKILL)
    return time.monotonic()


def train_and_kill(command: list[str], run_dir: Path) -> tuple[int, float | None]:
    """Runs the command to its end with one kill in between; its exit code and the time of the kill."""
    killed_at = None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            match = re.match(r"step (\d+) ", line)
            step = int(match.group(1)) if match else 0
            if step % CHECKPOINT_EVERY == 0:
                print(line, end="", flush=True)
            if killed_at is None and step and may_kill(run_dir, step):
                killed_at = kill_victim(run_dir, step)
        return process.wait(), killed_at
    finally:
        process.terminate()
        process.wait()


def tell(run_dir: Path, killed_at: float) -> Iterator[str]:
    """The account of the failure, line by line."""
    for incident in read_journal(run_dir, "incident.diagnosed"):
        yield f"what died   rank {incident['culprit_rank']}, pid {incident['culprit_pid']}"
        yield f"why         {'; '.join(incident['reasons'])}"
    for decision in read_journal(run_dir, "restart.decided"):
        yield f"decision    {decision['action']}: {decision['reason']}"
    for recovery in read_journal(run_dir, "recovery.completed"):
        exits = [e for e in read_journal(run_dir, "worker.exited") if e["round"] == recovery["round"] - 1]
        detect_s = min(event["at"] for event in exits) - killed_at
        parts = {"detect": detect_s} | {k: recovery[f"{k}_s"] for k in ("stop", "start", "first_step")}
        split = ", ".join(f"{name.replace('_', ' ')} {seconds:.3f}" for name, seconds in parts.items())
        yield f"back after  {detect_s + recovery['total_s']:.3f} s  ({split})"
        yield f"redone      {recovery['steps_redone']} steps"
    for closed in read_journal(run_dir, "round.closed")[1:]:
        yield f"resumed     from {closed['resume_from']}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a rank of a training job and see it recover.")
    parser.add_argument("--keep", action="store_true", help="keep checkpoints and journal")
    keep = parser.parse_args().keep
    directory = Path(tempfile.mkdtemp(prefix="ftrun-demo-"))
    checkpoints, run_dir = directory / "checkpoints", directory / "run"
    launcher = ["--nproc-per-node", WORLD_SIZE, "--ft-checkpoint-dir", checkpoints, "--ft-run-dir", run_dir]
    script = [Path(__file__).with_name("train_fsdp.py"), "--steps", STEPS]
    saving = ["--checkpoint-dir", checkpoints, "--checkpoint-every", CHECKPOINT_EVERY]
    try:
        command = [str(word) for word in (Path(sys.prefix) / "bin" / "ftrun", *launcher, *script, *saving)]
        exit_code, killed_at = train_and_kill(command, run_dir)
        if killed_at is not None:
            print("\n" + "\n".join(tell(run_dir, killed_at)))
        print(f"exit code   {exit_code}" + (f"; kept in {directory}" if keep else ""))
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return exit_code if killed_at is not None else exit_code or 1


if __name__ == "__main__":
    sys.exit(main())

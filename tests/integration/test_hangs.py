"""Hangs are found, explained and mended: real processes, with a client in the script and without."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftrun.monitor import events
from ftrun.monitor.culprits import read_stack
from tests.support.run import WORKER, Run, finish, start

TRAINING = str(Path(__file__).parents[1] / "support/training.py")
TWO = ("--nproc-per-node", "2")
HEARTBEATS = ("--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-heartbeat-timeout", "3")
NO_STALL_RULE = ("--ft-set", "timeouts.stall=off")
SHORT_STALL = ("--ft-safety-factor", "1", "--ft-set", "timeouts.stall_floor=4")
"""As learned from minutes of training: a factor of 1 keeps the limit at the floor, whatever is learned."""
NO_MEMORY_LIMIT = ("--ft-set", "standby.min_free_memory=0")
DEADLINE_S = 300.0
SOON_S = 5.0
"""From the limit to a new worker's script where much else runs; a fraction of a second where nothing does."""
OUTSIDE = "rank 1 is not in the collective that the others wait in, all_reduce"
HOLDS_THE_GIL = "rank 1 is inside C code that holds the GIL"
DEEDS = {
    "is_stopped": ("rank 1 is stopped by a signal or a debugger (state T)",),
    "skips_a_collective": (OUTSIDE,),
    "sleeps_for_ever": (OUTSIDE,),
    # That it holds the GIL is known after 3 s.
    "holds_the_gil": (HOLDS_THE_GIL, OUTSIDE),
}
"""Of a rank 1, and what may be found out about it."""
SCRIPT = """
import ctypes
from ftrun.monitor.client import heartbeat
say("began", time.monotonic())
deeds = (
    lambda: os.kill(os.getpid(), signal.SIGSTOP),
    lambda: time.sleep(1e6),
    lambda: ctypes.PyDLL(None).sem_wait(ctypes.create_string_buffer(64)),
)
has_done_it = False
for step in range(10 if restart_count == len(deeds) else 1_000_000):
    heartbeat(step)
    if step >= 10 and rank == 1 and not has_done_it and (directory / f"go{restart_count}").exists():
        has_done_it = True  # what was stopped goes on when its stacks are wanted
        beat_at = time.monotonic()
        heartbeat(step)
        say("last beat", beat_at)
        deeds[restart_count]()
    time.sleep(0.05)
say("done")
"""
SILENT = "rank 1 has sent no heartbeat and shown no progress for "
REASONS = (
    ("rank 1 is stopped by a signal or a debugger (state T)",),
    (SILENT,),
    (HOLDS_THE_GIL, SILENT),
)


def times_of(run: Run, what: str) -> dict[tuple[int, int], float]:
    """The times that the workers printed, by rank and restart count; CLOCK_MONOTONIC seconds."""
    lines = re.findall(rf"^\[r(\d) rc(\d)\] {what} (\d+\.\d+)$", run.stdout, re.MULTILINE)
    return {(int(rank), int(restart_count)): float(at) for rank, restart_count, at in lines}


def latencies_s(run: Run) -> list[float]:
    """Last beat of the round before to the first line of a new worker's script, by round."""
    beats, begun = times_of(run, "last beat"), times_of(run, "began")
    rounds = sorted({restart_count for _, restart_count in begun})
    return [begun[1, one + 1] - beats[1, one] for one in rounds[:-1]]


def check_hangs(run: Run, rule: str, reasons: Sequence[Sequence[str]]) -> None:
    """Each was found by `rule`, rank 1 was blamed for one of `reasons`, and both ranks' stacks are there."""
    hangs = run.events(events.HangDetected)
    assert [hang.rule for hang in hangs] == [rule] * len(reasons), run.stderr
    for hang, possible in zip(hangs, reasons, strict=True):
        assert hang.culprit_ranks == (1,), hang
        assert any(reason in hang.reason for reason in possible), hang
        assert hang.silent_s > hang.limit_s
    incidents = run.events(events.IncidentDiagnosed)
    assert [incident.culprit_rank for incident in incidents] == [1] * len(hangs)
    saved = run.events(events.StacksSaved)
    assert [one.missing_ranks for one in saved] == [()] * len(hangs)


def innermost(run: Run) -> list[list[str]]:
    """For each time that stacks were saved and each rank, where its main thread was, from the file."""
    saved = run.events(events.StacksSaved)
    stacks = [[read_stack(Path(file).read_text()) for file in one.files] for one in saved]
    return [["" if stack is None else str(stack.place) for stack in both] for both in stacks]


def check_training(run: Run, deeds: Sequence[str]) -> None:
    """What the stacks of rank 0 and rank 1 show, and that the last round went to its end."""
    for deed, (waiting, hanging) in zip(deeds, innermost(run), strict=True):
        assert waiting.startswith("all_reduce (distributed_c10d.py:")
        # A stopped process goes on before it writes its stacks, and may be elsewhere by then.
        assert hanging.startswith(f"{deed} (training.py:") or (deed == "is_stopped" and hanging)
    assert run.stdout.count(f"rc{len(deeds)}] done") == 2
    [ended] = run.events(events.RunEnded)
    assert ended.restart_count == len(deeds)


def test_hangs_of_an_unedited_script(tmp_path: Path) -> None:
    """Four kinds of them, one after another in one job, by the rule that needs no client."""
    (tmp_path / "go").touch()
    options = (*TWO, *SHORT_STALL, "--max-restarts", str(len(DEEDS)))
    environment = {"LEARN_S": "5"}
    code, run = finish(
        tmp_path, *options, TRAINING, "none", *DEEDS, environment=environment, timeout_s=DEADLINE_S
    )
    assert code == 0, run.stderr
    check_hangs(run, "stall", list(DEEDS.values()))
    check_training(run, list(DEEDS))


@pytest.mark.slow
def test_deadlock_of_a_script_with_a_client(tmp_path: Path) -> None:
    """A rank leaves out a collective; the client of nvidia-resiliency-ext has a limit of 3 s for heartbeats.

    An unknown section is an error to the client, and its rank is watched as before.
    """
    deeds = ("skips_a_collective",)
    limits = (*HEARTBEATS, "--ft-rank-section-timeouts", "eval:60", "--ft-skip-section-response", "false")
    options = (*TWO, *limits, *NO_STALL_RULE, *NO_MEMORY_LIMIT, "--max-restarts", str(len(deeds)))
    environment = {"LEARN_S": "0"}
    with start(tmp_path, *options, TRAINING, "nvrx", *deeds, environment=environment) as run:
        run.wait_for_event(events.StandbyReadied, count=2, timeout_s=DEADLINE_S)
        (tmp_path / "go").touch()
        assert run.wait(DEADLINE_S) == 0, run.stderr
    print(f"last beat to new worker: {[f'{one:.2f}' for one in latencies_s(run)]} s")
    check_hangs(run, "steady", [DEEDS[deed] for deed in deeds])
    check_training(run, deeds)
    assert run.stdout.count("section refused") == 2 * (len(deeds) + 1)
    assert 3.0 < latencies_s(run)[0] < 3.0 + SOON_S


@pytest.mark.slow
def test_rank_in_the_wrong_collective_is_named(tmp_path: Path) -> None:
    """Where most ranks wait is where one should be, and step counts say nothing of it."""
    (tmp_path / "go").touch()
    options = ("--nproc-per-node", "3", *SHORT_STALL, "--max-restarts", "1")
    deed, environment = "skips_to_another_collective", {"LEARN_S": "5"}
    code, run = finish(
        tmp_path, *options, TRAINING, "none", deed, environment=environment, timeout_s=DEADLINE_S
    )
    assert code == 0, run.stderr
    check_hangs(run, "stall", [("rank 1 is not where most ranks wait, all_reduce",)])


def test_new_workers_run_soon_after_the_limit(tmp_path: Path) -> None:
    """With ftrun's own client and a limit of 3 s; measured from the last beat to the new worker's script."""
    with start(tmp_path, *TWO, *HEARTBEATS, *NO_STALL_RULE, *NO_MEMORY_LIMIT, WORKER, SCRIPT) as run:
        for restart_count in range(len(REASONS)):
            run.wait_for_event(events.StandbyReadied, count=2 * (restart_count + 1), timeout_s=DEADLINE_S)
            (tmp_path / f"go{restart_count}").touch()
        assert run.wait() == 0, run.stderr
    print(f"last beat to new worker: {[f'{one:.2f}' for one in latencies_s(run)]} s")
    check_hangs(run, "steady", REASONS)
    assert run.stdout.count(f"rc{len(REASONS)}] done") == 2
    assert all(3.0 < latency_s < 3.0 + SOON_S for latency_s in latencies_s(run))


SECTIONS = """
from ftrun.monitor.client import heartbeat, section
heartbeat()
with section("step"):
    for _ in range(10 if restart_count else 1_000_000):
        with section("eval"):
            heartbeat()
            time.sleep(0.05)
say("done")
"""


def test_outer_section_is_found_although_inner_ones_are_well(tmp_path: Path) -> None:
    """The inner section begins anew all the time, and heartbeats come; the outer one is over its limit."""
    limits = ("--ft-rank-section-timeouts", "step:5,eval:4")
    code, run = finish(tmp_path, *NO_STALL_RULE, *limits, "--max-restarts", "1", WORKER, SECTIONS)
    assert code == 0, run.stderr
    [hang] = run.events(events.HangDetected)
    assert (hang.rule, hang.rank, hang.limit_s) == ("section", 0, 5.0)
    assert hang.limit_origin == "fault_tolerance.rank_section_timeouts[step]"
    assert "rank 0 has been in section 'step' for " in hang.reason
    assert hang.silent_s > hang.limit_s
    assert run.stdout.count("rc1] done") == 1

"""Which ranks are blamed for a hang, and how a main thread's stack is read from faulthandler's text."""

from __future__ import annotations

import faulthandler
import threading
from pathlib import Path

import pytest

from ftrun.monitor.culprits import Frame, Stack, find_culprits, read_stack
from ftrun.monitor.rank_signs import Signs

NOW = 100.0
REDUCE = Frame("/env/torch/distributed/distributed_c10d.py", 3000, "all_reduce")
BACKWARD = Frame("/env/torch/autograd/graph.py", 829, "_engine_run_backward")
WRITE = Frame("/env/torch/distributed/checkpoint/filesystem.py", 461, "_write_files_from_queue")
LOGGED = Frame("/env/torch/distributed/c10d_logger.py", 83, "wrapper")
SLEEP = Frame("/home/user/train.py", 31, "wait_for_data")
ITEM = Frame("/home/user/train.py", 44, "step")
LAUNCH = Frame("/home/user/train.py", 90, "<module>")


def sign(steps: int = 7, state: str = "S", sampler_at: float | None = NOW, alive: bool = True) -> Signs:
    return Signs(NOW, 0.0, progress_count=steps, process_state=state, sampler_at=sampler_at, is_alive=alive)


def at(*frames: Frame) -> Stack:
    return Stack((*frames, LAUNCH))


WELL = sign()

CASES: dict[str, tuple[list[Signs], list[Stack | None], tuple[int, ...], str]] = {
    "no ranks": ([], [], (), ""),
    "all alike": ([WELL, WELL], [], (), ""),
    "one stopped": ([WELL, sign(state="T")], [], (1,), "state T"),
    "one under a debugger": ([sign(state="t"), WELL], [], (0,), "state T"),
    "all stopped": ([sign(state="T"), sign(state="T")], [], (), ""),
    "a lone rank, stopped": ([sign(state="T")], [], (0,), "state T"),
    "one in the disk": ([WELL, sign(state="D"), WELL], [], (1,), "state D"),
    "two in the disk": ([WELL, sign(state="D"), sign(state="D")], [], (1, 2), "ranks 1, 2 are"),
    "stopped wins over disk": ([sign(state="D"), sign(state="T")], [], (1,), "state T"),
    "unknown states": ([sign(state=""), sign(state="")], [], (), ""),
    "GIL held": ([WELL, sign(state="R", sampler_at=NOW - 4)], [], (1,), "holds the GIL"),
    "sampler a little late": ([WELL, sign(sampler_at=NOW - 2)], [], (), ""),
    "no sampler says nothing": ([WELL, sign(sampler_at=None)], [], (), ""),
    "fewest steps": ([sign(7), sign(6), sign(7)], [], (1,), "behind: 6 steps, others have up to 7"),
    "GIL wins over steps": ([sign(6), sign(7, sampler_at=NOW - 9)], [], (1,), "holds the GIL"),
    "ended ranks are not waited for": ([sign(1, alive=False), sign(6), sign(7)], [], (1,), "behind"),
    "one outside the collective": ([WELL, WELL], [at(REDUCE), at(SLEEP)], (1,), "all_reduce (distrib"),
    "one outside the backward pass": ([WELL, WELL], [at(SLEEP), at(BACKWARD)], (0,), "_engine_run_backward"),
    "one writes a checkpoint": (
        [WELL, WELL], [at(REDUCE), at(WRITE, LOGGED)], (1,), "not in the collective that the others wait in"
    ),
    "one exchanges the plan of a checkpoint": ([WELL, WELL], [at(REDUCE, WRITE), at(REDUCE)], (), ""),
    "stacks win over steps": ([sign(6), sign(7)], [at(REDUCE), at(SLEEP)], (1,), "not in the collective"),
    "all in the collective, one behind": ([sign(6), sign(7)], [at(REDUCE), at(REDUCE)], (0,), "behind"),
    "two collectives, most in one": (
        [WELL] * 3, [at(REDUCE), at(REDUCE), at(BACKWARD)], (2,), "not where most ranks wait"
    ),
    "most outside, one in a collective of its own": (
        [WELL] * 4, [at(REDUCE), at(ITEM), at(ITEM), at(ITEM)], (0,), "not where most ranks wait, step (train"
    ),
    "nobody in a collective, one elsewhere": (
        [WELL] * 3, [at(ITEM), at(SLEEP), at(ITEM)], (1,), "not where most"
    ),
    "two places, none the most": ([WELL, WELL], [at(ITEM), at(SLEEP)], (), ""),
    "a stack is missing": ([WELL] * 3, [at(REDUCE), None, at(SLEEP)], (2,), "not in the collective"),
    "a lone stack": ([WELL, WELL], [at(SLEEP), None], (), ""),
    "stacks of ended ranks do not count": (
        [WELL, sign(alive=False)], [at(REDUCE), at(SLEEP)], (), ""
    ),
    "through torch's dispatch": (
        [WELL, WELL],
        [at(Frame("/env/torch/_ops.py", 1255, "__call__"), REDUCE), at(SLEEP)],
        (1,), "not in the collective that the others wait in, all_reduce"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("signs", "stacks", "ranks", "why"), CASES.values(), ids=CASES.keys())
def test_culprits(signs: list[Signs], stacks: list[Stack | None], ranks: tuple[int, ...], why: str) -> None:
    """The surest evidence names the ranks; evidence that holds for all names nobody."""
    known = {rank: stack for rank, stack in enumerate(stacks) if stack is not None}
    suspicion = find_culprits(dict(enumerate(signs)), known, NOW)
    assert suspicion.ranks == ranks
    assert why in suspicion.reason
    assert bool(suspicion.reason) == bool(ranks)


def test_real_dump_is_read(tmp_path: Path) -> None:
    """Of all threads that faulthandler writes, the main thread's stack is taken."""
    path = tmp_path / "stacks"
    idle = threading.Event()
    threads = [threading.Thread(target=idle.wait) for _ in range(3)]
    with path.open("w") as file:
        dumper = threading.Thread(target=faulthandler.dump_traceback, args=(file, True))
        for thread in threads:
            thread.start()
        wait_here(dumper)
    idle.set()
    for thread in threads:
        thread.join()
    stack = read_stack(path.read_text())
    assert stack is not None
    assert "wait_here" in [frame.function for frame in stack.frames]
    assert any(frame.file == __file__ for frame in stack.frames)


def wait_here(dumper: threading.Thread) -> None:
    dumper.start()
    dumper.join()


def test_last_dump_counts() -> None:
    """A file that several dumps were appended to tells the newest place; odd lines are passed over."""
    text = (
        'Current thread 0x00007f01 (most recent call first):\n  File "a.py", line 1 in old\n\n'
        'Thread 0x00007f02 [loader] (most recent call first):\n  File "b.py", line 2 in helper\n  ...\n'
        'Current thread 0x00007f01 (most recent call first):\n  File "c d.py", line ??? in <module>\n'
        'Current thread\'s C stack trace (most recent call first):\n  Binary file "x", at f+0x1 [0x2]\n'
    )
    assert read_stack(text) == Stack((Frame("c d.py", 0, "<module>"),))


@pytest.mark.parametrize(
    "text", ["", "garbage", "Thread 0x00007f01 (most recent call first):\n  <no Python frame>"]
)
def test_no_stack_is_none(text: str) -> None:
    """What holds no frame of the main thread is no stack."""
    assert read_stack(text) is None

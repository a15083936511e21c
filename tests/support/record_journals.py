"""Makes the journals in tests/journals anew, by real runs on this machine.

    python -m tests.support.record_journals NAME...

Each takes a minute or two. Names of the machine and its directories are replaced, nothing else.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from ftrun.monitor import events
from tests.support.nodes import Job, job
from tests.support.run import Run, finish, start

JOURNALS = Path(__file__).parents[1] / "journals"
SCRIPT = str(Path(__file__).with_name("faulty_training.py"))
LONG_S = 240.0


def options(directory: Path, *more: str) -> tuple[str, ...]:
    """What all runs have: checkpoints, enough restarts, hangs that are found in seconds."""
    saving = ("--ft-checkpoint-dir", str(directory / "checkpoints"))
    return (*saving, "--ft-set", "ftrun.timeouts.stall=3", "--max-restarts", "9", *more)


def wait_steps(this: Job, round_number: int, steps: int) -> None:
    """Until a round has done so many steps."""
    path = this.directory / f"steps-{round_number}"
    what = f"{steps} steps in round {round_number}"
    this.wait_until(lambda: path.exists() and int(path.read_text() or 0) >= steps, what, LONG_S)


def two_nodes(directory: Path, *deeds: str, more: tuple[str, ...] = ()) -> AbstractContextManager[Job]:
    """What `job` takes for two nodes of two ranks each."""
    script = (SCRIPT, str(directory / "checkpoints"), *deeds)
    return job(directory, *options(directory, "--nnodes", "2", "--nproc-per-node", "2", *more), script=script)


def record_five_faults(directory: Path) -> list[Run]:
    """SIGKILL, an exception, a hang, a segmentation fault, and an agent that is killed and started again."""
    deeds = ("dies_of_sigkill:3", "raises:1", "sleeps_for_ever:2", "reads_address_zero:3", "waits:0")
    with two_nodes(directory, *deeds) as this:
        this.start(None)
        second = this.start(None)
        wait_steps(this, 4, 17)
        lost = second if second is not this.host() else this.runs[0]
        this.kill(lost)
        this.start_again(lost)
        wait_steps(this, 5, 30)
        this.release("end")
        this.codes(*(run for run in this.runs if run is not lost), timeout_s=LONG_S)
        return list(this.runs)


def record_spare(directory: Path) -> list[Run]:
    """Two nodes and a spare; one node is told to leave, and the spare takes its place."""
    with two_nodes(directory, "waits:0", more=("--ft-set", "ftrun.world.spares=1")) as this:
        seated = [this.start(None), this.start(None)]
        wait_steps(this, 0, 12)
        this.wait_event(this.start(None), events.NodeParked, timeout_s=LONG_S)
        next(run for run in seated if run is not this.host()).send(signal.SIGTERM)
        wait_steps(this, 1, 15)
        this.release("end")
        this.codes(timeout_s=LONG_S)
        return list(this.runs)


def record_killed_agent(directory: Path) -> list[Run]:
    """One node, whose agent is killed while it trains."""
    arguments = ("--nproc-per-node", "2", SCRIPT, str(directory / "checkpoints"), "dies_of_sigkill:1")
    with start(directory, *options(directory), *arguments) as run:
        steps = directory / "steps-1"
        run.wait_until(lambda: steps.exists() and int(steps.read_text() or 0) >= 12, "12 steps", LONG_S)
        run.send(signal.SIGKILL)
        run.process.wait(10)
    return [run]


def record_crash_loop(directory: Path) -> list[Run]:
    """A script that dies before its first step until the restarts are used up."""
    code = "import os; os.kill(os.getpid(), 11)"
    path = directory / "broken.py"
    path.write_text(code)
    _, run = finish(directory, "--nproc-per-node", "1", "--max-restarts", "2", str(path), timeout_s=LONG_S)
    return [run]


def record_import_error(directory: Path) -> list[Run]:
    """A script that cannot be imported: never retried."""
    path = directory / "broken.py"
    path.write_text("import a_module_that_is_not_there\n")
    _, run = finish(directory, "--nproc-per-node", "2", str(path), timeout_s=LONG_S)
    return [run]


RECORDERS: Mapping[str, Callable[[Path], list[Run]]] = {
    "five_faults": record_five_faults,
    "spare": record_spare,
    "killed_agent": record_killed_agent,
    "crash_loop": record_crash_loop,
    "import_error": record_import_error,
}


def scrub(text: str, directory: Path) -> str:
    """Without the names of this machine and its directories."""
    repository = str(Path(__file__).parents[2])
    text = (
        text.replace(str(directory), "/data/job")
        .replace(repository, "/src/ftrun")
        .replace(sys.prefix, "/usr")
    )
    host = re.escape(os.uname().nodename)
    for number, name in ((2, "c"), (1, "b")):
        text = re.sub(rf"\b{host}#{number}\b", f"gpu-{name}", text)
    return re.sub(rf"\b{host}\b(?!#)", "gpu-a", text)


def record(name: str) -> None:
    """Make one run's journals anew."""
    target = JOURNALS / name
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        texts: dict[str, str] = {}
        for run in RECORDERS[name](directory):
            for path in sorted((run.directory / "run").glob("*.jsonl")):
                node = scrub(path.name, directory)
                texts[node] = texts.get(node, "") + scrub(path.read_text(), directory)
    target.mkdir(parents=True, exist_ok=True)
    for node, text in texts.items():
        (target / node).write_text(text)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RECORDERS:
        print(wanted, flush=True)
        record(wanted)

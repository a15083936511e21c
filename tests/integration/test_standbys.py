"""Standbys in a running job: when they appear, what they preload, and that losing one costs nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.launcher import priority
from ftrun.monitor import events
from tests.support.run import Run, start

PROLOGUE = """
import sys
BEFORE = set(sys.modules)
import os
import signal
import time
from pathlib import Path
from ftrun.monitor.client import heartbeat

directory = Path(os.environ["D"])
rank, restart_count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def say(*words):
    os.write(1, f"[r{rank} rc{restart_count}] {' '.join(map(str, words))}\\n".encode())

def wait_for(name):
    while not (directory / name).exists():
        time.sleep(0.01)
"""

TRAIN = """
heartbeat()
say("beats")
wait_for("end")
"""

IMPORTS = """
import csv, sqlite3, yaml
import mine

wait_for("progress")
names = ("csv", "sqlite3", "yaml", "mine", "statistics", "fractions")
say("before:", [name for name in names if name in BEFORE])
"""

SETS_ENVIRONMENT = """
os.environ["MY_SETTING"] = "1"
if "never" in os.environ:
    import torch
"""


def script(directory: Path, body: str) -> str:
    """A script of the user's, in a directory of its own."""
    path = directory / "cwd" / "train.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROLOGUE + body)
    return str(path)


def kill_worker(run: Run, rank: int = 0) -> None:
    """SIGKILL to a rank of the first round."""
    started = run.wait_for_event(events.WorkerStarted, rank + 1)  # which a worker may be ahead of
    os.kill(started[rank].pid, signal.SIGKILL)


def end(run: Run) -> None:
    """Let the workers finish; the job must succeed."""
    (run.directory / "end").touch()
    assert run.wait() == 0, run.stderr


def warmth(run: Run, round_number: int) -> list[bool]:
    """Whether each worker of a round had been a standby."""
    return [event.is_warm for event in run.events(events.WorkerStarted) if event.round == round_number]


def niceness(pid: int) -> set[int]:
    """Nice values of all threads of a process."""
    return {os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir(f"/proc/{pid}/task")}


class Story:
    """One job with two ranks, one restart, and what was seen on the way."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting_niceness: set[int] = set()
        self.working_niceness: set[int] = set()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Progress, two standbys, SIGKILL of rank 1, both ranks back, end."""
    directory = tmp_path_factory.mktemp("story")
    path = script(directory, IMPORTS + TRAIN)
    (directory / "cwd" / "mine.py").write_text("import statistics\n")
    with start(directory, "--nproc-per-node", "2", "--max-restarts", "1", path) as run:
        seen = Story(run)
        run.wait_for_event(events.WorkerStarted, 2)
        assert len(run.events(events.StandbyStarted)) == 2
        (directory / "progress").touch()
        for event in run.wait_for_event(events.StandbyReadied, 2):
            seen.waiting_niceness |= niceness(event.pid)
        kill_worker(run, rank=1)
        run.wait_for_text("rc1] beats", 2)
        run.wait_for_event(events.RecoveryCompleted)
        for started in run.events(events.WorkerStarted)[2:]:
            seen.working_niceness |= niceness(started.pid)
        end(run)
        yield seen


def test_pool_fills_after_the_first_progress_of_every_rank(story: Story) -> None:
    """Before that, CPU and memory belong to the start of training."""
    kinds = [type(record.event) for record in story.run.records()]
    second_progress = [i for i, kind in enumerate(kinds) if kind is events.WorkerProgressed][1]
    refills = [i for i, kind in enumerate(kinds) if kind is events.StandbyStarted][2:]
    assert len(refills) == 2
    assert min(refills) > second_progress


def test_standbys_are_started_one_at_a_time(story: Story) -> None:
    """The second is not started before the first is ready."""
    found = [record.event for record in story.run.records()]
    kinds = [type(e) for e in found if isinstance(e, (events.StandbyStarted, events.StandbyReadied))]
    assert kinds[2:] == [events.StandbyStarted, events.StandbyReadied] * 2


def test_warm_standbys_take_the_ranks_after_a_sigkill(story: Story) -> None:
    """Nobody imports anything while the job is down."""
    assert warmth(story.run, 0) == [False, False]
    assert warmth(story.run, 1) == [True, True]


def test_learned_list_is_what_the_script_imports_from_libraries(story: Story) -> None:
    """Standard library and site-packages are there before the script begins; its own modules are not."""
    assert story.run.stdout.count("rc0] before: []\n") == 2
    everything_but_mine = ["csv", "sqlite3", "yaml", "statistics", "fractions"]
    assert story.run.stdout.count(f"rc1] before: {everything_but_mine}\n") == 2


@pytest.mark.skipif(not priority.can_go_back(0), reason="this user cannot raise a priority again")
def test_standbys_are_nice_while_they_wait_and_not_as_workers(story: Story) -> None:
    """All threads of a worker have the agent's own priority again."""
    assert story.waiting_niceness == {19}
    assert story.working_niceness == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_pool_is_not_refilled_when_no_restart_is_left(story: Story) -> None:
    """A standby that nobody will need would only take memory."""
    assert len(story.run.events(events.StandbyStarted)) == 4


def test_killed_standby_is_replaced(tmp_path: Path) -> None:
    """Training does not notice, the pool starts another, and the next restart is warm."""
    with start(tmp_path, script(tmp_path, TRAIN)) as run:
        [ready] = run.wait_for_event(events.StandbyReadied)
        os.kill(ready.pid, signal.SIGKILL)
        [discarded] = run.wait_for_event(events.StandbyDiscarded)
        assert discarded.pid == ready.pid
        assert "-9" in discarded.reason
        run.wait_for_event(events.StandbyReadied, 2)
        assert run.events(events.WorkerExited) == []
        kill_worker(run)
        run.wait_for_event(events.RecoveryCompleted)
        assert warmth(run, 1) == [True]
        end(run)


@pytest.mark.parametrize(
    ("options", "body", "reason"),
    [
        (("--ft-standby", "off"), "", "off"),
        ((), SETS_ENVIRONMENT, "MY_SETTING"),
        (("--no-python", sys.executable, "-u"), "", "--no-python"),
    ],
    ids=["switched off", "environment set before torch", "--no-python"],
)
def test_job_that_cannot_use_standbys_says_why_and_restarts_cold(
    tmp_path: Path, options: tuple[str, ...], body: str, reason: str
) -> None:
    """Nothing is preloaded, now or later, the journal has the reason, and a restart works all the same."""
    with start(tmp_path, *options, script(tmp_path, body + TRAIN)) as run:
        run.wait_for_text("rc0] beats")
        [suspended] = run.wait_for_event(events.StandbySuspended)
        assert reason in suspended.reason
        kill_worker(run)
        run.wait_for_text("rc1] beats")
        end(run)
        assert warmth(run, 1) == [False]
        assert all(event.is_cold for event in run.events(events.StandbyStarted))
        assert run.events(events.PreloadLearned) == []


def test_script_that_sets_its_environment_is_named_with_the_line(tmp_path: Path) -> None:
    """The user can move the line below the import, or force standbys on."""
    path = script(tmp_path, SETS_ENVIRONMENT + TRAIN)
    line = Path(path).read_text().splitlines().index('os.environ["MY_SETTING"] = "1"') + 1
    with start(tmp_path, path) as run:
        [suspended] = run.wait_for_event(events.StandbySuspended)
        assert f"train.py:{line} " in suspended.reason
        run.wait_for_text("beats")
        end(run)


def test_standbys_can_be_forced_on(tmp_path: Path) -> None:
    """--ft-standby on overrides the analysis: the user knows better."""
    body = 'os.environ["MY_SETTING"] = "1"' + TRAIN
    with start(tmp_path, "--ft-standby", "on", script(tmp_path, body)) as run:
        run.wait_for_event(events.StandbyReadied)
        kill_worker(run)
        run.wait_for_event(events.RecoveryCompleted)
        assert warmth(run, 1) == [True]
        end(run)


def test_another_interpreter_starts_cold(tmp_path: Path) -> None:
    """PYTHON_EXEC names a Python that may lack ftrun: the worker becomes it."""
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nOTHER=1 exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    path = script(tmp_path, 'say("other", os.environ["OTHER"])' + TRAIN)
    with start(tmp_path, path, environment={"PYTHON_EXEC": str(other)}) as run:
        run.wait_for_text("other 1")
        run.wait_for_text("rc0] beats")
        [suspended] = run.events(events.StandbySuspended)
        assert str(other) in suspended.reason
        kill_worker(run)
        run.wait_for_text("rc1] beats")
        end(run)


def test_short_memory_suspends_standbys_and_nothing_else(tmp_path: Path) -> None:
    """No standby is started, that is said once, and the rank comes back cold."""
    options = ("--ft-set", "ftrun.standby.min_free_memory=1000TiB")
    with start(tmp_path, *options, script(tmp_path, TRAIN)) as run:
        run.wait_for_event(events.StandbySuspended)
        kill_worker(run)
        run.wait_for_event(events.RecoveryCompleted)
        end(run)
        assert warmth(run, 1) == [False]
        assert len(run.events(events.StandbySuspended)) == 1


def test_worker_that_became_another_program_does_not_keep_the_agent_busy(tmp_path: Path) -> None:
    """Its end of the control socket is closed by exec, which makes the agent's end readable for ever."""
    with start(tmp_path, "--no-python", "sleep", "60") as run:
        run.wait_for_event(events.WorkerStarted)
        pid = run.process.pid
        run.wait_until(lambda: "sleep 60" in run.living().get(worker_pid(run), ""), "the program runs")
        # What it does at its start ends soon; one that is kept busy takes what it can get, for ever.
        run.wait_until(IdleSecond(pid), "a second in which the agent is idle")
        run.send(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM


def worker_pid(run: Run) -> int:
    return run.events(events.WorkerStarted)[-1].pid


class IdleSecond:
    """Whether a second has passed in which a process's main thread took next to no CPU time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began_at, self._cpu_before_s = time.monotonic(), main_thread_cpu_s(pid)

    def __call__(self) -> bool:
        if time.monotonic() < self._began_at + 1.0:
            return False
        spent_s = main_thread_cpu_s(self._pid) - self._cpu_before_s
        self._began_at, self._cpu_before_s = time.monotonic(), self._cpu_before_s + spent_s
        return spent_s < 0.1


def main_thread_cpu_s(pid: int) -> float:
    """CPU time of a process's main thread, seconds (the agent's other threads import torch)."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


TROUBLE = {
    "raises": 'import os\nif "RANK" not in os.environ: raise RuntimeError("wants a rank")\n',
    "initialises CUDA": (
        "import os, sys, types\n"
        'if "RANK" not in os.environ:\n'
        '    sys.modules["torch.cuda"] = types.SimpleNamespace(is_initialized=lambda: True)\n'
    ),
    "keeps a variable": 'import os\nRANK = int(os.environ.get("RANK", "7"))\n',
}


@contextmanager
def installed(directory: Path, name: str, source: str, body: str) -> Iterator[Run]:
    """ftrun in a virtual environment of its own, whose site-packages hold the module `name` besides."""
    venv = directory / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    [site_packages] = venv.glob("lib/python*/site-packages")
    ours = sysconfig.get_paths()["purelib"]
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    (site_packages / f"{name}.py").write_text(source)
    wrapper = ("/bin/sh", "-c", f'shift; exec {venv}/bin/python "$@"', "sh")
    with start(directory, script(directory, body), wrapper=wrapper) as run:
        yield run


@pytest.mark.parametrize("kind", TROUBLE)
def test_module_that_cannot_be_preloaded_is_left_to_the_script(tmp_path: Path, kind: str) -> None:
    """The standby is thrown away, the list is reduced, both are journalled, and the next standby is good."""
    body = "import trouble\nsay('has trouble:', 'trouble' in BEFORE)\n" + TRAIN
    with installed(tmp_path, "trouble", TROUBLE[kind], body) as run:
        [reduced] = run.wait_for_event(events.PreloadReduced)
        assert reduced.module == "trouble"
        [discarded] = run.wait_for_event(events.StandbyDiscarded)
        if kind == "raises":
            assert "RuntimeError: wants a rank" in reduced.reason
        elif kind == "keeps a variable":
            assert "it reads RANK" in reduced.reason
        else:
            assert "CUDA" in reduced.reason
            assert "trouble" in discarded.reason
        [ready] = run.wait_for_event(events.StandbyReadied)
        assert ready.pid != discarded.pid
        kill_worker(run)
        run.wait_for_event(events.RecoveryCompleted)
        assert warmth(run, 1) == [True]
        run.wait_for_text("rc1] has trouble: False")
        end(run)

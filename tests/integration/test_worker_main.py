"""A worker before and around the script: waiting, preloading, progress, and the error file."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.launcher import control
from tests.support.worker_harness import BOOT, DEADLINE_S, SCRIPTS, Outcome, run_worker, spawn


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A writable copy of the scripts."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "job"))


def write(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def test_a_standby_ends_silently_when_its_agent_closes_the_socket(job: Path) -> None:
    """No rank for it: exit code 0 and not a word."""
    process, ours = spawn(["identity.py"], job)
    control.send(ours, control.Preload(("json",)))
    ours.close()
    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
    assert process.returncode == 0


def test_a_standby_dies_of_sigint_without_a_traceback(job: Path) -> None:
    """While it waits, signals have their default effect."""
    process, ours = spawn(["identity.py"], job)
    control.send(ours, control.Preload(("json",)))
    assert ours.recv(1 << 16)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
    assert process.returncode == -signal.SIGINT


def test_a_standby_is_known_by_the_scripts_name(job: Path) -> None:
    """`ps` and `pgrep -f` find it."""
    process, ours = spawn(["identity.py", "--flag"], job)
    control.send(ours, control.Preload())
    assert ours.recv(1 << 16)
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    assert command[-4:-1] == [b"--", b"identity.py", b"--flag"]
    ours.close()
    process.communicate(timeout=DEADLINE_S)


def test_no_worker_survives_its_agent(job: Path) -> None:
    """SIGKILL of the agent kills a standby and a running script alike."""
    agent = f"""
import os, socket, subprocess, sys
from ftrun.launcher import control
pids, kept = [], []
for is_running in (False, True):
    ours, theirs = control.pair()
    command = [sys.executable, "-u", {BOOT!r}, str(theirs.fileno()), str(os.getpid()), "--", "waits.py"]
    pids.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]).pid)
    control.send(ours, control.Preload())
    if is_running:
        control.send(ours, control.Activate({{}}, ("waits.py",)), (1, 2))
    else:
        ours.recv(1 << 16)
    kept.append(ours)
print(*pids, flush=True)
sys.stdin.read()
"""
    write(job / "waits.py", "import os, time\nos.write(1, b'runs\\n')\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", agent], cwd=job, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    lines = {process.stdout.readline(), process.stdout.readline()}
    assert b"runs\n" in lines
    pids = [int(word) for line in lines - {b"runs\n"} for word in line.split()]
    watched = [os.pidfd_open(pid) for pid in pids]
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    for pidfd in watched:
        assert select.select([pidfd], [], [], DEADLINE_S)[0], "a worker outlived its agent"
        os.close(pidfd)


def test_what_imports_print_comes_out_with_the_script(job: Path) -> None:
    """Output of preloaded modules, also of C code, goes where the script's goes, before it."""
    source = (
        "import ctypes, sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n"
        "ctypes.CDLL(None).printf(b'from C\\n')\n"
    )
    write(job / "lib" / "chatty.py", source)
    write(job / "says.py", "print('script')\n")
    outcome = run_worker(["says.py"], job, preload=["chatty"], spawned_with={"PYTHONPATH": str(job / "lib")})
    assert outcome.stdout == "to stdout\nfrom C\nscript\n"
    assert outcome.stderr == "to stderr\n"


def test_long_import_output_is_bounded(job: Path) -> None:
    """64 KiB are kept, and it is said how much is not."""
    write(job / "lib" / "chatty.py", "print('x' * 100_000)\n")
    write(job / "says.py", "print('script')\n")
    outcome = run_worker(["says.py"], job, preload=["chatty"], spawned_with={"PYTHONPATH": str(job / "lib")})
    assert outcome.stdout == "x" * 65536 + "\n[ftrun: 34465 more bytes printed during imports]\nscript\n"


def test_modules_that_cannot_be_preloaded_are_reported(job: Path) -> None:
    """Each with its error; the others are imported all the same."""
    write(job / "lib" / "broken.py", "raise OSError('no licence')\n")
    write(job / "lib" / "leaves.py", "import sys; sys.exit(3)\n")
    outcome = run_worker(
        ["identity.py"],
        job,
        preload=["broken", "leaves", "missing", "fractions"],
        spawned_with={"PYTHONPATH": str(job / "lib")},
    )
    (ready,) = outcome.messages
    assert isinstance(ready, control.Ready)
    assert ready.failed == (
        ("broken", "OSError: no licence"),
        ("leaves", "SystemExit: 3"),
        ("missing", "ModuleNotFoundError: No module named 'missing'"),
    )
    assert ready.cuda_initialized_by is None
    assert outcome.exit_code == 0


def test_modules_that_read_what_a_rank_will_have_are_reported(job: Path) -> None:
    """They would keep the value of no rank; so would what imports them, and the variable is named."""
    write(job / "lib" / "reads.py", "import os\nRANK = int(os.environ.get('RANK', '0'))\n")
    write(job / "lib" / "package" / "__init__.py", "from package import part\n")
    write(job / "lib" / "package" / "part.py", "import os\nNAME = 'LOCAL_RANK' in os.environ\n")
    write(job / "lib" / "sets.py", "import os\nos.environ['MASTER_PORT'] = '1'\n")
    write(
        job / "lib" / "lists.py",
        "import os\nALL = {**os.environ}, os.environ.copy(), [*os.environ.items()]\n",
    )
    write(job / "lib" / "later.py", "import os\ndef rank(): return os.environ['RANK']\n")
    outcome = run_worker(
        ["identity.py"],
        job,
        preload=["reads", "package.part", "sets", "lists", "later", "fractions"],
        spawned_with={"PYTHONPATH": str(job / "lib"), "CUDA_VISIBLE_DEVICES": "0"},
    )
    (ready,) = outcome.messages
    assert isinstance(ready, control.Ready)
    found = {name: error.split()[2].rstrip(",") for name, error in ready.failed}
    assert found == {
        "reads": "RANK",
        "package": "LOCAL_RANK",
        "package.part": "LOCAL_RANK",
        "sets": "MASTER_PORT",
    }


def test_the_script_finds_an_ordinary_environment(job: Path) -> None:
    """The watch over preloaded modules is over, and no warning option or filter variable was set."""
    write(
        job / "looks.py",
        "import os, sys\nprint(type(os.environ).__name__, sys.warnoptions, 'PYTHONWARNINGS' in os.environ)\n",
    )
    outcome = run_worker(["looks.py"], job, preload=["fractions"])
    assert outcome.stdout == "_Environ [] False\n", outcome.stderr


def test_a_module_that_initialises_cuda_is_named(job: Path) -> None:
    """Preloading stops there, so that the agent can throw the standby away."""
    write(job / "lib" / "torch" / "__init__.py", "")
    write(job / "lib" / "torch" / "cuda.py", "state = []\ndef is_initialized(): return bool(state)\n")
    write(job / "lib" / "greedy.py", "import torch.cuda; torch.cuda.state.append(1)\n")
    outcome = run_worker(
        ["identity.py"],
        job,
        preload=["torch.cuda", "greedy", "missing"],
        spawned_with={"PYTHONPATH": str(job / "lib")},
    )
    (ready,) = outcome.messages
    assert isinstance(ready, control.Ready)
    assert (ready.cuda_initialized_by, ready.failed) == ("greedy", ())


def test_the_environment_is_applied_before_the_script(job: Path) -> None:
    """Set and removed variables reach the script, its C libraries and its children."""
    source = (
        "import os, subprocess\n"
        "print(ascii(os.environ.get('ADDED')), os.environ.get('REMOVED'), flush=True)\n"
        "subprocess.run('printf %s $ADDED $REMOVED | od -c -A n', shell=True)\n"
    )
    write(job / "prints.py", source)
    changes = {"ADDED": "caf\udce9", "REMOVED": None}
    outcome = run_worker(["prints.py"], job, spawned_with={"REMOVED": "old"}, environment=changes)
    assert outcome.stdout.split() == ["'caf\\udce9'", "None", "c", "a", "f", "351"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run of the training script in a worker that had preloaded nothing."""
    return run_worker(
        ["trains.py"], Path(shutil.copytree(SCRIPTS, tmp_path_factory.mktemp("trained") / "job"))
    )


def reported_by(outcome: Outcome) -> tuple[str, ...]:
    """The modules of its one Progress message."""
    _, progress = outcome.messages
    assert isinstance(progress, control.Progress)
    return progress.modules


def test_the_first_optimizer_step_is_progress(trained: Outcome) -> None:
    """Steps are counted without an edit to the script, but not those of a forked child."""
    assert trained.exit_code == 0, trained.stderr
    page = trained.page
    assert page.steps == 3
    assert page.main_started_at is not None
    assert page.first_progress_at is not None
    assert page.last_progress_at is not None
    assert page.main_started_at < page.first_progress_at < page.last_progress_at < time.monotonic()


def test_libraries_are_reported_but_not_the_users_own_modules(trained: Outcome) -> None:
    """Each once, with the first progress."""
    names = reported_by(trained)
    assert len(names) == len(set(names))
    assert {"torch", "torch.optim.optimizer", "json.decoder"} <= set(names)
    assert not [name for name in names if name.partition(".")[0] in ("neighbour", "ftrun", "__main__")]


def test_modules_that_were_reported_can_all_be_preloaded(trained: Outcome, job: Path) -> None:
    """The list of one worker serves the next: nothing in it fails or prints, and steps are counted."""
    outcome = run_worker(["trains.py"], job, preload=reported_by(trained))
    ready, _ = outcome.messages
    assert isinstance(ready, control.Ready)
    assert (ready.failed, ready.cuda_initialized_by) == ((), None)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "", "")
    assert outcome.page.steps == 3


def test_a_script_that_closes_all_descriptors_gets_nothing_of_ours_into_its_files(job: Path) -> None:
    """The control socket's number may be the script's own file by the time of the first step."""
    outcome = run_worker(["trains.py", "closed"], job)
    assert outcome.stdout == "stranger holds 0 bytes\n"
    assert outcome.page.steps == 3


def test_client_calls_are_progress_also_from_a_child_interpreter(job: Path) -> None:
    """Heartbeats and checkpoints reach the page, with the script's own step numbers."""
    outcome = run_worker(["beats.py"], job, environment={"FTRUN_RESUME_FROM": "/data/10"})
    assert (outcome.exit_code, outcome.stdout) == (0, "True /data/10\n"), outcome.stderr
    page = outcome.page
    assert (page.steps, page.reported_step, page.checkpoints, page.checkpoint_step) == (3, 12, 1, 11)
    assert page.checkpoint_path == str(job / "checkpoints" / "11")
    assert isinstance(outcome.messages[-1], control.Progress)


def recorded(job: Path, argv: list[str]) -> dict[str, object]:
    """The error file's message after a run."""
    path = job / "error.json"
    path.unlink(missing_ok=True)
    run_worker(argv, job, environment={"TORCHELASTIC_ERROR_FILE": str(path)})
    message: dict[str, object] = json.loads(path.read_text())["message"]
    return message


def test_an_uncaught_exception_is_recorded_without_any_decorator(job: Path) -> None:
    """The file is torch's, and says further where the user's own code failed, what it was, and when."""
    before = time.monotonic()
    message = recorded(job, ["raises.py", "1"])
    assert message["message"] == "RuntimeError: outer failed"
    extra = message["extraInfo"]
    assert isinstance(extra, dict)
    assert extra["frame"] == "raises.py:14 in outer"
    assert extra["bases"] == ["Exception", "BaseException"]
    assert before < extra["recorded_at"] < time.monotonic()
    assert abs(int(extra["timestamp"]) - time.time()) < DEADLINE_S
    assert extra["py_callstack"].startswith("Traceback (most recent call last):\n")
    assert "ValueError: bad value ['1']" in extra["py_callstack"]
    assert "script_runner" not in extra["py_callstack"]


@pytest.mark.parametrize(
    ("source", "frame"),
    [
        ("import json\njson.loads('{')\n", "fails.py:2 in <module>"),
        ("x = 1\nthis is wrong\n", "fails.py:2 in <module>"),
        ("def f():\n    return [1][2]\n\n\nf()\n", "fails.py:2 in f"),
    ],
)
def test_the_recorded_frame_is_the_users_own(source: str, frame: str, job: Path) -> None:
    """Frames in libraries below it do not count; a syntax error has its line."""
    write(job / "fails.py", source)
    message = recorded(job, ["fails.py"])
    assert isinstance(message["extraInfo"], dict)
    assert message["extraInfo"]["frame"] == frame


def test_a_huge_message_is_cut(job: Path) -> None:
    """Begin and end are kept."""
    write(job / "fails.py", "raise ValueError('a' + 'x' * 10**6 + 'z')\n")
    message = recorded(job, ["fails.py"])
    text = message["message"]
    assert isinstance(text, str)
    assert len(text) < 66_000
    assert text.startswith("ValueError: ax")
    assert text.endswith("xz")
    assert "characters left out" in text


def test_an_exception_that_cannot_be_printed_is_recorded(job: Path) -> None:
    """Its type is known all the same, and python's own report is not disturbed."""
    write(job / "fails.py", "class Odd(Exception):\n    def __str__(self): return 1 / 0\n\n\nraise Odd\n")
    message = recorded(job, ["fails.py"])
    assert message["message"] == "Odd: <exception str() failed>"


@pytest.mark.parametrize("command", ["exits.py number", "exits.py text", "interrupted.py", "forks.py"])
def test_exits_signals_and_childrens_errors_are_not_recorded(command: str, job: Path) -> None:
    """sys.exit is no error, SIGINT no bug, and a forked child's error not its parent's."""
    run_worker(command.split(), job, environment={"TORCHELASTIC_ERROR_FILE": str(job / "error.json")})
    assert not (job / "error.json").exists()

"""A script in a worker behaves as under plain `python -u`: exit code, output, errors and what it sees."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.test_example import ABORT
from tests.support.worker_harness import DEADLINE_S, SCRIPTS, Outcome, run_python, run_worker

# Standard library modules, and one of ours' own dependencies: none may be seen to be there already.
PRELOADED = ("decimal", "fractions", "asyncio", "multiprocessing", "json")

CASES: dict[str, list[str]] = {
    "what a script sees": ["identity.py", "a b", "--flag", "-x"],
    "path with dots": ["./../scripts/identity.py"],
    "link to a script elsewhere": ["linked.py"],
    "absolute path": ["{cwd}/identity.py"],
    "exit with a number": ["exits.py", "number"],
    "exit with a large number": ["exits.py", "large"],
    "exit with a negative number": ["exits.py", "negative"],
    "exit with a text": ["exits.py", "text"],
    "exit with None": ["exits.py", "none"],
    "os._exit": ["exits.py", "os"],
    "uncaught exception with a cause": ["raises.py", "1", "2"],
    "own excepthook": ["excepthook.py"],
    "error in an imported module": ["import_error.py"],
    "error in a coroutine": ["asyncio_main.py"],
    "error in a thread": ["threads_fail.py"],
    "syntax error": ["wrong_syntax.py"],
    "missing file": ["no_such_file.py"],
    "SIGINT": ["interrupted.py"],
    "SIGKILL": ["killed.py", "SIGKILL"],
    "SIGTERM": ["killed.py", "SIGTERM"],
    "atexit, threads, destructors": ["endings.py"],
    "pickling and source of own classes": ["pickles.py"],
    "multiprocessing spawn": ["processes.py", "spawn"],
    "multiprocessing forkserver": ["processes.py", "forkserver"],
    "multiprocessing fork": ["processes.py", "fork"],
    "os.fork with an error in the child": ["forks.py"],
    "own module named like one of the standard library": ["shadowing/shadows.py"],
    "stdin and the streams' settings": ["reads_stdin.py"],
    "warnings and logging": ["warns.py"],
    "directory with __main__": ["directory", "arg"],
    "directory without __main__": ["empty"],
    "zip archive": ["archive.zip", "arg"],
    "compiled file": ["compiled.pyc"],
}

MODULE_CASES: dict[str, list[str]] = {
    "package with __main__": ["package", "arg"],
    "module in a package": ["package.part", "arg"],
    "missing module": ["no_such_module"],
    "top-level module that fails": ["raises"],
    "multiprocessing in a module": ["processes", "spawn"],
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writable copy of the scripts, with those that are no plain files beside them."""
    directory = tmp_path_factory.mktemp("job") / "scripts"
    shutil.copytree(SCRIPTS, directory)
    (directory / "wrong_syntax.py").write_text("x = 1\ndef broken(:\n    pass\n")
    identity = (directory / "identity.py").read_text()
    for package in ("directory", "package"):
        (directory / package).mkdir()
        (directory / package / "__main__.py").write_text(identity)
    (directory / "package" / "__init__.py").touch()
    (directory / "package" / "part.py").write_text(identity)
    (directory / "empty").mkdir()
    elsewhere = directory.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "real.py").write_text(identity)
    (directory / "linked.py").symlink_to(elsewhere / "real.py")
    with zipfile.ZipFile(directory / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", identity)
    py_compile.compile(str(directory / "identity.py"), cfile=str(directory / "compiled.pyc"))
    return directory


def seen(outcome: Outcome) -> tuple[int, str, str]:
    """What must be equal; addresses differ from run to run."""
    addresses = re.compile(r"0x[0-9a-f]+|Thread-\d+")
    return outcome.exit_code, addresses.sub("@", outcome.stdout), addresses.sub("@", outcome.stderr)


@pytest.mark.parametrize("name", CASES)
def test_a_script_behaves_as_under_python(name: str, scripts: Path) -> None:
    """Cold and with modules preloaded, a script cannot tell a worker from `python -u`."""
    argv = [word.replace("{cwd}", str(scripts)) for word in CASES[name]]
    expected = seen(run_python(argv, scripts, stdin=b"some input"))
    assert seen(run_worker(argv, scripts, stdin=b"some input")) == expected
    assert seen(run_worker(argv, scripts, stdin=b"some input", preload=PRELOADED)) == expected


@pytest.mark.parametrize("name", MODULE_CASES)
def test_a_module_behaves_as_under_python_m(name: str, scripts: Path) -> None:
    """Cold and with modules preloaded, `-m` in a worker is `python -u -m`."""
    argv = MODULE_CASES[name]
    expected = seen(run_python(argv, scripts, kind="module"))
    assert seen(run_worker(argv, scripts, kind="module")) == expected
    assert seen(run_worker(argv, scripts, kind="module", preload=PRELOADED)) == expected


def test_a_script_crashes_with_the_stacks_of_all_threads(scripts: Path) -> None:
    """A segmentation fault has python's exit status, and faulthandler says where it was."""
    argv = ["killed.py", "SIGSEGV"]
    outcome = run_worker(argv, scripts)
    assert outcome.exit_code == run_python(argv, scripts).exit_code == -11
    assert 'killed.py", line 6 in <module>' in outcome.stderr
    assert outcome.stdout == "last words\n"


def test_safe_path_keeps_the_scripts_directory_off_the_path(scripts: Path) -> None:
    """With PYTHONSAFEPATH a neighbour cannot be imported, as under python (3.11 and later)."""
    if sys.version_info < (3, 11):
        pytest.skip("python 3.10 has no safe path")
    outcome = run_worker(["shadowing/shadows.py"], scripts, spawned_with={"PYTHONSAFEPATH": "1"})
    assert outcome.exit_code == 1
    assert "No module named 'companion'" in outcome.stderr


@pytest.mark.parametrize(
    ("argv", "exit_code", "text"),
    [
        (["sh", "-c", "echo $RANK; exit 9"], 9, "4\n"),
        (["no-such-program"], 127, "cannot run no-such-program: No such file"),
        (["./identity.py"], 126, "cannot run ./identity.py: Permission denied"),
    ],
)
def test_an_executable_replaces_the_worker(argv: list[str], exit_code: int, text: str, scripts: Path) -> None:
    """With `--no-python` the program runs in the same process, and failures to start it are a shell's."""
    os.chmod(scripts / "identity.py", 0o644)
    outcome = run_worker(argv, scripts, kind="executable", environment={"RANK": "4"})
    assert outcome.exit_code == exit_code
    assert text in outcome.stdout + outcome.stderr
    assert outcome.page.main_started_at is not None


def test_a_script_behaves_as_under_torchrun(scripts: Path, tmp_path: Path) -> None:
    """What a script sees of itself under torchrun (arguments, path, names) it also sees in a worker."""
    torchrun = run_torchrun(["identity.py", "--flag"], scripts, tmp_path)
    worker = run_worker(["identity.py", "--flag"], scripts)
    assert (worker.exit_code, worker.stdout) == (0, torchrun.stdout)
    assert torchrun.exit_code == 0 or ABORT in torchrun.stderr


def test_an_error_is_recorded_as_under_torchrun_with_record(scripts: Path, tmp_path: Path) -> None:
    """torch's `@record` and the worker write the same message and traceback, one for each error."""
    run_torchrun(["recorded.py"], scripts, tmp_path)
    (by_torch,) = (json.loads(path.read_text()) for path in tmp_path.glob("**/error.json"))
    ours = tmp_path / "ours.json"
    run_worker(["recorded.py"], scripts, environment={"TORCHELASTIC_ERROR_FILE": str(ours)})
    with_record = json.loads(ours.read_text())["message"]
    assert with_record["message"] == by_torch["message"]["message"] == "ValueError: recorded by torch"
    assert with_record["extraInfo"]["py_callstack"] == by_torch["message"]["extraInfo"]["py_callstack"]
    assert "frame" not in with_record["extraInfo"]


def run_torchrun(argv: list[str], cwd: Path, logs: Path) -> Outcome:
    """One rank under torchrun, its logs (and error files) below `logs`."""
    command = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=1", "--standalone"]
    done = subprocess.run(
        [*command, f"--log-dir={logs}", *argv], cwd=cwd, capture_output=True, timeout=DEADLINE_S
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

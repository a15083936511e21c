"""What the workers print is kept: every round's apart, whole lines, up to the last one before a crash."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ftrun.monitor import events
from tests.support.run import WORKER, Run, finish, start

TWO = ("--nproc-per-node", "2")


def texts(directory: Path, name: str) -> dict[str, str]:
    """Contents of all files of that name below a directory, by path relative to it."""
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob(name)}


def test_logs_of_each_round_are_kept_apart(tmp_path: Path) -> None:
    """A restart neither overwrites nor deletes what the round before it has printed."""
    logs = tmp_path / "logs"
    code = "say('unique'); print('error', restart_count, file=sys.stderr); sys.exit(restart_count < 2)"
    exit_code, run = finish(tmp_path, "--log-dir", str(logs), "--redirects=3", WORKER, code)
    assert exit_code == 0, run.stderr
    (generation,) = logs.iterdir()
    assert texts(generation, "stdout.log") == {
        f"attempt_{number}/0/stdout.log": f"[r0 rc{number}] unique\n" for number in range(3)
    }
    assert texts(generation, "stderr.log") == {
        f"attempt_{number}/0/stderr.log": f"error {number}\n" for number in range(3)
    }
    assert "unique" not in run.stdout


def test_two_runs_with_one_log_directory_do_not_touch_each_other(tmp_path: Path) -> None:
    """The second run of a job, with the same id and place, leaves the first one's logs alone."""
    logs = tmp_path / "logs"
    for name in ("first", "second"):
        options = ("--log-dir", str(logs), "--rdzv-id", "my/job", "--redirects", "1")
        exit_code, run = finish(tmp_path / name, *options, WORKER, f"say('{name}')")
        assert exit_code == 0, run.stderr
    assert len(list(logs.iterdir())) == 2
    assert sorted(texts(logs, "stdout.log").values()) == ["[r0 rc0] first\n", "[r0 rc0] second\n"]


def test_redirects_know_local_ranks_of_two_digits(tmp_path: Path) -> None:
    """Rank 0 is redirected, rank 10 would be; rank 1 is shown on the console."""
    logs = tmp_path / "logs"
    options = ("--log-dir", str(logs), "--redirects=0:3,10:3")
    exit_code, run = finish(tmp_path, *TWO, *options, WORKER, "say('hello')")
    assert exit_code == 0, run.stderr
    assert list(texts(logs, "stdout.log").values()) == ["[r0 rc0] hello\n"]
    assert run.stdout == "[r1 rc0] hello\n"


def test_tee_shows_whole_lines_with_one_prefix_each_and_the_last_piece(tmp_path: Path) -> None:
    """Ranks that write in pieces do not mix, and what came before a crash without a newline is there."""
    code = """
for number in range(40):
    for piece in (f"begin{number} ", "middle ", f"end{number}\\n"):
        sys.stdout.write(piece)
        sys.stdout.flush()
        sys.stderr.write(piece)
        time.sleep(0.001)
os.write(1, f"last words of rank {rank}".encode())
os.write(2, f"last error of rank {rank}".encode())
(directory / f"done{rank}").touch()
wait_for(f"done{1 - rank}")
os._exit(3)
"""
    options = ("--log-dir", str(tmp_path / "logs"), "--tee=3", "--max-restarts=0")
    exit_code, run = finish(tmp_path, *TWO, *options, WORKER, code)
    assert exit_code == 3, run.stderr
    wanted = [f"begin{number} middle end{number}" for number in range(40)]
    for console, last in ((run.stdout, "last words"), (run.stderr, "last error")):
        lines = console.splitlines()
        for rank in (0, 1):
            prefix = f"[default{rank}]:"
            shown = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
            assert shown == [*wanted, f"{last} of rank {rank}"]
        assert all(line.count("[default") <= 1 for line in lines)
    assert all(line.startswith("[default") for line in run.stdout.splitlines())
    whole = "".join(f"{line}\n" for line in wanted)
    for rank in (0, 1):
        (text,) = (tmp_path / "logs").rglob(f"{rank}/stdout.log")
        assert text.read_text() == f"{whole}last words of rank {rank}"


def test_last_lines_before_sigkill_are_there_without_python(tmp_path: Path) -> None:
    """A Python program started with --no-python is not block-buffered either."""
    program = "import os; print('last line'); os.kill(os.getpid(), 9)"
    options = ("--log-dir", str(tmp_path / "logs"), "--redirects=1", "--max-restarts=0", "--no-python")
    exit_code, run = finish(tmp_path, *options, sys.executable, "-c", program)
    assert exit_code == 1, run.stderr
    assert list(texts(tmp_path / "logs", "stdout.log").values()) == ["last line\n"]


def test_no_temporary_directory_is_left_behind(tmp_path: Path) -> None:
    """TMPDIR is empty after a job that ended well and after one that failed; the logs are where it says."""
    for name, code in (("well", "pass"), ("badly", "sys.exit(1)")):
        _, run = finish(tmp_path / name, *TWO, "--max-restarts=0", WORKER, code)
        assert list((run.directory / "tmp").iterdir()) == []
        (located,) = run.events(events.LogLocated)
        assert Path(located.path).is_dir()


def test_console_filter_hides_a_rank_but_keeps_its_file(tmp_path: Path) -> None:
    """--local-ranks-filter is about the console alone."""
    options = ("--log-dir", str(tmp_path / "logs"), "--tee=3", "--local-ranks-filter=1")
    exit_code, run = finish(tmp_path, *TWO, *options, WORKER, "say('hello')")
    assert exit_code == 0, run.stderr
    assert run.stdout == "[default1]:[r1 rc0] hello\n"
    assert sorted(texts(tmp_path / "logs", "stdout.log").values()) == ["[r0 rc0] hello\n", "[r1 rc0] hello\n"]


def test_parts_that_tools_expect_of_the_tree(tmp_path: Path) -> None:
    """As torchrun has it: `<id>_<random>/attempt_<n>/<local rank>/`, with three files in it.

    Beside the ranks' directories there is only what the node saw of a failure.
    """
    options = ("--log-dir", str(tmp_path / "logs"), "--rdzv-id=job7", "--redirects=3", "--max-restarts=0")
    exit_code, run = finish(tmp_path, *options, WORKER, "raise ValueError('x')")
    assert exit_code == 1, run.stderr
    files = sorted(str(path.relative_to(tmp_path / "logs")) for path in (tmp_path / "logs").rglob("*.*"))
    assert [re.sub(r"^job7_\w+/attempt_0/", "", file) for file in files] == [
        "0/error.json",
        "0/stderr.log",
        "0/stdout.log",
        "evidence.json",
    ]


def dropped_of(run: Run) -> list[str]:
    """Rounds whose logs were dropped, in that order."""
    return [path for one in run.events(events.LogsDropped) for path in one.paths]


@pytest.mark.slow
def test_run_directory_stays_within_its_size(tmp_path: Path) -> None:
    """The logs of the oldest rounds go while the job runs, and the journal says which."""
    options = ("--redirects=1", "--max-restarts=3", "--ft-set", "ftrun.journal.max_size=250kB")
    code = (
        "from ftrun.monitor.client import heartbeat\n"
        "os.write(1, b'x' * 100_000); heartbeat(restart_count + 1)\n"
        "if restart_count < 3: wait_for(f'die{restart_count}'); die(9)\n"
        "wait_for('end')"
    )
    with start(tmp_path, *options, WORKER, code) as run:
        for count in range(3):
            run.wait_for_event(events.WorkerProgressed, count + 1)
            (tmp_path / f"die{count}").touch()
        # On a slow machine the first look comes before the last round, and the next one a minute later.
        run.wait_until(lambda: len(dropped_of(run)) >= 2, "two rounds' logs are dropped", 180)
        (tmp_path / "end").touch()
        assert run.wait() == 0
    logs = tmp_path / "run" / "logs"
    assert dropped_of(run) == [str(logs / "attempt_0"), str(logs / "attempt_1")]
    assert sorted(path.parts[-3] for path in logs.rglob("stdout.log")) == ["attempt_2", "attempt_3"]
    told = re.findall(r"removed log files of (\d+) old round", run.stderr)
    assert sum(map(int, told)) == 2, run.stderr

"""Runs ftrun as a user would, in a directory of its own, and leaves nothing of it behind.

Everything that descends from a run is known by a token in its environment, so that orphans are found too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ftrun.monitor.events import Event
from ftrun.monitor.journal import read
from ftrun.monitor.records import Record

WORKER = str(Path(__file__).with_name("worker.py"))
"""Executes its first argument as Python code; see there."""
DEADLINE_S = 90.0
_TOKEN_VARIABLE = "FTRUN_TEST_TOKEN"
_NOT_PASSED_ON = ("FTRUN_", "PET_", "TORCHELASTIC_", "TORCH_ELASTIC_")
_NOT_SET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOGLEVEL", "OMP_NUM_THREADS")
_LOOK_EVERY_S = 0.01
_TAIL_CHARACTERS = 4000

E = TypeVar("E", bound=Event)


class Run:
    """One ftrun and all that it starts; make it with `start`."""

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        wrapper: Sequence[str],
    ) -> None:
        self.directory = directory
        """Holds all of it: `pids`, `cwd`, `tmp`, `run` (the journal's), `state`."""
        self._token = secrets.token_hex(16)
        for name in ("pids", "cwd", "tmp"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        command = [*wrapper, sys.executable, "-m", "ftrun.launcher", *arguments]
        with self._output("stdout").open("wb") as stdout, self._output("stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                cwd=directory / "cwd",
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED_ON) and k not in _NOT_SET}
        own = {
            "D": str(self.directory),
            "TMPDIR": str(self.directory / "tmp"),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "PET_FT_RUN_DIR": str(self.directory / "run"),
            _TOKEN_VARIABLE: self._token,
        }
        return {**kept, **own, **more}

    def _output(self, stream: str) -> Path:
        return self.directory / f"{stream}.txt"

    @property
    def stdout(self) -> str:
        """What has come on ftrun's stdout so far."""
        return self._output("stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What has come on ftrun's stderr so far."""
        return self._output("stderr").read_text(errors="replace")

    def records(self) -> list[Record]:
        """The journal so far."""
        files = (self.directory / "run").glob("*.jsonl")
        return [record for file in files for record in read(file)]

    def events(self, kind: type[E]) -> list[E]:
        """The journal's events of one kind so far."""
        return [record.event for record in self.records() if isinstance(record.event, kind)]

    def send(self, signum: int) -> None:
        """Send a signal to the agent (or to its wrapper, if it does not exec)."""
        self.process.send_signal(signum)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Exit code of ftrun, as `subprocess` has it."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ftrun did not end within {timeout_s} s{self._tails()}") from None

    def wait_until(self, is_true: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
        """Until the condition holds; fails, naming `what`, at the deadline and when ftrun ends without."""

        def is_true_while_it_runs() -> bool:
            is_over = (
                self.process.poll() is not None
            )  # before the condition is looked at: all is then written
            result = bool(is_true())
            assert result or not is_over, (
                f"ftrun ended with {self.process.returncode} without {what}{self._tails()}"
            )
            return result

        self._poll(is_true_while_it_runs, what, timeout_s)

    def _poll(self, is_true: Callable[[], object], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        nobody_sets_it = threading.Event()
        while not is_true():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}{self._tails()}"
            nobody_sets_it.wait(_LOOK_EVERY_S)

    def wait_for_event(self, kind: type[E], count: int = 1, timeout_s: float = DEADLINE_S) -> list[E]:
        """Events of one kind, once there are `count`."""
        self.wait_until(lambda: len(self.events(kind)) >= count, f"{count} x {kind.kind}", timeout_s)
        return self.events(kind)

    def wait_for_text(self, text: str, count: int = 1, timeout_s: float = DEADLINE_S) -> None:
        """Until the text has come `count` times on stdout."""
        what = f"{count} x {text!r} on stdout"
        self.wait_until(lambda: self.stdout.count(text) >= count, what, timeout_s)

    def living(self) -> dict[int, str]:
        """Every process of the run that is there and no zombie: pid to command line."""
        wanted = f"{_TOKEN_VARIABLE}={self._token}".encode()
        found = {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{pid}/environ").read_bytes():
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
        return found

    def wait_until_gone(self, timeout_s: float) -> None:
        """Until no process of the run is left."""
        self._poll(lambda: not self.living(), "every process of the run is gone", timeout_s)

    def close(self) -> None:
        """Kill what is left: the agent first, lest it restarts anything."""
        self.process.kill()
        self.process.wait(10)

        def is_gone() -> bool:
            left = self.living()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        self._poll(is_gone, "what a test left behind dies of SIGKILL", 10)

    def _tails(self) -> str:
        tails = [f"--- {name}\n{getattr(self, name)[-_TAIL_CHARACTERS:]}" for name in ("stdout", "stderr")]
        return "\n" + "\n".join([*tails, f"--- living\n{self.living()}"])


@contextmanager
def start(
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
) -> Iterator[Run]:
    """Start `ftrun arguments...`, all its files below `directory`; whatever happens, all of it ends.

    `wrapper` is a command that runs what follows it.
    """
    run = Run(directory, arguments, environment or {}, wrapper)
    try:
        yield run
    finally:
        run.close()


def finish(
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    timeout_s: float = DEADLINE_S,
) -> tuple[int, Run]:
    """Run `ftrun arguments...` to its end: its exit code, and all that it said; nothing is left of it."""
    with start(directory, *arguments, environment=environment, wrapper=wrapper) as run:
        code = run.wait(timeout_s)
        left = run.living()
    assert left == {}, "processes outlived ftrun"
    return code, run

"""A tiny agent: runs one script in a worker process and collects all that can be seen of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.launcher import control, worker_main
from ftrun.monitor.page import Page, PageSnapshot

BOOT = worker_main.__file__
SCRIPTS = Path(__file__).with_name("scripts")
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    exit_code: int
    stdout: str
    stderr: str
    messages: tuple[control.Message, ...] = ()
    page: PageSnapshot = field(default_factory=PageSnapshot)


def spawn(
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    agent_pid: int | None = None,
) -> tuple[subprocess.Popen[bytes], control.socket.socket]:
    """A standby that has been told nothing yet, and the agent's end of its control socket."""
    ours, theirs = control.pair()
    command = [sys.executable, "-u", BOOT, str(theirs.fileno()), str(agent_pid or os.getpid()), "--", *argv]
    with theirs:
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    return process, ours


def run_worker(
    argv: Sequence[str],
    cwd: Path,
    *,
    kind: control.Kind = "script",
    preload: Sequence[str] = (),
    spawned_with: Mapping[str, str] | None = None,
    environment: Mapping[str, str | None] | None = None,
    stdin: bytes = b"",
) -> Outcome:
    """Runs `argv` to its end in a worker that has preloaded `preload`."""
    page = Page.create()
    process, ours = spawn(argv, cwd, spawned_with)
    out_fd, err_fd = os.memfd_create("stdout"), os.memfd_create("stderr")
    with ours:
        control.send(ours, control.Preload(tuple(preload)))
        changes = {"FTRUN_PAGE": page.path, **(environment or {})}
        control.send(ours, control.Activate(changes, tuple(argv), kind), (out_fd, err_fd))
        process.communicate(stdin, timeout=DEADLINE_S)
        messages = _read_all(ours)
    snapshot = page.read()
    page.close()
    return Outcome(process.returncode, _drain(out_fd), _drain(err_fd), messages, snapshot)


def run_python(
    argv: Sequence[str], cwd: Path, *, kind: control.Kind = "script", stdin: bytes = b""
) -> Outcome:
    """Runs the same under plain `python -u`."""
    options = ["-u", "-m"] if kind == "module" else ["-u"]
    done = subprocess.run(
        [sys.executable, *options, *argv], cwd=cwd, input=stdin, capture_output=True, timeout=DEADLINE_S
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def _read_all(ours: control.socket.socket) -> tuple[control.Message, ...]:
    reader = control.FrameReader()
    messages: list[control.Message] = []
    ours.settimeout(DEADLINE_S)
    while data := ours.recv(1 << 20):
        messages += reader.feed(data)
    return tuple(messages)


def _drain(fd: int) -> str:
    text = os.pread(fd, 1 << 24, 0).decode()
    os.close(fd)
    return text

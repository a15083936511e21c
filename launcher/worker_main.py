"""What runs in a worker's process before the user's script: a standby, until the agent says which rank it is.

Started as `python -u worker_main.py CONTROL_FD AGENT_PID -- SCRIPT ARGS...`; what follows the dashes is there
for people who look for their script in the process list. Messages: `ftrun.launcher.control`.
"""

# ruff: noqa: E402 - sys.path must be put right before anything else is imported.

from __future__ import annotations

import sys

_STARTUP_MODULES = frozenset(sys.modules)
if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    # This file's own directory: nothing, the imports below neither, may be found there.
    del sys.path[0]

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import time
import warnings
from types import ModuleType
from typing import NoReturn

from ftrun.launcher import script_runner
from ftrun.launcher.control import (
    Activate,
    ControlError,
    Preload,
    Progress,
    Ready,
    WorkerChannel,
    send,
)
from ftrun.launcher.environment_watch import watched_environment
from ftrun.monitor.page_writer import PageWriter, attached
from ftrun.monitor.progress import importable_names, imported_library_modules, watch_optimizer
from ftrun.monitor.sampler import Sampler
from ftrun.monitor.stack_signal import STACKS_VARIABLE, offer_stacks

_PR_SET_PDEATHSIG = 1
_MAX_KEPT_OUTPUT_BYTES = 64 * 1024
_FIRST_SCRIPT_ARGUMENT = 4


def main() -> None:
    """Waits as a standby, then is the script. Returns, or raises, as the script does."""
    control_fd, agent_pid = int(sys.argv[1]), int(sys.argv[2])
    _die_with(agent_pid)
    interpreter = sys.orig_argv[: -len(sys.argv)]
    # Libraries that look at the arguments when they are imported see about what they would have seen.
    sys.argv = sys.argv[_FIRST_SCRIPT_ARGUMENT:] or [""]
    sigint_handler = signal.getsignal(signal.SIGINT)
    if sigint_handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    activate, (stdout_fd, stderr_fd), output = _wait_for_activation(control)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, sigint_handler)
    _apply(activate, stdout_fd, stderr_fd)
    output.replay()
    page = attached()
    if page is not None:
        page.mark_main_started()
    if activate.kind == "executable":
        script_runner.run_executable(activate.argv)
    faulthandler.enable()
    offer_stacks(os.environ.get(STACKS_VARIABLE))
    if page is not None:
        Sampler(page).start()
    directory = script_runner.install_module_path(activate.kind, activate.argv)
    script_runner.install_arguments(activate.kind, activate.argv, interpreter)
    if directory is not None:
        _forget_shadowed_modules(directory)
    if page is not None:
        _report_progress(page, control, directory)
    script_runner.run(activate.kind, activate.argv, (__file__,))


def _die_with(agent_pid: int) -> None:
    """Has the kernel kill this process when the agent ends; also if that happened a moment ago."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent_pid:
        os._exit(0)


def _wait_for_activation(control: socket.socket) -> tuple[Activate, tuple[int, int], _ImportOutput]:
    channel = WorkerChannel(control)
    # Said by torch on each import where both of the packages that are called pynvml are installed (NVRx 0.4.1
    # installs the deprecated one). Not through PYTHONWARNINGS: scripts look at sys.warnoptions, and their
    # children inherit it.
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    first = channel.receive()
    if not isinstance(first, Preload):
        _give_up(first)
    output = _ImportOutput()
    ready = preload(first.modules, output) if first.modules else Ready()
    if first.is_for_later and "torch.distributed" in sys.modules:
        from ftrun.launcher.store import rehearse  # not in the way of a worker that starts at once

        with output:
            rehearse()
    with contextlib.suppress(ConnectionError):
        send(control, ready)
    second = channel.receive()
    fds = channel.take_fds()
    if not isinstance(second, Activate) or len(fds) != 2:
        _give_up(second)
    return second, (fds[0], fds[1]), output


def _give_up(message: object) -> NoReturn:
    if message is None:
        os._exit(0)
    raise ControlError(f"a worker expects Preload, then Activate with two descriptors, not {message!r:.500}")


class _ImportOutput:
    """What preloaded modules print, kept until it is known where the script's output goes."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, bytes, int]] = []
        self._open: list[tuple[int, int, int]] = []

    def __enter__(self) -> None:
        for target in (1, 2):
            memory = os.memfd_create("ftrun-import-output")
            self._open.append((target, os.dup(target), memory))
            os.dup2(memory, target)

    def __exit__(self, *_: object) -> None:
        # What C libraries print waits in their own buffers.
        ctypes.CDLL(None).fflush(None)
        for target, previous, memory in self._open:
            os.dup2(previous, target)
            self._kept.append((target, os.pread(memory, _MAX_KEPT_OUTPUT_BYTES, 0), os.fstat(memory).st_size))
            os.close(previous)
            os.close(memory)
        self._open.clear()

    def replay(self) -> None:
        """Writes it where it would have gone, as far as it was kept (64 KiB each of stdout and stderr)."""
        for target, data, size in self._kept:
            if size > len(data):
                data += b"\n[ftrun: %d more bytes printed during imports]\n" % (size - len(data))
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(target, data) :]
        self._kept.clear()


def preload(modules: tuple[str, ...], output: _ImportOutput) -> Ready:
    """Imports `modules` in order; stops at once if one of them initialises CUDA.

    A module that reads what only a rank's environment has counts as failed, with those that import it.
    """
    started_at = time.monotonic()
    failed: dict[str, str] = {}
    culprit = None
    name = ""

    def note(variable: str, importing: list[str]) -> None:
        for reader in (name, *importing):
            failed.setdefault(reader, f"it reads {variable}, which has its value only when a rank is known")

    with output, watched_environment(note):
        for name in modules:
            loaded = len(sys.modules)
            try:
                importlib.import_module(name)
            except BaseException as error:  # Any library's code runs here, and some of it calls sys.exit().
                failed[name] = f"{type(error).__name__}: {error}"[:1000]
            if len(sys.modules) != loaded and _has_cuda():
                culprit = name
                break
    return Ready(time.monotonic() - started_at, tuple(failed.items()), culprit)


def _has_cuda() -> bool:
    """Whether this process has initialised CUDA, through torch or otherwise."""
    is_initialized = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if is_initialized is not None and is_initialized():
        return True
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm"):
                return True
    return False


def _apply(activate: Activate, stdout_fd: int, stderr_fd: int) -> None:
    for name, value in activate.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for received, target in ((stdout_fd, 1), (stderr_fd, 2)):
        os.dup2(received, target)
        os.close(received)


def _forget_shadowed_modules(directory: str) -> None:
    """Lets the script's own `json.py` win over the json that was imported before the script began."""
    tops = {name.partition(".")[0] for name in sys.modules} - {"ftrun"} - _STARTUP_MODULES
    names = importable_names(directory, tops)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in names and not _lies_in(directory, module):
            del sys.modules[name]


def _lies_in(directory: str, module: ModuleType) -> bool:
    return (getattr(module, "__file__", None) or "").startswith(f"{directory}/")


def _report_progress(page: PageWriter, control: socket.socket, directory: str | None) -> None:
    """Counts steps on the worker's page, and tells the agent when the first progress is made."""
    reporter = _Reporter(control, directory)
    os.register_at_fork(after_in_child=reporter.close)
    page.on_first_progress = reporter.report
    watch_optimizer(page)


class _Reporter:
    """Keeps the control socket while the script runs, which may well close or reuse any descriptor."""

    def __init__(self, control: socket.socket, directory: str | None) -> None:
        self._directory = directory
        self._fd = control.detach()
        self._inode = os.fstat(self._fd).st_ino

    def report(self) -> None:
        if self._is_ours():
            with socket.socket(fileno=os.dup(self._fd)) as sock, contextlib.suppress(OSError, ControlError):
                send(sock, Progress(imported_library_modules(self._directory)), timeout_s=1.0)

    def close(self) -> None:
        if self._is_ours():
            os.close(self._fd)
        self._fd = -1

    def _is_ours(self) -> bool:
        try:
            return os.fstat(self._fd).st_ino == self._inode
        except OSError:
            return False


if __name__ == "__main__":
    main()

"""The probe as a process: started, asked, read from under a deadline, killed. Decides nothing.

The child is `ftrun.healthchecks.probe`, which may hang in the GPU driver, at times beyond SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from time import monotonic

from ftrun.healthchecks.children import DEATH_S, Survivor, note_child

_TRACE_BYTES = 256
"""As `ftrun.healthchecks.probe.TRACE_BYTES`, whose module the agent has no other use for."""
_MAX_ANSWER_BYTES = 1 << 24
"""A reading of 16 GPUs has a quarter of a megabyte."""
_COMPLAINT_BYTES = 4096

# Neither site-packages nor PYTHON* variables: they take longer than all that the child does, and a training
# directory may hold a json.py of its own. So the child is told where this package and pynvml are.
_BOOT = """
import sys, types
package, pynvml = sys.argv[1:3]
for name, path in (("ftrun", []), ("ftrun.healthchecks", [package])):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
if pynvml:
    sys.path.append(pynvml)
from ftrun.healthchecks.probe import main
sys.exit(main(sys.argv[3:]))
"""


def probe_command(root: str = "/") -> tuple[str, ...]:
    """How to start the probe; "{trace}" and "{parent}" in it are for `ProbeProcess` to replace."""
    spec = PathFinder.find_spec("pynvml")  # another finder may warn of pynvml's predecessor
    pynvml = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    if spec is not None and spec.submodule_search_locations:
        pynvml = os.path.dirname(pynvml)
    package = os.path.dirname(os.path.abspath(__file__))
    return (sys.executable, "-I", "-S", "-c", _BOOT, package, pynvml, "{trace}", "{parent}", root)


class ProbeProcess:
    """One child that reads NVML.

    Args:
        command: see `probe_command`.

    Raises:
        OSError: the system does not allow another process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._trace = os.memfd_create("ftrun-probe-trace")
        words = {"{trace}": str(self._trace), "{parent}": str(os.getpid())}
        try:
            self._popen = subprocess.Popen(
                [words.get(word, word) for word in command],
                bufsize=0,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(self._trace,),
                start_new_session=True,
            )
        except OSError:
            os.close(self._trace)
            raise
        self.pid = self._popen.pid
        note_child(self.pid)
        self._pidfd = os.pidfd_open(self.pid)
        self._answers = bytearray()
        self._complaints = bytearray()

    @property
    def doing(self) -> str:
        """The call that the child was about to make when it last said so; "" if it is not asking NVML."""
        return os.pread(self._trace, _TRACE_BYTES, 0).rstrip(b"\0").decode(errors="replace")

    @property
    def complaint(self) -> str:
        """The last line that the child wrote to stderr."""
        lines = self._complaints.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def request(self, scope: str) -> None:
        """Ask for a reading."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will find out
            self._popen.stdin.write(f"{scope}\n".encode())

    def read_line(self, deadline: float) -> bytes:
        """The next line that the child says.

        Raises:
            TimeoutError: there is none before `deadline` (CLOCK_MONOTONIC, s).
            EOFError: the child says nothing any more.
            ValueError: the line has no end.
        """
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        answers, complaints = self._popen.stdout.fileno(), self._popen.stderr.fileno()
        open_fds = [answers, complaints]
        while (end := self._answers.find(b"\n")) < 0:
            ready = _readable(open_fds, deadline - monotonic())
            if not ready:
                raise TimeoutError
            if complaints in ready and not self._take(complaints, self._complaints):
                open_fds.remove(complaints)
            del self._complaints[:-_COMPLAINT_BYTES]
            if answers in ready and not self._take(answers, self._answers):
                raise EOFError
            if len(self._answers) > _MAX_ANSWER_BYTES:
                raise ValueError(f"a line of more than {_MAX_ANSWER_BYTES} bytes")
        line = bytes(self._answers[:end])
        del self._answers[: end + 1]
        return line

    @staticmethod
    def _take(fd: int, buffer: bytearray) -> bool:
        piece = os.read(fd, 1 << 16)
        buffer += piece
        return bool(piece)

    def wait_for_exit(self, timeout_s: float) -> int | None:
        """Exit code as `subprocess` has it; None if the child still runs, or somebody else has reaped it."""
        _readable([self._pidfd], timeout_s)
        with contextlib.suppress(ChildProcessError):
            info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return None

    def end(self) -> Survivor | None:
        """SIGKILL the child and all it has started; what is left after `DEATH_S` if that does not end it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.killpg(self.pid, signal.SIGKILL)
        _readable([self._pidfd], DEATH_S)
        # `subprocess` must not wait for it too: it takes "no such child" for success.
        self._popen.returncode = -signal.SIGKILL
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            assert pipe is not None
            pipe.close()
        os.close(self._trace)
        survivor = Survivor(self.pid, self._pidfd)
        return survivor if survivor.is_alive() else None


def _readable(fds: Sequence[int], timeout_s: float) -> list[int]:
    """Those of `fds` that have something to read or have been closed, after at most `timeout_s` seconds."""
    poll = select.poll()  # select.select takes no descriptor above 1023
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(timeout_s, 0.0) * 1000)]

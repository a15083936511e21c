"""The signal at which a worker writes the stacks of all its Python threads to a file; the worker's side.

The agent's side is `ftrun.monitor.stacks`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import signal

STACKS_SIGNAL = signal.SIGRTMAX - 7
"""57 on Linux. Others take real-time signals from below (systemd, .NET, profilers); SIGRTMAX is valgrind's,
SIGRTMAX-2 OpenJDK's, which a Hadoop client brings into the worker. SIGUSR1 and SIGUSR2 are the script's:
schedulers warn with them."""
STACKS_VARIABLE = "FTRUN_STACKS"
"""Environment variable of a worker: the file to which its stacks are appended."""
_FIRST_FD = 512
"""Scripts that close and reuse descriptors do so from below; faulthandler keeps nothing but the number."""


def offer_stacks(path: str | None) -> bool:
    """Appends all threads' stacks to `path` whenever the signal comes; needs neither GIL nor main thread.

    False, and nothing is changed, if there is no path, it cannot be opened, or a library that was imported
    before the script has taken the signal.
    """
    if not path or _is_caught():
        return False
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = _moved_up(os.open(path, flags, 0o600))
    except OSError:
        return False
    faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True)
    # A blocked signal is inherited through any number of programs.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACKS_SIGNAL})
    return True


def _is_caught() -> bool:
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)
    return False


def _moved_up(fd: int) -> int:
    """The descriptor under a number that the script will not come to, if the limit on them allows it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    first = _FIRST_FD if limit == resource.RLIM_INFINITY or limit > _FIRST_FD + 64 else limit // 2
    with contextlib.suppress(OSError):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first)
        os.close(fd)
        return moved
    return fd

"""CPU and I/O priority of a process that prepares itself while others train.

Who is lowered and when is decided by the pool of standbys.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource

_LOWEST_NICENESS = 19
_IOPRIO_WHO_PROCESS = 1
# linux/ioprio.h: the class is in the top bits; idle is 3, none (follow the nice value) is 0.
_IO_IDLE = 3 << 13
_IO_NONE = 0
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_CAP_SYS_NICE = 23


def can_go_back(niceness: int) -> bool:
    """Whether a process of ours that was lowered may go back to `niceness`.

    Linux lets an ordinary user only lower a priority, unless RLIMIT_NICE allows more (setpriority(2)): such a
    user's standbys must not be lowered, or training would go on at the lowest priority.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or soft >= 20 - niceness:
        return True
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False


def lower(pid: int) -> None:
    """Give a process that has just been started the lowest CPU and I/O priority; its threads inherit both.

    Only the I/O priority changes if the CPU priority could not go back; a process that is gone is no error.
    """
    _set_io_priority(pid, _IO_IDLE)
    if can_go_back(os.getpriority(os.PRIO_PROCESS, 0)):
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, pid, _LOWEST_NICENESS)


def restore(pid: int) -> None:
    """Give all threads of `pid` this process's own niceness, and the I/O priority that follows from it.

    Niceness is a property of a thread on Linux, and preloaded libraries start threads of their own.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{pid}/task"):
            _set_io_priority(int(name), _IO_NONE)
            if os.getpriority(os.PRIO_PROCESS, int(name)) != niceness:
                os.setpriority(os.PRIO_PROCESS, int(name), niceness)


def _set_io_priority(thread: int, priority: int) -> None:
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, thread, priority)

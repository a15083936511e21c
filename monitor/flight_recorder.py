"""Asks PyTorch's flight recorder, the log of a rank's last collectives, to write itself to its file.

The way in from outside is a named pipe. PyTorch's ProcessGroupNCCL (torch/csrc/distributed/c10d: `DumpPipe`
in ProcessGroupNCCL.hpp, and the heartbeat monitor's loop in ProcessGroupNCCL.cpp) makes `<prefix><global
rank>.pipe` if TORCH_NCCL_DEBUG_INFO_PIPE_FILE names a prefix and the recorder has a buffer
(TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE), and takes anything that is written to it as a wish for
a dump. Other backends read TORCH_FR_DEBUG_INFO_PIPE_FILE instead. The dump goes where TORCH_FR_DUMP_TEMP_FILE
(TORCH_NCCL_DEBUG_INFO_TEMP_FILE in older releases) says, with the rank appended.

The monitor looks at the pipe each second (TORCH_NCCL_COORD_CHECK_MILSEC) if TORCH_NCCL_DUMP_ON_TIMEOUT or
TORCH_NCCL_PROPAGATE_ERROR is on, otherwise only each TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, and not at all with
TORCH_NCCL_ENABLE_MONITORING=0. No answer comes back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

PIPE_VARIABLES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE")
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_DEFAULTS = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")
"""Where a dump goes without them (torch/csrc/distributed/c10d: DebugInfoWriter, by release)."""


def ask_flight_recorder(environ: Mapping[str, str], rank: int) -> bool:
    """Asks the recorder of global rank `rank`, whose worker was started with `environ`; whether that worked.

    Never blocks. False if there is no pipe, or nobody who reads it: then the recorder is off, or the rank has
    not made its first process group yet.
    """
    asked = [_write_to_pipe(f"{environ[name]}{rank}.pipe") for name in PIPE_VARIABLES if environ.get(name)]
    return any(asked)


def dump_file(environ: Mapping[str, str], rank: int, since_ts: float) -> str:
    """The dump that the recorder of global rank `rank` has written since then (UTC epoch); "" if none.

    A file of an earlier round or job is older. Looks at files, which may take as long as their server does.
    """
    prefixes = [environ[name] for name in _DUMP_VARIABLES if environ.get(name)] or _DUMP_DEFAULTS
    for prefix in prefixes:
        path = f"{os.path.expanduser(prefix)}{rank}"
        with suppress(OSError):
            if os.stat(path).st_mtime >= since_ts:
                return path
    return ""


def _write_to_pipe(path: str) -> bool:
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags)  # Fails at once where no process reads.
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, b"1\n") > 0
    except BlockingIOError:  # Full of requests already, which nobody has taken yet.
        return True
    except BrokenPipeError:
        return False
    finally:
        os.close(fd)

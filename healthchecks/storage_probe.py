"""The child that touches a path which may hang: space, inodes, and a write that is read back. Judges nothing.

    python -I -S storage_probe.py PARENT_PID BYTES PATH

Prints one JSON object a line: `{"step": ..}` before each step, so that a hang has a name, then the findings.
Imports the standard library only, and little of it: it runs before each round.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import sys

_PR_SET_PDEATHSIG = 1
_PREFIX = ".ftrun-probe-"
_STALE_S = 3600.0
"""Files of probes that were killed are removed by a later one; by then no probe is at work on them."""


def main() -> int:
    """Probe one path; the exit code is always 0, what was found is in the output."""
    parent, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # Once the launcher is gone nobody wants the answer (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 0
    found: dict[str, object] = {}
    try:
        _probe(path, size, found)
    except OSError as error:
        found["error"] = error.strerror or str(error)
        found["errno_name"] = errno.errorcode.get(error.errno or 0, "")
    print(json.dumps(found), flush=True)
    return 0


def _probe(path: str, size: int, found: dict[str, object]) -> None:
    _begin("find")
    directory = _nearest_directory(path)
    found["directory"] = directory
    _begin("space")
    space = os.statvfs(directory)
    found["total_bytes"] = space.f_blocks * space.f_frsize
    found["free_bytes"] = space.f_bavail * space.f_frsize
    if space.f_files:
        found["total_inodes"] = space.f_files
        found["free_inodes"] = space.f_favail
    if (differs := _write_and_read_back(directory, os.urandom(size))) is not None:
        found["error"] = differs
        return
    _begin("done")


def _nearest_directory(path: str) -> str:
    """The path without symbolic links, or the first directory above it that exists (the path may come later).

    A path that is there and fails (a lost mount: EIO, ESTALE, ENOTCONN) is never passed over.
    """
    place = os.path.realpath(path)
    while True:
        try:
            mode = os.stat(place).st_mode
        except FileNotFoundError:
            place = os.path.dirname(place)
            continue
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return place


def _write_and_read_back(directory: str, data: bytes) -> str | None:
    """None, or how the data read back differ from those written."""
    _begin("create")
    name = os.path.join(directory, f"{_PREFIX}{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}")
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _begin("write")
        _write_all(fd, data)
        _begin("sync")
        os.fsync(fd)
        _begin("read_back")
        # Without this the kernel answers from its own memory.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        same = _read_all(fd, len(data)) == data
        made_at = os.fstat(fd).st_mtime
        if not same:
            return f"{len(data)} bytes were written and read back otherwise"
        _begin("remove")
    finally:
        os.close(fd)
        os.unlink(name)
    _remove_stale(directory, made_at)
    return None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_all(fd: int, size: int) -> bytes:
    data = b""
    while chunk := os.pread(fd, size + 1 - len(data), len(data)):
        data += chunk
    return data


def _remove_stale(directory: str, now_ts: float) -> None:
    """Remove what killed probes have left; `now_ts` is by the filesystem's clock, as the files' times are."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                try:
                    if entry.stat(follow_symlinks=False).st_mtime < now_ts - _STALE_S:
                        os.unlink(entry.path)
                except OSError:
                    continue  # another node's probe was faster, or it is another user's


def _begin(step: str) -> None:
    print(json.dumps({"step": step}), flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The child that touches a path which may hang: space, inodes, and a write that is read back. Judges nothing.

    python -I -S -c 'import storage_probe; storage_probe.main()' PARENT_PID BYTES PATH

With 0 BYTES nothing is written: the path must be there and readable, a file or a directory.
Prints one dict a line, as Python writes it: `{'step': ..}` before each step, so that a hang has a name, then
the findings. Imports little of the standard library, since it runs before each round: JSON alone would double
its time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_PREFIX = ".ftrun-probe-"
_READ_BYTES = 4096
_STALE_S = 3600.0
"""Files of probes that were killed are removed by a later one; by then no probe is at work on them."""


def main() -> int:
    """Probe one path; the exit code is always 0, what was found is in the output."""
    parent, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # Once the launcher is gone nobody wants the answer (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        return 0
    found: dict[str, object] = {}
    try:
        if size:
            _probe(path, size, found)
        else:
            _read(path, found)
    except OSError as error:
        found["error"] = error.strerror or str(error)
        found["errno_name"] = errno.errorcode.get(error.errno or 0, "")
    print(ascii(found), flush=True)
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


def _read(path: str, found: dict[str, object]) -> None:
    _begin("find")
    place = os.path.realpath(path)
    is_directory = stat.S_ISDIR(os.stat(place).st_mode)
    found["directory"] = place if is_directory else os.path.dirname(place)
    _begin("read_back")
    if is_directory:
        with os.scandir(place) as entries:
            next(entries, None)
    else:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # whatever somebody has put there
        os.read(fd, _READ_BYTES)
        os.close(fd)
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
    print({"step": step}, flush=True)


if __name__ == "__main__":
    sys.exit(main())

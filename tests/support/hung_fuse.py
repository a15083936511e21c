"""Runs a command beside a filesystem that never answers: whoever looks into it sleeps uninterruptibly.

    python hung_fuse.py MOUNT_POINT COMMAND...

Needs root and /dev/fuse. The mount is in a mount namespace of its own; when the command has ended it is
taken away, which wakes the sleepers. Once one of them sleeps there is a file MOUNT_POINT.asked.
Protocol: include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_MNT_FORCE = 1
_FUSE_INIT = 26
_REQUEST_HEADER = struct.Struct("<IIQQ")
_INIT_REPLY = struct.Struct("<IIIIHHIIHHI28x")

_libc = ctypes.CDLL(None, use_errno=True)


def _must(what: str, result: int) -> None:
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(path: str) -> int:
    """Mount on `path`, for this process and its children only; returns the filesystem's own descriptor."""
    _must("unshare", _libc.unshare(_CLONE_NEWNS))
    _must("mount --make-rprivate /", _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
    _must("mount -t fuse", _libc.mount(b"hung", path.encode(), b"fuse", 0, options))
    return fd


def serve(fd: int, path: str) -> None:
    """Answer the first request, without which nothing could be asked, and no other."""
    while True:
        try:
            request = os.read(fd, 1 << 17)
        except OSError:
            return  # unmounted
        _, operation, unique, _ = _REQUEST_HEADER.unpack_from(request)
        if operation == _FUSE_INIT:
            reply = _INIT_REPLY.pack(7, 31, 0, 0, 0, 0, 65536, 1, 0, 0, 0)
            os.write(fd, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)
        else:  # who has asked it can not be killed any more
            open(f"{path}.asked", "w").close()


def main() -> None:
    """Mount, run the command, unmount; ends with the command's exit code."""
    path, *command = sys.argv[1:]
    threading.Thread(target=serve, args=(mount(path), path), daemon=True).start()
    try:
        code = subprocess.call(command)
    finally:
        _libc.umount2(path.encode(), _MNT_FORCE)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()

"""The tables by which one rank's end is recognised: what must hold, and what it then was. Pure.

The first signature of a table that fits is taken, so the order of rows is part of them: what says more comes
before what says less. Texts are in `ftrun.monitor.failure_texts`, questions to the rest of the evidence in
`ftrun.monitor.case`. Kinds of whole nodes, of hangs and of hardware are told by `ftrun.monitor.diagnosis`.
"""

from __future__ import annotations

import re

from ftrun.monitor import case, failure_texts
from ftrun.monitor.exception_signatures import EXCEPTIONS
from ftrun.monitor.incident import IncidentKind as Kind
from ftrun.monitor.signature import FOUND, SHM, SILENT, Signature

__all__ = ["ALL", "EXCEPTIONS", "EXIT_CODES", "SIGNALS"]

_ABORT = frozenset({6})

SIGNALS = (
    Signature(
        "killed for memory",
        Kind.HOST_OOM,
        "was killed by SIGKILL because host memory ran out: {memory}",
        "memory.events (cgroup v2), memory.oom_control (v1)",
        FOUND,
        signals=frozenset({9}),
        needs=case.has_oom_kill,
    ),
    Signature(
        "killed",
        Kind.KILLED,
        "was killed by {name} from outside",
        "signal(7)",
        hint="the agent did not send it and the kernel counted no OOM kill in this cgroup{pressure}",
        signals=frozenset({9}),
    ),
    Signature(
        "aborted for uncorrectable memory of a GPU",
        Kind.ECC_ERROR,
        "aborted ({name}) for a hardware error of its GPU: {line}",
        "cudaGetErrorString(cudaErrorECCUncorrectable)",
        signals=_ABORT,
        line=failure_texts.GPU_ECC,
    ),
    Signature(
        "aborted for a CUDA error",
        Kind.CUDA_ERROR,
        "aborted ({name}) for an error of its own GPU: {line}",
        "c10/cuda/CUDAException.cpp: the NCCL watchdog and destructors end the process with it",
        signals=_ABORT,
        line=re.compile(r"CUDA error: "),
    ),
    Signature(
        "NCCL watchdog's time-out",
        Kind.NCCL_TIMEOUT,
        "was taken down by c10d ({name}): {line}",
        "c10d ProcessGroupNCCL.cpp: the watchdog takes the process down with SIGABRT",
        SILENT,
        is_echo=True,
        signals=_ABORT,
        line=failure_texts.NCCL_TIMEOUT,
    ),
    Signature(
        "NCCL watchdog's error",
        Kind.NCCL_ERROR,
        "was taken down by c10d ({name}): {line}",
        "c10d ProcessGroupNCCL.cpp, nccl's nccl.h",
        SILENT,
        is_echo=True,
        signals=_ABORT,
        line=re.compile(r"ncclRemoteError|ncclSystemError"),
    ),
    Signature(
        "gloo in a thread",
        Kind.GLOO_PEER_LOST,
        "was taken down by gloo ({name}): {line}",
        "libstdc++ std::terminate; gloo/common/error.h",
        SILENT,
        is_echo=True,
        signals=_ABORT,
        line=failure_texts.GLOO_ABORT,
    ),
    Signature(
        "c10d in a thread",
        Kind.COMMUNICATION_ERROR,
        "was taken down by c10d ({name}): {line}",
        "libstdc++ std::terminate; c10/util/Exception.h",
        SILENT,
        is_echo=True,
        signals=_ABORT,
        line=failure_texts.C10D_ABORT,
    ),
    Signature(
        "write that aborted on a full disk",
        Kind.DISK_FULL,
        "aborted ({name}) when it could not write: {line}",
        "libstdc++; caffe2/serialize/inline_container.cc; statvfs(3)",
        hint="{full}",
        signals=_ABORT,
        line=failure_texts.STREAM_FAILED,
        needs=case.is_any_space_full,
    ),
    Signature(
        "aborted",
        Kind.ABORT,
        "aborted ({name}), as an assertion in native code or an uncaught C++ exception does",
        "abort(3), std::terminate",
        hint="its last stderr lines name the place",
        signals=_ABORT,
    ),
    Signature(
        "bus error",
        Kind.BUS_ERROR,
        "died of a bus error ({name})",
        "mmap(2): access beyond the end of a mapped file; docker run --shm-size",
        hint=SHM,
        signals=frozenset({7}),
    ),
    Signature(
        "segmentation fault",
        Kind.SEGFAULT,
        "crashed with a segmentation fault ({name})",
        "signal(7)",
        hint="its last stderr lines hold the stacks of its threads if faulthandler could write them",
        signals=frozenset({11}),
    ),
    Signature("other signal", Kind.SIGNAL, "was ended by {name}, which the agent did not send", "signal(7)"),
)
"""For a rank that a signal ended without an exception. Linux numbers, the same on x86-64 and arm64."""

_SHELL = "ended with exit code {code}, by which a shell reports that its program was ended by {name}"

EXIT_CODES = (
    Signature(
        "program of a shell killed for memory",
        Kind.HOST_OOM,
        f"{_SHELL}: {{memory}}",
        "POSIX shell: 128 + signal; the cgroup's oom_kill",
        FOUND,
        signals=frozenset({9}),
        needs=case.has_oom_kill,
    ),
    Signature(
        "program of a shell ended by a signal",
        Kind.EXIT_CODE,
        _SHELL,
        "POSIX shell: 128 + signal",
        signals=frozenset(range(1, 65)),
    ),
    Signature("exit code", Kind.EXIT_CODE, "ended with exit code {code}", "exit(3)"),
)
"""For a rank that chose its exit code."""

ALL = (*EXCEPTIONS, *SIGNALS, *EXIT_CODES)

"""The tables by which a failure is recognised: types of exceptions, texts, signals. Pure data.

Each row names where its text comes from. The rules that use them are in `ftrun.monitor.failures`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ftrun.monitor.incident import IncidentKind


@dataclass(frozen=True, slots=True)
class TextSignature:
    """A text that an exception's message or a process's last stderr lines may hold."""

    name: str
    pattern: re.Pattern[str]
    source: str
    """Where the text is made: the program or library and its file."""


@dataclass(frozen=True, slots=True)
class ExceptionSignature:
    """An exception whose message tells more than its type: what it really was."""

    pattern: re.Pattern[str]
    kind: IncidentKind
    needs_oom_kill: bool
    """Holds only when the kernel counted an OOM kill in the round."""
    source: str


@dataclass(frozen=True, slots=True)
class SignalSignature:
    """What death by a signal means."""

    kind: IncidentKind
    sentence: str
    """Follows "rank 1 (pid 4242) "; {name} is the signal's name."""
    hint: str = ""
    source: str = ""


IMPORT_OR_SYNTAX_TYPES = frozenset({"ImportError", "SyntaxError", "NameError"})
"""Wrong code or a wrong environment, never a fault of the moment. Subclasses count by their bases:
ModuleNotFoundError, IndentationError, TabError, UnboundLocalError (Python's exception hierarchy)."""

IMPORT_OR_SYNTAX_SUBTYPES = frozenset(
    {"ModuleNotFoundError", "IndentationError", "TabError", "UnboundLocalError"}
)
"""The same by their own names, for error files that do not record bases (torch's own handler)."""

COMMUNICATION_TYPES = frozenset(
    {
        # torch/csrc/distributed/c10d: raised by process groups, sockets and the TCPStore.
        "DistError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
    }
)
"""Types, or bases, of exceptions that say "another rank is gone", wherever they were raised."""

CONNECTION_TYPES = frozenset(
    {
        # Python's own (Python's exception hierarchy): sockets, and what asyncio and concurrent.futures alias.
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "BrokenPipeError",
        "TimeoutError",
    }
)
"""Types, or bases, of exceptions that say "the other side is gone". It is another rank only where
torch.distributed raised them: a data server, a web service and a closed stdout raise the same."""

TRACEBACK_FRAME = re.compile(r"^ *File \"(?P<path>[^\"]+)\", line \d+", re.MULTILINE)
"""A frame as `traceback.format_exception` writes it, the innermost last."""

STANDARD_LIBRARY = re.compile(r"/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)|^<frozen ")
"""Paths of Python's own modules (sysconfig: stdlib, platstdlib), which raise in the name of their callers."""

TORCH_DISTRIBUTED = re.compile(r"/torch/distributed/")
"""Paths of torch's package for the communication between ranks."""

COMMUNICATION_MESSAGE_TYPES = frozenset({"RuntimeError", ""})
"""gloo and old NCCL process groups raise RuntimeError; only for these is the message consulted."""

COMMUNICATION_MESSAGES = (
    TextSignature(
        "gloo transport",
        re.compile(r"gloo/transport/|gloo/(rendezvous|common)/|Gloo connectFullMesh failed"),
        "gloo: messages of its exceptions begin with [<path>/gloo/transport/tcp/pair.cc:<line>]",
    ),
    TextSignature(
        "closed by peer",
        re.compile(r"Connection closed by peer|[Cc]onnection reset by peer|Connection was likely closed"),
        "gloo transport/tcp/pair.cc, strerror(ECONNRESET), c10d TCPStore Utils.hpp (recvBytes)",
    ),
    TextSignature(
        "gloo timeout",
        re.compile(r"Timed out waiting \d+ms for (send|recv)|Application timeout caused pair closure"),
        "gloo transport/tcp/unbound_buffer.cc and pair.cc",
    ),
    TextSignature(
        "refused",
        re.compile(r"[Cc]onnection refused|Broken pipe"),
        "strerror(ECONNREFUSED), strerror(EPIPE)",
    ),
    TextSignature(
        "store timeout",
        re.compile(
            r"wait timeout after \d+ms|Timed out after \d+ seconds waiting for clients|"
            r"[Ss]ocket .*timed out after|timed out in monitoredBarrier"
        ),
        "c10d TCPStore.cpp, socket.cpp, ProcessGroupGloo.cpp",
    ),
    TextSignature(
        "NCCL",
        re.compile(
            r"NCCL error in:|NCCL communicator was aborted|Watchdog caught collective operation timeout|"
            r"nccl(Remote|System)Error"
        ),
        "c10d ProcessGroupNCCL.cpp, NCCLUtils.cpp",
    ),
)

DEVICE_ERROR = re.compile(r"\bAcceleratorError\b|\bCUDA\b|\bcu(BLAS|DNN|SPARSE|FFT)|\bNCCL\b|device-side")
"""Exceptions that speak of a GPU: c10/cuda/CUDAException.cpp ("CUDA error: .."), ATen's cuBLAS and cuDNN
wrappers, c10d's ProcessGroupNCCL.cpp; torch 2.8 and later raise AcceleratorError."""

COMMUNICATION_ABORTS = (
    TextSignature(
        "NCCL watchdog",
        re.compile(r"Watchdog caught collective operation timeout|ncclRemoteError|ncclSystemError"),
        "c10d ProcessGroupNCCL.cpp: the watchdog takes the process down with SIGABRT",
    ),
    TextSignature(
        "c10d exception in a thread",
        re.compile(r"terminate called after throwing an instance of 'c10::Dist(Network|Store)Error'"),
        "libstdc++ std::terminate; c10/util/Exception.h",
    ),
)
"""Texts in the last stderr lines that make SIGABRT an echo of another rank's failure."""

LOCAL_ABORTS = (
    TextSignature(
        "CUDA error",
        re.compile(r"CUDA error: "),
        "c10/cuda/CUDAException.cpp: the same watchdog also dies of errors of its own GPU",
    ),
)
"""Texts that make SIGABRT this rank's own after all, whatever else its stderr says."""

EXCEPTIONS = (
    ExceptionSignature(
        re.compile(r"DataLoader worker \(pid.* (is killed by signal: Killed|exited unexpectedly)"),
        IncidentKind.HOST_OOM,
        needs_oom_kill=True,
        source="torch/csrc/DataLoader.cpp, torch/utils/data/dataloader.py",
    ),
    ExceptionSignature(
        re.compile(r"DataLoader worker .* is killed by signal: Bus error|Unexpected bus error .* in worker"),
        IncidentKind.BUS_ERROR,
        needs_oom_kill=False,
        source="torch/csrc/DataLoader.cpp",
    ),
)

SIGNALS: dict[int, SignalSignature] = {
    6: SignalSignature(
        IncidentKind.ABORT,
        "aborted ({name}), as an assertion in native code or an uncaught C++ exception does",
        "its last stderr lines name the place",
        "abort(3), std::terminate",
    ),
    7: SignalSignature(
        IncidentKind.BUS_ERROR,
        "died of a bus error ({name})",
        "most often /dev/shm is full (data loaders and NCCL use it; containers give it 64 MiB by default) "
        "or a memory-mapped file was truncated: check df /dev/shm",
        "mmap(2): access beyond the end of a mapped file; docker run --shm-size",
    ),
    9: SignalSignature(
        IncidentKind.KILLED,
        "was killed by {name} from outside",
        "the agent did not send it and the kernel counted no OOM kill in this cgroup",
        "signal(7)",
    ),
    11: SignalSignature(
        IncidentKind.SEGFAULT,
        "crashed with a segmentation fault ({name})",
        "its last stderr lines hold the stacks of its threads if faulthandler could write them",
        "signal(7)",
    ),
}
"""Linux signal numbers, the same on x86-64 and arm64."""

CRASH_SIGNALS = frozenset({4, 7, 8, 11})
"""SIGILL, SIGBUS, SIGFPE, SIGSEGV: the CPU raises them; no agent sends them. SIGABRT is left out, since a
process told to stop often ends in std::terminate."""

OTHER_SIGNAL = SignalSignature(IncidentKind.SIGNAL, "was ended by {name}, which the agent did not send")

FINGERPRINT_NOISE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    # Names that tempfile makes; they have letters that a rule for digits would leave.
    (re.compile(r"\btmp[a-z0-9_]{8}\b"), "tmp#"),
    (re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{4,})*\b"), "#"),
    (re.compile(r"\d+"), "#"),
    (re.compile(r"\s+"), " "),
)
"""What differs between two occurrences of one error: applied in order before fingerprints are compared."""

"""Texts, types of exceptions and places in tracebacks by which a failure is recognised. Pure data.

Each pattern names where its text is made. What follows from them is in `ftrun.monitor.signatures`.
"""

from __future__ import annotations

import re

IMPORT_OR_SYNTAX_TYPES = frozenset(
    {
        # Wrong code or a wrong environment, never a fault of the moment (Python's exception hierarchy).
        "ImportError",
        "SyntaxError",
        "NameError",
        # Subclasses by their own names too, for error files that do not record bases (torch's own handler).
        "ModuleNotFoundError",
        "IndentationError",
        "TabError",
        "UnboundLocalError",
    }
)

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

NATIVE_TYPES = COMMUNICATION_TYPES | {
    "RuntimeError",  # TORCH_CHECK, and pybind11 for any std::exception
    "AcceleratorError",  # torch 2.8 and later, torch/csrc/Exceptions.h
    "OutOfMemoryError",
    "CheckpointException",  # torch/distributed/checkpoint/api.py: holds what the ranks raised
    "",  # an error file that holds only a text
}
"""As what torch's native code raises: only of these is the message consulted for what libraries say. A
script's own exception may quote any of it."""

GPU_MEMORY_TYPES = frozenset({"OutOfMemoryError"})
"""torch.OutOfMemoryError, known as torch.cuda.OutOfMemoryError before torch 2.5."""

HOST_MEMORY_TYPES = frozenset({"MemoryError", "_ArrayMemoryError"})
"""Python's, and numpy's own (numpy/core/_exceptions.py)."""

TRACEBACK_FRAME = re.compile(r"^ *File \"(?P<path>[^\"]+)\", line \d+", re.MULTILINE)
"""A frame as `traceback.format_exception` writes it, the innermost last."""

STANDARD_LIBRARY = re.compile(r"/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)|^<frozen ")
"""Paths of Python's own modules (sysconfig: stdlib, platstdlib), which raise in the name of their callers."""

TORCH_DISTRIBUTED = re.compile(r"/torch/distributed/")
"""Paths of torch's package for the communication between ranks."""

DCP_LOADER = re.compile(r"torch/distributed/checkpoint/state_dict_loader\.py\"")
"""A frame of torch DCP's loader, which reads nothing but checkpoints."""

LOADER = re.compile(
    r"torch/distributed/checkpoint/state_dict_loader\.py\""
    r"|torch/serialization\.py\", line \d+, in load\b"
    r"|safetensors/torch\.py\", line \d+, in load"
    r"|nvidia_resiliency_ext/checkpointing/[^\"\n]+\", line \d+, in load"
)
"""Frames of what reads tensors from files: torch.load, DCP, safetensors, nvidia-resiliency-ext."""

SAVER = re.compile(
    r"torch/distributed/checkpoint/(?:state_dict_saver|_async_\w+)\.py\""
    r"|torch/serialization\.py\", line \d+, in save\b"
    r"|safetensors/torch\.py\", line \d+, in save"
    r"|nvidia_resiliency_ext/checkpointing/[^\"\n]+\", line \d+, in (?:save|async_)"
)
"""Frames of what writes tensors to files, by the same libraries."""

LOADING_SECTION = re.compile(
    r"(?i)(?<![a-z])(?:re)?load(?!er|(?:ing)?[_ .-]?(?:batch|data|sample))|(?<![a-z])(?:restor|resum)"
    r"|(?:checkpoint|ckpt)[_ .-]?(?:load|restor|resum)"
)
SAVING_SECTION = re.compile(r"(?i)(?<![a-z])(?:auto)?sav(?:e|ing)|checkpoint")
"""Names that scripts give to the sections in which they do so (nvidia-resiliency-ext's examples: "setup",
"step", "checkpoint"). A name that fits both loads. Data loaders, downloads and payloads are neither."""

DAMAGE = re.compile(
    # caffe2/serialize/inline_container.cc, torch/csrc/serialization.cpp
    r"PytorchStreamReader failed|unexpected EOF, expected \d+ more bytes"
    # Lib/zipfile.py, Modules/_pickle.c
    r"|BadZipFile|File is not a zip file|Bad CRC-32"
    r"|pickle data was truncated|invalid load key|Ran out of input|UnpicklingError|(?m:^EOFError\b)"
    # safetensors/src/tensor.rs
    r"|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization"
    # torch/distributed/checkpoint/filesystem.py, by strerror(ENOENT)
    r"|No such file or directory: '[^'\n]{0,400}(?:\.distcp|\.metadata)'"
)
"""What readers of checkpoints say of files that are damaged or missing."""

DAMAGE_TYPES = frozenset({"BadZipFile", "EOFError", "UnpicklingError"})
"""The same by type: of zipfile, and of pickle and torch's own unpickler."""

NOT_ALLOWED = re.compile(r"Unsupported (?:global|class)")
"""torch/_weights_only_unpickler.py: the file is read well, and holds what torch.load may not make."""

MISFIT = re.compile(
    # torch/nn/modules/module.py, torch/distributed/checkpoint/default_planner.py
    r"Error\(s\) in loading state_dict|[Ss]ize mismatch|Missing key|Unexpected key"
)
"""The checkpoint is read well, and holds another model than the script makes."""

RANKS_THAT_FAILED = re.compile(r"CheckpointException ranks:dict_keys\(\[(?P<ranks>[\d, ]*)\]\)")
"""torch/distributed/checkpoint/api.py: each rank raises what some ranks have told."""

TOLD_BY_RANK = re.compile(
    r"^Traceback \(most recent call last\): \(RANK (?P<rank>\d+)\)\n(?:[ \t].*\n)*(?P<what>[^\n]+)",
    re.MULTILINE,
)
"""By the same: a rank's traceback, in indented lines, and the first line of what it raised."""

PORT_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
"""strerror(EADDRINUSE); c10d socket.cpp, of uv_listen and bind."""

NO_SPACE = re.compile(
    r"No space left on device|no space left on device|ENOSPC|Disk quota exceeded|StorageFull"
)
"""strerror(ENOSPC), strerror(EDQUOT), libuv's words, Rust's std::io::ErrorKind (safetensors)."""

WRITE_FAILED = re.compile(
    r"PytorchStreamWriter failed writing file|unexpected pos \d+ vs \d+|write\(\): fd \d+ failed"
)
"""caffe2/serialize/inline_container.cc, torch/csrc/serialization.cpp: the system's reason is lost."""

STREAM_FAILED = re.compile(r"std::__ios_failure|std::ios_base::failure|iostream error")
"""libstdc++; PyTorchStreamWriter ends the process with it when a file cannot be written on."""

NO_HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|[Cc]annot allocate memory"
)
"""c10/core/impl/alloc_cpu.cpp, strerror(ENOMEM)."""

LOADER_KILLED = re.compile(
    r"DataLoader worker \(pid.{0,1000} (?:is killed by signal: Killed|exited unexpectedly)"
)
LOADER_BUS_ERROR = re.compile(
    r"DataLoader worker .{0,1000} is killed by signal: Bus error|Unexpected bus error .{0,500} in worker"
)
LOADER_FAILED = re.compile(
    r"DataLoader worker \(pid|in DataLoader worker process \d+|DataLoader timed out after \d+ seconds"
)
"""torch/csrc/DataLoader.cpp, torch/utils/data/dataloader.py and _utils/worker.py. A hundred pids have a
thousand characters; without a bound, a line with many beginnings would be searched to its end as often."""

TOLD_BY_LOADER = re.compile(
    r"(?P<head>Caught \w+ in DataLoader worker process \d+)\.\n"
    r"Original Traceback[^\n]*\n(?:[ \t].*\n)*(?P<what>[^\n]+)"
)
"""torch/_utils.py (ExceptionWrapper): the worker's traceback, in indented lines, and what it raised."""

GPU_MEMORY = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried|CUDA error: out of memory|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:\d+ )?'out of memory'"
)
"""c10/cuda/CUDACachingAllocator.cpp, CUDAException.cpp (cudaErrorMemoryAllocation), cuDNN, cuBLAS, NCCL's
alloc.h."""

GPU_ECC = re.compile(r"uncorrectable ECC error encountered|uncorrectable NVLink error")
"""cudaGetErrorString of cudaErrorECCUncorrectable and cudaErrorNvlinkUncorrectable."""

GPU_GONE = re.compile(r"GPU has fallen off the bus|GPU is lost")
"""NVIDIA's kernel driver (Xid 79); nvmlErrorString(NVML_ERROR_GPU_IS_LOST)."""

CUDA_ERROR = re.compile(r"CUDA error: |CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|device-side assert triggered")
"""c10/cuda/CUDAException.cpp; ATen/cuda/Exceptions.h for cuBLAS and cuDNN."""

DEVICE_ERROR = re.compile(r"\bAcceleratorError\b|\bCUDA\b|\bcu(BLAS|DNN|SPARSE|FFT)|\bNCCL\b|device-side")
"""Exceptions of any type that speak of a GPU, in their type or message; by the same sources."""

NCCL_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout|Timeout at NCCL work|"
    r"Some NCCL operations have failed or timed out"
)
"""c10d ProcessGroupNCCL.cpp."""

NCCL_OWN = re.compile(
    r"ncclUnhandledCudaError|unhandled cuda error|ncclInvalidUsage|ncclInvalidArgument|Duplicate GPU detected"
)
"""nccl.h (ncclGetErrorString) and init.cc of NCCL: this rank's own GPU, or a call that cannot work."""

NCCL_ERROR = re.compile(
    r"NCCL error in:|NCCL communicator was aborted|nccl(?:Remote|System|Internal)Error|NCCL error: "
)
"""c10d ProcessGroupNCCL.cpp, NCCLUtils.cpp; nccl.h."""

GLOO = re.compile(
    r"gloo/transport/|gloo/(?:rendezvous|common)/|[Gg]loo connectFullMesh failed"
    r"|Timed out waiting \d+ms for (?:send|recv)|Application timeout caused pair closure"
)
"""gloo, transport/tcp/pair.cc and unbound_buffer.cc: its messages begin with [<path>/gloo/..:<line>]."""

GLOO_ABORT = re.compile(r"terminate called after throwing an instance of 'gloo::\w+'")
"""libstdc++ std::terminate; gloo/common/error.h."""

PEER_GONE = re.compile(
    # strerror(ECONNRESET), ECONNREFUSED, EPIPE; c10d TCPStore, Utils.hpp (recvBytes)
    r"Connection closed by peer|[Cc]onnection reset by peer|Connection was likely closed"
    r"|[Cc]onnection refused|Broken pipe"
    # c10d TCPStore.cpp, socket.cpp, ProcessGroupGloo.cpp
    r"|wait timeout after \d+ms|Timed out after \d+ seconds waiting for clients"
    r"|[Ss]ocket .{0,500}timed out after|timed out in monitoredBarrier"
)
"""Sockets and the store by which ranks find each other."""

C10D_ABORT = re.compile(r"terminate called after throwing an instance of 'c10::Dist(?:Network|Store)Error'")
"""libstdc++ std::terminate; c10/util/Exception.h."""

CRASH_SIGNALS = frozenset({4, 7, 8, 11})
"""SIGILL, SIGBUS, SIGFPE, SIGSEGV: the CPU raises them; no agent sends them. SIGABRT is left out, since a
process told to stop often ends in std::terminate."""

FINGERPRINT_NOISE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    # Names that tempfile makes; they have letters that a rule for digits would leave.
    (re.compile(r"\btmp[a-z0-9_]{8}\b"), "tmp#"),
    # With a digit among the first 40, as any UUID or hash has: looking at all that follows, at each word of
    # "a-b-a-b", would take minutes for a megabyte.
    (re.compile(r"\b(?=[a-fA-F-]{0,40}\d)[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{4,})*\b"), "#"),
    (re.compile(r"\d+"), "#"),
    (re.compile(r"\s+"), " "),
)
"""What differs between two occurrences of one error: applied in order before fingerprints are compared."""

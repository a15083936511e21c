"""Each way in which a rank ends is recognised by its own row, and what only looks like it is not."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from string import Formatter

import pytest

from ftrun.monitor import failures, incidents_doc, signatures
from ftrun.monitor.case import Case
from ftrun.monitor.diagnosis import diagnose
from ftrun.monitor.excerpts import shorten_exit
from ftrun.monitor.incident import (
    ErrorRecord,
    Evidence,
    IncidentKind,
    MemoryPressure,
    RankExit,
    Space,
)
from ftrun.monitor.signature import CONFIDENCE, Signature

USERS = '  File "/home/u/train.py", line 31, in main\n    train()\n'
TORCH_LOAD = '  File "/v/site-packages/torch/serialization.py", line 1549, in load\n    return _load(file)\n'
TORCH_SAVE = '  File "/v/site-packages/torch/serialization.py", line 967, in save\n    _save(obj, file)\n'
DCP = '  File "/v/site-packages/torch/distributed/checkpoint/{}.py", line 178, in {}\n    f()\n'
DCP_LOAD, DCP_SAVE = DCP.format("state_dict_loader", "load"), DCP.format("state_dict_saver", "save")
DCP_UTILS = DCP.format("utils", "reduce_scatter")
RENDEZVOUS = '  File "/v/site-packages/torch/distributed/rendezvous.py", line 9, in _rendezvous\n    g()\n'
RESUMED = {"resume_from": "/c/step-40"}
FULL_SHM = Space("/dev/shm", "shared memory", 0, 64 << 20)
FULL_DISK = Space("/c", "checkpoints", 4096, 1 << 30, 900)
ROOMY_DISK = Space("/c", "checkpoints", 1 << 29, 1 << 30, 900)
TRUNCATED = "PytorchStreamReader failed reading zip archive: failed finding central directory"
TORN = (
    "[enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/0: file write "
    "failed"
)
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
)
NCCL_HEAD = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled"


def raised(
    type_name: str, message: str = "", *frames: str, bases: tuple[str, ...] = (), **more: object
) -> Case:
    """A rank that an exception ended."""
    sections: tuple[str, ...] = more.pop("sections", ())  # type: ignore[assignment]
    record = ErrorRecord(type_name, message, "".join((USERS, *frames)), "train.py:31 in main", bases, 9.0)
    return of(RankExit(3, 3, 103, 1, 10.0, False, record, sections=sections), **more)


def ended(code: int, *stderr: str, **more: object) -> Case:
    """A rank that left no exception."""
    return of(RankExit(3, 3, 103, code, 10.0, False, stderr_tail=stderr), **more)


def of(exit: RankExit, **more: object) -> Case:
    has_progressed = bool(more.pop("has_progressed", False))
    return Case.of(exit, Evidence("a", 2, (exit,), has_progressed, **more))  # type: ignore[arg-type]


CASES: dict[str, tuple[Case, Case]] = {
    "data loader killed for memory": (
        raised("RuntimeError", "DataLoader worker (pid 77) is killed by signal: Killed. ", oom_kills=1),
        raised("RuntimeError", "DataLoader worker (pid 77) is killed by signal: Killed. ", oom_kills=0),
    ),
    "data loader's bus error": (
        raised("RuntimeError", "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible"),
        raised("RuntimeError", "DataLoader worker (pid 77) is killed by signal: Segmentation fault. "),
    ),
    "import or syntax error": (
        raised("ModuleNotFoundError", "No module named 'flash_attn'", bases=("ImportError", "Exception")),
        raised("ImportWarningError", "No module named 'flash_attn'", bases=("Exception",)),
    ),
    "port in use": (
        raised(
            "DistNetworkError",
            "The server socket has failed to listen on any local network address. port: 29500, useIpv6: "
            "false, code: -98, name: EADDRINUSE, message: address already in use",
            bases=("DistError", "RuntimeError", "Exception"),
        ),
        raised("ValueError", "Address already in use"),
    ),
    "no space": (
        raised("OSError", "[Errno 28] No space left on device: '/c/step-40.tmp'", bases=("Exception",)),
        raised("OSError", "[Errno 30] Read-only file system: '/c/step-40.tmp'", bases=("Exception",)),
    ),
    "write that failed on a full disk": (
        raised("RuntimeError", TORN, TORCH_SAVE, spaces=(FULL_DISK,)),
        raised("RuntimeError", TORN, TORCH_SAVE, spaces=(ROOMY_DISK,)),
    ),
    "uncorrectable memory of a GPU": (
        raised("AcceleratorError", "CUDA error: uncorrectable ECC error encountered"),
        raised("AcceleratorError", "CUDA error: misaligned address"),
    ),
    "GPU gone": (
        raised("NVMLError_GpuIsLost", "GPU is lost"),
        raised("RuntimeError", "No CUDA GPUs are available"),
    ),
    "GPU memory, by type": (
        raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ..."),
        raised("OutOfMemoryException", "the pool is empty"),
    ),
    "GPU memory": (
        raised("RuntimeError", f"{NCCL_HEAD} cuda error\nLast error:\nCuda failure 2 'out of memory'"),
        raised("RuntimeError", f"{NCCL_HEAD} cuda error\nLast error:\nCuda failure 999 'unknown error'"),
    ),
    "NCCL timeout": (
        raised("DistBackendError", WATCHDOG, bases=("DistError", "RuntimeError")),
        raised("ValueError", WATCHDOG),
    ),
    "NCCL error of its own": (
        raised("DistBackendError", f"{NCCL_HEAD} cuda error (run with NCCL_DEBUG=INFO for details)"),
        raised("DistBackendError", f"{NCCL_HEAD} system error (run with NCCL_DEBUG=INFO for details)"),
    ),
    "NCCL error": (
        raised("RuntimeError", "NCCL communicator was aborted on rank 2. Original reason for failure was: x"),
        raised("RuntimeError", "expected NCCL tensors on one device"),
    ),
    "CUDA error": (
        raised("RuntimeError", "CUDA error: device-side assert triggered\nCUDA kernel errors might be ..."),
        raised("RuntimeError", "CUDA errors are not expected here"),
    ),
    "gloo": (
        raised(
            "RuntimeError", "[/p/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
        ),
        raised("RuntimeError", "gloo transport is not built in"),
    ),
    "c10d, by type": (
        raised("DistStoreError", "wait timeout after 60000ms, keys: /none/MASTER_ADDR"),
        raised("DistributionError", "wait timeout after 60000ms, keys: /none/MASTER_ADDR"),
    ),
    "connection in torch.distributed": (
        raised("ConnectionResetError", "[Errno 104] Connection reset by peer", RENDEZVOUS),
        raised("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ),
    "peer gone": (
        raised(
            "RuntimeError", "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote ..."
        ),
        raised("RuntimeError", "the connection pool is closed"),
    ),
    "host memory, by type": (
        raised("_ArrayMemoryError", "Unable to allocate 3.00 TiB for an array", bases=("MemoryError",)),
        raised("MemoryLeakError", "too much is kept"),
    ),
    "host memory": (
        raised(
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
        ),
        raised("RuntimeError", "the allocator can't allocate twice"),
    ),
    "data loader": (
        raised("KeyError", "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback ..."),
        raised("KeyError", "DataLoader"),
    ),
    "damaged checkpoint": (
        raised(
            "CheckpointException",
            f"CheckpointException ranks:dict_keys([3])\n{TRUNCATED}",
            DCP_LOAD,
            DCP_UTILS,
        ),
        raised("RuntimeError", f"{TRUNCATED}: /models/base.pt", TORCH_LOAD, **RESUMED),
    ),
    "while a checkpoint was loaded": (
        raised("RuntimeError", "Invalid magic number; corrupt file?", TORCH_LOAD, **RESUMED),
        raised("RuntimeError", "Invalid magic number; corrupt file?", TORCH_LOAD),
    ),
    "in a section that loads": (
        raised("KeyError", "optimizer", sections=("setup", "load_checkpoint"), **RESUMED),
        raised(
            "KeyError", "optimizer", sections=("setup", "load_checkpoint"), has_progressed=True, **RESUMED
        ),
    ),
    "while a checkpoint was saved": (
        raised("PermissionError", "[Errno 13] Permission denied: '/c/step-60'", DCP_SAVE, DCP_UTILS),
        raised("PermissionError", "[Errno 13] Permission denied: '/c/step-60'"),
    ),
    "in a section that saves": (
        raised("ValueError", "no such bucket", sections=("save",)),
        raised("ValueError", "no such bucket", sections=("step",)),
    ),
    "checkpoint of another model": (
        raised(
            "RuntimeError",
            'Error(s) in loading state_dict for Model:\n\tMissing key(s) in state_dict: "head.bias".',
            **RESUMED,
        ),
        raised("RuntimeError", "the state_dict is empty", **RESUMED),
    ),
    "exception beside an OOM kill": (
        raised("EOFError", "", oom_kills=2),
        raised("EOFError", "", oom_kills=0),
    ),
    "exception": (raised("ValueError", "bad loss"), ended(1, "ValueError: bad loss")),
    "killed for memory": (ended(-9, oom_kills=1), ended(-11, oom_kills=1)),
    "killed": (ended(-9), ended(-9, oom_kills=1)),
    "aborted for uncorrectable memory of a GPU": (
        ended(-6, WATCHDOG, "CUDA error: uncorrectable ECC error encountered"),
        ended(-6, "CUDA error: unspecified launch failure"),
    ),
    "aborted for a CUDA error": (
        ended(-6, WATCHDOG, "  what():  CUDA error: an illegal memory access was encountered", "frame #0"),
        ended(-6, "CUDA errors are bad"),
    ),
    "NCCL watchdog's time-out": (
        ended(-6, WATCHDOG, "frame #0"),
        ended(-6, "watchdog: all collective operations are on time"),
    ),
    "NCCL watchdog's error": (
        ended(
            -6, "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
        ),
        ended(-6, "ncclInternalError: Internal check failed."),
    ),
    "gloo in a thread": (
        ended(-6, "terminate called after throwing an instance of 'gloo::IoException'"),
        ended(-11, "terminate called after throwing an instance of 'gloo::IoException'"),
    ),
    "c10d in a thread": (
        ended(-6, "terminate called after throwing an instance of 'c10::DistNetworkError'"),
        ended(-6, "terminate called after throwing an instance of 'c10::Error'"),
    ),
    "write that aborted on a full disk": (
        ended(-6, "terminate called after throwing an instance of 'std::__ios_failure'", spaces=(FULL_DISK,)),
        ended(
            -6, "terminate called after throwing an instance of 'std::__ios_failure'", spaces=(ROOMY_DISK,)
        ),
    ),
    "aborted": (ended(-6, "assertion failed"), ended(134, "assertion failed")),
    "bus error": (ended(-7, spaces=(FULL_SHM,)), ended(-11, spaces=(FULL_SHM,))),
    "segmentation fault": (ended(-11), ended(139)),
    "other signal": (ended(-15), ended(143)),
    "program of a shell killed for memory": (ended(137, oom_kills=1), ended(137)),
    "program of a shell ended by a signal": (ended(139), ended(255)),
    "exit code": (ended(3), ended(-3)),
}
"""Per signature: an end that it must recognise, and a near miss, which another one must."""


def judged(case: Case) -> failures.Finding:
    return failures.judge(case.exit, case.evidence)


def test_every_signature_has_its_cases() -> None:
    """No row stands without an end that it is for and one that it is not for."""
    names = [row.name for row in signatures.ALL]
    assert set(CASES) == set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", signatures.ALL, ids=lambda row: row.name)
def test_signature_recognises_its_own_and_nothing_near_it(row: Signature) -> None:
    """It is the first that fits the one, and is not taken for the other."""
    own, near = CASES[row.name]
    found = judged(own)
    assert (found.signature, found.kind, found.confidence) == (row.name, row.kind, row.confidence)
    assert judged(near).signature != row.name


@pytest.mark.parametrize("row", signatures.ALL, ids=lambda row: row.name)
def test_every_signature_says_where_it_is_from_and_how_sure_it_is(row: Signature) -> None:
    """Its sentences name nothing that a case does not know."""
    assert row.source
    assert row.confidence in CONFIDENCE.values()
    known = set(CASES["exception"][0].words())
    named = {name for text in (row.sentence, row.hint) for _, name, *_ in Formatter().parse(text) if name}
    assert named <= known


SECTIONS = {
    "in a section that loads": [
        ("load_checkpoint",), ("checkpoint_load",), ("CheckpointLoading",), ("Restore",), ("resume_from",),
        ("checkpoint", "reload"), ("model.load_state",),
    ],
    "in a section that saves": [
        ("save",), ("checkpoint",), ("async_saving",), ("autosave",), ("upload_checkpoint",),
        ("resume_training", "save"),
    ],
    "exception": [
        ("dataloader_setup",), ("download",), ("payload",), ("load_data",), ("loader",), ("loading batch",),
        ("step",), ("offload",), (),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("row", "names"), [(row, names) for row, of in SECTIONS.items() for names in of])
def test_names_of_sections(row: str, names: tuple[str, ...]) -> None:
    """By whole words, of the innermost that says one or the other."""
    assert judged(raised("KeyError", "optimizer", sections=names, **RESUMED)).signature == row


@pytest.mark.parametrize("piece", ["aB3/+", "socket ", "DataLoader worker (pid 1) ", "Unexpected bus error "])
def test_long_lines_are_searched_in_time(piece: str) -> None:
    """Half a megabyte takes a second at most; where each beginning was searched to the end, ten."""
    text = piece * ((1 << 19) // len(piece))
    record = ErrorRecord("RuntimeError", text, "")
    began_at = time.process_time()
    shorten_exit(RankExit(0, 0, 100, 1, 0.0, False, record), 64 << 10)
    assert time.process_time() - began_at < 5.0


@pytest.mark.parametrize("piece", ["a-b-", "abcd-", "beef ", "0", "tmp_", "0x", "a-b-a-b-c1 "])
def test_noise_is_taken_out_in_time(piece: str) -> None:
    """A megabyte takes half a second; where each word looked at all that follows, minutes."""
    text = piece * ((1 << 20) // len(piece))
    began_at = time.process_time()
    failures.without_noise(text)
    assert time.process_time() - began_at < 5.0


def test_noise_is_hex_with_a_digit() -> None:
    """A word of the letters a to f stays."""
    text = "at deadbeef-0123 of 123e4567-e89b-12d3-a456-426614174000, a faded facade"
    assert failures.without_noise(text) == "at # of #, a faded facade"


@pytest.mark.parametrize("table", [signatures.EXCEPTIONS, signatures.SIGNALS, signatures.EXIT_CODES])
def test_last_row_of_a_table_takes_what_is_left(table: tuple[Signature, ...]) -> None:
    """No end is without a kind."""
    assert table[-1].fits(ended(1))
    assert table[-1].fits(raised("E"))


NOT_OF_A_RANK = {
    # Told by a health check, a verdict, a lost node, a report or a request: each has tests of its own.
    *(kind for kind in IncidentKind if kind.is_of_node or kind.is_of_hardware),
    IncidentKind.HANG_INITIAL,
    IncidentKind.HANG_STEADY,
    IncidentKind.HANG_SECTION,
    IncidentKind.STALL,
    IncidentKind.NAN_LOSS,
}


def test_every_kind_has_a_way_to_it() -> None:
    """Of a rank's end a row tells the kind."""
    of_rows = {row.kind for row in signatures.ALL}
    assert of_rows | NOT_OF_A_RANK == set(IncidentKind)


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        ((FULL_SHM,), "/dev/shm (shared memory) is full: 0 KiB of 64.0 MiB are free"),
        (
            (Space("/dev/shm", "shared memory", 60 << 20, 64 << 20),),
            "/dev/shm (shared memory) is not full: 60.0 MiB of 64.0 MiB are free",
        ),
        ((), "how full /dev/shm was is not known"),
    ],
)
def test_bus_error_says_whether_shared_memory_is_full(spaces: tuple[Space, ...], words: str) -> None:
    """The usual cause is looked at, not only guessed."""
    assert words in judged(ended(-7, spaces=spaces)).hint


def test_full_disk_says_which_one() -> None:
    """Of several file systems the full one is named, with its numbers; else that there is room again."""
    message = "[Errno 28] No space left on device"
    full = judged(raised("OSError", message, bases=("Exception",), spaces=(FULL_SHM, ROOMY_DISK)))
    assert full.hint == "/dev/shm (shared memory) is full: 0 KiB of 64.0 MiB are free"
    inodes = dataclasses.replace(ROOMY_DISK, free_inodes=0)
    assert "no inode" in judged(raised("OSError", message, bases=("Exception",), spaces=(inodes,))).hint
    again = judged(raised("OSError", message, bases=("Exception",), spaces=(ROOMY_DISK,)))
    assert again.hint.startswith(
        "when the round had ended there was room again: /c (checkpoints) is not full"
    )


def test_kill_says_whether_memory_was_short() -> None:
    """An OOM killer outside of the kernel leaves no count, but pressure."""
    pressure = MemoryPressure(62.5, 40.0, is_of_cgroup=True)
    assert "some tasks waited for it 62.5 % of the time" in judged(ended(-9, pressure=pressure)).hint
    assert "short" not in judged(ended(-9, pressure=MemoryPressure(0.0, 0.0))).hint
    assert "short" not in judged(ended(-9)).hint


DCP_FAILED = """CheckpointException ranks:dict_keys([1, 3])
Traceback (most recent call last): (RANK 1)
  File "/v/site-packages/torch/distributed/checkpoint/state_dict_loader.py", line 308, in read_data
    all_reads = storage_reader.read_data(final_local_plan, planner)
{first}
Traceback (most recent call last): (RANK 3)
  File "/v/site-packages/torch/distributed/checkpoint/state_dict_loader.py", line 308, in read_data
    all_reads = storage_reader.read_data(final_local_plan, planner)
EOFError
"""


def test_what_a_rank_raised_is_told_of_dcps_exception() -> None:
    """Not its own long text, and two different ones have different fingerprints."""
    first, second = (
        raised("CheckpointException", DCP_FAILED.format(first=what)) for what in ("EOFError", "KeyError: 'x'")
    )
    found = judged(first)
    assert found.kind is IncidentKind.CHECKPOINT_LOAD
    assert found.confidence == CONFIDENCE["found"]
    assert found.what.endswith("CheckpointException: rank 1 raised EOFError (train.py:31 in main)")
    prints = {failures.fingerprint(IncidentKind.EXCEPTION, case.exit) for case in (first, second)}
    assert len(prints) == 2


LOADER_FAILED = """Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/v/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/u/data.py", line 7, in __getitem__
    return self.items[index]
KeyError: '{what}'
"""


def test_what_a_data_loader_raised_is_told_of_its_exception() -> None:
    """Not the worker's traceback; another worker's same failure is the same, another failure is not."""
    cases = [
        raised("KeyError", LOADER_FAILED.format(what="image")),
        raised("KeyError", LOADER_FAILED.format(what="image").replace("process 0", "process 1")),
        raised("KeyError", LOADER_FAILED.format(what="label")),
    ]
    assert judged(cases[0]).what == (
        "failed in a data loader: KeyError: Caught KeyError in DataLoader worker process 0: "
        "KeyError: 'image' (train.py:31 in main)"
    )
    first, same, other = (failures.fingerprint(IncidentKind.DATA_LOADER, case.exit) for case in cases)
    assert first == same != other


@pytest.mark.parametrize(
    ("type_name", "message", "kind", "is_sure"),
    [
        ("EOFError", "", IncidentKind.CHECKPOINT_LOAD, True),
        ("BadZipFile", "Bad magic number for central directory", IncidentKind.CHECKPOINT_LOAD, True),
        (
            "UnpicklingError",
            "Weights only load failed. invalid load key, 'x'.",
            IncidentKind.CHECKPOINT_LOAD,
            True,
        ),
        ("KeyError", "'epoch'", IncidentKind.CHECKPOINT_LOAD, False),
        (
            "UnpicklingError",
            "Weights only load failed. Unsupported global: GLOBAL f",
            IncidentKind.EXCEPTION,
            False,
        ),
        ("RuntimeError", "Error(s) in loading state_dict for Model:", IncidentKind.EXCEPTION, False),
    ],
)
def test_damage_is_told_from_what_the_script_may_not_or_cannot_load(
    type_name: str, message: str, kind: IncidentKind, is_sure: bool
) -> None:
    """Of a file below the checkpoint that the round began from; only damage costs it its trust at once."""
    where = TORCH_LOAD.replace("_load(file)", "_load('/c/step-40/model.pt')")
    found = judged(raised(type_name, message, where, **RESUMED))
    assert found.kind is kind
    assert (found.confidence == CONFIDENCE["found"]) is is_sure
    late = judged(raised(type_name, message, where, has_progressed=True, **RESUMED))
    assert late.kind is IncidentKind.EXCEPTION


def test_rank_that_dcp_tells_of_another_ranks_failure_is_its_echo() -> None:
    """All ranks raise the same exception, which names the one whose disk is full."""
    message = "CheckpointException ranks:dict_keys([1])\nOSError: [Errno 28] No space left on device"
    exits = tuple(
        RankExit(
            rank,
            rank,
            100 + rank,
            1,
            10.0 + rank / 10,
            False,
            ErrorRecord("CheckpointException", message, ""),
        )
        for rank in range(3)
    )
    found = diagnose([Evidence("a", 2, exits, True)])
    assert (found.culprit.rank, found.kind) == (1, IncidentKind.DISK_FULL)
    without = diagnose([Evidence("a", 2, (exits[0], exits[2]), True)])
    assert without.kind is IncidentKind.DISK_FULL


def test_page_of_incidents_is_generated() -> None:
    """docs/incidents.md is what `python -m ftrun.monitor.incidents_doc` prints, and every kind is known by
    something.
    """
    page = (Path(__file__).parents[2] / "docs" / "incidents.md").read_text()
    assert page == incidents_doc.render()
    assert "|  |" not in page
    assert all(f"| `{kind.value}` |" in page for kind in IncidentKind)

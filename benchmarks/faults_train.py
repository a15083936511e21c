"""The job of the fault matrix: a small training on gloo to which one thing after another happens.

`python faults_train.py OUT CHECKPOINTS STEPS [DEEDS...]`: DEEDS are what happens in one round each,
"deed:rank", several joined by "+"; after the last ones all goes well. A deed is a function of this module,
done after 17 steps of the round, unless "deed/MOMENT:rank" says otherwise: "early" (7 steps, before anything
is saved), "late" (27, when two checkpoints are), "save" (in the round's second one), "load", or "begin" (of
the script). Each rank has a random number generator of its own in the checkpoint, so each writes a shard.

In OUT a rank leaves its account: `steps-RANK` has a line "round step" for each step that it has done, and
`digests-RANK` a line "step SHA-256" of all that the next step depends on, for each checkpoint. Before a deed
in training, all ranks wait for a file `go-ROUND` there.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ftrun.monitor import client
from ftrun.monitor.manifest import name_of_manifest

EVERY = 10
DEED_AFTER = {"early": 7, "": 17, "late": 27}
"""Steps of the round; at other moments it is not steps that count."""
WIDTH, BATCH = 16, 8
BALLAST = "faults-ballast"
SHARED_MEMORY = Path("/dev/shm")
_LOOK_EVERY_S = 0.005
_CHUNK_BYTES = 1 << 20
_LARGE_BYTES = 8 << 20
"""More than a small /dev/shm has."""

out, checkpoints, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
restart_count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Training:
    """All that a step depends on, and what is saved.

    Momentum by hand: `torch.optim` takes as long to import as all steps take together.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(WIDTH, WIDTH)
        self.momentum = {name: torch.zeros_like(one) for name, one in self.model.named_parameters()}
        self.generator = torch.Generator().manual_seed(rank)
        self.step = 0

    def do_step(self) -> None:
        """One step of all ranks."""
        batch = torch.randn(BATCH, WIDTH, generator=self.generator)
        self.model(batch).pow(2).mean().backward()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                dist.all_reduce(parameter.grad)
                self.momentum[name].mul_(0.9).add_(parameter.grad)
                parameter.sub_(0.1 * self.momentum[name])
        self.model.zero_grad()
        self.step += 1

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds; the rank's own part has the rank in its name."""
        weights = {f"weights.{name}": one for name, one in self.model.state_dict().items()}
        momentum = {f"momentum.{name}": one for name, one in self.momentum.items()}
        own = {f"generator.{rank}": self.generator.get_state()}
        return {**weights, **momentum, **own, "step": torch.tensor(self.step)}

    def load(self, path: str, then: Callable[[], None]) -> None:
        """Go on from a checkpoint; the tensors of the state are written into."""
        state = self.state()
        dcp.load(state, storage_reader=Reader(path, then))
        self.generator.set_state(state[f"generator.{rank}"])
        self.step = int(state["step"])

    def save(self, path: Path, then: Callable[[], None]) -> None:
        """All ranks write; rank 0 commits."""
        dcp.save(self.state(), storage_writer=Writer(path, then))

    def digest(self) -> str:
        """Of the state, bit by bit."""
        state = self.state()
        parts = [name.encode() + state[name].numpy().tobytes() for name in sorted(state)]
        return hashlib.sha256(b"".join(parts)).hexdigest()


class Writer(dcp.FileSystemWriter):
    """Writes a shard; `then` happens when the shard is written and nobody has said so yet."""

    def __init__(self, path: Path, then: Callable[[], None]) -> None:
        super().__init__(path)
        self._then = then

    def write_data(self, plan: Any, planner: Any) -> Any:
        written = super().write_data(plan, planner)
        written.wait()
        self._then()
        return written


class Reader(dcp.FileSystemReader):
    """Reads a shard; `then` happens when it has been read and not been used yet."""

    def __init__(self, path: str, then: Callable[[], None]) -> None:
        super().__init__(path)
        self._then = then

    def read_data(self, plan: Any, planner: Any) -> Any:
        read = super().read_data(plan, planner)
        self._then()
        return read


class Deeds:
    """What happens in this round, and when."""

    def __init__(self, plan: str) -> None:
        self._all: list[tuple[str, str, int]] = []
        for one in filter(None, plan.split("+")):
            deed, _, doer = one.partition(":")
            name, _, moment = deed.partition("/")
            self._all.append((moment, name, int(doer)))

    def do(self, moment: str) -> None:
        """This rank's part of what happens at that moment."""
        for its_moment, name, doer in self._all:
            if (its_moment, doer) == (moment, rank):
                globals()[name]()

    def wait_for_go(self, moment: str) -> None:
        """All ranks do so at the same step if anything is to happen then: whoever watches prepares itself."""
        is_any = any(its_moment == moment for its_moment, _, _ in self._all)
        while is_any and not (out / f"go-{restart_count}").exists():
            time.sleep(_LOOK_EVERY_S)


def newest() -> Path:
    """The checkpoint that was saved last."""
    steps = [path.name.partition("-")[2] for path in checkpoints.glob("step-*")]
    return checkpoints / f"step-{max(int(step) for step in steps if step.isdecimal())}"


def shard_of(checkpoint: Path, of: int = 0) -> Path:
    """The file that a rank has written."""
    return checkpoint / f"__{of}_0.distcp"


def is_killed() -> NoReturn:
    """As by somebody else."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL has not ended this process")


def segfaults() -> None:
    """Reads address 0."""
    ctypes.string_at(0)


def aborts() -> None:
    """As an assertion in native code does."""
    os.abort()


def reads_beyond_a_file() -> None:
    """A mapped file has been truncated since: SIGBUS."""
    path = out / "mapped"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapping:
        os.truncate(path, 0)
        mapping[0]


def uses_up_memory() -> None:
    """Until the kernel's OOM killer comes."""
    hoard = []
    while True:
        hoard.append(b"x" * (16 * _CHUNK_BYTES))


def leave(code: int) -> NoReturn:
    """Without the end of the interpreter, in which torch 2.13 aborts now and then on a busy machine."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exits_with_3() -> None:
    """As a script that knows that it cannot go on."""
    leave(3)


def leaves_early() -> None:
    """As if all were done, while the others wait for this rank."""
    leave(0)


def raises() -> None:
    """A bug that not every batch shows."""
    raise ValueError(f"loss is not finite at batch {time.time_ns()}")


def sleeps() -> None:
    """Waits for what does not come."""
    time.sleep(1e6)


def stays_in_a_section() -> None:
    """The others wait in a collective, and have no section open."""
    with client.section("evaluation"):
        sleeps()


def fills_the_disk() -> None:
    """Of the checkpoints: the next save finds no room."""
    fill(checkpoints / BALLAST)


def fill(path: Path) -> None:
    """Makes the file so large that its file system has no byte left; only one that is made for that."""
    assert shutil.disk_usage(path.parent).total <= _LARGE_BYTES
    with path.open("wb", buffering=0) as file:
        size = _CHUNK_BYTES
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


def writes_to_full_memory() -> None:
    """Others have filled /dev/shm, which this rank finds out where it writes to its own part: SIGBUS."""
    fill(SHARED_MEMORY / BALLAST)
    cache = SharedMemory(create=True, size=_LARGE_BYTES)
    cache.buf[:] = bytes(_LARGE_BYTES)


def loads_batches_by_full_memory() -> None:
    """A data loader's worker finds no room in /dev/shm and says so on stderr; this process waits for it."""
    loader = torch.utils.data.DataLoader(list(range(4)), num_workers=1, collate_fn=make_large_batch)
    with client.section("evaluation"):
        sum(float(batch.sum()) for batch in loader)


def make_large_batch(_samples: list[int]) -> torch.Tensor:
    """That is handed over by way of /dev/shm."""
    return torch.ones(_LARGE_BYTES // 4)


def wait_for_checksums() -> None:
    """Of all ranks, in the newest checkpoint: they are written in the background."""
    manifests = [newest() / name_of_manifest(one) for one in range(world_size)]
    while not all(manifest.exists() for manifest in manifests):
        time.sleep(_LOOK_EVERY_S)


def truncates_a_shard() -> None:
    """Of the newest checkpoint, as when a file system loses something with the node; and is killed."""
    wait_for_checksums()
    os.truncate(shard_of(newest()), shard_of(newest()).stat().st_size - 1)
    is_killed()


def flips_a_bit() -> None:
    """In a shard of the newest checkpoint, whose checksums are written by then; and is killed."""
    wait_for_checksums()
    with shard_of(newest()).open("r+b") as file:
        file.seek(shard_of(newest()).stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    is_killed()


def loses_a_shard() -> None:
    """Of the newest checkpoint; and is killed."""
    wait_for_checksums()
    shard_of(newest(), 1).unlink()
    is_killed()


def loses_metadata() -> None:
    """Of the newest checkpoint; and is killed."""
    (newest() / ".metadata").unlink()
    is_killed()


def loses_all_metadata() -> None:
    """No checkpoint is left; and is killed."""
    for metadata in checkpoints.glob("step-*/.metadata"):
        metadata.unlink()
    is_killed()


def overwrites_a_shard() -> None:
    """Of the newest checkpoint, by as many bytes that are none of torch's, without checksums; is killed."""
    wait_for_checksums()  # none is to come later
    for manifest in newest().glob(".ftrun-manifest.*"):
        manifest.unlink()
    shard_of(newest()).write_bytes(b"?" * shard_of(newest()).stat().st_size)
    is_killed()


def imports_what_is_not_there() -> None:
    """A package is missing in the image."""
    import nosuch_package  # noqa: F401


def takes_a_busy_port() -> None:
    """That another process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        socket.create_server(holder.getsockname())


def train(training: Training, deeds: Deeds) -> None:
    """To the last step, leaving the account."""
    first = training.step
    with (
        (out / f"steps-{rank}").open("a", buffering=1) as account,
        (out / f"digests-{rank}").open("a", buffering=1) as digests,
    ):
        while training.step < steps:
            training.do_step()
            client.heartbeat(training.step)
            account.write(f"{restart_count} {training.step}\n")
            for moment, after in DEED_AFTER.items():
                if training.step == first + after:
                    deeds.wait_for_go(moment)
                    deeds.do(moment)
            if training.step == first + 2 * EVERY - 1:
                deeds.wait_for_go("save")
            if training.step % EVERY == 0:
                moment = "save" if training.step > first + EVERY else "first save"
                path = checkpoints / f"step-{training.step}"
                digests.write(f"{training.step} {training.digest()}\n")
                training.save(path, lambda moment=moment: deeds.do(moment))
                client.checkpoint_saved(path, training.step)


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    plans = sys.argv[4:]
    deeds = Deeds(plans[restart_count] if restart_count < len(plans) else "")
    deeds.do("begin")
    for place in (checkpoints, SHARED_MEMORY):
        (place / BALLAST).unlink(missing_ok=True)  # somebody has made room after the failure
    dist.init_process_group("gloo")
    training = Training()
    if (path := client.resume_from()) is not None:
        training.load(path, lambda: deeds.do("load"))
    train(training, deeds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)

"""What can happen to a job, and what is right to do about it: the fault matrix, as data.

Used by the benchmark that prints it and by the test that holds it. `faults_train.py` has the deeds,
`faults_job.py` carries out a trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

SAVE_EVERY = 10
"""Steps between two checkpoints (`faults_train.EVERY`)."""
ANY_RANK = -1
"""Any of the ranks may be named: they fail alike, or at the same moment."""


class Place(Enum):
    """Where a trial's job runs."""

    PLAIN = "as it is"
    SMALL_MEMORY = "in a memory cgroup with a limit"
    SMALL_DISK = "with its checkpoints on a small tmpfs"
    SMALL_SHM = "with a small /dev/shm"
    BUSY_PORT = "with a master port that another process listens on"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens in one round, and what is to come of it: one row of the table."""

    name: str
    deed: str
    """An argument of `faults_train.py`; "" if only what the fault before has done shows."""
    culprits: tuple[tuple[str, int], ...]
    """Kind of incident and rank, the one that is to be found; one of several if any is as good."""
    lost_saves: int = 0
    """Checkpoints that cannot be used any more; each costs `SAVE_EVERY` steps more."""
    action: str = "restart"
    """What is decided about it."""
    says: str = ""
    """What is in the account of it: of the incident, and of checkpoints that are not used any more."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A job with its faults, one in each round, in their order."""

    name: str
    faults: tuple[Fault, ...]
    exit_code: int = 0
    says: str = ""
    """What the reason for the job's end has in it."""
    place: Place = Place.PLAIN
    nodes: int = 1
    options: tuple[str, ...] = ()
    is_warm: bool = True
    """Before a fault in training the workers of the next round stand by, as in a run of ordinary length."""
    is_quick: bool = False
    """Among those that are tested each time."""
    least_steps: int = 0

    @property
    def steps(self) -> int:
        """Of the whole job: each round but the last may have two checkpoints."""
        return max(self.least_steps, SAVE_EVERY * (3 + 2 * len(self.faults)))

    @property
    def restarts(self) -> int:
        """After each fault, but not after one that ends the job."""
        return len(self.faults) - (self.exit_code != 0 and bool(self.faults))


def one(name: str, deed: str, kind: str, rank: int, lost_saves: int = 0, says: str = "") -> Fault:
    """A fault of which there is one right account."""
    return Fault(name, deed, ((kind, rank),), lost_saves, says=says)


def until_stop(fault: Fault, times: int) -> tuple[Fault, ...]:
    """The same in as many rounds; the last time it is given up."""
    return (*(fault,) * (times - 1), replace(fault, action="stop"))


BEFORE_PROGRESS = one("exception before progress, each time", "raises/begin:1", "exception", 1)
SAME_STEP = one("exception at a step, each time", "raises/early:1", "exception", 1)
EXIT_3 = one("exit code 3, each time", "exits_with_3:1", "exit_code", 1)
IMPORT = one("ImportError", "imports_what_is_not_there/begin:1", "import_or_syntax_error", 1)
NO_ROOM = Fault(
    "disk full, each time", "fills_the_disk/early:0", (("disk_full", ANY_RANK),), says="is full: 0 KiB"
)
SECTION = ("--ft-rank-section-timeouts", "evaluation:2")
HEARTBEATS = ("--ft-initial-rank-heartbeat-timeout", "40", "--ft-rank-heartbeat-timeout", "10")
NO_STALL_RULE = ("--ft-set", "timeouts.stall=off")
FILLED_SHM = "/dev/shm (shared memory) is full: 0 KiB"

TRIALS = (
    Trial(
        "death by a signal",
        (
            one("SIGKILL", "is_killed:1", "killed", 1, says="the kernel counted no OOM kill"),
            one("SIGSEGV", "segfaults:0", "segfault", 0),
            one("SIGABRT", "aborts:1", "abort", 1),
            one("SIGBUS, a mapped file was truncated", "reads_beyond_a_file:0", "bus_error", 0),
        ),
        is_quick=True,
    ),
    Trial(
        "the script's own ends",
        (
            one("exit code 3, once", "exits_with_3:1", "exit_code", 1),
            one("exception at a step, once", "raises:0", "exception", 0),
            one("port in use, once", "takes_a_busy_port/begin:1", "port_in_use", 1),
            one("exception before progress, once", "raises/begin:0", "exception", 0),
            one("a rank exits 0 early", "leaves_early:1", "gloo_peer_lost", 0, says="rank 1 had ended well"),
        ),
    ),
    Trial(
        "damaged checkpoints",
        (
            one("shard truncated, SIGKILL", "truncates_a_shard/late:0", "killed", 0, 1, "bytes"),
            one("bit flipped in a shard, SIGKILL", "flips_a_bit/late:1", "killed", 1, 1, "SHA-256"),
            one("shard missing, SIGKILL", "loses_a_shard/late:0", "killed", 0, 1, "No such file"),
            one(".metadata missing, SIGKILL", "loses_metadata/late:1", "killed", 1, 1, "has no .metadata"),
        ),
    ),
    Trial(
        "in a save and in a load",
        (
            one("SIGKILL in a save", "is_killed/save:1", "killed", 1, says="the save did not finish"),
            one("SIGKILL in a load", "is_killed/load:0", "killed", 0),
            one("exception in a save", "raises/save:1", "checkpoint_save", ANY_RANK),
            one("shard overwritten, SIGKILL", "overwrites_a_shard:1", "killed", 1),
            one("loading that shard", "", "checkpoint_load", ANY_RANK, 1, "it cannot be loaded"),
        ),
    ),
    Trial(
        "hangs, with heartbeats",
        (
            one("hang in training", "sleeps:1", "hang_steady", 1),
            one("hang in a section", "stays_in_a_section:0", "hang_section", 0),
            one("hang before any progress", "sleeps/begin:1", "hang_initial", 1),
        ),
        options=(*HEARTBEATS, *SECTION, *NO_STALL_RULE),
        is_warm=False,  # waiting for standbys would be a hang
    ),
    Trial(
        "hang, without heartbeats",
        (one("standstill of all ranks", "sleeps:1", "stall", 1),),
        options=("--ft-set", "timeouts.stall=5"),
    ),
    Trial(
        "memory",
        (one("OOM kill in a memory cgroup", "uses_up_memory:1", "host_oom", 1, says="memory limit 1.0 GiB"),),
        place=Place.SMALL_MEMORY,
        is_warm=False,  # none are made where so little memory is free
        is_quick=True,
    ),
    Trial(
        "disk",
        (one("disk full in a save, once", "fills_the_disk:0", "disk_full", ANY_RANK, says="is full: 0 KiB"),),
        place=Place.SMALL_DISK,
    ),
    Trial(
        "shared memory",
        (
            one("/dev/shm full, SIGBUS", "writes_to_full_memory:1", "bus_error", 1, says=FILLED_SHM),
            one("/dev/shm full, data loader hangs", "loads_batches_by_full_memory:1", "hang_section", 1),
        ),
        place=Place.SMALL_SHM,
        options=(*SECTION, *NO_STALL_RULE),
    ),
    Trial(
        "missing import",
        until_stop(IMPORT, 1),
        93,
        "before any progress, so a restart would fail the same way",
        is_quick=True,
    ),
    Trial("bug before progress", until_stop(BEFORE_PROGRESS, 2), 93, "the same exception twice in a row"),
    Trial("bug at a step", until_stop(SAME_STEP, 3), 93, "the same failure for the 3rd time at step 7"),
    Trial("budget", until_stop(EXIT_3, 2), 3, "all 1 restarts are used up", options=("--max-restarts", "1")),
    Trial(
        "disk for good",
        until_stop(NO_ROOM, 3),
        93,
        "2 restarts in a row brought no new step and no new checkpoint",
        place=Place.SMALL_DISK,
        options=("--ft-set", "restart.max_no_progress=2"),
    ),
    Trial(
        "no checkpoint left",
        # That there is none is found out when the next round is put together.
        (one("all checkpoints bad, SIGKILL", "loses_all_metadata:1", "killed", 1, says="has no .metadata"),),
        93,
        "no checkpoint is whole any more, and starting from nothing would throw away",
        is_warm=False,  # it is lost before the agent has looked
        is_quick=True,
    ),
    Trial("master port in use", (), 95, "is taken by pid", place=Place.BUSY_PORT, is_quick=True),
    Trial(
        "two nodes",
        (Fault("SIGSEGV and SIGKILL at once", "segfaults:0+is_killed:1", (("segfault", 0), ("killed", 1))),),
        nodes=2,
    ),
)

UNDISTURBED = Trial("undisturbed", (), least_steps=max(trial.steps for trial in TRIALS))
"""What the weights of all trials are compared with."""

"""What a node tells of the end of a round, and where it keeps all of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ftrun.healthchecks.cgroup import OomCounter
from ftrun.launcher.evidence import Ends, Gatherer, evidence_event, is_worth_keeping
from ftrun.launcher.model import Plan
from ftrun.launcher.process import ExitStatus
from ftrun.launcher.ranks import assign
from ftrun.launcher.surroundings import Surroundings
from ftrun.monitor.heartbeats import OpenSection
from ftrun.monitor.incident import Evidence, FaultReport, IncidentKind, MemoryPressure, Space
from ftrun.monitor.page import PageSnapshot
from ftrun.monitor.redaction import Redactor

CGROUP = "sys/fs/cgroup"
PRESSURE = "some avg10=12.50 avg60=3.00 avg300=0.00 total=5\nfull avg10=7.25 avg60=1.00 avg300=0.00 total=3\n"


@dataclass
class Worker:
    """As much of a worker as the gatherer asks for."""

    rank: int
    local_rank: int
    pid: int = 4242
    exit_code: int | None = 1
    exited_at: float = 0.0
    is_stopped_by_agent: bool = False
    error_file: str = ""
    stacks_file: str = ""


@dataclass
class Node:
    """A node of a test: its gatherer, and the files that this reads."""

    root: Path
    gatherer: Gatherer = field(init=False)

    def __post_init__(self) -> None:
        self.logs = self.root / "attempt_3"
        self.logs.mkdir()
        self.write("proc/self/cgroup", "0::/job\n")
        self.write(f"{CGROUP}/job/memory.max", "2147483648\n")
        self.kills(4)
        oom = OomCounter(self.root / "proc", self.root / CGROUP)
        surroundings = Surroundings({}, str(self.root))
        self.gatherer = Gatherer("n", oom, surroundings, Redactor(["hunter22hunter22"]))

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def kills(self, count: int) -> None:
        self.write(f"{CGROUP}/job/memory.events", f"oom 9\noom_kill {count}\n")

    def begin(self, resume_from: str | None = "/c/step-40") -> None:
        plan = Plan(3, 1, assign([2])[0], "127.0.0.1", 1, resume_from, 40, is_resume_known=True)
        self.gatherer.begin_round(plan, self.logs)

    def gather(
        self,
        workers: Sequence[Worker],
        pages: Mapping[int, PageSnapshot] | None = None,
        tail: tuple[str, ...] = (),
        seen_at: float = 0.0,
    ) -> Evidence:
        self.gatherer.note_end(workers)  # type: ignore[arg-type]
        statuses = {one.local_rank: ExitStatus(one.exit_code or 0, 1 << 20) for one in workers}
        shown = pages or {one.local_rank: PageSnapshot() for one in workers}
        ends = Ends(workers, statuses, shown, {one.local_rank: tail for one in workers})  # type: ignore[arg-type]
        return self.gatherer.gather(ends, seen_at)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_times_are_relative_to_the_round_on_this_node(node: Node) -> None:
    """From when its workers were about to start to the failure, and from the last sign of progress to it."""
    before = time.monotonic()
    node.begin()
    after = time.monotonic()
    page = PageSnapshot(steps=7, reported_step=47, first_progress_at=after + 1, last_progress_at=after + 3)
    page = replace(page, sections=(OpenSection("step", after), OpenSection("save", after)))
    found = node.gather([Worker(1, 1, exited_at=after + 5)], {1: page})
    (exit,) = found.exits
    assert exit.since_start_s is not None
    assert 5.0 <= exit.since_start_s <= 5.0 + after - before
    assert exit.beat_age_s == pytest.approx(2.0)
    assert (exit.steps, exit.last_step, exit.sections) == (7, 47, ("step", "save"))
    assert (found.round_number, found.resume_from, found.has_progressed) == (3, "/c/step-40", True)


def test_rank_without_progress_has_no_beat(node: Node) -> None:
    """Unknown is not zero."""
    node.begin(None)
    found = node.gather([Worker(1, 1)])
    assert (found.exits[0].beat_age_s, found.exits[0].last_step, found.resume_from) == (None, None, "")


def test_kernel_s_figures_of_the_round(node: Node) -> None:
    """OOM kills since the round began, the limit, and how short memory was, by the job's own cgroup."""
    node.begin()
    node.kills(6)
    node.write(f"{CGROUP}/job/memory.pressure", PRESSURE)
    found = node.gather([Worker(1, 1)])
    assert (found.oom_kills, found.memory_limit_bytes) == (2, 2 << 30)
    assert found.pressure == MemoryPressure(12.5, 7.25, is_of_cgroup=True)


def test_pressure_of_a_container_is_its_own(tmp_path: Path) -> None:
    """In a namespace of its own the job's group is the root that it sees."""
    for place, pressure in (("cgroup", PRESSURE), ("proc/pressure", PRESSURE.replace("12.50", "0.00"))):
        (tmp_path / place).mkdir(parents=True)
        name = "memory.pressure" if place == "cgroup" else "memory"
        (tmp_path / place / name).write_text(pressure)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "cgroup/memory.events").write_text("oom_kill 0\n")
    found = OomCounter(tmp_path / "proc", tmp_path / "cgroup").memory_pressure()
    assert found is not None
    assert (found[0].some_avg10, found[1]) == (12.5, True)


def test_pressure_of_the_machine_where_the_cgroup_has_none(node: Node) -> None:
    """Cgroups of version 1 have no such file, and old kernels have none at all."""
    node.begin()
    assert node.gather([Worker(1, 1)]).pressure is None
    node.write("proc/pressure/memory", PRESSURE)
    assert node.gather([Worker(1, 1)]).pressure == MemoryPressure(12.5, 7.25, is_of_cgroup=False)


def test_room_is_looked_at_when_the_first_rank_has_failed(node: Node) -> None:
    """What a dying process and its peers hold is given back until the round is over."""
    node.begin()
    node.gatherer.note_exits([Worker(0, 0, exit_code=0)])  # type: ignore[list-item]
    node.gatherer.note_exits([Worker(1, 1, exit_code=-7)])  # type: ignore[list-item]
    at_failure = node.gather([Worker(1, 1)]).spaces
    assert [space.what for space in at_failure] == ["shared memory", "logs", "checkpoints"]
    (node.root / "filler").write_bytes(b"x" * (8 << 20))
    assert node.gather([Worker(1, 1)]).spaces == at_failure


def test_secrets_are_masked_in_all_texts(node: Node) -> None:
    """In stderr, in the exception's message and in its traceback; the error file itself stays as it is."""
    node.begin()
    record = {
        "message": {
            "message": "ValueError: api_key=abc is wrong",
            "extraInfo": {"py_callstack": "raise ValueError('hunter22hunter22')"},
        }
    }
    error_file = node.write("error.json", json.dumps(record))
    worker = Worker(1, 1, error_file=str(error_file))
    found = node.gather([worker], tail=("HF_TOKEN=abc and hunter22hunter22", "lr=0.1"))
    (exit,) = found.exits
    assert exit.stderr_tail == ("HF_TOKEN=*** and ***", "lr=0.1")
    assert exit.error is not None
    assert (exit.error.message, exit.error.traceback) == ("api_key=*** is wrong", "raise ValueError('***')")
    assert exit.error_file == str(error_file)


def test_long_texts_are_cut_before_they_are_looked_at(node: Node) -> None:
    """To what tells the kind of failure; a secret at the cut is not left in part."""
    node.begin()
    limit = 64 << 10
    head = "x " * (limit // 2 - 4)
    text = f"{head}hunter22hunter22 {'a-b-' * 500_000} No space left on device"
    error_file = node.write("error.json", json.dumps({"message": f"ValueError: {text}"}))
    began_at = time.process_time()
    found = node.gather(
        [Worker(1, 1, error_file=str(error_file))], tail=("y" * 3_000_000, "CUDA out of memory")
    )
    assert time.process_time() - began_at < 5.0
    (exit,) = found.exits
    assert exit.error is not None
    assert len(exit.error.message) < limit + 1000
    assert "No space left on device" in exit.error.message
    assert "hunter" not in exit.error.message
    assert sum(map(len, exit.stderr_tail)) < limit + 1000
    assert exit.stderr_tail[-1] == "CUDA out of memory"


def test_what_a_script_says_is_told_without_secrets(node: Node) -> None:
    """As what it leaves behind is."""
    assert node.gatherer.mask("bad password=abc, hunter22hunter22") == "bad password=***, ***"


def test_report_is_told_without_secrets(node: Node) -> None:
    """It is the script's own text."""
    report = FaultReport(1, IncidentKind.NAN_LOSS, "password=abc gave hunter22hunter22")
    told = node.gatherer.with_report(QUIET, report).report
    assert told == FaultReport(1, IncidentKind.NAN_LOSS, "password=*** gave ***")
    assert node.gatherer.with_report(QUIET, None) == QUIET


def test_last_fifty_lines_of_stderr_are_told(node: Node) -> None:
    """The rest is in the log file."""
    node.begin()
    found = node.gather([Worker(1, 1)], tail=tuple(f"line {number}" for number in range(64)))
    assert found.exits[0].stderr_tail[0] == "line 14"
    assert len(found.exits[0].stderr_tail) == 50


def test_stacks_are_named_if_there_are_any(node: Node) -> None:
    """An empty file was only made in case."""
    node.begin()
    stacks, empty = node.write("s.txt", "Thread 0x1"), node.write("e.txt", "")
    workers = [Worker(0, 0, stacks_file=str(stacks)), Worker(1, 1, stacks_file=str(empty)), Worker(2, 2)]
    assert [exit.stacks_file for exit in node.gather(workers).exits] == [str(stacks), "", ""]


def test_all_of_it_is_kept_beside_the_logs(node: Node) -> None:
    """Readable as JSON, replaced as a whole, and named in the journal; nothing else is left behind."""
    node.begin()
    kept = node.gatherer.keep(node.gather([Worker(1, 1)]))
    path = node.logs / "evidence.json"
    assert kept.file == str(path)
    data = json.loads(path.read_text())
    assert (data["node"], data["exits"][0]["rank"], data["file"]) == ("n", 1, str(path))
    node.gatherer.keep(replace(kept, unhealthy="gpu 1 is lost"))
    assert json.loads(path.read_text())["unhealthy"] == "gpu 1 is lost"
    assert [one.name for one in node.logs.iterdir()] == ["evidence.json"]
    event = evidence_event(kept)
    assert (event.round, event.file, event.resume_from) == (3, str(path), "/c/step-40")
    assert event.spaces[0].startswith("/dev/shm (shared memory) is")


def test_evidence_that_cannot_be_written_is_told_all_the_same(node: Node) -> None:
    """The disk may be what failed."""
    node.begin()
    found = node.gather([Worker(1, 1)])
    (node.logs / "evidence.json").mkdir()
    assert node.gatherer.keep(found) == found
    assert [one.name for one in node.logs.iterdir()] == ["evidence.json"]


QUIET = Evidence("n", 3, (), False)


@pytest.mark.parametrize(
    ("evidence", "is_kept"),
    [
        (QUIET, False),
        (replace(QUIET, start_failure="no process"), True),
        (replace(QUIET, unreachable="no way"), True),
        (replace(QUIET, report=FaultReport(1, IncidentKind.NAN_LOSS, "x")), True),
        (replace(QUIET, spaces=(Space("/", "logs", 0, 0),)), False),
    ],
)
def test_end_in_which_all_went_well_leaves_no_evidence(evidence: Evidence, is_kept: bool) -> None:
    """A run that finishes writes no file about it."""
    assert is_worth_keeping(evidence) is is_kept

"""Carries out one trial of the fault matrix: runs its job to the end and reads what became of it.

What is said of steps and of weights is the ranks' own account, what is said of incidents and decisions the
agents' journals.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from faults_matrix import ANY_RANK, SAVE_EVERY, Fault, Trial
from faults_places import enter
from job import find_free_port

from ftrun.monitor import events
from ftrun.monitor.journal import read
from ftrun.monitor.records import Record

WORLD_SIZE = 2
DEADLINE_S = 400.0
SCRIPT = Path(__file__).with_name("faults_train.py")
_TOKEN = "FAULTS_TOKEN"
_NOT_PASSED_ON = ("FTRUN_", "PET_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")
_LOOK_EVERY_S = 0.1
_GONE_WITHIN_S = 15.0

E = TypeVar("E", bound=events.Event)


class TrialError(Exception):
    """The job did not end in time."""


@dataclass(frozen=True, slots=True)
class Course:
    """What came of one round that failed."""

    kind: str
    culprit: int
    action: str
    lost_steps: int | None
    """Done in that round, and to be done again; None if there was no further round."""
    told_lost_steps: int | None
    """As the journal has it; None if training did not go on."""
    recovered_s: float | None
    """From when the failure was seen to when all ranks had progressed again; None if they did not."""
    account: str
    """What the journal says of the incident and of checkpoints that are not used because of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trial."""

    exit_codes: tuple[int, ...]
    """Per node."""
    restarts: int
    reason: str
    """Why the job ended."""
    courses: tuple[Course, ...]
    last_step: int
    digests: Mapping[tuple[int, int], frozenset[str]]
    """By step and rank: each time that it was come to."""
    left: tuple[str, ...]
    """Processes that outlived their agent."""
    is_agreed: bool
    """All nodes have the same incidents in their journals."""
    output: str
    """For a person."""

    def is_equal_to(self, undisturbed: Outcome) -> bool:
        """Whether every checkpoint of every rank, the last one too, has the same bits as in that run."""
        return bool(self.digests) and all(
            digests == undisturbed.digests.get(at) for at, digests in self.digests.items()
        )


class _Node:
    """An agent and its journal."""

    def __init__(self, directory: Path, command: list[str], environment: Mapping[str, str]) -> None:
        self._directory = directory
        (directory / "tmp").mkdir(parents=True)
        own = {
            "TMPDIR": directory / "tmp",
            "XDG_STATE_HOME": directory / "state",
            "PET_FT_RUN_DIR": directory / "run",
        }
        with (directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={**environment, **{name: str(path) for name, path in own.items()}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return (self._directory / "output").read_text(errors="replace")

    def records(self) -> list[Record]:
        return [record for file in (self._directory / "run").glob("*.jsonl") for record in read(file)]

    def events(self, kind: type[E]) -> list[E]:
        return [record.event for record in self.records() if isinstance(record.event, kind)]

    def workers_of(self, restart_count: int) -> int:
        """Workers that have been told their rank in a round."""
        rounds = {one.round for one in self.events(events.RoundClosed) if one.restart_count == restart_count}
        return sum(event.round in rounds for event in self.events(events.WorkerStarted))

    def standing_by(self) -> int:
        """Workers that are ready for a later round."""
        used = {event.pid for event in self.events(events.WorkerStarted)}
        return len({event.pid for event in self.events(events.StandbyReadied)} - used)


def carry_out(trial: Trial, directory: Path, has_time: bool = True) -> Outcome:
    """Run the trial's job, all its files below `directory`, which is empty.

    A run of ordinary length has standbys long before a fault. With `has_time` this waits for them; without,
    the trial is over sooner, and its recoveries take longer.

    Raises:
        NotHereError: its place cannot be had here.
        TrialError: it did not end in time.
    """
    checkpoints, out = directory / "checkpoints", directory / "out"
    for path in (checkpoints, out):
        path.mkdir()
    token = secrets.token_hex(16)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    environment[_TOKEN] = token
    script = [str(SCRIPT), str(out), str(checkpoints), str(trial.steps), *(one.deed for one in trial.faults)]
    with enter(trial.place, checkpoints) as entrance:
        options = _options(trial, checkpoints)
        command = [*entrance.wrapper, sys.executable, "-m", "ftrun.launcher", *options, *entrance.options]
        nodes = []
        try:
            for rank in range(trial.nodes):
                place = ("--node-rank", str(rank)) if trial.nodes > 1 else ()
                nodes.append(_Node(directory / f"node{rank}", [*command, *place, *script], environment))
            _attend(trial, nodes, out, has_time)
            left = _wait_until_gone(token)
        finally:
            for node in nodes:
                node.process.kill()
                node.process.wait()
            _end_all(token)
    return _read_outcome(trial, nodes, out, left)


def _options(trial: Trial, checkpoints: Path) -> list[str]:
    options = ["--ft-checkpoint-dir", str(checkpoints), "--max-restarts", "10", *trial.options]
    if trial.nodes == 1:
        return ["--nproc-per-node", str(WORLD_SIZE), *options]
    endpoint = f"127.0.0.1:{find_free_port()}"
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "faults"]
    return ["--nnodes", str(trial.nodes), *meeting, "--ft-set", "rdzv.lost_after=20", *options]


def _attend(trial: Trial, nodes: list[_Node], out: Path, has_time: bool) -> None:
    """Until all agents have ended; lets things happen when standbys are there, or at once."""
    until = time.monotonic() + DEADLINE_S
    gone = 0
    while any(node.process.poll() is None for node in nodes):
        if gone < len(trial.faults) and (not has_time or _may_go_on(trial, nodes, gone)):
            (out / f"go-{gone}").touch()
            gone += 1
        if time.monotonic() > until:
            outputs = "\n".join(node.output[-4000:] for node in nodes)
            raise TrialError(f"{trial.name!r} did not end within {DEADLINE_S:.0f} s:\n{outputs}")
        time.sleep(_LOOK_EVERY_S)


def _may_go_on(trial: Trial, nodes: list[_Node], restarts: int) -> bool:
    """Whether the workers of that round run and others stand by."""
    if not trial.is_warm or restarts >= trial.restarts:
        return True  # none stand by where no restart is left
    if any(node.events(events.StandbySuspended) for node in nodes):
        return True  # for want of memory, say
    running = sum(node.workers_of(restarts) for node in nodes)
    return running == WORLD_SIZE and sum(node.standing_by() for node in nodes) >= WORLD_SIZE


def _living(token: str) -> dict[int, str]:
    """Every process of the trial that is there and no zombie: pid to command line."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            if f"{_TOKEN}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _wait_until_gone(token: str) -> tuple[str, ...]:
    """What is left some seconds after the agents have ended."""
    until = time.monotonic() + _GONE_WITHIN_S
    while (living := _living(token)) and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
    return tuple(living.values())


def _end_all(token: str) -> None:
    until = time.monotonic() + _GONE_WITHIN_S
    while (living := _living(token)) and time.monotonic() < until:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)


def _read_outcome(trial: Trial, nodes: list[_Node], out: Path, left: tuple[str, ...]) -> Outcome:
    ended = nodes[0].events(events.RunEnded)
    steps = _read_steps(out)
    return Outcome(
        exit_codes=tuple(node.process.returncode for node in nodes),
        restarts=ended[-1].restart_count if ended else 0,
        reason=ended[-1].reason if ended else "",
        courses=tuple(_courses(nodes, steps)),
        last_step=max((step for _, step in steps), default=0),
        digests=_read_digests(out),
        left=left,
        is_agreed=len({_verdicts(node) for node in nodes}) == 1,
        output="\n".join(node.output for node in nodes),
    )


def _verdicts(node: _Node) -> tuple[tuple[int, str, int], ...]:
    """Round, kind and culprit of each incident."""
    found = node.events(events.IncidentDiagnosed)
    return tuple((event.round, event.incident_kind, event.culprit_rank) for event in found)


def _courses(nodes: list[_Node], steps: set[tuple[int, int]]) -> Iterator[Course]:
    decisions = {event.round: event for event in nodes[0].events(events.RestartDecided)}
    begun = {event.round: event for event in nodes[0].events(events.RoundClosed)}
    accounts = _accounts(nodes[0])
    for incident in nodes[0].events(events.IncidentDiagnosed):
        failed, following = begun[incident.round], begun.get(incident.round + 1)
        back = [
            event
            for node in nodes
            for event in node.events(events.RecoveryCompleted)
            if following is not None and event.round == following.round
        ]
        lost = None
        if following is not None:
            began_at = failed.resume_step or 0
            done = max((step for restart, step in steps if restart == failed.restart_count), default=began_at)
            lost = done - (following.resume_step or 0)
        yield Course(
            kind=incident.incident_kind,
            culprit=incident.culprit_rank,
            action=decisions[incident.round].action if incident.round in decisions else "",
            lost_steps=lost,
            told_lost_steps=max((one.steps_redone or 0 for one in back), default=None),
            recovered_s=max((one.total_s for one in back), default=None),
            account="\n".join(accounts[incident.round]),
        )


def _accounts(node: _Node) -> dict[int, list[str]]:
    """Sentences by round, until the next one is closed."""
    found: dict[int, list[str]] = {}
    number = -1
    for record in node.records():
        match record.event:
            case events.RoundClosed(round=number):
                pass
            case events.IncidentDiagnosed(reasons=reasons):
                found.setdefault(number, []).extend(reasons)
            case events.CheckpointSkipped(reason=reason) | events.CheckpointQuarantined(reason=reason):
                found.setdefault(number, []).append(reason)
    return found


def _read_steps(out: Path) -> set[tuple[int, int]]:
    """Restart count and step of all that any rank has done."""
    lines = [line for file in out.glob("steps-*") for line in file.read_text().splitlines()]
    return {(int(restart), int(step)) for restart, _, step in (line.partition(" ") for line in lines)}


def _read_digests(out: Path) -> dict[tuple[int, int], frozenset[str]]:
    found: dict[tuple[int, int], frozenset[str]] = {}
    for file in out.glob("digests-*"):
        rank = int(file.name.partition("-")[2])
        for line in file.read_text().splitlines():
            step, _, digest = line.partition(" ")
            found[int(step), rank] = found.get((int(step), rank), frozenset()) | {digest}
    return found


def objections(trial: Trial, outcome: Outcome, undisturbed: Outcome) -> list[str]:
    """Where the outcome is not what the matrix has; none if all is well."""
    found = [f"left behind: {command}" for command in outcome.left]
    if not outcome.is_agreed:
        found.append("the nodes have different incidents in their journals")
    if set(outcome.exit_codes) != {trial.exit_code}:
        found.append(f"exit codes {outcome.exit_codes}, expected {trial.exit_code}")
    if trial.says not in outcome.reason:
        found.append(f"the reason is {outcome.reason!r}, expected is {trial.says!r} in it")
    if outcome.restarts != trial.restarts:
        found.append(f"{outcome.restarts} restarts, expected {trial.restarts}")
    if len(outcome.courses) != len(trial.faults):
        kinds = [course.kind for course in outcome.courses]
        found.append(f"incidents {kinds}, expected one for each of {[fault.name for fault in trial.faults]}")
    for number, (fault, course) in enumerate(zip(trial.faults, outcome.courses, strict=False)):
        is_followed = number < trial.restarts
        found += [f"{fault.name}: {what}" for what in _objections_to(fault, course, is_followed)]
    if not outcome.is_equal_to(undisturbed) and outcome.digests:
        found.append("the weights are not those of the undisturbed run")
    if trial.exit_code == 0 and outcome.last_step != trial.steps:
        found.append(f"ended after step {outcome.last_step}, expected {trial.steps}")
    return found


def _objections_to(fault: Fault, course: Course, is_followed: bool) -> Iterator[str]:
    accounts = {(course.kind, course.culprit), (course.kind, ANY_RANK)}
    if accounts.isdisjoint(fault.culprits):
        yield f"{course.kind} of rank {course.culprit}, expected {fault.culprits}"
    if fault.says not in course.account:
        yield f"the account is {course.account!r}, expected is {fault.says!r} in it"
    if course.action != fault.action:
        yield f"decision {course.action!r}, expected {fault.action!r}"
    if not is_followed:
        return
    most = SAVE_EVERY * (1 + fault.lost_saves)
    if course.lost_steps is None or not 0 <= course.lost_steps <= most:
        yield f"{course.lost_steps} steps lost, at most {most} may be"
    if course.told_lost_steps not in (None, course.lost_steps):
        yield f"the journal has {course.told_lost_steps} steps lost, it were {course.lost_steps}"

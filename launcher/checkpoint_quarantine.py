"""Which checkpoints are not trusted any more, from how the rounds that began from them ended. Pure.

A checkpoint can be whole and still end the job: it holds what cannot be loaded, or weights that cannot be
trained. One that is proven to be bad is quarantined at once; one that is only suspected after `max_failures`
rounds that began from it and ended before the next one was complete, if there is another to begin from or the
policy would not end the job by itself. Ends that cannot be a checkpoint's doing
(a lost node, SIGKILL from outside, memory that ran out) say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ftrun.launcher.checkpoint_choice import choose_common, trusted
from ftrun.launcher.messages import Join, Memory, SeenCheckpoint
from ftrun.launcher.model import PastIncident
from ftrun.monitor.incident import Incident, RankExit
from ftrun.monitor.signature import CONFIDENCE

_SUSPECTS = frozenset(
    {
        "checkpoint_load",
        "exception",
        "exit_code",
        "segfault",
        "abort",
        "bus_error",
        "hang_initial",
        "nan_loss",
    }
)
"""Kinds of incident that a checkpoint can bring about, as `IncidentKind` has their values; weights that are
not numbers do so after many steps."""
_SUSPECTS_WITHOUT_PROGRESS = frozenset({"hang_steady", "hang_section", "stall"})
"""Those that loading can bring about, and that are the network's or a GPU's doing in later steps."""
_PROVEN = "checkpoint_load"
"""The kind that proves damage, if its confidence is that of something found."""
_STOPPED_FROM_OUTSIDE = frozenset({128 + 2, 128 + 9, 128 + 15})
"""Exit codes by which a shell reports SIGINT, SIGKILL and SIGTERM."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A text in an exception or on stderr, and where it is made."""

    pattern: re.Pattern[str]
    source: str


_OTHERWISE = (
    _Text(re.compile(r"out of memory|OutOfMemoryError|MemoryError"), "torch, CUDA, Python"),
    _Text(re.compile(r"No space left on device|Disk quota exceeded"), "strerror(ENOSPC), strerror(EDQUOT)"),
    _Text(re.compile(r"Address already in use"), "strerror(EADDRINUSE)"),
    _Text(
        re.compile(r"CUDA error|CUDNN_STATUS|NCCL error|uncorrectable ECC"),
        "c10/cuda/CUDAException.cpp, NCCL",
    ),
    _Text(re.compile(r"DataLoader worker"), "torch/utils/data/dataloader.py"),
    _Text(re.compile(r"KeyboardInterrupt"), "Python"),
)
"""Causes that have nothing to do with what a checkpoint holds."""

_CORRUPTION = (
    _Text(re.compile(r"PytorchStreamReader failed"), "caffe2/serialize/inline_container.cc"),
    _Text(re.compile(r"unexpected EOF, expected \d+ more bytes"), "torch/csrc/serialization.cpp"),
    _Text(re.compile(r"BadZipFile|File is not a zip file|Bad CRC-32"), "Lib/zipfile.py"),
    _Text(
        re.compile(r"UnpicklingError|pickle data was truncated|invalid load key|Ran out of input"),
        "Modules/_pickle.c",
    ),
    _Text(
        re.compile(r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer"),
        "safetensors/src/tensor.rs",
    ),
    _Text(re.compile(r"FileNotFoundError: .*\.distcp"), "torch/distributed/checkpoint/filesystem.py"),
)
"""What readers of files say of those that are damaged."""

_LOADER = re.compile(r"torch/distributed/checkpoint/(?:state_dict_loader|filesystem|default_planner)\.py")
"""A frame of torch DCP's, which reads nothing but checkpoints."""


class Suspicion(Enum):
    """Whether a checkpoint may have ended the round that began from it."""

    NONE = "none"
    SUSPECTED = "suspected"
    PROVEN = "proven"


@dataclass(frozen=True, slots=True)
class TrustRules:
    """What `ftrun.checkpoint` says of trust."""

    max_failures: int = 2
    """Rounds that may begin from a suspected checkpoint before it is quarantined; 0 for no limit."""
    if_none: str = "fresh"
    """fresh: begin from nothing if there never was a checkpoint; stop: never."""
    renames: bool = True
    """A quarantined checkpoint is renamed too, for scripts that look for the newest themselves."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A checkpoint that has just lost its trust."""

    checkpoint: SeenCheckpoint
    reason: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """A quarantined checkpoint is to be renamed, or one that was to have its name again."""

    path: str
    fallback: str | None
    """What is used instead, for files that say which checkpoint is the last; None if nothing is."""
    is_taken_back: bool = False


def suspect(incident: Incident, checkpoint: SeenCheckpoint) -> Suspicion:
    """Whether `checkpoint`, from which the round began, may be why it ended."""
    kind, culprit = incident.kind.value, incident.culprit
    if kind == _PROVEN and incident.confidence >= CONFIDENCE["found"]:
        return Suspicion.PROVEN
    is_early = not incident.has_progressed and kind in _SUSPECTS_WITHOUT_PROGRESS
    if (kind not in _SUSPECTS and not is_early) or culprit.exit_code in _STOPPED_FROM_OUTSIDE:
        return Suspicion.NONE
    text = _account_of(culprit)
    if any(one.pattern.search(text) for one in _OTHERWISE):
        return Suspicion.NONE
    # Scripts read other files too, such as a pretrained model: those say nothing of the checkpoint.
    is_about_it = checkpoint.path in text or _LOADER.search(text) is not None
    is_corrupt = any(one.pattern.search(text) for one in _CORRUPTION)
    is_proven = is_corrupt and is_about_it and not incident.has_progressed
    return Suspicion.PROVEN if is_proven else Suspicion.SUSPECTED


def _account_of(exit: RankExit) -> str:
    """What is known in words of how a rank ended."""
    if exit.error is None:
        return "\n".join(exit.stderr_tail)
    return f"{exit.error.type_name}: {exit.error.message}\n{exit.error.traceback}"


def examine(
    memory: Memory, incident: Incident, joins: Sequence[Join], rules: TrustRules
) -> tuple[Memory, Quarantined | None]:
    """What is remembered of trust after a round that ended in `incident`; and what has lost it, if any.

    `memory` is that of the round; `joins` says what the nodes see now.
    """
    began = memory.resume
    if began is None:
        return memory, None
    suspicion = suspect(incident, began)
    if suspicion is Suspicion.NONE:
        return memory, None
    offers = [join.checkpoints for join in joins if join.has_checkpoint_dir]
    names = {one.identity for seen in offers for one in seen if one.path == began.path} | {began.identity}
    newest = choose_common([trusted(seen, memory.quarantined) for seen in offers])
    is_surpassed = newest is not None and newest.identity not in names
    if suspicion is Suspicion.SUSPECTED and is_surpassed:
        return replace(memory, resume_failures=0), None
    failures = memory.resume_failures + 1
    is_enough = 0 < rules.max_failures <= failures
    quarantined = tuple(dict.fromkeys((*memory.quarantined, *sorted(names))))
    # Without another to begin from, the job ends with the exception's second time: nothing would be gained.
    is_last = choose_common([trusted(seen, quarantined) for seen in offers]) is None
    is_kept = _is_script_to_blame(memory.history, incident) or (is_last and _is_early_exception(incident))
    if suspicion is Suspicion.SUSPECTED and (not is_enough or is_kept):
        return replace(memory, resume_failures=failures), None
    reason = _explain(suspicion, failures, incident)
    return replace(memory, resume_failures=0, quarantined=quarantined), Quarantined(began, reason)


def _explain(suspicion: Suspicion, failures: int, incident: Incident) -> str:
    if suspicion is Suspicion.PROVEN:
        return f"it cannot be loaded: {incident.reasons[0]}"
    return (
        f"{failures} rounds that began from it ended before the next one was complete, the last one since "
        f"{incident.reasons[0]}"
    )


_MARK = "|quarantined "


def mark(incident: Incident, quarantined: Quarantined) -> Incident:
    """The incident as the policy is to see it: the next round begins elsewhere and is no repetition."""
    return replace(incident, fingerprint=f"{incident.fingerprint}{_MARK}{quarantined.checkpoint.path}")


def _is_script_to_blame(history: Sequence[PastIncident], incident: Incident) -> bool:
    """Whether an older checkpoint has brought the same end: then neither is to blame for it."""
    if incident.has_progressed:
        return False
    before = (past.fingerprint for past in history if not past.has_progressed)
    return any(fingerprint.startswith(f"{incident.fingerprint}{_MARK}") for fingerprint in before)


def _is_early_exception(incident: Incident) -> bool:
    """One that ends the job when it comes twice in a row."""
    return incident.kind.is_of_exception and not incident.has_progressed


@dataclass(frozen=True, slots=True)
class Cleared:
    """A checkpoint that was quarantined for what is not its doing."""

    path: str
    fingerprint: str
    """Of the incident for which it was quarantined, as the policy has it."""


def find_cleared(memory: Memory, incident: Incident) -> Cleared | None:
    """The checkpoint that was quarantined after the round before, if the one which took its place has now
    brought the same exception before any progress: then neither of them is to blame for it.
    """
    if memory.resume is None or not memory.history or not _is_early_exception(incident):
        return None
    last = memory.history[-1]
    fingerprint, marked, path = last.fingerprint.partition(_MARK)
    if last.has_progressed or not marked or fingerprint != incident.fingerprint:
        return None
    is_suspected = suspect(incident, memory.resume) is Suspicion.SUSPECTED
    return Cleared(path, last.fingerprint) if is_suspected else None


def begin_from(memory: Memory, resume: SeenCheckpoint | None) -> Memory:
    """The memory of a round that begins from `resume`."""
    is_same = resume is not None and memory.resume is not None and resume.path == memory.resume.path
    return replace(memory, resume=resume, resume_failures=memory.resume_failures if is_same else 0)


def explain_none_left(memory: Memory, joins: Sequence[Join], rules: TrustRules) -> str:
    """Why a round that has no checkpoint must not begin from nothing; "" if it may."""
    searching = [join for join in joins if join.has_checkpoint_dir]
    if not searching:
        return ""
    what = "starting from nothing would throw away the training that was done"
    remedy = "repair what is below the checkpoint directory, or give another directory (checkpoint.dir)"
    seeing = {join.agent.node: trusted(join.checkpoints, memory.quarantined) for join in searching}
    if any(seeing.values()):
        return f"no checkpoint is seen by all nodes ({_who_sees_what(seeing)}), and {what}; {remedy}"
    if memory.quarantined:
        paths = ", ".join(dict.fromkeys(name.rpartition("@")[0] for name in memory.quarantined))
        return f"no checkpoint is left: {paths} cannot be used, and {what}; {remedy}"
    nodes = [join.agent.node for join in searching if join.is_resume_expected]
    if nodes or memory.resume is not None:
        where = f" on {', '.join(nodes)}" if nodes and len(joins) > 1 else ""
        return f"no checkpoint is whole any more{where}, and {what}; {remedy}"
    if rules.if_none == "stop":
        return "there is no checkpoint, and checkpoint.if_none is stop: save one, or set it to fresh"
    return ""


def _who_sees_what(seeing: Mapping[str, Sequence[SeenCheckpoint]]) -> str:
    return ", ".join(f"{node}: {seen[0].path if seen else 'none'}" for node, seen in sorted(seeing.items()))

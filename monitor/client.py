"""What a training script may import from ftrun: all of it does nothing when ftrun is not there.

Nothing here is needed: without it, optimizer steps count as progress. It does not import torch.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING

from ftrun.monitor.page_writer import PAGE_VARIABLE, OpenedSection, attached, make_beat

if TYPE_CHECKING:
    from ftrun.monitor.manifest_writer import ManifestWriter

RESUME_VARIABLE = "FTRUN_RESUME_FROM"
_LAUNCHER_VARIABLE = "FT_LAUNCHER_IPC_SOCKET"
_REQUEST_TIMEOUT_S = 10.0
_MAX_REASON_CHARACTERS = 4000
REPORTABLE = ("nan_loss", "checkpoint_load", "checkpoint_save", "data_loader")
"""Kinds of incident that a script may report: what it sees before, or better than, its launcher."""


heartbeat = make_beat(attached)


class section:
    """Says that the script is in a part of its work that may have a time limit of its own.

    `with section("eval"): ...`; sections may lie in each other, and an exception closes them too. Limits are
    those of `fault_tolerance.rank_section_timeouts`; a section that has none there is only shown. Of a name,
    the first 40 bytes count.
    """

    __slots__ = ("_name", "_opened")

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened: list[OpenedSection | None] = []

    def __enter__(self) -> None:
        page = attached()
        self._opened.append(None if page is None else page.sections.open(self._name))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        page, opened = attached(), self._opened.pop()
        if page is not None and opened is not None:
            page.sections.close(opened)


def checkpoint_saved(
    path: str | os.PathLike[str],
    step: int | None = None,
    has_checksums: bool = True,
    blocking_s: float | None = None,
) -> None:
    """Says that the checkpoint at `path` is wholly on disk; `step` is the step that it holds.

    To be called by every rank, also those that have only written a part of it. In the background, and without
    disturbing training, each then leaves the checksums of its own files beside them: by these a checkpoint is
    found to be damaged before it is loaded. With `has_checksums=False` none are made.

    `blocking_s` says for how many seconds training stood still for it. Without it, a call on the main thread
    counts the time since the last step, and one on another thread, as after an asynchronous save, none.
    """
    page = attached()
    if page is not None:
        page.mark_checkpoint(os.path.abspath(path), step, blocking_s)
        rank = os.environ.get("RANK", "")
        if has_checksums and rank.isdecimal():
            _order_manifest(os.path.abspath(path), step, int(rank))


def resume_from() -> str | None:
    """The checkpoint that every rank is to load; None to start from the beginning."""
    return os.environ.get(RESUME_VARIABLE) or None


def request_stop(reason: str) -> bool:
    """Asks ftrun to end the whole job for good, e.g. since the loss is not a number any more.

    The job then ends with exit code 93, which tells a scheduler not to run it again, and shows `reason`.
    Returns whether ftrun has taken the request; it then stops this process too, soon.
    """
    return _request("SHUTDOWN_WORKLOAD", reason)


def exclude_this_node(reason: str) -> bool:
    """Asks ftrun to go on without this node, e.g. since its results are wrong. Returns as `request_stop`."""
    return _request("EXCLUDE_THIS_NODE", reason)


def report_fault(kind: str, reason: str) -> bool:
    """Says that training cannot go on from here, for a fault that only the script can see.

    `kind` is "nan_loss", "checkpoint_load", "checkpoint_save" or "data_loader". The round ends on all nodes,
    and ftrun decides as after any failure: mostly to begin again from the newest checkpoint, or from an older
    one if that came to the same end before. Returns as `request_stop`.

    Raises:
        ValueError: there is no such kind to be reported.
    """
    if kind not in REPORTABLE:
        raise ValueError(f"report_fault: kind is {kind!r}; expected is one of {', '.join(REPORTABLE)}")
    return _request("REPORT_FAULT", f"{kind}: {reason}")


def is_running_under_ftrun() -> bool:
    """Whether this process is a worker of ftrun (or a child of one)."""
    return PAGE_VARIABLE in os.environ


_manifests: list[ManifestWriter] = []
"""The one of this process, once a checkpoint was saved."""


def _order_manifest(path: str, step: int | None, rank: int) -> None:
    from ftrun.monitor.manifest_writer import ManifestWriter

    if not _manifests:
        _manifests.append(ManifestWriter())
        os.register_at_fork(after_in_child=_manifests[0].forget)
    _manifests[0].order(path, step, rank)


def _request(action: str, reason: str) -> bool:
    path = os.environ.get(_LAUNCHER_VARIABLE)
    if not path or not is_running_under_ftrun():
        return False
    from ftrun.monitor import wire, workload_requests

    rank = os.environ.get("RANK", "")
    request = wire.ControlRequest(
        int(rank) if rank.isdecimal() else None,
        wire.WorkloadAction[action],
        str(reason)[:_MAX_REASON_CHARACTERS],
    )
    return workload_requests.send(path, request, _REQUEST_TIMEOUT_S)

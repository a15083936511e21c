"""What this node knows of the job's checkpoints: looks before each round and while training.

Which one a round begins from, the host agent decides (`ftrun.launcher.checkpoint_trust`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ftrun.launcher.checkpoint import Checkpoints
from ftrun.launcher.checkpoint_choice import SkippedCheckpoint, WholeCheckpoints
from ftrun.launcher.checkpoint_evidence import WHOLE, Share
from ftrun.launcher.messages import SeenCheckpoint
from ftrun.launcher.model import Plan
from ftrun.launcher.round_account import DiskSave
from ftrun.monitor import events

_OFFERED = 3
"""More than one, because another node may not see the newest yet; a few, because each is looked into."""
_SCOUT_TIMEOUT_S = 600.0
"""Of a look while training runs, which reads whole files at the lowest priority and waits for nobody."""


@dataclass(frozen=True, slots=True)
class CheckpointOffer:
    """What this node can begin the next round from."""

    seen: tuple[SeenCheckpoint, ...] = ()
    """Whole ones, newest first."""
    is_expected: bool = False
    """There is or was one: a start from nothing would throw training away."""
    is_empty: bool = False
    """Nothing at all is in the directory: whatever the script does, it begins from nothing."""


class CheckpointWatch:
    """Looks at the checkpoints of this node; for the agent's main thread."""

    def __init__(
        self, checkpoints: Checkpoints, record: Callable[[events.Event], None], share: Share = WHOLE
    ) -> None:
        self._checkpoints = checkpoints
        self._record = record
        self._share = share
        self._told: set[tuple[type[events.Event], SkippedCheckpoint]] = set()
        self._has_seen_any = False
        self._offered: tuple[SeenCheckpoint, ...] = ()
        self._scout: threading.Thread | None = None
        self._newest: SeenCheckpoint | None = None

    @property
    def newest(self) -> str | None:
        """Path of the newest whole checkpoint, as far as `scout` has seen."""
        return None if self._newest is None else self._newest.path

    def newest_on_disk(self) -> DiskSave | None:
        """The same with its age, by the file system's clock."""
        seen = self._newest
        if seen is None or not seen.saved_ns:
            return None
        return DiskSave(seen.path, seen.step, time.time() - seen.saved_ns / 1e9, seen.identity)

    def offer(self, avoided: Collection[str] = (), has_saved: bool = False) -> CheckpointOffer:
        """Look before a round; `has_saved` says that the script has reported a checkpoint in the last one."""
        whole = self._checkpoints.look(_OFFERED, avoided, self._share)
        self._tell(whole)
        self._offered = whole.seen
        self._has_seen_any |= bool(whole.seen) or has_saved or self.newest is not None
        return CheckpointOffer(whole.seen, self._has_seen_any or whole.has_lost_any, whole.is_empty)

    def begin_round(self, plan: Plan) -> None:
        """From now on this node compares the checksums of its share of this round's ranks."""
        if len(plan.nodes) > 1:
            self._share = Share(plan.ranks.group_rank, len(plan.nodes))

    def saved_at(self, path: str | None) -> float | None:
        """When a checkpoint that was offered last was saved, CLOCK_MONOTONIC seconds; None if unknown."""
        saved_ns = next((one.saved_ns for one in self._offered if one.path == path), 0)
        return saved_ns / 1e9 - (time.time() - time.monotonic()) if saved_ns else None

    def scout(self, avoided: Collection[str] = ()) -> None:
        """Look while training runs, so that a restart knows most files; in a thread of lowest priority."""
        if self._scout is None or not self._scout.is_alive():
            self._scout = threading.Thread(target=self._look_for_newest, args=(avoided,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had now: it is looked at another time
                self._scout.start()

    def _look_for_newest(self, avoided: Collection[str]) -> None:
        whole = self._checkpoints.look(1, avoided, self._share, _SCOUT_TIMEOUT_S, is_background=True)
        self._newest = whole.seen[0] if whole.seen else None

    def _tell(self, whole: WholeCheckpoints) -> None:
        """Each finding once, not at every restart."""
        kinds = ((events.CheckpointSkipped, whole.skipped), (events.CheckpointUnverified, whole.unverified))
        for kind, found in kinds:
            for one in found:
                if (kind, one) not in self._told:
                    self._told.add((kind, one))
                    self._record(kind(str(one.path), one.reason))

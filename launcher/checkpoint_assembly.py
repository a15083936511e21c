"""From the configuration to the parts of a job that deal with checkpoints."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

from ftrun.launcher.checkpoint import Checkpoints
from ftrun.launcher.checkpoint_config import CheckpointConfig
from ftrun.launcher.checkpoint_evidence import Share
from ftrun.launcher.checkpoint_quarantine import TrustRules
from ftrun.launcher.checkpoint_watch import CheckpointWatch
from ftrun.launcher.nodes import RendezvousSetting
from ftrun.monitor import events


def trust_of(section: CheckpointConfig) -> TrustRules:
    """When a checkpoint is quarantined, and what then becomes of it."""
    return TrustRules(section.max_failures, section.if_none, section.quarantine == "rename")


def make_checkpoint_watch(
    section: CheckpointConfig,
    setting: RendezvousSetting,
    node: str,
    record: Callable[[events.Event], None],
) -> CheckpointWatch | None:
    """What looks at the checkpoints; None if it is not known where they are.

    Before the first round nobody knows which nodes take part: each reads a share by its place or its name.
    """
    if section.dir is None:
        return None
    place = zlib.crc32(node.encode()) if setting.rank_hint is None else setting.rank_hint
    checkpoints = Checkpoints(Path(section.dir), section.look_timeout)
    return CheckpointWatch(checkpoints, record, Share(place, setting.max_nodes))

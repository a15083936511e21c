"""The `ftrun.checkpoint` section: where checkpoints are, and which of them are trusted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.launcher import values as v
from ftrun.launcher.values import setting


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where checkpoints are, how long they may be looked at, and when one is not used any more."""

    dir: str | None = setting(
        None,
        v.TEXT_OR_OFF,
        "path",
        "The newest whole checkpoint below it is handed to the workers of each round.",
    )
    quarantine: str = setting(
        "rename",
        v.choice_of("rename", "remember"),
        "rename or remember",
        "What becomes of a checkpoint that ends the rounds that begin from it: rename also gives it another "
        "name, for scripts that look for the newest themselves; remember only keeps ftrun from it.",
    )
    max_failures: int = setting(
        2,
        v.COUNT,
        "rounds",
        "How many rounds may begin from a checkpoint and fail before the next one is complete, by what may "
        "be its doing; then it is quarantined. 0 quarantines only what is proven to be damaged.",
    )
    if_none: str = setting(
        "fresh",
        v.choice_of("fresh", "stop"),
        "fresh or stop",
        "fresh begins from nothing if there never was a checkpoint; stop never does. Where there was one, "
        "neither does.",
    )
    look_timeout: float = setting(
        30.0,
        v.INTERVAL,
        "seconds",
        "Longest look at the checkpoints before a round, checksums included; a file system that is slower "
        "does not hold up the job.",
    )

"""What a training script may import from ftrun: all of it does nothing when ftrun is not there.

Nothing here is needed: without it, optimizer steps count as progress. It does not import torch.
"""

from __future__ import annotations

import os

from ftrun.monitor.page_writer import PAGE_VARIABLE, attached

RESUME_VARIABLE = "FTRUN_RESUME_FROM"


def heartbeat(step: int | None = None) -> None:
    """Says that training moves; cheap enough (under 1 us) for each step. `step` is your step number."""
    page = attached()
    if page is not None:
        page.beat(step)


def checkpoint_saved(path: str | os.PathLike[str], step: int | None = None) -> None:
    """Says that the checkpoint at `path` is wholly on disk; `step` is the step that it holds."""
    page = attached()
    if page is not None:
        page.mark_checkpoint(os.path.abspath(path), step)


def resume_from() -> str | None:
    """The checkpoint that every rank is to load; None to start from the beginning."""
    return os.environ.get(RESUME_VARIABLE) or None


def is_running_under_ftrun() -> bool:
    """Whether this process is a worker of ftrun (or a child of one)."""
    return PAGE_VARIABLE in os.environ

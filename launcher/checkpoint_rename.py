"""Renames a quarantined checkpoint, so that scripts that look for the newest themselves do not find it.

Nothing is deleted: taking the suffix off the name again makes it a checkpoint again. Files beside it that say
which checkpoint is the last ("latest") are made to name the one that is used instead.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ftrun.launcher.checkpoint_choice import read_step
from ftrun.launcher.checkpoint_quarantine import SetAside
from ftrun.launcher.checkpoint_search import TRACKERS
from ftrun.monitor import events

SUFFIX = ".ftrun-quarantined"
_LOCAL = "*/{name}_*_local.pt"
"""Where nvidia-resiliency-ext's local files are, seen from the directory of their ranks."""
_WAIT_S = 1.0
"""Longest wait for it: the next round should find it gone, but not wait for a dead file server."""


def set_aside_in_thread(order: SetAside, post: Callable[[events.Event], None]) -> None:
    """Rename in a thread and `post` what came of it; returns when it is done, or after a second."""
    thread = threading.Thread(target=lambda: post(set_aside(order)), name="ftrun-quarantine", daemon=True)
    thread.start()
    thread.join(_WAIT_S)


def set_aside(order: SetAside) -> events.CheckpointRenamed:
    """Rename the checkpoint, and what points to it; the event says what was done, or why nothing was."""
    path = Path(order.path)
    if order.is_taken_back:
        return _take_back(path, order.fallback)
    fallback = None if order.fallback is None else Path(order.fallback)
    try:
        if not os.path.lexists(path):
            return _set_local_files_aside(path)
        target = _free_name(path)
        path.rename(target)
    except OSError as error:
        return events.CheckpointRenamed(str(path), None, f"{type(error).__name__}: {error.strerror}")
    try:
        changed = [*_redirect_trackers(path, fallback), *_redirect_links(path, fallback)]
    except OSError as error:
        changed = [f"what names it beside it could not be changed: {error.strerror}"]
    reason = "; ".join([*changed, f"take {SUFFIX} off its name to use it again"])
    return events.CheckpointRenamed(str(path), str(target), reason)


def _take_back(path: Path, fallback: str | None) -> events.CheckpointRenamed:
    """Give it its name again, in trackers too; links stay, since others may have led to the fallback."""
    try:
        if not (renamed := _last_renamed(path)):
            return _take_local_files_back(path)
        if os.path.lexists(path):
            return events.CheckpointRenamed(str(renamed), None, f"there is another {path.name} now")
        renamed.rename(path)
        changed = [] if fallback is None else list(_redirect_trackers(Path(fallback), path))
    except OSError as error:
        return events.CheckpointRenamed(str(path), None, f"{type(error).__name__}: {error.strerror}")
    reason = "; ".join(["it is probably good", *changed])
    return events.CheckpointRenamed(str(renamed), str(path), reason)


def _last_renamed(path: Path) -> Path | None:
    """What was set aside last under the name; a rename sets st_ctime."""
    found = path.parent.glob(f"{glob.escape(path.name)}{SUFFIX}*")
    return max(found, key=lambda one: one.lstat().st_ctime_ns, default=None)


def _take_local_files_back(path: Path) -> events.CheckpointRenamed:
    """Those of this node for which there is no newer one."""
    files = sorted(path.parent.glob(_LOCAL.format(name=glob.escape(path.name)) + SUFFIX))
    free = [one for one in files if not os.path.lexists(one.with_name(one.name.removesuffix(SUFFIX)))]
    for file in free:
        file.rename(file.with_name(file.name.removesuffix(SUFFIX)))
    if not free:
        return events.CheckpointRenamed(f"{path}{SUFFIX}", None, "it is not there any more")
    reason = f"{len(free)} files of ranks have their names again"
    return events.CheckpointRenamed(f"{path}{SUFFIX}", str(path), reason)


def _free_name(path: Path) -> Path:
    """One that is not taken: a checkpoint of the same step may have been quarantined before."""
    target, number = path.with_name(path.name + SUFFIX), 1
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}{SUFFIX}-{number}")
    return target


def _set_local_files_aside(path: Path) -> events.CheckpointRenamed:
    """For a name that stands for a file per rank: those that are on this node."""
    files = sorted(path.parent.glob(_LOCAL.format(name=path.name)))
    for file in files:
        file.rename(_free_name(file))
    if not files:
        return events.CheckpointRenamed(str(path), None, "it is not there any more")
    target = f"{path}{SUFFIX}"
    return events.CheckpointRenamed(str(path), target, f"{len(files)} files of ranks were renamed")


def _redirect_trackers(path: Path, fallback: Path | None) -> Iterator[str]:
    for name in TRACKERS:
        tracker = path.parent / name
        if tracker.is_symlink() or not tracker.is_file():
            continue
        text = tracker.read_text().strip()
        step = read_step(path.name)
        if text != path.name and (step is None or read_step(text) != step):
            continue
        replacement = _name_for_tracker(path, fallback, text)
        if replacement is None:
            tracker.rename(_free_name(tracker))
            yield f"{name}, which named it, was renamed too"
        else:
            partial = tracker.with_name(f"{name}.partial")
            partial.write_text(replacement)
            partial.replace(tracker)
            yield f"{name} now names {replacement}"


def _name_for_tracker(path: Path, fallback: Path | None, text: str) -> str | None:
    """The fallback as the tracker would have it: Megatron writes numbers, DeepSpeed names."""
    if fallback is None or fallback.parent != path.parent:
        return None
    step = read_step(fallback.name)
    return (None if step is None else str(step)) if text.isdecimal() else fallback.name


def _redirect_links(path: Path, fallback: Path | None) -> Iterator[str]:
    """Links beside it that led to it."""
    with os.scandir(path.parent) as listing:
        links = [Path(entry.path) for entry in listing if entry.is_symlink()]
    for link in links:
        if Path(os.path.normpath(link.parent / os.readlink(link))) != path:
            continue
        if fallback is None or fallback.parent != link.parent:
            link.rename(_free_name(link))
            yield f"the link {link.name} was renamed too"
            continue
        partial = link.with_name(f"{link.name}.partial")
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        partial.symlink_to(fallback.name)
        partial.replace(link)
        yield f"the link {link.name} now leads to {fallback.name}"

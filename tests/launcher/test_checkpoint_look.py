"""A look at the checkpoints comes back in time whatever the file system does; findings are told once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.launcher.checkpoint import Checkpoints
from ftrun.launcher.checkpoint_disk import Disk, Memory, TooSlowError
from ftrun.launcher.checkpoint_watch import CheckpointWatch
from ftrun.launcher.messages import SeenCheckpoint
from ftrun.launcher.model import Plan
from ftrun.launcher.ranks import assign
from ftrun.monitor import events
from tests.support.checkpoints import cut, save_dcp, shard_of
from tests.support.waiting import until


@contextlib.contextmanager
def stuck_metadata(checkpoint: Path) -> Iterator[None]:
    """Reads of its metadata do not return, as from a file server that is gone, until the end."""
    metadata = checkpoint / ".metadata"
    metadata.unlink()
    os.mkfifo(metadata)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # lets whoever still reads come to an end
            os.close(os.open(metadata, os.O_WRONLY | os.O_NONBLOCK))


def test_look_that_is_stuck_comes_back_and_is_not_repeated_for_ever(tmp_path: Path) -> None:
    """Each stuck look costs a thread, so there are two at most."""
    threads = threading.active_count()
    with stuck_metadata(save_dcp(tmp_path / "step-40")):
        checkpoints = Checkpoints(tmp_path, 1.0, memory=Memory())  # long enough to get to where it sticks
        began_at = time.monotonic()
        found = [checkpoints.look() for _ in range(4)]
        assert time.monotonic() - began_at < 20
        assert all(one.has_lost_any and not one.seen for one in found)
        assert ["does not answer" in one.skipped[0].reason for one in found] == [True, True, False, False]
        assert "an earlier look has not come back" in found[-1].skipped[0].reason
        assert threading.active_count() <= threads + 2


def test_look_that_is_too_slow_answers_with_what_was_seen_before(tmp_path: Path) -> None:
    """A file system that is slow for a moment does not send the job back to the start."""
    save_dcp(tmp_path / "step-20")
    newest = save_dcp(tmp_path / "step-40")
    checkpoints = Checkpoints(tmp_path, 5, memory=Memory())
    before = checkpoints.look()
    assert [one.step for one in before.seen] == [40, 20]
    with stuck_metadata(newest):
        late = checkpoints.look(timeout_s=0.1)
        assert late.seen == before.seen
        assert "was not looked through within 0.1 s (checkpoint.look_timeout)" in late.skipped[0].reason
        avoided = checkpoints.look(avoided=[before.seen[0].identity], timeout_s=0.1)
        assert [one.step for one in avoided.seen] == [20]


def test_first_look_that_is_too_slow_is_no_empty_directory(tmp_path: Path) -> None:
    """Nothing seen is not the same as nothing there."""
    save_dcp(tmp_path / "step-40")
    found = Checkpoints(tmp_path, 0.0, memory=Memory()).look()
    assert (found.seen, found.has_lost_any) == ((), True)


def test_thousands_of_files_are_listed_in_time(tmp_path: Path) -> None:
    """Three hundred steps, most of them never finished."""
    for step in range(300):
        (tmp_path / f"step-{step}").mkdir()
    save_dcp(tmp_path / "step-40")
    began_at = time.monotonic()
    found = Checkpoints(tmp_path, memory=Memory()).look()
    assert [one.step for one in found.seen] == [40]
    assert time.monotonic() - began_at < 10


def test_deadline_is_named_by_how_far_a_look_came() -> None:
    """The person who reads it sees whether more time would help."""
    now = [0.0]
    disk = Disk(10.0, lambda: now[0], Memory())

    def answer(place: int) -> int:
        now[0] += 4.0
        return place

    with pytest.raises(TooSlowError, match="looking"):
        disk.map(answer, range(4), "looking")


def test_memory_forgets_what_has_changed(tmp_path: Path) -> None:
    """A shard that is cut off after the first look is found at the second."""
    save_dcp(tmp_path / "step-20")
    newest = save_dcp(tmp_path / "step-40")
    checkpoints = Checkpoints(tmp_path)
    assert [one.step for one in checkpoints.look().seen] == [40, 20]
    cut(shard_of(newest))
    assert [one.step for one in checkpoints.look().seen] == [20]


def test_checkpoint_that_is_saved_anew_is_another_one(tmp_path: Path) -> None:
    """What was quarantined may be saved again by the rounds after it."""
    checkpoint = save_dcp(tmp_path / "step-40")
    checkpoints = Checkpoints(tmp_path)
    [seen] = checkpoints.look().seen
    assert checkpoints.look(avoided=[seen.identity]).seen == ()
    save_dcp(checkpoint)
    os.utime(checkpoint / ".metadata", (2e9, 2e9))
    assert [one.path for one in checkpoints.look(avoided=[seen.identity]).seen] == [seen.path]


def watch_of(directory: Path) -> tuple[CheckpointWatch, list[events.Event]]:
    """A node's watch, and what it tells."""
    told: list[events.Event] = []
    return CheckpointWatch(Checkpoints(directory), told.append), told


def test_finding_is_told_once(tmp_path: Path) -> None:
    """Not again at every restart."""
    save_dcp(tmp_path / "step-20")
    cut(shard_of(save_dcp(tmp_path / "step-40")))
    watch, told = watch_of(tmp_path)
    for _ in range(3):
        assert [one.step for one in watch.offer().seen] == [20]
    assert [(event.kind, getattr(event, "path", "")) for event in told] == [
        ("checkpoint.skipped", str(tmp_path / "step-40"))
    ]


@pytest.mark.parametrize(
    ("prepare", "is_expected"),
    [
        (lambda d: None, False),
        (lambda d: (d / "step-20").mkdir(), False),
        (lambda d: (save_dcp(d / "step-20") / ".metadata").unlink(), False),
        (lambda d: cut(shard_of(save_dcp(d / "step-20"))), True),
        (lambda d: save_dcp(d / "step-20"), True),
    ],
    ids=["empty", "save has just begun", "save was killed", "damaged", "whole"],
)
def test_node_knows_whether_there_was_a_checkpoint(
    tmp_path: Path, prepare: object, is_expected: bool
) -> None:
    """A first save that was killed is no loss; one that was whole once is."""
    prepare(tmp_path)  # type: ignore[operator]
    assert watch_of(tmp_path)[0].offer().is_expected == is_expected


def test_node_remembers_that_there_was_a_checkpoint(tmp_path: Path) -> None:
    """Also if the script said so and the file system is gone now."""
    watch, _ = watch_of(tmp_path / "unmounted")
    assert not watch.offer().is_expected
    assert watch.offer(has_saved=True).is_expected
    assert watch.offer().is_expected


def test_scout_sees_the_newest_while_training(tmp_path: Path) -> None:
    """In a thread; the next restart knows the files already."""
    save_dcp(tmp_path / "step-40")
    watch, _ = watch_of(tmp_path)
    watch.scout()
    until(lambda: watch.newest is not None, lambda: "nothing is seen", 60.0)
    assert watch.newest == str(tmp_path / "step-40")


def test_age_of_a_checkpoint_is_by_the_time_of_its_last_part(tmp_path: Path) -> None:
    """On the clock by which the node measures everything else."""
    checkpoint = save_dcp(tmp_path / "step-40")
    hour_ago = time.time() - 3600
    os.utime(checkpoint / ".metadata", (hour_ago, hour_ago))
    watch, _ = watch_of(tmp_path)
    [seen] = watch.offer().seen
    plan = Plan(0, 0, assign([1])[0], "h", 1, seen.path)
    saved_at = watch.saved_at(plan.resume_from)
    assert saved_at is not None
    assert time.monotonic() - saved_at == pytest.approx(3600, abs=60)
    assert watch.saved_at(None) is None
    assert SeenCheckpoint(seen.path, 40).identity != seen.identity

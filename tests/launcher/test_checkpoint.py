"""The launcher picks the newest checkpoint that is really whole, and says why it passes over others."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ftrun.launcher.checkpoint import find_newest_whole, find_whole
from ftrun.launcher.checkpoint_choice import (
    Candidate,
    choose_common,
    find_blind,
    order_newest_first,
    read_step,
)
from ftrun.launcher.checkpoint_metadata import MetadataError, read_required_lengths
from ftrun.launcher.messages import SeenCheckpoint


def save(directory: Path) -> Path:
    """Writes a small checkpoint as torch does."""
    state = {
        "model": {"weight": torch.ones(64, 16), "bias": torch.zeros(16, dtype=torch.bfloat16)},
        "step": 7,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.save(state, checkpoint_id=directory, no_dist=True)
    return directory


def shard_of(checkpoint: Path) -> Path:
    return next(checkpoint.glob("*.distcp"))


def set_modified(checkpoint: Path, seconds: int) -> None:
    os.utime(checkpoint / ".metadata", (seconds, seconds))


class RunsACommand:
    """Unpickling this creates a file, unless the unpickler refuses."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-40", 40),
        ("global_step40", 40),
        ("iter_0000040", 40),
        ("40", 40),
        ("step-40.tmp", None),
        ("latest", None),
        ("", None),
    ],
)
def test_step_is_the_number_at_the_end_of_the_name(name: str, step: int | None) -> None:
    """Every usual way to name a step directory is read; a name without a final number has no step."""
    assert read_step(name) == step


def test_newest_is_decided_by_number_not_by_time(tmp_path: Path) -> None:
    """Step 100 is newer than step 20, whatever the order of writing and of the letters."""
    save(tmp_path / "step-100")
    save(tmp_path / "step-20")
    set_modified(tmp_path / "step-100", 1000)
    choice = find_newest_whole(tmp_path)
    assert (choice.path, choice.step, choice.skipped) == (tmp_path / "step-100", 100, ())


def test_newest_is_decided_by_time_when_a_name_has_no_number(tmp_path: Path) -> None:
    """A finished checkpoint without a number can only be compared with others by time."""
    save(tmp_path / "step-100")
    save(tmp_path / "final")
    set_modified(tmp_path / "step-100", 1000)
    choice = find_newest_whole(tmp_path)
    assert (choice.path, choice.step) == (tmp_path / "final", None)


def test_unfinished_directory_without_number_does_not_change_the_order(tmp_path: Path) -> None:
    """A temporary directory is passed over and the finished ones are still compared by number."""
    finished = [
        Candidate(Path("step-2"), 2, is_finished=True, saved_ns=9),
        Candidate(Path("step-10"), 10, is_finished=True, saved_ns=1),
    ]
    unfinished = Candidate(Path("tmp-x"), None, is_finished=False, saved_ns=5)
    ordered = order_newest_first([*finished, unfinished])
    assert [c.path.name for c in ordered] == ["tmp-x", "step-10", "step-2"]


@pytest.mark.parametrize("below", ["", "step-40", "run/step-40"])
def test_checkpoints_are_found_at_depth_zero_one_and_two(tmp_path: Path, below: str) -> None:
    """The given directory, its children and its grandchildren are searched."""
    expected = save(tmp_path / below)
    assert find_newest_whole(tmp_path).path == expected


def test_missing_directory_gives_an_empty_choice(tmp_path: Path) -> None:
    """Before the first save there is nothing, and that is no error."""
    choice = find_newest_whole(tmp_path / "not-there-yet")
    assert (choice.path, choice.step, choice.skipped) == (None, None, ())


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    """A wrong path is told to the user rather than taken for an empty directory."""
    (tmp_path / "file").touch()
    choice = find_newest_whole(tmp_path / "file")
    assert choice.path is None
    assert "Not a directory" in choice.skipped[0].reason


def test_directory_without_metadata_is_passed_over(tmp_path: Path) -> None:
    """A save that was killed before the commit is never chosen."""
    save(tmp_path / "step-20")
    (save(tmp_path / "step-40") / ".metadata").unlink()
    (tmp_path / "step-60").mkdir()
    choice = find_newest_whole(tmp_path)
    assert choice.step == 20
    assert [s.path.name for s in choice.skipped] == ["step-60", "step-40"]
    assert all(s.reason.startswith("has no .metadata") for s in choice.skipped)


def test_truncated_shard_is_passed_over_with_both_lengths(tmp_path: Path) -> None:
    """One missing byte is enough, and the reason states what was found and what is needed."""
    save(tmp_path / "step-20")
    shard = shard_of(save(tmp_path / "step-40"))
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    choice = find_newest_whole(tmp_path)
    assert choice.step == 20
    assert choice.skipped[0].reason == f"shard {shard.name} has {size - 1} bytes, {size} are needed"


def test_missing_shard_is_passed_over(tmp_path: Path) -> None:
    """A shard that metadata names must be there."""
    shard = shard_of(save(tmp_path / "step-40"))
    shard.unlink()
    choice = find_newest_whole(tmp_path)
    assert choice.path is None
    assert choice.skipped[0].reason == f"shard {shard.name} cannot be read: No such file or directory"


def test_metadata_cut_at_any_place_is_refused(tmp_path: Path) -> None:
    """A torn .metadata, whether short or filled up with zeros, gives a reason and never another exception."""
    whole = (save(tmp_path / "step-40") / ".metadata").read_bytes()
    assert read_required_lengths(whole)
    for length in range(0, len(whole) - 1, 3):
        for torn in (whole[:length], whole[:length] + bytes(len(whole) - length)):
            with pytest.raises(MetadataError):
                read_required_lengths(torn)


@pytest.mark.parametrize(
    "content", [{"storage_data": {}}, [1, 2], None, "text", 40], ids=lambda value: type(value).__name__
)
def test_foreign_pickles_are_refused(tmp_path: Path, content: object) -> None:
    """A pickle of something else is not metadata."""
    (save(tmp_path / "step-40") / ".metadata").write_bytes(pickle.dumps(content))
    choice = find_newest_whole(tmp_path)
    assert choice.path is None
    assert choice.skipped[0].reason == ".metadata does not list any shard"


def test_pickle_that_wants_to_run_code_is_refused_and_not_run(tmp_path: Path) -> None:
    """Whoever can write into the checkpoint directory cannot make the launcher run a command."""
    checkpoint, victim = save(tmp_path / "step-40"), tmp_path / "victim"
    (checkpoint / ".metadata").write_bytes(pickle.dumps(RunsACommand(victim)))
    choice = find_newest_whole(tmp_path)
    assert choice.path is None
    assert f"names {os.mkdir.__module__}.mkdir" in choice.skipped[0].reason
    assert not victim.exists()


def test_shard_outside_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """Metadata that points to files elsewhere does not describe this directory."""
    checkpoint = save(tmp_path / "step-40")
    metadata = (checkpoint / ".metadata").read_bytes()
    name = shard_of(checkpoint).name.encode()
    (checkpoint / ".metadata").write_bytes(metadata.replace(name, b"../" + name[3:]))
    choice = find_newest_whole(tmp_path)
    assert choice.path is None
    assert "outside of the checkpoint" in choice.skipped[0].reason


def test_link_to_a_checkpoint_is_followed_and_counted_once(tmp_path: Path) -> None:
    """A link "latest" neither hides the real name nor switches the comparison to times."""
    save(tmp_path / "step-20")
    save(tmp_path / "step-40")
    set_modified(tmp_path / "step-40", 1000)
    (tmp_path / "latest").symlink_to("step-20", target_is_directory=True)
    assert find_newest_whole(tmp_path).path == tmp_path / "step-40"
    assert find_newest_whole(tmp_path / "latest").step == 20


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """A link to a parent directory does not keep the search going."""
    save(tmp_path / "run" / "step-40")
    (tmp_path / "run" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self").symlink_to("self")
    assert find_newest_whole(tmp_path).step == 40


def test_relative_directory_gives_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may have another working directory than the launcher."""
    save(tmp_path / "step-40")
    monkeypatch.chdir(tmp_path)
    assert find_newest_whole(Path(".")).path == tmp_path / "step-40"


def test_choosing_does_not_import_torch(tmp_path: Path) -> None:
    """The choice is made before the workers start, when an import of torch would cost seconds."""
    save(tmp_path / "step-40")
    code = (
        "import sys; from pathlib import Path; from ftrun.launcher.checkpoint import find_newest_whole;"
        "print(find_newest_whole(Path(sys.argv[1])).step, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.split() == ["40", "False"]


def test_newest_whole_ones_are_found_in_order_up_to_a_limit(tmp_path: Path) -> None:
    """Torn ones are passed over with their reasons; what is older than the last one is not looked at."""
    for step in (10, 20, 30, 40, 50):
        save(tmp_path / f"step-{step}")
    for step in (10, 40):
        shard_of(tmp_path / f"step-{step}").unlink()
    found = find_whole(tmp_path, limit=3)
    assert [(one.path, one.step) for one in found.seen] == [
        (str(tmp_path / f"step-{step}"), step) for step in (50, 30, 20)
    ]
    assert [one.path.name for one in found.skipped] == ["step-40"]
    assert [one.path.name for one in find_whole(tmp_path, limit=9).skipped] == ["step-40", "step-10"]


def test_missing_directory_has_no_whole_ones(tmp_path: Path) -> None:
    """Before the first save a node has nothing to offer."""
    assert find_whole(tmp_path / "not-there-yet").seen == ()


def seen(*names: str) -> tuple[SeenCheckpoint, ...]:
    """What a node offers, newest first; names are paths."""
    return tuple(SeenCheckpoint(name, read_step(name)) for name in names)


COMMON_CASES: dict[str, tuple[list[tuple[str, ...]], str | None, str | None, str]] = {
    "no node has a directory": ([], None, None, ""),
    "one node": ([("s40", "s30")], "s40", "s40", ""),
    "all see the same": ([("s40", "s30"), ("s40", "s30")], "s40", "s40", ""),
    "one is late": ([("s30", "s20"), ("s40", "s30")], "s30", "s40", "0"),
    "one sees nothing": ([("s40",), (), ("s40",)], None, "s40", "1"),
    "nobody sees anything": ([(), ()], None, None, ""),
    "nothing in common": ([("s40",), ("s30",)], None, "s40", "1"),
    "other names of one directory": ([("/a/s40",), ("/b/s40",)], None, "/a/s40", "1"),
    "numbers decide": ([("s100", "s20"), ("s100", "s20")], "s100", "s100", ""),
    "times decide without a number": ([("last", "s99"), ("last", "s99")], "last", "last", ""),
    "times decide, as nodes have them": ([("s20", "s99", "last"), ("s20", "s99", "last")], "s20", "s20", ""),
    "times, one is late": ([("first", "s9"), ("last", "first", "s9")], "first", "last", "0"),
    "times, orders differ": ([("a", "b"), ("b", "a")], "a", "a", ""),
}


@pytest.mark.parametrize(("names", "common", "newest", "blind"), COMMON_CASES.values(), ids=COMMON_CASES)
def test_newest_that_all_nodes_see_is_chosen_and_who_misses_the_newest_is_known(
    names: list[tuple[str, ...]], common: str | None, newest: str | None, blind: str
) -> None:
    """All ranks load the same checkpoint; a node whose file system is late does not decide unseen."""
    offers = [seen(*one) for one in names]
    chosen = choose_common(offers)
    assert (chosen.path if chosen else None) == common
    best, missing = find_blind({str(place): offer for place, offer in enumerate(offers)})
    assert ((best.path if best else None), "".join(missing)) == (newest, blind)

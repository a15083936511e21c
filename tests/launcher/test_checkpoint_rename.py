"""A quarantined checkpoint is out of the way of scripts that look for the newest themselves, and not lost."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.launcher.checkpoint import find_whole
from ftrun.launcher.checkpoint_quarantine import SetAside
from ftrun.launcher.checkpoint_rename import set_aside, set_aside_in_thread
from ftrun.monitor import events
from tests.support.checkpoints import save_dcp, save_file, save_megatron


def newest(directory: Path) -> str:
    """Name of what would be used."""
    return Path(find_whole(directory).seen[0].path).name


def test_directory_gets_a_suffix_and_the_one_before_is_the_newest(tmp_path: Path) -> None:
    """Taking the suffix off makes it a checkpoint again."""
    for step in (20, 40):
        save_dcp(tmp_path / f"step-{step}")
    done = set_aside(SetAside(str(tmp_path / "step-40"), str(tmp_path / "step-20")))
    assert (done.path, done.new_path) == (
        str(tmp_path / "step-40"),
        str(tmp_path / "step-40.ftrun-quarantined"),
    )
    assert newest(tmp_path) == "step-20"
    Path(str(done.new_path)).rename(done.path)
    assert newest(tmp_path) == "step-40"


def test_the_same_step_can_be_quarantined_again(tmp_path: Path) -> None:
    """Names that are taken are left alone."""
    save_dcp(tmp_path / "step-20")
    for expected in ("", "-2", "-3"):
        save_dcp(tmp_path / "step-40")
        done = set_aside(SetAside(str(tmp_path / "step-40"), None))
        assert done.new_path == str(tmp_path / f"step-40.ftrun-quarantined{expected}")
    assert newest(tmp_path) == "step-20"


def test_file_is_no_checkpoint_any_more(tmp_path: Path) -> None:
    """Its suffix is not the one that Lightning looks for."""
    for step in (20, 40):
        save_file(tmp_path / f"step={step}.ckpt")
    set_aside(SetAside(str(tmp_path / "step=40.ckpt"), None))
    assert newest(tmp_path) == "step=20.ckpt"
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["step=20.ckpt"]


@pytest.mark.parametrize(
    ("tracked", "fallback", "text"),
    [("40", "iter_0000020", "20"), ("20", "iter_0000020", "20"), ("40", None, None)],
)
def test_megatron_tracker_names_the_fallback(
    tmp_path: Path, tracked: str, fallback: str | None, text: str | None
) -> None:
    """Otherwise Megatron would look for a directory that is not there."""
    save_megatron(tmp_path, 20, 40, tracked=40)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text(tracked)
    path = str(tmp_path / "iter_0000040")
    set_aside(SetAside(path, None if fallback is None else str(tmp_path / fallback)))
    assert (tracker.read_text() if tracker.exists() else None) == text


def test_deepspeed_tracker_and_links_name_the_fallback(tmp_path: Path) -> None:
    """A name stays a name, and a link a link."""
    for step in (20, 40):
        save_file(tmp_path / f"global_step{step}" / "model.pt")
    (tmp_path / "latest").write_text("global_step40")
    (tmp_path / "newest").symlink_to("global_step40")
    (tmp_path / "best").symlink_to("global_step20")
    done = set_aside(SetAside(str(tmp_path / "global_step40"), str(tmp_path / "global_step20")))
    assert (tmp_path / "latest").read_text() == "global_step20"
    assert {name: os.readlink(tmp_path / name) for name in ("newest", "best")} == {
        "newest": "global_step20",
        "best": "global_step20",
    }
    assert "latest now names global_step20; the link newest now leads to global_step20" in done.reason


def test_link_without_a_fallback_leads_nowhere(tmp_path: Path) -> None:
    """It is renamed too."""
    save_dcp(tmp_path / "step-40")
    (tmp_path / "latest").symlink_to("step-40")
    set_aside(SetAside(str(tmp_path / "step-40"), None))
    assert not os.path.lexists(tmp_path / "latest")
    assert find_whole(tmp_path).seen == ()


def test_local_files_of_this_node_are_renamed(tmp_path: Path) -> None:
    """The name that nodes share stands for a file per rank."""
    for iteration in (50, 100):
        for rank in (0, 1):
            save_file(tmp_path / "job" / str(rank) / f"iter_{iteration:07d}_{rank}_local.pt")
    done = set_aside(SetAside(find_whole(tmp_path).seen[0].path, None))
    assert "2 files of ranks were renamed" in done.reason
    assert newest(tmp_path) == "iter_0000050"


def test_checkpoint_that_is_good_after_all_has_its_name_again(tmp_path: Path) -> None:
    """The one that was set aside last, if there are more."""
    for step in (20, 40):
        save_dcp(tmp_path / f"step-{step}")
    old, new = str(tmp_path / "step-20"), str(tmp_path / "step-40")
    set_aside(SetAside(new, old))
    save_dcp(tmp_path / "step-40")
    (tmp_path / "step-40" / "mark").touch()
    set_aside(SetAside(new, old))
    done = set_aside(SetAside(new, old, is_taken_back=True))
    assert (done.path, done.new_path) == (f"{new}.ftrun-quarantined-2", new)
    assert newest(tmp_path) == "step-40"
    assert (tmp_path / "step-40" / "mark").exists()


def test_tracker_names_what_has_its_name_again(tmp_path: Path) -> None:
    """Without it, it would be no whole checkpoint of Megatron's."""
    save_megatron(tmp_path, 20, 40, tracked=40)
    old, new = str(tmp_path / "iter_0000020"), str(tmp_path / "iter_0000040")
    set_aside(SetAside(new, old))
    assert newest(tmp_path) == "iter_0000020"
    set_aside(SetAside(new, old, is_taken_back=True))
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "40"
    assert newest(tmp_path) == "iter_0000040"


def test_newer_checkpoint_of_the_name_is_not_touched(tmp_path: Path) -> None:
    """Nothing is written over."""
    save_dcp(tmp_path / "step-40")
    path = str(tmp_path / "step-40")
    set_aside(SetAside(path, None))
    save_dcp(tmp_path / "step-40")
    (tmp_path / "step-40" / "mark").touch()
    assert set_aside(SetAside(path, None, is_taken_back=True)).new_path is None
    assert (tmp_path / "step-40" / "mark").exists()


def test_local_files_have_their_names_again(tmp_path: Path) -> None:
    """As many as were set aside on this node; what is not there is told."""
    files = [tmp_path / "s" / f"{rank}" / f"iter_0000040_{rank}_local.pt" for rank in (0, 1)]
    for file in files:
        save_file(file)
    order = SetAside(str(tmp_path / "s" / "iter_0000040"), None)
    assert set_aside(replace(order, is_taken_back=True)).new_path is None
    set_aside(order)
    assert not any(file.exists() for file in files)
    assert set_aside(replace(order, is_taken_back=True)).new_path == order.path
    assert all(file.exists() for file in files)


def test_what_is_gone_is_told(tmp_path: Path) -> None:
    """Another node was quicker, or retention."""
    assert set_aside(SetAside(str(tmp_path / "step-40"), None)).new_path is None
    assert set_aside(SetAside(str(tmp_path / "nowhere" / "step-40"), None)).new_path is None


def test_renaming_is_done_when_the_call_returns(tmp_path: Path) -> None:
    """In a thread, so that a dead file server cannot hold up the agent; what came of it is posted."""
    save_dcp(tmp_path / "step-40")
    posted: list[events.Event] = []
    set_aside_in_thread(SetAside(str(tmp_path / "step-40"), None), posted.append)
    assert [event.kind for event in posted] == ["checkpoint.renamed"]
    assert find_whole(tmp_path).seen == ()

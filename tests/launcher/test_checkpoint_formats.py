"""Each form of checkpoint is whole when its trainer left it so, and is passed over when it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ftrun.launcher.checkpoint import find_whole
from ftrun.launcher.checkpoint_choice import WholeCheckpoints, is_set_aside, read_step
from ftrun.launcher.checkpoint_files import read_step_inside
from tests.support.checkpoints import (
    cut,
    save_dcp,
    save_file,
    save_hugging_face,
    save_megatron,
    save_safetensors,
    shard_of,
)

NVRX = Path(__file__).parents[1] / "support" / "nvrx_checkpoint.py"


def names(found: WholeCheckpoints) -> list[str]:
    """Of those that may be used, newest first."""
    return [Path(one.path).name for one in found.seen]


def reasons(found: WholeCheckpoints) -> str:
    """Why the others may not."""
    return "\n".join(f"{one.path.name} {one.reason}" for one in found.skipped)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=1000.ckpt", 1000),
        ("epoch=3-step=1000-v1.ckpt", 1000),
        ("epoch=3-step=1000-val_loss=0.25.ckpt", 1000),
        ("epoch=3-val_loss=0.25.ckpt", None),
        ("checkpoint-500", 500),
        ("global_step100", 100),
        ("iter_0000100", 100),
        ("model_40.pt", 40),
        ("last.ckpt", None),
        ("tmp-checkpoint-500", None),
        ("step-40.ftrun-quarantined", None),
        ("step-40.ftrun-quarantined-2", None),
    ],
)
def test_step_is_read_from_the_names_that_trainers_give(name: str, step: int | None) -> None:
    """A metric in a name is no step, and what is set aside has none."""
    assert read_step(name) == step
    assert is_set_aside(name) == (name.startswith("tmp") or "quarantined" in name)


def test_single_files_are_ordered_by_the_step_inside_too(tmp_path: Path) -> None:
    """Lightning's last.ckpt is known by its global_step; nothing of it is unpickled."""
    for step in (900, 1000):
        save_file(tmp_path / f"epoch=1-step={step}.ckpt", step)
    save_file(tmp_path / "last.ckpt", 1200)
    save_file(tmp_path / "tokenizer.pt")
    found = find_whole(tmp_path)
    assert [(Path(one.path).name, one.step) for one in found.seen] == [
        ("last.ckpt", 1200),
        ("epoch=1-step=1000.ckpt", 1000),
        ("epoch=1-step=900.ckpt", 900),
    ]
    assert read_step_inside(tmp_path / "tokenizer.pt") is None


def test_file_that_is_saved_in_place_is_found_without_a_step(tmp_path: Path) -> None:
    """As torchrun's tutorial has it: one snapshot.pt, written anew each time."""
    save_file(tmp_path / "snapshot.pt")
    save_file(tmp_path / "vocabulary.pt")
    assert [(Path(one.path).name, one.step) for one in find_whole(tmp_path).seen] == [("snapshot.pt", None)]


def test_files_beside_checkpoint_directories_are_no_checkpoints(tmp_path: Path) -> None:
    """An exported model with a higher number does not win."""
    save_dcp(tmp_path / "step-40")
    save_file(tmp_path / "exported-100.pt")
    assert names(find_whole(tmp_path)) == ["step-40"]


def test_links_do_not_count_twice(tmp_path: Path) -> None:
    """A link to the last file is reported under the file's own name."""
    save_file(tmp_path / "step=40.ckpt", 40)
    (tmp_path / "last.ckpt").symlink_to("step=40.ckpt")
    assert names(find_whole(tmp_path)) == ["step=40.ckpt"]


@pytest.mark.parametrize("length", [1, 100, 1000, 4000])
def test_file_that_was_cut_off_is_unfinished(tmp_path: Path, length: int) -> None:
    """The zip directory stands at the end, so a file without one may be a save that was killed."""
    save_file(tmp_path / "step=20.ckpt")
    cut(save_file(tmp_path / "step=40.ckpt"), length)
    found = find_whole(tmp_path)
    assert names(found) == ["step=20.ckpt"]
    assert [(one.path.name, one.is_unfinished) for one in found.skipped] == [("step=40.ckpt", True)]
    assert not found.has_lost_any


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: data[:1000] + data[1100:], "100 bytes too few"),
        (lambda data: data[:1000] + bytes(100) + data[1000:], "100 bytes too many"),
        (lambda data: bytes(len(data)), "begins with zeros"),
    ],
)
def test_file_that_lost_or_gained_bytes_is_damaged(
    tmp_path: Path, spoil: Callable[[bytes], bytes], reason: str
) -> None:
    """Its zip directory is whole and does not fit to what is before it."""
    path = save_file(tmp_path / "step=40.ckpt")
    path.write_bytes(spoil(path.read_bytes()))
    found = find_whole(tmp_path)
    assert (found.seen, found.has_lost_any) == ((), True)
    assert reason in reasons(found)


def test_old_torch_format_is_no_reason_to_start_from_nothing(tmp_path: Path) -> None:
    """What cannot be judged is not used, and not taken for a save that never ended either."""
    torch.save({"weight": torch.ones(4)}, tmp_path / "step=40.pt", _use_new_zipfile_serialization=False)
    found = find_whole(tmp_path)
    assert (found.seen, found.has_lost_any) == ((), True)
    assert "is not a zip file" in reasons(found)


def test_megatron_directories_are_whole_up_to_the_tracked_one(tmp_path: Path) -> None:
    """The tracker is written when all ranks have saved; what is newer has not ended."""
    save_megatron(tmp_path, 100, 200, 300, tracked=200)
    found = find_whole(tmp_path)
    assert names(found) == ["iter_0000200", "iter_0000100"]
    assert "iter_0000300 is newer than the one that the file beside it names" in reasons(found)
    assert not found.has_lost_any


def test_megatron_directory_with_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    """A tracker says what was whole once."""
    save_megatron(tmp_path, 100, 200, tracked=200)
    cut(tmp_path / "iter_0000200" / "mp_rank_00" / "model_optim_rng.pt")
    found = find_whole(tmp_path)
    assert (names(found), found.has_lost_any) == (["iter_0000100"], True)


def test_megatron_dcp_directory_needs_no_tracker(tmp_path: Path) -> None:
    """DCP's own commit marker counts, and the file beside its shards is looked into."""
    for step in (100, 200):
        save_dcp(tmp_path / f"iter_{step:07d}")
        save_file(tmp_path / f"iter_{step:07d}" / "common.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    assert names(find_whole(tmp_path)) == ["iter_0000200", "iter_0000100"]
    cut(tmp_path / "iter_0000200" / "common.pt")
    assert names(find_whole(tmp_path)) == ["iter_0000100"]


def test_deepspeed_directories_are_whole_up_to_latest(tmp_path: Path) -> None:
    """Its tracker holds a name."""
    for step in (10, 20):
        for rank in (0, 1):
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            save_file(tmp_path / f"global_step{step}" / name)
    (tmp_path / "latest").write_text("global_step10")
    assert names(find_whole(tmp_path)) == ["global_step10"]


def test_hugging_face_directories_are_found(tmp_path: Path) -> None:
    """500 is newer than 90, whatever the order of letters and times."""
    for step in (500, 90):
        save_hugging_face(tmp_path, step)
    assert names(find_whole(tmp_path)) == ["checkpoint-500", "checkpoint-90"]


@pytest.mark.parametrize(
    ("damage", "reason", "is_lost"),
    [
        (lambda d: (d / "trainer_state.json").unlink(), "has no trainer_state.json", False),
        (lambda d: (d / "trainer_state.json").write_text("{"), "trainer_state.json cannot be read", True),
        (lambda d: (d / "model-00002-of-00002.safetensors").unlink(), "is missing", True),
        (lambda d: cut(d / "model-00001-of-00002.safetensors"), "bytes, ", True),
        (lambda d: cut(d / "optimizer.pt", 50), "no zip directory", True),
        (lambda d: save_file(d / "rng_state_3.pth"), "not for rank 2", True),
    ],
)
def test_hugging_face_directory_needs_all_its_parts(
    tmp_path: Path, damage: Callable[[Path], object], reason: str, is_lost: bool
) -> None:
    """Its state file is written last; after that every part must be there."""
    damage(save_hugging_face(tmp_path, 500))
    found = find_whole(tmp_path)
    assert found.seen == ()
    assert (reason in reasons(found), found.has_lost_any) == (True, is_lost)


@pytest.mark.parametrize("marker", ["commit_success.txt", "_SUCCESS", ".ftrun-manifest.0.json"])
def test_marked_directory_is_whole(tmp_path: Path, marker: str) -> None:
    """A marker inside says so, ftrun's own too; without one nobody knows."""
    for step in (10, 20):
        save_file(tmp_path / f"step-{step}" / "model.pt")
    (tmp_path / "step-10" / marker).touch()
    found = find_whole(tmp_path)
    assert names(found) == ["step-10"]
    assert "step-20 has no .metadata and no other sign that its save has ended" in reasons(found)
    assert not found.has_lost_any


def test_marker_without_files_is_no_checkpoint(tmp_path: Path) -> None:
    """Somebody has removed what it stands for."""
    (tmp_path / "step-10").mkdir()
    (tmp_path / "step-10" / "_SUCCESS").touch()
    assert "is marked as whole and has no files" in reasons(find_whole(tmp_path))


def test_directory_with_a_file_per_rank_needs_as_many_as_others(tmp_path: Path) -> None:
    """nvidia-resiliency-ext's TorchAsyncCheckpoint leaves such files and no marker."""
    for step, ranks in ((10, 3), (20, 3), (30, 2)):
        for rank in range(ranks):
            save_file(tmp_path / f"step-{step}" / f"model_rank{rank}.pt")
    found = find_whole(tmp_path)
    assert names(found) == ["step-20", "step-10"]
    assert "step-30 has files of fewer ranks than another" in reasons(found)
    (tmp_path / "step-20" / "model_rank1.pt").unlink()
    (tmp_path / "step-10" / "model_rank2.pt").unlink()
    assert "not for rank 1" in reasons(find_whole(tmp_path))


def test_dcp_with_metadata_per_rank_needs_every_shard(tmp_path: Path) -> None:
    """As DCP writes without coordination between ranks."""
    for rank in (0, 1):
        part = save_dcp(tmp_path / f"part{rank}")
        target = tmp_path / "all" / "step-40"
        target.mkdir(parents=True, exist_ok=True)
        (part / ".metadata").rename(target / f"__{rank}.metadata")
        shard = shard_of(part)
        shard.rename(target / shard.name)
    assert names(find_whole(tmp_path / "all")) == ["step-40"]
    cut(shard_of(target))
    assert "bytes are needed" not in reasons(found := find_whole(tmp_path / "all"))
    assert (found.seen, found.has_lost_any) == ((), True)


def test_local_files_of_nvidia_resiliency_ext_are_found(tmp_path: Path) -> None:
    """An iteration counts when every rank that saves here has it, and all nodes know it by one name."""
    command = [sys.executable, str(NVRX), "local", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    found = find_whole(tmp_path)
    assert [(one.path, one.step) for one in found.seen] == [
        (str(tmp_path / "job" / "iter_0000100"), 100),
        (str(tmp_path / "job" / "iter_0000050"), 50),
    ]
    own = tmp_path / "job" / "1" / "iter_0000100_1_local.pt"
    own.rename(own.with_name("iter_0000100_1_local.dirty.pt"))
    assert names(find_whole(tmp_path)) == ["iter_0000050"]
    cut(tmp_path / "job" / "0" / "iter_0000050_0_local.pt")
    assert find_whole(tmp_path).seen == ()


@pytest.mark.slow
def test_async_directory_of_nvidia_resiliency_ext_is_found(tmp_path: Path) -> None:
    """Its own writer leaves a DCP directory."""
    command = [sys.executable, str(NVRX), "async", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert names(find_whole(tmp_path)) == ["step-100"]
    cut(shard_of(tmp_path / "step-100"))
    assert find_whole(tmp_path).seen == ()


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, json.dumps({"w": 1}).encode()])
def test_damaged_safetensors_headers_give_a_reason(tmp_path: Path, content: bytes) -> None:
    """Whatever is in the file, it is a finding and never an exception."""
    directory = save_hugging_face(tmp_path, 500)
    save_safetensors(directory / "model-00001-of-00002.safetensors").write_bytes(content)
    assert "model-00001-of-00002.safetensors" in reasons(find_whole(tmp_path))

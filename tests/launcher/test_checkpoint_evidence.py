"""Checksums find what lengths cannot, are read once, and say nothing of a later save into the same place."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ftrun.launcher.checkpoint import Checkpoints, find_whole
from ftrun.launcher.checkpoint_disk import Disk, Memory
from ftrun.launcher.checkpoint_evidence import Share
from ftrun.monitor.manifest import name_of_manifest
from ftrun.monitor.manifest_writer import write_manifest
from tests.support.checkpoints import cut, flip, save_dcp, save_file, shard_of


def save(path: Path, ranks: int = 1) -> Path:
    """A DCP directory with the manifests of so many ranks, all files by the first two."""
    save_dcp(path)
    for rank in range(ranks):
        write_manifest(str(path), 40, rank)
    return path


def reasons(directory: Path) -> str:
    """Why checkpoints below it are not used."""
    return "\n".join(one.reason for one in find_whole(directory).skipped)


def test_flipped_bit_is_loaded_by_torch_and_found_by_its_checksum(tmp_path: Path) -> None:
    """What this is for: DCP loads the wrong number without a word."""
    checkpoint = save(tmp_path / "step-40")
    assert find_whole(tmp_path).skipped == ()
    flip(shard_of(checkpoint), 2500)
    state = {"model": {"weight": torch.zeros(64, 16), "bias": torch.zeros(16)}}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    assert not torch.equal(state["model"]["weight"], torch.ones(64, 16))
    found = find_whole(tmp_path)
    assert (found.seen, found.has_lost_any) == ((), True)
    assert "has changed since it was saved: its SHA-256 is " in found.skipped[0].reason


def test_frameworks_pass_over_the_manifest(tmp_path: Path) -> None:
    """A checkpoint with one loads as before, and is saved over as before."""
    checkpoint = save(tmp_path / "step-40")
    state = {"model": {"weight": torch.zeros(64, 16), "bias": torch.ones(16)}}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    assert torch.equal(state["model"]["weight"], torch.ones(64, 16))


def test_checkpoint_that_was_saved_over_is_no_damaged_one(tmp_path: Path) -> None:
    """A manifest of the save before is no evidence, be it of a directory or of a file."""
    checkpoint = save(tmp_path / "directories" / "last")
    save_dcp(checkpoint)
    os.utime(checkpoint / ".metadata", (2e9, 2e9))
    flip(shard_of(checkpoint), 2500)
    assert len(find_whole(tmp_path / "directories").seen) == 1
    file = save_file(tmp_path / "files" / "snapshot.pt")
    write_manifest(str(file), 1, 0)
    save_file(file)
    flip(file, 1000)
    os.utime(file, (2e9, 2e9))
    assert len(find_whole(tmp_path / "files").seen) == 1


def test_file_that_decayed_on_disk_is_found(tmp_path: Path) -> None:
    """Nobody has written it, so its time is what it was, and its content is not."""
    file = save_file(tmp_path / "step=40.ckpt")
    write_manifest(str(file), 40, 0)
    status = file.stat()
    flip(file, 1000)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "step=40.ckpt has changed since it was saved" in reasons(tmp_path)


def test_missing_and_shortened_files_are_found_without_reading(tmp_path: Path) -> None:
    """What the manifest names must be there in its length, also where the format would not miss it."""
    for name in ("extra.txt", "notes.txt"):
        checkpoint = save_dcp(tmp_path / name / "step-40")
        (checkpoint / name).write_text("something")
        write_manifest(str(checkpoint), 40, 0)
    (tmp_path / "extra.txt" / "step-40" / "extra.txt").unlink()
    cut(tmp_path / "notes.txt" / "step-40" / "notes.txt")
    assert "extra.txt, which was there when it was saved" in reasons(tmp_path / "extra.txt")
    assert "notes.txt has 8 bytes, 9 were saved" in reasons(tmp_path / "notes.txt")


@pytest.mark.parametrize("text", ["", '{"version": 1, "files"', "null"])
def test_half_a_manifest_is_no_evidence(tmp_path: Path, text: str) -> None:
    """Neither for the checkpoint nor against it."""
    checkpoint = save(tmp_path / "step-40")
    (checkpoint / name_of_manifest(0)).write_text(text)
    (checkpoint / (name_of_manifest(0) + ".partial")).write_text(text)
    flip(shard_of(checkpoint), 2500)
    assert len(find_whole(tmp_path).seen) == 1


def test_copy_is_judged_without_its_manifest_and_a_true_copy_with_it(tmp_path: Path) -> None:
    """Times tell whether the files are those that were read."""
    save(tmp_path / "a" / "step-40")
    shutil.copytree(tmp_path / "a", tmp_path / "plain", copy_function=shutil.copy)
    shutil.copytree(tmp_path / "a", tmp_path / "true", copy_function=shutil.copy2)
    for name in ("plain", "true"):
        flip(shard_of(tmp_path / name / "step-40"), 2500)
    assert len(find_whole(tmp_path / "plain").seen) == 1
    assert find_whole(tmp_path / "true").seen == ()


def test_manifest_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    """Nothing outside of the checkpoint is read for it."""
    checkpoint = save(tmp_path / "step-40")
    manifest = checkpoint / name_of_manifest(0)
    manifest.write_text(manifest.read_text().replace("__0_0.distcp", "../../etc/passwd"))
    assert len(find_whole(tmp_path).seen) == 1


def test_each_node_reads_its_share(tmp_path: Path) -> None:
    """One node's objection is enough, since all must see the checkpoint that is used."""
    checkpoint = save(tmp_path / "step-40")
    shard = shard_of(checkpoint)
    shard.rename(shard.with_name("__1_0.distcp"))
    metadata = (checkpoint / ".metadata").read_bytes()
    (checkpoint / ".metadata").write_bytes(metadata.replace(b"__0_0.distcp", b"__1_0.distcp"))
    for rank in (0, 1):
        write_manifest(str(checkpoint), 40, rank)
    flip(checkpoint / "__1_0.distcp", 2500)
    checkpoints = Checkpoints(tmp_path, memory=Memory())
    seen = [len(checkpoints.look(share=Share(index, 2)).seen) for index in (0, 1, 2, 3)]
    assert seen == [1, 0, 1, 0]


class CountingMemory(Memory):
    """Counts what was found out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def remember(self, question: str, path: Path, stamp: object, finding: object) -> None:
        self.asked.append((question, path.name))
        super().remember(question, path, stamp, finding)  # type: ignore[arg-type]


def test_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    """A restart does not read a checkpoint again that was read while training ran."""
    checkpoint = save(tmp_path / "step-40")
    memory = CountingMemory()
    checkpoints = Checkpoints(tmp_path, memory=memory)
    assert len(checkpoints.look(is_background=True).seen) == 1
    assert ("sha256", "__0_0.distcp") in memory.asked
    memory.asked.clear()
    assert len(checkpoints.look().seen) == 1
    assert memory.asked == []
    flip(shard_of(checkpoint), 2500)
    # Not within the tick of the kernel's clock in which it was saved.
    os.utime(shard_of(checkpoint), (2e9, 2e9))
    assert checkpoints.look().seen == ()
    assert memory.asked == [("sha256", "__0_0.distcp")]


def test_checksums_that_take_too_long_are_told_and_the_checkpoint_is_used(tmp_path: Path) -> None:
    """Its lengths are right; what a slow disk cannot say in time is said."""
    save(tmp_path / "step-40")
    now = [0.0]

    class SlowDisk(Memory):
        def known(self, question: str, path: Path, stamp: object) -> object:
            now[0] += 100.0 if question == "sha256" else 0.0
            return super().known(question, path, stamp)  # type: ignore[arg-type]

    found = Checkpoints(tmp_path, 50.0, memory=SlowDisk(), clock=lambda: now[0]).look()
    assert [one.step for one in found.seen] == [40]
    assert [one.reason for one in found.unverified] == [
        "2 of 2 files were not compared with their checksums in time"
    ]


def test_many_files_are_read_in_threads(tmp_path: Path) -> None:
    """Results come in the order of the questions, however many ask at a time."""
    disk = Disk(time.monotonic() + 30, time.monotonic, Memory())
    assert disk.map(lambda number: number * 2, range(1000), "counting") == [2 * n for n in range(1000)]

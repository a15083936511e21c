"""A rank's checksums of its own files: which files are its own, the form, and that half of it is nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.monitor.manifest import (
    Manifest,
    ManifestError,
    decode,
    encode,
    is_own,
    name_of_manifest,
    rank_of,
    read_name,
)
from ftrun.monitor.manifest_writer import ManifestWriter, write_manifest
from ftrun.monitor.page import Page
from tests.support.waiting import until

DEADLINE_S = 120.0


def fill(directory: Path, *names: str) -> Path:
    """Files with contents of their own."""
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    return directory


def read(path: str | None) -> Manifest:
    """The manifest that was written."""
    assert path is not None
    return decode(Path(path).read_bytes())


def wait_for(path: Path) -> None:
    """Until the file is there: a thread of the lowest priority is slow on a busy machine."""
    until(path.exists, lambda: f"{path} was not written", DEADLINE_S)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("__3_0.distcp", 3),
        ("__12.metadata", 12),
        ("rng_state_3.pth", 3),
        ("iter_0000100_3_local.pt", 3),
        ("model_rank3.pt", 3),
        ("rank-003.bin", 3),
        ("zero_pp_rank_3_mp_rank_00_optim_states.pt", 3),
        ("mp_rank_02", 2),
        (".metadata", None),
        ("common.pt", None),
        ("model-00001-of-00002.safetensors", None),
        ("frank3.pt", None),
    ],
)
def test_rank_is_read_from_the_names_that_savers_give(name: str, rank: int | None) -> None:
    """What names no rank is rank 0's to answer for."""
    assert rank_of(name) == rank
    assert is_own(name, rank or 0)
    assert not is_own(name, 7)


def test_each_rank_writes_its_own_files_only(tmp_path: Path) -> None:
    """Together the manifests hold every file once."""
    fill(tmp_path, ".metadata", "__0_0.distcp", "__1_0.distcp", "deep/__1_1.distcp", "deep/notes.txt")
    first, second = (read(write_manifest(str(tmp_path), 40, rank)) for rank in (0, 1))
    assert sorted(first.files) == [".metadata", "__0_0.distcp", "deep/notes.txt"]
    assert sorted(second.files) == ["__1_0.distcp", "deep/__1_1.distcp"]
    assert (first.rank, first.step, set(first.commits)) == (0, 40, {".metadata"})
    content = (tmp_path / "__1_0.distcp").read_bytes()
    record = second.files["__1_0.distcp"]
    assert (record.sha256, record.size_bytes) == (hashlib.sha256(content).hexdigest(), len(content))
    assert write_manifest(str(tmp_path), 40, 2) is None


def test_manifest_of_a_single_file_lies_beside_it(tmp_path: Path) -> None:
    """Those of files that were removed since are removed too."""
    fill(tmp_path, "step=40.ckpt", "step=60.ckpt")
    for step in (40, 60):
        write_manifest(str(tmp_path / f"step={step}.ckpt"), step, 0)
    (tmp_path / "step=40.ckpt").unlink()
    write_manifest(str(tmp_path / "step=60.ckpt"), 60, 0)
    assert sorted(os.listdir(tmp_path)) == [".step=60.ckpt.ftrun-manifest.0.json", "step=60.ckpt"]
    assert read_name(".step=60.ckpt.ftrun-manifest.0.json") == ("step=60.ckpt", 0)
    assert write_manifest(str(tmp_path / "step=60.ckpt"), 60, 1) is None


def test_names_of_manifests_are_hidden_and_known() -> None:
    """No framework looks for them, and ftrun knows them again."""
    for file in ("", "a.b.ckpt"):
        name = name_of_manifest(3, file)
        assert name.startswith(".")
        assert read_name(name) == (file, 3)
    assert read_name("ftrun-manifest.0.json") is None


def test_half_a_manifest_is_none(tmp_path: Path) -> None:
    """Wherever it was cut off, and whatever else is in the file."""
    text = encode(read(write_manifest(str(fill(tmp_path, "a", "b")), 7, 0)))
    assert encode(decode(text)) == text
    for length in range(0, len(text) - 2, 7):
        with pytest.raises(ManifestError):
            decode(text[:length])
    for other in ("[]", "null", '{"version": 2}', '{"version": 1}', "\x00"):
        with pytest.raises(ManifestError):
            decode(other)


def test_a_newer_checkpoint_is_read_before_one_that_waits(tmp_path: Path) -> None:
    """Of those that wait only the newest gets its manifest; the thread ends when all is done."""
    writer = ManifestWriter()
    before = len(os.listdir("/proc/self/task"))
    paths = [fill(tmp_path / str(step), "data") for step in range(20)]
    for step, path in enumerate(paths):
        writer.order(str(path), step, 0)
    wait_for(paths[-1] / name_of_manifest(0))
    until(lambda: len(os.listdir("/proc/self/task")) <= before, lambda: "a thread is left", DEADLINE_S)
    writer.order(str(fill(tmp_path / "later", "data")), 99, 0)
    wait_for(tmp_path / "later" / name_of_manifest(0))


SAVES = """
import os, sys, threading, time
from contextlib import suppress
from pathlib import Path
from ftrun.monitor import client
path = Path(sys.argv[1])
client.checkpoint_saved(path, 40)
seen = set()
while not list(path.glob(".ftrun-manifest.*.json")):
    for task in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            seen.add(os.getpriority(os.PRIO_PROCESS, int(task)))
    time.sleep(0.001)
print(threading.active_count(), "torch" in sys.modules, max(seen) == 19)
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_script_that_reports_a_checkpoint_leaves_a_manifest(tmp_path: Path, rank: str) -> None:
    """In the background at the lowest priority, in no thread that the script could see, without torch."""
    fill(tmp_path, ".metadata", "__0_0.distcp", "__1_0.distcp")
    for name in ("__0_0.distcp", "__1_0.distcp"):
        os.truncate(tmp_path / name, 300 << 20)  # enough to be seen at it; a hole in the file
    page = Page.create()
    environment = {**os.environ, "FTRUN_PAGE": page.path, "RANK": rank}
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["1", "False", "True"]
    assert (page.read().checkpoint_step, page.read().checkpoint_path) == (40, str(tmp_path))
    assert f"__{rank}_0.distcp" in read(str(tmp_path / name_of_manifest(int(rank)))).files
    page.close()

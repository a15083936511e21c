"""What counts as a library, and what a script's own directory shadows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ftrun.monitor.page import Page
from ftrun.monitor.progress import importable_names, imported_library_modules, library_directories


def test_a_directory_offers_modules_and_regular_packages(tmp_path: Path) -> None:
    """Not directories without __init__ (wandb/, data/): an installed package wins over those."""
    for name in ("json.py", "native.cpython-311-x86_64-linux-gnu.so", "plain.so", "notes.txt"):
        (tmp_path / name).touch()
    for name in ("package", "wandb"):
        (tmp_path / name).mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    among = {"json", "native", "plain", "package", "wandb", "notes", "gone"}
    assert importable_names(str(tmp_path), among) - {"native"} == {"json", "plain", "package"}
    assert importable_names(str(tmp_path), {"json"}) == {"json"}
    assert importable_names(str(tmp_path / "gone"), among) == frozenset()


def test_files_beside_the_script_are_not_looked_at_one_by_one(tmp_path: Path) -> None:
    """A script may lie among 100,000 of them: only directories that are called like a module are opened."""
    for number in range(200):
        (tmp_path / f"sample{number}.json").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    calls: list[str] = []

    def note(frame: object, event: str, function: object) -> None:
        if event == "c_call":
            calls.append(getattr(function, "__name__", ""))

    sys.setprofile(note)
    try:
        names = importable_names(str(tmp_path), {"package", "json"})
    finally:
        sys.setprofile(None)
    assert names == {"package"}
    assert sum("stat" in name or "exists" in name for name in calls) < 10


REPORT = """
import json, sys
import torch, beside, mine
from ftrun.monitor.progress import imported_library_modules
print(json.dumps(imported_library_modules(sys.argv[1])))
"""


def test_packages_installed_outside_of_site_packages_are_libraries(tmp_path: Path) -> None:
    """Where torch comes from and what is called site-packages, but not in, or around, the script's tree."""

    def put(path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path.parent)

    job = tmp_path / "project" / "job"
    put(tmp_path / "prefix" / "torch" / "__init__.py")
    path = [
        str(tmp_path / "prefix"),
        put(tmp_path / "module" / "site-packages" / "beside.py"),
        put(tmp_path / "sources" / "mine.py"),
    ]

    def reported(script_directory: Path) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", REPORT, str(script_directory)],
            check=True,
            timeout=60,
            cwd=job,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
        )
        return {"torch", "beside", "mine"} & set(json.loads(done.stdout))

    job.mkdir(parents=True)
    assert reported(job) == {"torch", "beside"}
    assert reported(tmp_path / "prefix" / "scripts") == {"beside"}
    assert reported(tmp_path) == set()


def test_what_the_scripts_directory_shadows_is_not_reported(tmp_path: Path) -> None:
    """The name would mean something else to the script than to a standby."""
    assert "json.decoder" in imported_library_modules(None)
    (tmp_path / "json.py").touch()
    names = imported_library_modules(str(tmp_path))
    assert not [name for name in names if name.partition(".")[0] == "json"]
    assert "pytest" in names


def test_only_modules_that_can_be_imported_by_their_name_are_reported() -> None:
    """Aliases, built-in modules, our own and the user's are left out."""
    names = imported_library_modules(None)
    left_out = {"os.path", "sys", "__main__", "ftrun", "ftrun.monitor.progress", __name__}
    assert not left_out & set(names)
    assert all(sys.modules[name].__spec__ is not None for name in names)


def test_library_directories_hold_the_standard_library_and_installed_packages() -> None:
    """Each ends with a slash, so that a directory beside it with a longer name is none."""
    directories = library_directories()
    assert all(directory.endswith("/") for directory in directories)
    assert (json.__file__ or "").startswith(directories)
    assert not os.path.abspath("train.py").startswith(directories)


COUNT_STEPS = """
import sys
from ftrun.monitor.page_writer import PageWriter
from ftrun.monitor.progress import watch_optimizer
watch_optimizer(PageWriter.open(sys.argv[1]))
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
get_optimizer_state_dict(model, optimizer)
assert optimizer.state, "torch made the state with a step"
for _ in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""


def test_a_step_that_only_makes_optimizer_state_is_no_progress() -> None:
    """Loading a checkpoint into a fresh optimizer steps once with learning rate zero; that trains nothing."""
    page = Page.create()
    try:
        subprocess.run([sys.executable, "-c", COUNT_STEPS, page.path], check=True, timeout=60)
        assert page.read().steps == 3
    finally:
        page.close()
